"""The world: processes on nodes, a bad network, a registry, replicas on disks, and time, all from one seed.

Everything happens in one queue ordered by time. Phase one is chaos: the schedule's faults strike. Phase two heals: no
more loss, no more faults, replicas are back; then everything must come to its end, and the checker looks at all of it.
"""

from collections.abc import Callable, Iterable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random

from lineage_stash import codec
from lineage_stash.core import events
from lineage_stash.core.history import Decision, History
from lineage_stash.core.ids import Epoch, Incarnation, Member, NodeId, PeerId
from lineage_stash.core.policy import Policy
from lineage_stash.core.recovery import Coordinator, Phase
from lineage_stash.ports import Dead
from lineage_stash.shell import address_of
from lineage_stash.store.contract import ReplicaId, ReplicaSet, Ticket
from lineage_stash.store.replica import FIRST_EPOCH, Replica
from lineage_stash.testing.checker import Checker
from lineage_stash.testing.process import Process
from lineage_stash.testing.programs import actor_name, runner_name
from lineage_stash.testing.schedule import Driver, Fault, Schedule

NOTICE_MS = 15
HEAL_AT_STEP = 260
MOST_STEPS = 6000
SUPERVISE_MS = 30
STORE_AWAY_MS = 1500
GROWN_REPLICAS = 3
RESUMES = 0.15
"""How likely a user whose driver is away starts it again, each time it is looked."""
FOR_EVER_MS = 1 << 60


class World:
    """One run of one schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.policy = Policy(
            max_failures=schedule.max_failures,
            window_messages=4,
            calls_per_message=schedule.calls_per_message,
            checkpoint_every_entries=schedule.checkpoint_every,
            stash_cap_bytes=schedule.stash_cap_bytes,
            patience_ticks=8,
            buffer_cap_bytes=schedule.buffer_cap_bytes,
            under_way_bytes=schedule.under_way_bytes,
        )
        self.draw = Random(schedule.seed ^ 0x5EED)
        self.now_ms = 0
        self.steps = 0
        self.healed = False
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self.processes: dict[str, Process] = {}
        self.coordinators: list[Process] = []
        self.replicas = [Replica() for _ in range(schedule.replicas)]
        self.sets = [ReplicaSet(FIRST_EPOCH, tuple(range(schedule.replicas)))]
        self.replica_down_until = [0] * schedule.replicas
        self.wanted_replicas = schedule.replicas
        self.lost: dict[ReplicaId, None] = {}
        self.leaving: dict[ReplicaId, None] = {}
        self.losses = list(schedule.losses)
        self.moves = list(schedule.moves)
        self.store_was_away = schedule.store_away
        self.registry_away_until = 0
        self.members: dict[PeerId, Member] = {}
        self.retired: dict[PeerId, None] = {}
        self.runners: dict[PeerId, None] = {}
        self.decisions: list[Decision] = []
        self.open_rounds: list[tuple[int, Dead]] = []
        self.faults = list(schedule.faults)
        self.events = 0
        self.crashes = 0
        self.replayed = 0
        self.checker = Checker(self)
        self.programs = {PeerId(driver.name): driver for driver in schedule.drivers}

    # time

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do something after a while."""
        heappush(self._queue, (self.now_ms + delay_ms, next(self._order), action))

    def run(self) -> None:
        """Chaos, healing, and the final checks; raises `Violation` at the first thing that is wrong."""
        for number in range(self.schedule.actors):
            node = NodeId(f"n{number % self.schedule.nodes}")
            self.register(Member(actor_name(number), node, True))
            self.start(actor_name(number))
        self.start_coordinator()
        self.later(SUPERVISE_MS, self._supervise)
        if self.schedule.store_away:
            self.replica_down_until = [STORE_AWAY_MS] * len(self.replicas)
            self.later(STORE_AWAY_MS - 1, self.checker.before_store_returns)
        for driver in self.schedule.drivers:
            self.later(driver.start_ms, partial(self._driver_comes, driver))
        pops = 0
        while self._queue:
            self.now_ms, _, action = heappop(self._queue)
            if self.faults:
                self._strike()
            if self.losses or self.moves:
                self._shake_store()
            action()
            pops += 1
            if pops % 16 == 0 and self.finished:
                break
            if self.steps > MOST_STEPS:
                self.checker.stuck()
            if not self.healed and self.steps > HEAL_AT_STEP and not self.faults and not (self.losses or self.moves):
                self._heal()
        self.checker.finish()

    @property
    def finished(self) -> bool:
        """Whether all drivers have come and gone and nothing waits to be committed."""
        if not self.healed:
            if self.steps <= HEAL_AT_STEP and self.drivers_here:
                return False
            if self.faults and self.drivers_here:
                return False
            self._heal()
        return not self.drivers_here and self.quiet

    @property
    def drivers_here(self) -> bool:
        """Whether some driver has still to finish."""
        gone = {peer for decision in self.decisions for peer in decision.gone}
        return any(peer not in self.retired and peer not in gone for peer in self.programs)

    @property
    def quiet(self) -> bool:
        """Whether every actor lives, has caught up, runs nothing, and has all its lineage committed."""
        for name in (*map(actor_name, range(self.schedule.actors)), *self.runners):
            if name in self.retired:
                continue
            process = self.current(name)
            if process is None or process.shell is None or not process.alive:
                return False
            peer = process.peer
            busy = (
                peer.program.script or peer.program.busy or peer.lineage.needs or peer.durability.checkpoint_under_way
            )
            if busy or len(peer.durability.gate) or peer.durability.gate.unaccepted or peer.promises.ignored:
                return False
            for counterpart in peer.counterparts.values():
                if counterpart.gone or counterpart.peer in self.retired:
                    continue
                if counterpart.owes_answers or counterpart.inbox.queue:
                    return False
        if len(self._staying()) < self.wanted_replicas:
            return False
        return all(process.leader.phase is Phase.IDLE for process in self.coordinators if process.alive)

    # processes

    def register(self, member: Member) -> None:
        """Put a peer into the registry."""
        self.members[member.peer] = member

    def history(self) -> History:
        """All decisions so far, as a new process reads them."""
        return History(tuple(self.decisions))

    def current(self, peer: PeerId) -> Process | None:
        """The process of a peer's newest incarnation."""
        incarnation = max((b.incarnation for d in self.decisions for b in d.beginnings if b.peer == peer), default=0)
        return self.processes.get(address_of(peer, Incarnation(incarnation)))

    def start(self, peer: PeerId) -> None:
        """Start a process for the newest incarnation of a peer."""
        history = self.history()
        address = address_of(peer, history.incarnation(peer))
        if address in self.processes:
            return
        process = Process(self, address, self.members[peer].node)
        self.processes[address] = process
        ignored = tuple(pair for round_, dead in self.open_rounds if round_ > history.round for pair in dead)
        process.start_peer(self.members[peer], history, ignored)

    def start_coordinator(self) -> None:
        """Start a coordinator; others that still run are not asked."""
        token = f"c{len(self.coordinators)}"
        node = NodeId(f"n{self.draw.randrange(self.schedule.nodes)}")
        process = Process(self, token, node)
        self.processes[token] = process
        self.coordinators.append(process)
        process.start_coordinator(Coordinator(token, self.history(), self.policy))

    def _driver_comes(self, driver: Driver) -> None:
        name = PeerId(driver.name)
        node = NodeId(f"n{self.draw.randrange(self.schedule.nodes)}")
        begun = self.history().incarnation(name) if driver.resumable else None
        self.register(Member(name, node, driver.replayable, begun))
        self.start(name)

    def start_runner(self, name: PeerId) -> None:
        """Start a runner of tasks, unless it was started already."""
        if name not in self.members:
            self.runners[name] = None
            self.register(Member(name, NodeId(f"n{self.draw.randrange(self.schedule.nodes)}"), True))
            self.start(name)

    def runners_of(self, caller: PeerId) -> list[PeerId]:
        """The runners of one peer's tasks that have not retired."""
        prefix = runner_name(caller, 0)[:-1]
        return [
            name for name in self.runners
            if name.startswith(prefix) and name[len(prefix) :].isdigit() and name not in self.retired
        ]  # fmt: skip

    def ask_to_retire(self, runner: PeerId) -> None:
        """Have the newest life of a runner told that it is no longer wanted; nobody answers if it is not there."""
        if not self.loses():
            self.later(self.delay(), lambda: self._told_to_retire(runner))

    def _told_to_retire(self, runner: PeerId) -> None:
        process = self.current(runner)
        if process is not None:
            process.when_awake(process.on_retire_asked)

    @property
    def coordinator(self) -> str | None:
        """A coordinator that lives; where there are two, now this one and now that one."""
        alive = [process.address for process in self.coordinators if process.alive]
        return alive[int(self.draw.random() * len(alive))] if alive else None

    def _supervise(self) -> None:
        """What Ray does: notice dead processes, and keep a coordinator running."""
        if not any(process.alive for process in self.coordinators):
            self.start_coordinator()
        gone = {peer for decision in self.decisions for peer in decision.gone}
        for peer in self.members:
            process = self.current(peer)
            if process is not None and not process.alive and peer not in self.retired and peer not in gone:
                self._notice(process)
        for driver in self.schedule.drivers:
            if self._is_away(driver) and self.draw.random() < RESUMES:
                self._driver_comes(driver)
        self._renew_set()
        self.later(SUPERVISE_MS, self._supervise)

    def _is_away(self, driver: Driver) -> bool:
        """Whether a driver has died, where it ended is decided, and nobody but its user starts it again."""
        name = PeerId(driver.name)
        came = driver.resumable and name in self.members and name not in self.retired
        return came and self.current(name) is None

    def _notice(self, process: Process) -> None:
        coordinator = self.coordinator
        if coordinator is not None:
            self.transmit(coordinator, suspicion_of(process))

    # network

    def delay(self) -> int:
        """How long a frame takes."""
        slow = self.schedule.slow
        drawn = self.draw.random()
        return 15 + int(drawn / slow * 45) if drawn < slow else 1 + int(drawn * 16) % 4

    def loses(self) -> bool:
        """Whether the network loses this one."""
        return not self.healed and self.schedule.loss > 0 and self.draw.random() < self.schedule.loss

    def transmit(self, address: str, frame: bytes) -> None:
        """Carry a frame: late, twice, or not at all."""
        if self.loses():
            return
        self.later(self.delay(), lambda: self._arrive(address, frame))
        if self.schedule.repeat and self.draw.random() < self.schedule.repeat:
            self.later(self.delay() * 3, lambda: self._arrive(address, frame))

    def _arrive(self, address: str, frame: bytes) -> None:
        process = self.processes.get(address)
        if process is not None and process.alive:
            self.steps += 1
            process.when_awake(lambda: process.on_frame(frame))

    def ask_replica(self, asker: Process, replica: ReplicaId, ticket: Ticket, frame: bytes) -> None:
        """Carry a request to a replica and the answer back."""
        if self.loses():
            return
        self.later(self.delay(), lambda: self._at_replica(asker, replica, ticket, frame))

    def _at_replica(self, asker: Process, replica: ReplicaId, ticket: Ticket, frame: bytes) -> None:
        if self.replica_down_until[replica] > self.now_ms:
            return
        self.steps += 1
        request = codec.decode(frame)
        self.events += 1
        reply = self.replicas[replica].handle(request, ticket.epoch)
        self.checker.after_request(asker, replica, ticket.epoch, request, reply)
        if self.loses():
            return
        answer = codec.encode(reply)
        number = ticket.number
        self.later(self.delay(), lambda: asker.when_awake(lambda: asker.on_replica_answer(replica, number, answer)))

    # registry

    def registry(self, asker: Process, action: Callable[[], Callable[[], None]]) -> None:
        """Do something in the registry after a while, then answer; an outage loses the request or the answer."""

        def at_registry() -> None:
            if self.registry_away_until > self.now_ms and self.draw.random() < 0.5:
                return
            answer = action()
            if self.registry_away_until <= self.now_ms:
                self.later(self.delay(), lambda: asker.when_awake(answer))

        self.later(self.delay(), at_registry)

    def publish(self, decision: Decision) -> Decision:
        """Put-if-absent: the decision that stands for this round."""
        if len(self.decisions) >= decision.round:
            return self.decisions[decision.round - 1]
        self.decisions.append(decision)
        self.checker.after_decision(decision)
        return decision

    def start_incarnation(self, peer: PeerId, node: NodeId) -> None:
        """Start a process somewhere, most often elsewhere than where the last one died."""
        if self.draw.random() < 0.6:
            node = NodeId(f"n{self.draw.randrange(self.schedule.nodes)}")
        self.members[peer] = self.members[peer]._replace(node=node)
        self.later(self.draw.randrange(2, 12), lambda: self.start(peer))

    # faults

    def _heal(self) -> None:
        self.healed = True
        self.faults.clear()
        self.losses.clear()
        self.moves.clear()
        if self.schedule.store_away:
            return
        self._take_down(range(len(self.replicas)), 0)
        self.registry_away_until = 0
        if self.schedule.lost_replica:
            self.replica_down_until[self.schedule.seed % len(self.replicas)] = FOR_EVER_MS

    def _take_down(self, replicas: Iterable[ReplicaId], until_ms: int) -> None:
        """Replicas are away for a while; those that are lost stay lost."""
        for replica in replicas:
            if replica not in self.lost:
                self.replica_down_until[replica] = until_ms

    def _shake_store(self) -> None:
        """A replica loses its disk for good, or somebody wants another set."""
        present = self.sets[-1].replicas
        if self.losses and self.losses[0] <= self.steps and not any(replica in self.lost for replica in present):
            del self.losses[0]
            self._lose(present[self.draw.randrange(len(present))])
        if self.moves and self.moves[0] <= self.steps:
            del self.moves[0]
            if len(present) == 1:
                self.wanted_replicas = GROWN_REPLICAS
            else:
                self.leaving[present[self.draw.randrange(len(present))]] = None

    def _lose(self, replica: ReplicaId) -> None:
        """Never a second one of a set while the first is not replaced."""
        present = self.sets[-1].replicas
        if self.healed or (replica in present and (len(present) == 1 or any(of in self.lost for of in present))):
            return
        self.checker.story.tell("store", f"replica {replica} loses its disk")
        self.lost[replica] = None
        self.replica_down_until[replica] = FOR_EVER_MS

    def _staying(self) -> tuple[ReplicaId, ...]:
        """Who of the newest set is to be in the next one too."""
        return tuple(of for of in self.sets[-1].replicas if of not in self.lost and of not in self.leaving)

    def _renew_set(self) -> None:
        """What the coordinator's side of Ray does: have a coordinator replace those that are lost or leave."""
        coordinator = self.coordinator if len(self._staying()) < self.wanted_replicas else None
        if coordinator is not None:
            process = self.processes[coordinator]
            process.when_awake(lambda: self._propose_set(process))

    def _propose_set(self, process: Process) -> None:
        current, staying = self.sets[-1], self._staying()
        if process.is_succeeding(current, self.lost):
            return
        joining: list[ReplicaId] = []
        while len(staying) + len(joining) < self.wanted_replicas:
            joining.append(self._joining_replica((*current.replicas, *joining)))
        if joining:
            process.succeed(current, ReplicaSet(Epoch(current.epoch + 1), (*staying, *joining)))

    def _joining_replica(self, taken: tuple[ReplicaId, ...]) -> ReplicaId:
        """One that somebody has started or that was in a set once, with whatever it has; or a new one."""
        there = [of for of in range(len(self.replicas)) if of not in taken and of not in self.lost]
        if there and self.draw.random() < 0.5:
            return there[self.draw.randrange(len(there))]
        self.replicas.append(Replica())
        self.replica_down_until.append(0)
        fresh = len(self.replicas) - 1
        if self.schedule.fragile and fresh == self.schedule.replicas:
            self.later(self.draw.randrange(2, 120), lambda: self._lose(fresh))
        return fresh

    def publish_set(self, successor: ReplicaSet) -> ReplicaSet:
        """Put-if-absent: the set that stands for this epoch."""
        if len(self.sets) < successor.epoch:
            self.checker.before_succession(successor)
            self.sets.append(successor)
            self.checker.story.tell("store", f"epoch {successor.epoch} begins with replicas {successor.replicas}")
        return self.sets[successor.epoch - 1]

    def _strike(self) -> None:
        while self.faults and self.faults[0].step <= self.steps:
            for position, fault in enumerate(self.faults):
                if fault.step > self.steps:
                    return
                if fault.in_recovery and not self._round_is_open() and self.steps < HEAL_AT_STEP:
                    continue
                del self.faults[position]
                _FAULTS[fault.kind](self, fault)
                break
            else:
                return

    def _round_is_open(self) -> bool:
        return any(process.alive and process.leader.phase is not Phase.IDLE for process in self.coordinators)

    def _pick(self, fault: Fault) -> Process | None:
        alive = [
            process for process in self.processes.values()
            if process.alive and "@" in process.address and self.current(process.name) is process
        ]  # fmt: skip
        return alive[fault.target % len(alive)] if alive else None

    def crash(self, process: Process) -> None:
        """Kill a process; its peers notice after a while."""
        if process.alive:
            process.alive = False
            self.crashes += 1
            self.checker.after_crash(process)
            if "@" in process.address:
                self.later(self.draw.randrange(2, NOTICE_MS), lambda: self._notice(process))

    def _crash(self, fault: Fault) -> None:
        if (process := self._pick(fault)) is not None:
            self.crash(process)

    def _crash_mid_send(self, fault: Fault) -> None:
        if (process := self._pick(fault)) is not None:
            process.sends_left = fault.target % 4

    def _crash_node(self, fault: Fault) -> None:
        node = NodeId(f"n{fault.target % self.schedule.nodes}")
        for process in list(self.processes.values()):
            if process.node == node:
                self.crash(process)
        there = [at for at in range(len(self.replicas)) if NodeId(f"n{at % self.schedule.nodes}") == node]
        self._take_down(there, self.now_ms + fault.length_ms)

    def _pause(self, fault: Fault) -> None:
        if (process := self._pick(fault)) is not None:
            process.asleep_until = self.now_ms + fault.length_ms * 3
            coordinator = self.coordinator
            if fault.target % 2 and coordinator is not None:
                self.checker.after_suspicion(process)
                self.transmit(coordinator, suspicion_of(process))

    def _suspect(self, fault: Fault) -> None:
        coordinator = self.coordinator
        if (process := self._pick(fault)) is not None and coordinator is not None:
            self.checker.after_suspicion(process)
            self.transmit(coordinator, suspicion_of(process))

    def _pick_coordinator(self, fault: Fault) -> Process | None:
        alive = [process for process in self.coordinators if process.alive]
        return alive[fault.target % len(alive)] if alive else None

    def _crash_coordinator(self, fault: Fault) -> None:
        if (process := self._pick_coordinator(fault)) is not None:
            self.crash(process)

    def _coordinator_sleeps(self, fault: Fault) -> None:
        if (process := self._pick_coordinator(fault)) is not None:
            process.asleep_until = self.now_ms + fault.length_ms * 3

    def _crash_coordinators(self, _: Fault) -> None:
        for process in self.coordinators:
            self.crash(process)

    def _second_coordinator(self, _: Fault) -> None:
        self.start_coordinator()

    def _replica_away(self, fault: Fault) -> None:
        self._take_down((fault.target % len(self.replicas),), self.now_ms + fault.length_ms)
        self.store_was_away = True

    def _store_away(self, fault: Fault) -> None:
        self._take_down(range(len(self.replicas)), self.now_ms + fault.length_ms)
        self.store_was_away = True

    def _registry_away(self, fault: Fault) -> None:
        self.registry_away_until = self.now_ms + fault.length_ms


def suspicion_of(process: Process) -> bytes:
    """What a coordinator is told of a process that is taken for dead."""
    return codec.encode(events.Suspected(process.name, Incarnation(int(process.address.split("@")[1]))))


_FAULTS: dict[str, Callable[[World, Fault], None]] = {
    "crash": World._crash,
    "crash mid-send": World._crash_mid_send,
    "node": World._crash_node,
    "pause": World._pause,
    "suspect": World._suspect,
    "coordinator": World._crash_coordinator,
    "coordinators": World._crash_coordinators,
    "coordinator asleep": World._coordinator_sleeps,
    "second coordinator": World._second_coordinator,
    "replica": World._replica_away,
    "store": World._store_away,
    "registry": World._registry_away,
}
