"""The coordinator as a Ray actor: notices deaths, runs rounds, keeps spares, ends whom nobody can reach.

Rules:
- It has a link to every process. A link that breaks is a death; a suspicion of others is one only if this link is
  broken too, or cannot be made. Silence alone is not: a busy interpreter is not dead. But the silence of a node's agent
  is the death of all who live on that node, in one round.
- It holds nothing that matters. Ray restarts it, and it starts over from the registry.
- A former life that reports, because it was only stopped, is told that it is over.
"""

import json
import logging
import os
import threading
import time
from functools import partial
from typing import Any

from lineage_stash import codec
from lineage_stash.core import events
from lineage_stash.core.ids import Incarnation, PeerId
from lineage_stash.core.recovery import Coordinator, Phase, is_out
from lineage_stash.on_ray.creation import Creation
from lineage_stash.on_ray.first_lives import FirstLives
from lineage_stash.on_ray.hosting import SPARES, Hosting
from lineage_stash.on_ray.links import Kind, Link
from lineage_stash.on_ray.mail import PING_S, Addressee
from lineage_stash.on_ray.moving import Moving
from lineage_stash.on_ray.node_watch import NodeWatch
from lineage_stash.on_ray.process import POLICY, TICK_S, Process, split_address
from lineage_stash.on_ray.recoveries import Recoveries
from lineage_stash.on_ray.registry import COORDINATOR, Place
from lineage_stash.on_ray.replica_watch import ReplicaWatch
from lineage_stash.on_ray.service_vitals import OfficeVitals, observe_recovery
from lineage_stash.on_ray.sweeping import Sweeping
from lineage_stash.on_ray.telling import tell, tell_crash, warn
from lineage_stash.on_ray.versions import note_version
from lineage_stash.ports import Frame
from lineage_stash.shell import Shell, address_of, open_store
from lineage_stash.store.contract import ReplicaId, Ticket

OLD_SPARES_S = 3.0
"""How long a coordinator that was restarted waits for the spares of its predecessor to report."""

SUSPECT_AGAIN_S = 1.0
"""When the control plane was away as a death was looked into, how soon to look again."""


class CoordinatorActor(Addressee):
    """What Ray sees: a process whose thread starts again whenever Ray restarts it."""

    def __init__(self, spares: int, replicas: int | None) -> None:
        self.office = Office(spares, replicas)
        threading.Thread(target=self._run, name="stash coordinator", daemon=True).start()

    def _run(self) -> None:
        try:
            self.office.run()
        except BaseException:  # noqa: BLE001 - whatever it was, the thread is over
            tell_crash("the coordinator")
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
        self.reaped: set[PeerId] = set()
        self.process: Process
        self.machine: Coordinator
        self.recoveries: Recoveries
        self.watch: ReplicaWatch
        self.nodes: NodeWatch
        self.hosting: Hosting
        self.first_lives: FirstLives
        self.moving: Moving
        self.sweeping: Sweeping

    def run(self) -> None:
        """Come up, and coordinate for ever."""
        process = self.process = Process("", actor=COORDINATOR, ping_s=PING_S, on_control=self._on_control,
                                         on_dead=self._on_dead)  # fmt: skip
        address = process.loop.introduction = f"{COORDINATOR}-{process.token}"
        history = process.registry.read_history()
        process.store = open_store(process.registry.present_set(), history, process.links, process.registry)
        self.nodes = NodeWatch(process, self._on_node_lost, self._on_node_alive, self._on_agent_died)
        self.watch = ReplicaWatch(process, self.replicas_wanted, self.nodes)
        self.machine = Coordinator(address, history, POLICY)
        process.on_message = self._on_message
        process.on_arrival = self._on_arrival
        with process.lock:
            process.shell = Shell(self.machine, transport=self, membership=process.registry, outside=self,
                                  executor=None, store=process.store)  # fmt: skip
            self.recoveries = Recoveries(self.machine, process.shell, process.registry, observe_recovery)
            self.hosting = Hosting(process, self.nodes, self.spares_wanted, self.recoveries.note_host, self._suspect)
            self.first_lives = FirstLives(process, self.hosting)
            self.moving = Moving(process, self.hosting, self._bury)
            self.sweeping = Sweeping(process, self.machine)
            process.registry.starter = self.hosting.start
        note_version(process.plane, COORDINATOR)
        process.registry.settle_in(address, process.place)
        if process.plane.get(COORDINATOR) is not None:
            warn("coordinator back", "the coordinator has died, and was started again")
        process.plane.put(COORDINATOR, address.encode())
        with process.lock:
            for member in process.registry.read_members():
                if not is_out(member, history):
                    process.links.reach(address_of(member.peer, history.incarnation(member.peer)))
            process.shell.feed(events.CoordinatorStarted())
            old_spares = process.plane.keys("places/spare-")
            process.loop.later(OLD_SPARES_S if old_spares else 0.0, self.hosting.begin)
            process.on_ticked = self._on_ticked
            self.nodes.begin()
            self.watch.begin()
            self.sweeping.begin()
        process.publish(OfficeVitals(self))
        self.is_up.set()
        while True:
            process.wait(TICK_S)
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

    def _on_ticked(self) -> None:
        if self.machine.phase is Phase.GATHERING:
            self._shell.feed(events.PeersSeen(self._peers_seen()))
        self.nodes.on_ticked()
        self.watch.on_ticked()
        self.hosting.look_for_latecomers()
        self.moving.on_ticked()
        self.sweeping.on_ticked()

    def _peers_seen(self) -> frozenset[PeerId]:
        """Those whose links work."""
        lives = [split_address(address) for address in self.process.links.open]
        return frozenset([life[0] for life in lives if life is not None and self._is_current(*life)])

    def _on_arrival(self, address: str) -> None:
        self.hosting.has_come(address)
        registry = self.process.registry
        lived = split_address(address)
        if address.startswith(SPARES):
            registry.ask(lambda: registry.place_of(address), lambda place: self.hosting.add_spare(address, place))
        elif lived is not None and not self._is_current(*lived) and self.machine.history.decisions:
            latest = self.machine.history.decisions[-1]
            self.process.links.send(address, codec.encode(events.Decided(latest)))

    def _on_dead(self, address: str, reason: str) -> None:
        if self.hosting.drop_spare(address):
            return
        self.nodes.on_link_lost(address)
        if split_address(address) is not None and not reason.startswith("refused: no handshake"):
            self._suspect(address, reason)

    def _suspect(self, address: str, reason: str) -> None:
        lost = split_address(address)
        assert lost is not None
        self.process.links.forget(address)
        if not self._is_alive(*lost):
            return
        registry = self.process.registry
        registry.ask(
            lambda: (registry.has_finished(lost[0]), registry.begun_life(lost[0])),
            lambda found: self._judge(found[0], found[1], address, reason),
            lambda: self._suspect_later(address, reason),
        )

    def _judge(self, retired: bool, begun: Incarnation | None, address: str, reason: str) -> None:
        """One that has left has left its own actors behind; a script that is away is not here to die; others have."""
        left = split_address(address)
        assert left is not None
        if retired:
            self.process.registry.ask(partial(self._end_actors_of, left[0]))
        elif begun is None or begun >= left[1]:
            self._bury([address], reason)

    def _suspect_later(self, address: str, reason: str) -> None:
        self.process.loop.later(SUSPECT_AGAIN_S, lambda: self._suspect(address, reason))

    def _is_alive(self, peer: PeerId, incarnation: Incarnation) -> bool:
        return self._is_current(peer, incarnation) and peer not in self.machine.dead

    def _bury(self, addresses: list[str], reason: str) -> None:
        """Have a round for these lives, as far as they are the present ones."""
        for address in addresses:
            lost = split_address(address)
            if lost is not None and self._is_alive(*lost):
                self.process.links.forget(address)
                self.recoveries.note_death(address, reason)
                self._shell.feed(events.Suspected(*lost))

    # nodes

    def _on_node_lost(self, node: str, reason: str) -> None:
        """All who live on a node are dead."""
        starting = self.hosting.leave(node)
        self.first_lives.watch()
        registry = self.process.registry
        registry.ask(
            lambda: registry.addresses_on(node),
            lambda living: self._bury([*living, *starting], reason),
            lambda: self._lose_node_later(node, reason),
        )

    def _lose_node_later(self, node: str, reason: str) -> None:
        self.process.loop.later(SUSPECT_AGAIN_S, lambda: self._on_node_lost(node, reason))

    def _on_agent_died(self, node: str) -> None:
        """Perhaps its node did too: whoever was to come up there may not."""
        self.first_lives.watch()
        for address in self.hosting.leave(node):
            self._suspect(address, "its node is in doubt: the agent there died")

    def _on_node_alive(self) -> None:
        self.hosting.top_up()

    # what processes say

    def _on_control(self, link: Link, said: dict[str, Any]) -> None:
        if "recovered" in said:
            self.recoveries.note_recovered(said)
        elif "beat" in said:
            self.nodes.on_beat(link.introduction or "")
        elif "held" in said:
            self.sweeping.on_answer(link, said["held"])
        elif "given" in said:
            self.sweeping.on_given(PeerId(said["given"]))
        elif "abandoned" in said:
            self._look_for_abandoned(said["abandoned"])
        elif "status" in said:
            links = sorted(self.process.links.open)
            answer = {"links": links, "spares": len(self.hosting.usable_spares), "phase": self.machine.phase.name,
                      "now": time.time()}  # fmt: skip
            link.send(Kind.CONTROL, json.dumps({"status": answer}).encode())

    def _look_for_abandoned(self, address: str) -> None:
        """A life was claimed by a process that may have died before it could be reached; others die as all do."""
        registry = self.process.registry

        def judge(place: Place | None) -> None:
            if place is None:
                self._suspect(address, "it was claimed, and nobody has come up")
            else:
                self.process.links.reach(address)

        registry.ask(lambda: registry.place_of(address), judge)

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

    # Transport

    def send(self, address: str, frame: Frame) -> None:
        """Bring a frame to a peer; not to a former life that has no link: should it report, it is told then."""
        lived = split_address(address)
        is_former = lived is not None and not self._is_current(*lived)
        if not is_former or address in self.process.links.open:
            self.process.links.send(address, frame)

    def ask_replica(self, replica: ReplicaId, ticket: Ticket, frame: Frame) -> None:
        """Bring a request to a replica."""
        self.process.links.ask_replica(replica, ticket, frame)

    # Outside

    def take_reading(self, kind: str) -> bytes:
        """A coordinator reads nothing."""
        raise AssertionError(kind)

    def release(self, peer: PeerId, number: int, value: bytes) -> None:
        """A coordinator emits nothing."""
        raise AssertionError((peer, number, value))

    def report(self, kind: str, text: str) -> None:
        """Tell people."""
        tell(kind, f"{kind}: {text}", logging.ERROR)
