"""A replica of the store as a Ray actor: a disk, and a loop that answers what gathered while the disk was busy."""

import logging
import threading
import time
from pathlib import Path
from typing import Any

from lineage_stash.on_ray.links import Kind, Link
from lineage_stash.on_ray.mail import Addressee
from lineage_stash.on_ray.process import TICK_S, Process
from lineage_stash.on_ray.registry import REPLICA
from lineage_stash.store.disk import DiskReplica

NUMBER_BYTES = 8
GATHER_S = 0.002
"""How long the first request waits for others: some writes to a disk."""

DELAYED_TURN_S = 0.001
SEGMENT_BYTES = 64 * 1024 * 1024
ENVIRONMENT = {
    "env_vars": {
        "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 28), "MALLOC_TRIM_THRESHOLD_": str(1 << 29),
    }
}  # fmt: skip
"""Has the allocator reuse large buffers: getting one from the kernel, page by page, takes longer than filling it."""

log = logging.getLogger("lineage_stash")


class ReplicaActor(Addressee):
    """What Ray sees: a process whose thread starts again, on the same folder, whenever Ray restarts it."""

    def __init__(self, folder: str) -> None:
        self.keeper = Keeper(Path(folder))
        threading.Thread(target=self.keeper.run, name="stash replica", daemon=True).start()

    def address(self) -> str:
        """Under which address it goes, once it is up."""
        self.keeper.is_up.wait()
        return REPLICA


class Keeper:
    """Requests that came in one turn are made durable together, then answered."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_up = threading.Event()
        self.paused = False
        self.delay_s = 0.0
        self._asked: list[tuple[Link, bytes, memoryview]] = []
        self._due: list[tuple[float, Link, tuple[bytes, bytes]]] = []

    def run(self) -> None:
        """Come up, and answer for ever."""
        disk = DiskReplica(self.folder, segment_bytes=SEGMENT_BYTES)
        process = Process(REPLICA, actor=REPLICA, on_control=self._on_control,
                          on_dead=lambda _address, _reason: None)  # fmt: skip
        process.on_ask = self._on_ask
        process.plane.put("storage", str(self.folder).encode())
        process.registry.settle_in(REPLICA, process.place)
        self.is_up.set()
        while True:
            process.wait(DELAYED_TURN_S if self._due else TICK_S)
            if self._asked and not self.paused:
                self._gather(process)
                asked, self._asked = self._asked, []
                answers = disk.handle_all([frame for _, _, frame in asked])
                due = time.monotonic() + self.delay_s
                for (link, number, _), answer in zip(asked, answers, strict=True):
                    if isinstance(answer, bytes):
                        self._due.append((due, link, (number, answer)))
                    else:
                        log.warning("dropped a request from %s: %s", link.introduction, answer)
            self._answer(process)

    def _gather(self, process: Process) -> None:
        """Let requests of others come in, so that they share a write to the disk; nobody's call waits for it."""
        ends_at = time.monotonic() + GATHER_S
        while (left := ends_at - time.monotonic()) > 0:
            time.sleep(left)
        process.loop.poll(0)

    def _answer(self, process: Process) -> None:
        now = time.monotonic()
        with process.lock:
            while self._due and self._due[0][0] <= now:
                _, link, body = self._due.pop(0)
                link.send(Kind.ANSWER, body)

    def _on_ask(self, link: Link, body: bytes) -> None:
        self._asked.append((link, body[:NUMBER_BYTES], memoryview(body)[NUMBER_BYTES:]))

    def _on_control(self, _: Link, said: dict[str, Any]) -> None:
        """A slow or absent disk, for failure injection."""
        self.paused = bool(said.get("pause", self.paused))
        self.delay_s = float(said.get("delay_ms", self.delay_s * 1e3)) / 1e3
