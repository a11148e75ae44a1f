"""The coordinator as a Ray actor: notices deaths, runs rounds, keeps spares, and writes down what happened.

Rules:
- It has a link to every process. A link that breaks is a death; a suspicion of others is one only if this link is
  broken too, or cannot be made. Silence alone is not: a busy interpreter is not dead.
- It holds nothing that matters. Ray restarts it, and it starts over from the registry.
- A new life takes a spare where one fits, and a fresh host otherwise; one that does not come up is taken for dead.
"""

import json
import os
import sys
import threading
import time
import traceback
from functools import partial
from typing import Any

from lineage_stash import codec
from lineage_stash.core import events
from lineage_stash.core.ids import Incarnation, NodeId, PeerId
from lineage_stash.core.recovery import Coordinator
from lineage_stash.on_ray.creation import Creation, read_creation, start_host, start_spare
from lineage_stash.on_ray.links import Kind, Link
from lineage_stash.on_ray.mail import PING_S, Addressee
from lineage_stash.on_ray.process import POLICY, TICK_S, Process, split_address
from lineage_stash.on_ray.recoveries import Recoveries
from lineage_stash.on_ray.registry import COORDINATOR
from lineage_stash.on_ray.replica_watch import ReplicaWatch
from lineage_stash.shell import Shell, address_of, open_store

COME_UP_S = 30.0
"""How long a fresh host may take; a loaded machine needs seconds to start a Python."""

OLD_SPARES_S = 3.0
"""How long a coordinator that was restarted waits for the spares of its predecessor to report."""

SUSPECT_AGAIN_S = 1.0
"""When the control plane was away as a death was looked into, how soon to look again."""

NEW_SPARE_S = 1.0
"""A spare that was used is replaced a little later, so that its start does not compete with the recovery."""


class CoordinatorActor(Addressee):
    """What Ray sees: a process whose thread starts again whenever Ray restarts it."""

    def __init__(self, spares: int, replicas: int | None) -> None:
        self.office = Office(spares, replicas)
        threading.Thread(target=self._run, name="stash coordinator", daemon=True).start()

    def _run(self) -> None:
        try:
            self.office.run()
        except BaseException:  # noqa: BLE001 - whatever it was, the thread is over
            traceback.print_exc()
            os._exit(1)  # Ray restarts a process that ended, and not a thread

    def address(self) -> str:
        """Under which address it goes, once it is up."""
        self.office.is_up.wait()
        return self.office.process.loop.introduction


class Office:
    """The coordinator's machine, and all that it needs of the world."""

    def __init__(self, spares: int, replicas: int | None) -> None:
        self.spares_wanted = spares
        self.replicas_wanted = replicas
        self.is_up = threading.Event()
        self.spares: dict[str, str] = {}
        self.spares_coming = 0
        self.spares_started = 0
        self.expected: dict[str, float] = {}
        self.reaped: set[PeerId] = set()
        self.process: Process
        self.machine: Coordinator
        self.recoveries: Recoveries
        self.watch: ReplicaWatch

    def run(self) -> None:
        """Come up, and coordinate for ever."""
        process = self.process = Process("", actor=COORDINATOR, ping_s=PING_S, on_control=self._on_control,
                                         on_dead=self._on_dead)  # fmt: skip
        address = process.loop.introduction = f"{COORDINATOR}-{process.token}"
        history = process.registry.read_history()
        process.store = open_store(process.registry.present_set(), history, process.links, process.registry)
        self.watch = ReplicaWatch(process, self.replicas_wanted)
        self.machine = Coordinator(address, history, POLICY)
        process.registry.starter = self._start
        process.on_message = self._on_message
        process.on_arrival = self._on_arrival
        with process.lock:
            process.shell = Shell(self.machine, transport=process.links, membership=process.registry, outside=self,
                                  executor=None, store=process.store)  # fmt: skip
            self.recoveries = Recoveries(self.machine, process.shell, process.registry)
        process.registry.settle_in(address, process.place)
        process.plane.put(COORDINATOR, address.encode())
        with process.lock:
            for member in process.registry.read_members():
                if member.peer not in history.gone:
                    process.links.reach(address_of(member.peer, history.incarnation(member.peer)))
            process.shell.feed(events.CoordinatorStarted())
            old_spares = process.plane.keys("places/spare-")
            process.loop.later(OLD_SPARES_S if old_spares else 0.0, self._top_up)
            process.on_ticked = self.watch.on_ticked
            self.watch.begin()
        self.is_up.set()
        while True:
            process.wait(TICK_S)
            self._look_for_latecomers()
            self._reap()

    @property
    def _shell(self) -> Shell:
        assert self.process.shell is not None
        return self.process.shell

    # noticing

    def _on_message(self, link: Link, frame: bytes) -> None:
        said = codec.decode(frame)
        if not isinstance(said, events.Suspected):
            self._shell.feed(said)
            return
        address = address_of(said.peer, said.incarnation)
        if link.introduction == address:
            self._suspect(address, "it reported itself")
        elif address not in self.process.links.open and self._is_current(said.peer, said.incarnation):
            self.process.links.reach(address)

    def _is_current(self, peer: PeerId, incarnation: Incarnation) -> bool:
        return self.machine.history.incarnation(peer) == incarnation and peer not in self.machine.history.gone

    def _on_arrival(self, address: str) -> None:
        self.expected.pop(address, None)
        if address.startswith("spare-"):
            self.spares_coming = max(0, self.spares_coming - 1)
            self.process.registry.ask(lambda: self.process.registry.place_of(address),
                                      lambda place: self._add_spare(address, place.node if place else ""))  # fmt: skip

    def _on_dead(self, address: str, reason: str) -> None:
        if self.spares.pop(address, None) is not None:
            self._top_up()
        elif split_address(address) is not None and not reason.startswith("refused: no handshake"):
            self._suspect(address, reason)

    def _suspect(self, address: str, reason: str) -> None:
        lost = split_address(address)
        assert lost is not None
        self.process.links.forget(address)
        if not self._is_current(*lost):
            return

        def consider(retired: bool) -> None:
            if retired:
                registry.ask(partial(self._end_actors_of, lost[0]))
            elif self._is_current(*lost):
                self.recoveries.note_death(address, reason)
                self._shell.feed(events.Suspected(*lost))

        registry = self.process.registry
        registry.ask(
            lambda: registry.plane.get(f"retired/{lost[0]}") is not None,
            consider,
            lambda: self._suspect_later(address, reason),
        )

    def _suspect_later(self, address: str, reason: str) -> None:
        self.process.loop.later(SUSPECT_AGAIN_S, lambda: self._suspect(address, reason))

    def _look_for_latecomers(self) -> None:
        now = time.monotonic()
        late = [address for address, deadline in self.expected.items() if deadline < now]
        with self.process.lock:
            for address in late:
                del self.expected[address]
                if address not in self.process.links.open:
                    self._suspect(address, f"did not come up within {COME_UP_S:g} s")

    # starting

    def _start(self, peer: PeerId, incarnation: Incarnation, node: NodeId) -> None:
        address = address_of(peer, incarnation)
        self.expected[address] = time.monotonic() + COME_UP_S
        self.process.links.reach(address)
        plane = self.process.plane
        self.process.registry.ask(
            lambda: read_creation(plane, peer), lambda found: self._host(found, incarnation, address, node)
        )

    def _host(self, creation: Creation | None, incarnation: Incarnation, address: str, node: NodeId) -> None:
        if creation is None:
            return
        spare = self._pick_spare(node) if creation.fits_a_spare else None
        if spare is not None:
            self.process.control(spare, take=address)
            self.recoveries.note_host(address, "a spare")
            self.process.loop.later(NEW_SPARE_S, self._top_up)
        else:
            self.recoveries.note_host(address, "a fresh process")
            self.process.registry.ask(lambda: start_host(creation, incarnation))

    def _pick_spare(self, node: NodeId) -> str | None:
        for wanted in (node, None):
            for spare, where in self.spares.items():
                if wanted is None or where == wanted:
                    del self.spares[spare]
                    return spare
        return None

    def _add_spare(self, address: str, node: str) -> None:
        if address in self.process.links.open:
            self.spares[address] = node

    def _top_up(self) -> None:
        while len(self.spares) + self.spares_coming < self.spares_wanted:
            self.spares_coming += 1
            self.spares_started += 1
            name = f"{self.process.token}-{self.spares_started}"
            self.process.registry.ask(partial(start_spare, name))

    # what processes say

    def _on_control(self, link: Link, said: dict[str, Any]) -> None:
        if "recovered" in said:
            self.recoveries.note_recovered(said)
        elif "status" in said:
            links = sorted(self.process.links.open)
            answer = {"links": links, "spares": len(self.spares), "phase": self.machine.phase.name}
            link.send(Kind.CONTROL, json.dumps({"status": answer}).encode())

    def _reap(self) -> None:
        """The actors of a driver that is gone are not wanted any more; also those of before a restart of this one."""
        with self.process.lock:
            for gone in [peer for peer in self.machine.history.gone if peer not in self.reaped]:
                self.reaped.add(gone)
                self.process.registry.ask(partial(self._end_actors_of, gone))

    def _end_actors_of(self, gone: PeerId) -> None:
        """Those that it has created, and those that these have; what is detached stays, with all below it."""
        plane = self.process.plane
        creations = [Creation(*json.loads(value)) for value in plane.get_all(f"actors/{gone}/").values()]
        stay = tuple(f"{creation.peer}/" for creation in creations if creation.detached)
        for creation in creations:
            peer = PeerId(creation.peer)
            if not f"{peer}/".startswith(stay) and plane.get(f"retired/{peer}") is None:
                self.process.kill(peer, "whoever created it is gone")

    # Outside

    def take_reading(self, kind: str) -> bytes:
        """A coordinator reads nothing."""
        raise AssertionError(kind)

    def release(self, peer: PeerId, number: int, value: bytes) -> None:
        """A coordinator emits nothing."""
        raise AssertionError((peer, number, value))

    def report(self, kind: str, text: str) -> None:
        """Tell people."""
        print(f"lineage_stash: {kind}: {text}", file=sys.stderr, flush=True)
