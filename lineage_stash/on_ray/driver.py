"""A driver: the user's script as a peer. It cannot be run again, so the actors that it calls log what it sent them.

Any thread of the script may call; threads that wait do so side by side. `resumable` has the one that can be resumed.
"""

import getpass
import json
import os
import secrets
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray

from lineage_stash.core import effects, events
from lineage_stash.core.backlog import Backlog
from lineage_stash.core.frontier import covers
from lineage_stash.core.handles import names_actors
from lineage_stash.core.history import History
from lineage_stash.core.ids import FIRST_INCARNATION, Member, PeerId, Ref
from lineage_stash.core.peer import Peer
from lineage_stash.core.rope import weigh
from lineage_stash.on_ray import payloads, services
from lineage_stash.on_ray.control_plane import ControlPlaneAway
from lineage_stash.on_ray.errors import LineageLost
from lineage_stash.on_ray.levels import default_level
from lineage_stash.on_ray.limits import within_limits
from lineage_stash.on_ray.process import POLICY, TICK_S, Process
from lineage_stash.on_ray.recoveries import ORPHANED, orphan_key
from lineage_stash.on_ray.refs import ObjectRef
from lineage_stash.on_ray.registry import COORDINATOR, replica_name
from lineage_stash.on_ray.replica_sets import lost_replicas
from lineage_stash.on_ray.runtime import Runtime, deadline_after, timed_out
from lineage_stash.on_ray.telling import warn
from lineage_stash.on_ray.unborn import fail_calls_of_unborn
from lineage_stash.shell import address_of, open_store
from lineage_stash.store.contract import GetCheckpoint

LOOK_EVERY_CALLS = 128
"""While calls are submitted without a pause, how often to look at the network."""

LARGE_BYTES = 16 * 1024
"""Calls of this size look at the network each."""

MOST_KEPT_BYTES = 64 * 1024 * 1024
"""Payloads that one actor has not made durable yet; then submitting waits, which slows this script and nobody else."""

REACH_STORE_S = 8.0
"""How long a script waits for the store when it begins; then it says why it does not."""

DRIVERS = "driver-"
"""How the ids of drivers, and so those of their runs, begin."""

TERMINATE_CALL = payloads.pack_call("__ray_terminate__", (), {})

GOODBYE_S = 10.0
"""How long to wait at the end for the actors to make durable what this driver sent them."""


class Driver(Runtime):
    """The runtime of a script."""

    def __init__(self, peer: PeerId, process: Process) -> None:
        super().__init__(process)
        self.id = peer
        self.stopped: str | None = None
        self.run: dict[str, Any] = {}
        self.created = 0
        self.submitted = 0
        process.on_cut_off = self.stop

    @classmethod
    def begin(cls) -> "Driver":
        """Take part, as somebody who was never there before."""
        peer = PeerId(f"{DRIVERS}{secrets.token_hex(4)}")
        address = address_of(peer, FIRST_INCARNATION)
        process = Process(address)
        driver = cls(peer, process)
        member = Member(peer, process.node, False)
        process.registry.settle_in(address, process.place)
        history, ignored = process.registry.register(member)
        driver._open_store(history)
        driver._note_run()
        driver.namespace = ray.get_runtime_context().namespace
        driver.unreferenced = deque()
        policy = within_limits(POLICY, process.plane)
        peer_of_script = Peer(member, FIRST_INCARNATION, history, policy, ignored=ignored, spool=driver.spool.verbs)
        driver._enter(peer_of_script, events.MainStarted())
        return driver

    def _open_store(self, history: History) -> None:
        process = self.process
        process.store = open_store(process.registry.present_set(), history, process.links, process.registry)
        self._reach_store()

    def _enter(self, peer: Peer, first: object) -> None:
        """Begin to act for the peer that the script is; what happens to it first."""
        process = self.process
        with process.lock:
            self.live(peer)
            self.shell.level = default_level(process.plane)
            self.shell.feed(first)
            process.links.reach(COORDINATOR)
            process.open_mail()
        process.start_steward()

    def _reach_store(self) -> None:
        """Begin only where a majority of the store answers: a script that cannot be made durable should not start."""
        process = self.process
        assert process.store is not None
        answers: list[object] = []
        with process.lock:
            process.store.request(GetCheckpoint(self.id), answers.append)
        deadline = deadline_after(REACH_STORE_S)
        while not answers:
            if time.monotonic() > deadline:
                process.close()
                raise services.StoreUnreachable(self._why_unreachable())
            process.wait()

    def _why_unreachable(self) -> str:
        process = self.process
        assert process.store is not None
        replicas = process.store.set.replicas
        silent = [replica_name(replica) for replica in replicas if replica_name(replica) not in process.links.open]
        lost = "".join(f" {replica_name(of)} is lost: {why}." for of, why in lost_replicas(process.plane).items())
        connected = "all are connected, but do not answer: are their disks slow or full?"
        why = f"no connection to {', '.join(silent)}." if silent else connected
        return (
            f"the store did not answer within {REACH_STORE_S:g} s: {process.store.majority} of {len(replicas)} "
            f"replicas are needed; {why}{lost} See stash status."
        )

    def _note_run(self) -> None:
        context = ray.get_runtime_context()
        self.run |= {
            "started_at": time.time(), "entrypoint": " ".join(sys.argv), "user": getpass.getuser(), "pid": os.getpid(),
            "node": self.process.node, "job_id": context.get_job_id(),
        }  # fmt: skip
        self.process.plane.put(f"runs/{self.id}", json.dumps(self.run).encode())

    def stop(self, reason: str) -> None:
        """The machine has stopped: every later question is answered by that."""
        self.stopped = reason

    def _has_stopped(self) -> bool:
        return self.stopped is not None

    def _check(self) -> None:
        if self.stopped is None:
            return
        if self.process.plane.get(orphan_key(self.id)) is not None:
            raise LineageLost(
                f"this script cannot go on: {ORPHANED}. Some of what it was told has not happened. Start it again; "
                "detached actors are there, rolled back to what is known. With a higher max_failures, or none, more "
                "is survived."
            )
        raise RuntimeError(
            f"this driver is no part of the run any more ({self.stopped}). If it was stopped or cut off for too "
            "long, it was taken for dead: start it again; detached actors are still there."
        )

    def prepare_submission(self, payload: bytes, callee: PeerId | None) -> None:
        """Look at the network now and then, and wait while too much is under way."""
        self.submitted += 1
        if self.submitted % LOOK_EVERY_CALLS == 0 or weigh(payload) > LARGE_BYTES or self.stopped is not None:
            self._make_room(callee)

    def _make_room(self, callee: PeerId | None) -> None:
        self.process.wait(0)
        kept = Backlog() if callee is None else self.peer.counterpart(callee).outbox.calls
        while (kept.bytes > MOST_KEPT_BYTES or self.peer.program.at_cap) and self.stopped is None:
            self.process.wait()
        self._check()

    def wait(self, began: float) -> None:
        """Wait on the sockets, unless there is nothing to be waited for any more."""
        super().wait(began)
        self._check()

    def fetch(self, refs: tuple[ObjectRef, ...], timeout_s: float | None) -> None:
        """Wait until all replies are here."""
        self._check()
        wanted = tuple([ref.ref for ref in refs if ref.ref is not None])
        is_ready = self.peer.program.values.is_ready
        deadline = deadline_after(timeout_s)
        for ref in wanted:
            while not is_ready(ref):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise timed_out(len(refs), timeout_s)
                self.process.wait(min(TICK_S, left))
                self._check()
        for claim, reply in zip(refs, self._ask(events.GetStarted(wanted)), strict=True):
            claim._reply = reply
            if names_actors(reply):
                claim.hold_on()

    def commit(self) -> None:
        """Wait for the replies that this script has got, and all that they depend on."""
        with self.process.lock:
            wanted = tuple(self.peer.lineage.needs.items())
            self.shell.feed(events.CommitWanted())
        while not covers(self.peer.lineage.committed, wanted):
            self._check()
            self.process.wait()

    def next_item(self, ref: ObjectRef, position: int) -> Ref | None:
        """Wait for an item of a stream."""
        assert ref.ref is not None, "a stream is the reply to a call"
        while True:
            with self.process.lock:
                known, item = self.peer.program.values.next_item(ref.ref, position)
            if known:
                return item
            self.process.wait()
            self._check()

    def wait_for(self, refs: list[ObjectRef], count: int, timeout_s: float | None) -> list[int]:
        """Wait until so many have come or time is up."""
        deadline = deadline_after(timeout_s)
        while True:
            self._check()
            with self.process.lock:
                ready = [at for at, ref in enumerate(refs) if self._is_here(ref.claim)]
            left = deadline - time.monotonic()
            if len(ready) >= count or left <= 0:
                return ready
            self.process.wait(min(TICK_S, left))

    def _is_here(self, claim: ObjectRef) -> bool:
        return claim._reply is not None or (claim.ref is not None and self.peer.program.values.is_ready(claim.ref))

    def next_created(self) -> int:
        """One after the other."""
        self.created += 1
        return self.created

    def observe(self, read: Callable[[], Any]) -> Any:
        """A driver is not run again: it just reads."""
        return read()

    # actors whose handle was dropped

    def on_ticked(self) -> None:
        """See whether there are any."""
        super().on_ticked()
        if self.unreferenced is not None:
            self._end_unreferenced()

    def _end_unreferenced(self) -> None:
        """Have actors end that nobody can call any more; the request waits its turn behind the calls they have got.

        A tick does it, because a handle may be dropped at any moment, by any thread, and under the lock.
        """
        program = self.peer.program
        assert self.unreferenced is not None, "it was set when this script began"
        if not self.unreferenced:
            return
        resume = self._orders[effects.Resume]
        self._orders[effects.Resume] = _ignore  # nobody waits for these answers, and somebody may wait for another one
        try:
            while self.unreferenced and not program.at_cap and program.held_back is None and not self._has_stopped():
                self.shell.feed(events.CallSubmitted(self.unreferenced.popleft(), TERMINATE_CALL, wanted=False))
        finally:
            self._orders[effects.Resume] = resume

    def leave(self, actors: list[PeerId]) -> None:
        """Have the actors of this script end, wait until nobody needs it, and go."""
        process = self.process
        self.has_left = True
        process.plane.patience_s = GOODBYE_S
        if self.stopped is None:
            with suppress(ControlPlaneAway):  # then there is nobody left to say goodbye to
                self._say_goodbye(actors)
        process.close()

    def _say_goodbye(self, actors: list[PeerId]) -> None:
        process = self.process
        retired = {key.removeprefix("retired/") for key in process.plane.keys("retired/")}
        actors = [actor for actor in (*actors, *self.dispatcher.runners) if actor not in retired]
        for actor in actors:
            process.kill(actor, "it has left: the driver that created it has ended")
        for actor in actors:
            fail_calls_of_unborn(self, actor)
        with process.lock:
            self.shell.feed(events.RetireAsked(abandons_tasks=True))
        deadline = deadline_after(GOODBYE_S)
        while not self._has_stopped() and time.monotonic() < deadline:
            process.wait()
        process.plane.put(f"runs/{self.id}", json.dumps({**self.run, "ended_at": time.time()}).encode())
        if not self._has_stopped():
            warn("no goodbye", "left without a goodbye: the store did not answer in time", peer=self.id)


def _ignore(_effect: effects.Effect) -> None:
    """For answers that nobody waits for."""
