"""A replica of the store as a Ray actor: a disk, and a loop that answers what gathered while the disk was busy.

Rules:
- Requests that came in one turn are made durable together, then answered; those that ask for no more than memory are
  answered before.
- A replica that does not have any more what it has confirmed (its folder was emptied or damaged, or it had promised in
  memory and was killed) says so in the registry and serves nobody: another one, with another number, takes its place.
"""

import json
import logging
import os
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lineage_stash.core.ids import Epoch
from lineage_stash.core.rope import whole
from lineage_stash.on_ray.links import NUMBER_BYTES, TICKET, Kind, Link
from lineage_stash.on_ray.mail import Addressee
from lineage_stash.on_ray.process import TICK_S, Process
from lineage_stash.on_ray.registry import replica_name
from lineage_stash.on_ray.replica_sets import newest_set, note_lost, note_opened
from lineage_stash.on_ray.service_vitals import KeeperVitals
from lineage_stash.on_ray.telling import log, tell, tell_crash, warn
from lineage_stash.on_ray.versions import note_version
from lineage_stash.ports import Frame
from lineage_stash.store.archive_faults import ArchiveTakenOver
from lineage_stash.store.contract import Level, ReplicaId
from lineage_stash.store.disk import Asked, DiskReplica, Refusal, StoreError, StoreInUse

if TYPE_CHECKING:
    from lineage_stash.store.archive import ArchiveReplica

GATHER_S = 0.002
"""How long the first request waits for others: some writes to a disk."""

ARCHIVE_GATHER_S = 0.1
"""The same for the archive, where each write is an object of its own."""

ARCHIVE_KEY = "LINEAGE_STASH_ARCHIVE_KEY"
"""The environment variable with the key that the archive is signed with; otherwise it is the cluster's own secret, and
nobody can read the archive after the cluster's end."""

IN_USE_S = 30.0
"""How long to wait for the process before this one to let go of the folder."""

DELAYED_TURN_S = 0.001
SEGMENT_BYTES = 64 * 1024 * 1024
ENVIRONMENT = {
    "env_vars": {
        "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 28), "MALLOC_TRIM_THRESHOLD_": str(1 << 29),
    }
}  # fmt: skip
"""Has the allocator reuse large buffers: getting one from the kernel, page by page, takes longer than filling it."""

STORE = "store"
"""The fact in the control plane that tells this cluster's store from any other's."""

Waiting = tuple[Link, bytes, Level, Asked]
"""A request: who asked, the number that goes before the answer, how durable that must be, and what was asked."""


def is_archive(folder: str) -> bool:
    """Whether a replica's storage is a file system by URL."""
    return "://" in folder


class ReplicaActor(Addressee):
    """What Ray sees: a process whose thread starts again, on the same folder, whenever Ray restarts it."""

    def __init__(self, replica: ReplicaId, folder: str) -> None:
        self.keeper = Keeper(replica, folder)
        threading.Thread(target=self._keep, name="stash replica", daemon=True).start()

    def _keep(self) -> None:
        try:
            self.keeper.run()
        except BaseException:  # noqa: BLE001 - whatever it was, the thread is over
            tell_crash(replica_name(self.keeper.replica))
            os._exit(1)  # Ray restarts a process that ended, and not a thread

    def address(self) -> str:
        """Under which address it goes, once it is up; raises if it cannot come up."""
        self.keeper.is_decided.wait()
        if self.keeper.fault:
            raise RuntimeError(self.keeper.fault)
        return replica_name(self.keeper.replica)


class Keeper:
    """One replica's disk and its requests."""

    def __init__(self, replica: ReplicaId, folder: str) -> None:
        self.replica = replica
        self.folder = folder
        self.gather_s = ARCHIVE_GATHER_S if is_archive(folder) else GATHER_S
        self.is_decided = threading.Event()
        self.fault = ""
        self.paused = False
        self.retired = False
        self.delay_s = 0.0
        self.requests = 0
        self.commits = 0
        self.commit_s = 0.0
        self.disk_bytes = 0
        self._asked: list[Waiting] = []
        self._due: list[tuple[float, Link, tuple[bytes, ...]]] = []

    def run(self) -> None:
        """Come up, and answer until another replica has taken over."""
        name = replica_name(self.replica)
        process = Process(name, actor=name, on_control=self._on_control, on_dead=lambda _address, _reason: None)
        process.on_ask = self._on_ask
        disk = self._open(process)
        if disk is None:
            return
        note_version(process.plane, name)
        process.registry.settle_in(name, process.place)
        self.disk_bytes = disk.disk_bytes
        process.publish(KeeperVitals(self, process))
        self.is_decided.set()
        try:
            self._serve_all(process, disk)
        except ArchiveTakenOver as error:
            # Another process has taken over the archive; this one is idle from here on, or Ray would restart it.
            name = replica_name(self.replica)
            warn("archive taken over", f"store: {name} ends: {error}", replica=name)
        else:
            disk.close()
            if not is_archive(self.folder):
                shutil.rmtree(self.folder, ignore_errors=True)
        process.close()

    def _serve_all(self, process: Process, disk: "DiskReplica | ArchiveReplica") -> None:
        while not self.retired:
            process.wait(DELAYED_TURN_S if self._due else TICK_S)
            if self._asked and not self.paused:
                self._gather(process)
                self._serve(process, disk)
            self._answer(process)

    def _open(self, process: Process) -> "DiskReplica | ArchiveReplica | None":
        """Open the folder; None if what this replica has confirmed is not in it any more."""
        plane = process.plane
        identity = f"{plane.put_if_absent(STORE, process.token.encode()).decode()}/{replica_name(self.replica)}"
        had_opened = plane.get(f"opened/{self.replica}") is not None
        try:
            disk = self._open_storage(process, identity, had_opened)
        except StoreError as error:
            self._give_up(process, str(error))
            return None
        current = newest_set(plane)
        if disk.forgot and current is not None and len(current.replicas) > 1 and self.replica in current.replicas:
            disk.close()
            self._give_up(process, "it had promised in memory what it had not written, and was killed")
            return None
        note_opened(plane, self.replica)
        if had_opened:
            name = replica_name(self.replica)
            warn("replica back", f"store: {name} has died, and was started again with what it had", replica=name)
        return disk

    def _open_storage(self, process: Process, identity: str, had_opened: bool) -> "DiskReplica | ArchiveReplica":
        deadline = time.monotonic() + IN_USE_S
        while not is_archive(self.folder):
            try:
                return DiskReplica(
                    Path(self.folder), segment_bytes=SEGMENT_BYTES, identity=identity, expect_existing=had_opened
                )
            except StoreInUse:
                if time.monotonic() > deadline:
                    raise
                time.sleep(TICK_S)  # the process before this one is still ending
        from lineage_stash.store.archive import ArchiveReplica  # loads pyarrow, which other replicas need not

        key = os.environ.get(ARCHIVE_KEY, "").encode() or process.plane.get("secret") or b""
        return ArchiveReplica(self.folder, identity=identity, key=key, expect_existing=had_opened)

    def _give_up(self, process: Process, reason: str) -> None:
        self.fault = f"{replica_name(self.replica)} on node {process.node} cannot serve: {reason}"
        tell("replica unfit", f"store: {self.fault}", logging.ERROR, replica=replica_name(self.replica))
        note_lost(process.plane, self.replica, reason)
        self.is_decided.set()

    # serving

    def _gather(self, process: Process) -> None:
        """Let requests of others come in, so that they share a write to the disk; nobody's call waits for it."""
        ends_at = time.monotonic() + self.gather_s
        while (left := ends_at - time.monotonic()) > 0:
            time.sleep(left)
        process.loop.poll(0)

    def _serve(self, process: Process, disk: "DiskReplica | ArchiveReplica") -> None:
        asked, self._asked = self._asked, []
        answered = list(zip(asked, disk.apply([each for _, _, _, each in asked]), strict=True))
        early = [pair for pair in answered if pair[0][2] is Level.MEMORY]
        if early:
            disk.note_memory_promise()
            self._put_answers(early)
            self._answer(process)
        began = time.monotonic()
        disk.commit()
        self.commit_s += time.monotonic() - began
        self.commits += 1
        self.requests += len(asked)
        self.disk_bytes = disk.disk_bytes
        self._put_answers([pair for pair in answered if pair[0][2] is not Level.MEMORY])
        if disk.damaged and not self.fault:
            self.fault = f"damaged: {disk.damaged[0]}"
            damage = str(disk.damaged[0])
            process.registry.ask(lambda: note_lost(process.plane, self.replica, damage))

    def _put_answers(self, answered: list[tuple[Waiting, Frame | Refusal]]) -> None:
        for (link, number, _, _), answer in answered:
            self._put_answer(link, number, answer)

    def _put_answer(self, link: Link, number: bytes, answer: Frame | Exception) -> None:
        if isinstance(answer, Exception):
            log.warning("dropped a request from %s: %s", link.introduction, answer)
            return
        pieces = answer if isinstance(answer, tuple) else (answer,)
        self._due.append((time.monotonic() + self.delay_s, link, (number, *pieces)))

    def _answer(self, process: Process) -> None:
        now = time.monotonic()
        with process.lock:
            while self._due and self._due[0][0] <= now:
                _, link, body = self._due.pop(0)
                link.send(Kind.ANSWER, body)

    def _on_ask(self, link: Link, body: bytes) -> None:
        _, epoch, level = TICKET.unpack_from(body)
        asked = Asked(Epoch(epoch), memoryview(whole(body))[TICKET.size :])
        self._asked.append((link, body[:NUMBER_BYTES], Level(level), asked))

    def _on_control(self, link: Link, said: dict[str, Any]) -> None:
        """A slow or absent disk, for failure injection; or the end, because another one has taken over."""
        self.paused = bool(said.get("pause", self.paused))
        self.delay_s = float(said.get("delay_ms", self.delay_s * 1e3)) / 1e3
        self.retired = bool(said.get("retire", self.retired))
        if "confirm" in said:
            link.send(Kind.CONTROL, json.dumps({"pause": self.paused, "delay_ms": 1e3 * self.delay_s}).encode())
