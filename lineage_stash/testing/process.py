"""A simulated process: every port of one shell, and the user's program, on one node."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any
from zlib import crc32

from lineage_stash import codec
from lineage_stash.core import effects, events
from lineage_stash.core.history import Decision, History
from lineage_stash.core.ids import Epoch, Incarnation, Index, Member, NodeId, PeerId, Round
from lineage_stash.core.peer import Peer
from lineage_stash.core.recovery import Coordinator
from lineage_stash.ports import Dead, Frame, in_one_piece
from lineage_stash.restoring import NoLife, restore
from lineage_stash.shell import Shell, open_store
from lineage_stash.store.contract import ReplicaId, ReplicaSet, Ticket
from lineage_stash.store.states import Buffer, pack_state, unpack_state
from lineage_stash.store.succession import Succession
from lineage_stash.testing.programs import EFFECT, Running, State, run_call, run_main, runner_name

if TYPE_CHECKING:
    from lineage_stash.testing.world import World

TICK_MS = 20
INLINE_BYTES = 6
MOST_INLINE_BYTES = 1 << 20
CHUNK_BYTES = 4
RUNNERS_PER_LIFE = 100
"""A peer's next life has its tasks run by others: those of before may have been asked to retire."""
LET_GO_SHARE = 0.2
"""How likely an idle runner is let go at each tick of whoever it works for."""


def cut_small(content: Buffer) -> list[Buffer]:
    """Chunks so small that every other state has some."""
    return [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]


class Process:
    """Implements `Transport`, `Membership`, `Outside` and `Executor` for the shell that lives in it."""

    def __init__(self, world: "World", address: str, node: NodeId) -> None:
        self.world = world
        self.address = address
        self.name = PeerId(address.split("@")[0])
        self.node = node
        self.alive = True
        self.asleep_until = 0
        self.sends_left: int | None = None
        self.shell: Shell | None = None
        self.state = State()
        self.running: Running | None = None
        self.store: Any = None
        self.succession: Succession | None = None
        self.successions = 0
        self._tick_pending = False
        self.let_go: dict[PeerId, None] = {}
        """Runners of this peer's that get no further task."""

    # start

    def start_peer(self, member: Member, history: History, ignored: Dead) -> None:
        """Begin a peer's first incarnation, or restore a later one."""
        self.store = open_store(self.world.sets[-1], history, self, self)
        if history.incarnation(member.peer) == 0:
            self._begin(Peer(member, Incarnation(0), history, self._policy(member), ignored=ignored))
        else:
            incarnation = Incarnation(int(self.address.split("@")[1]))
            restore(member, incarnation, history, self._policy(member), self.store, ignored, self._begin)
        self._tick_later()

    def _policy(self, member: Member) -> Any:
        policy = self.world.policy
        return policy if member.peer not in self.world.programs else policy._replace(checkpoint_every_entries=None)

    def _begin(self, peer: Peer | NoLife) -> None:
        if isinstance(peer, NoLife):
            self.alive = False
            if peer is NoLife.RETIRED:
                self.world.retired[self.name] = None
            return
        self._join(peer)
        self.world.checker.after_start(self, peer)
        if peer.id in self.world.programs:
            self._feed(events.MainStarted())
        else:
            self._feed(events.Lingered())

    def start_coordinator(self, coordinator: Coordinator) -> None:
        """Begin a coordinator."""
        self.store = open_store(self.world.sets[-1], coordinator.history, self, self)
        self._join(coordinator)
        self._feed(events.CoordinatorStarted())
        self._tick_later()

    def _join(self, machine: Peer | Coordinator) -> None:
        executor = self if isinstance(machine, Peer) else None
        self.shell = Shell(machine, transport=self, membership=self, outside=self, executor=executor, store=self.store)
        self.world.checker.watch(self, machine)

    @property
    def peer(self) -> Peer:
        """The machine, where it is a peer."""
        assert self.shell is not None
        assert isinstance(self.shell.machine, Peer)
        return self.shell.machine

    @property
    def coordinator(self) -> str | None:
        """The address of the coordinator."""
        return self.world.coordinator

    @property
    def leader(self) -> Coordinator:
        """The machine, where it is a coordinator."""
        assert self.shell is not None
        assert isinstance(self.shell.machine, Coordinator)
        return self.shell.machine

    # in

    def when_awake(self, action: Callable[[], None]) -> None:
        """Do something unless the process is dead; a sleeping one does it later."""
        if not self.alive:
            return
        if self.asleep_until > self.world.now_ms:
            self.world.later(self.asleep_until - self.world.now_ms, lambda: self.when_awake(action))
        else:
            action()

    def on_frame(self, frame: bytes) -> None:
        """A frame has come."""
        if self.shell is not None:
            self.shell.on_frame(frame)

    def on_retire_asked(self) -> None:
        """Whoever this process runs tasks for has no more of them."""
        self._feed(events.RetireAsked())

    def on_replica_answer(self, replica: int, number: int, frame: bytes) -> None:
        """A replica has answered."""
        reply = codec.decode(frame)
        if self.succession is None or not self.succession.on_reply(number, reply):
            self.store.on_reply(replica, number, reply)

    def _feed(self, event: object) -> None:
        if self.alive and self.shell is not None:
            self.shell.feed(event)

    def _tick_later(self) -> None:
        self.world.later(TICK_MS + int(self.world.draw.random() * 5), self._tick_when_awake)

    def _tick_when_awake(self) -> None:
        self.when_awake(self._tick)

    def _tick(self) -> None:
        self.world.steps += 1
        if self.shell is not None:
            self.shell.tick()
            if self.world.schedule.retires and "@" in self.address and self.alive and not self.peer.program.script:
                self._let_go()
        else:
            self.store.on_ticked()
        if self.succession is not None:
            self.succession.on_ticked()
        self._tick_later()

    # the next replica set

    def is_succeeding(self, current: ReplicaSet, lost: Collection[ReplicaId]) -> bool:
        """Whether a set is on its way that follows the current one, and that has not lost its majority already."""
        return self.succession is not None and self.succession.is_on_its_way(current, lost)

    def succeed(self, current: ReplicaSet, successor: ReplicaSet) -> None:
        """Make another replica set; a coordinator does."""
        self.successions += 1
        self.succession = Succession(current, successor, codec.encode_in_pieces, self.ask_replica, self._publish_set,
                                     self.successions)  # fmt: skip
        self.succession.begin()

    def _publish_set(self, successor: ReplicaSet) -> None:
        assert self.succession is not None
        published = self.succession.on_published

        def action() -> Callable[[], None]:
            standing = self.world.publish_set(successor)
            return lambda: published(standing)

        if self._may_send():
            self.world.registry(self, action)

    # Transport

    def _may_send(self) -> bool:
        if self.sends_left is not None and self.alive:
            self.sends_left -= 1
            if self.sends_left < 0:
                self.world.crash(self)
        return self.alive

    def send(self, address: str, frame: Frame) -> None:
        """Put a frame on the network."""
        if self._may_send():
            self.world.transmit(address, in_one_piece(frame))

    def ask_replica(self, replica: ReplicaId, ticket: Ticket, frame: Frame) -> None:
        """Put a request on the network."""
        if self._may_send():
            self.world.ask_replica(self, replica, ticket, in_one_piece(frame))

    # Outside

    def take_reading(self, kind: str) -> bytes | None:
        """A draw that no replay could guess; an effect is one that has happened by then, whoever survives it."""
        assert kind
        if kind == EFFECT:
            if not self._may_send():
                return None
            self.world.checker.after_effect(self, self.state.steps, self.state.pack())
            if not self._may_send():
                return None
        return bytes((self.world.draw.randrange(256),))

    def release(self, peer: PeerId, number: int, value: bytes) -> None:
        """An idempotent sink."""
        if not self._may_send() or self.world.loses():
            return
        self.world.checker.after_output(self, peer, number, value)
        accepted = events.OutputAccepted(number)
        if not self.world.loses():
            self.world.later(self.world.delay(), lambda: self.when_awake(lambda: self._feed(accepted)))

    def report(self, kind: str, text: str) -> None:
        """Faults go to the checker."""
        if self.alive:
            self.world.checker.after_fault(self, kind, text)

    # Membership

    def open_round(self, round_: Round, dead: Dead, then: Callable[[tuple[Member, ...]], None]) -> None:
        """Note who is taken for dead, then see who is there."""

        def action() -> Callable[[], None]:
            self.world.open_rounds.append((round_, dead))
            members = tuple(member for peer, member in self.world.members.items() if peer not in self.world.retired)
            return lambda: then(members)

        self.world.registry(self, action)

    def publish(self, decision: Decision, then: Callable[[Decision], None]) -> None:
        """Put-if-absent."""

        def action() -> Callable[[], None]:
            standing = self.world.publish(decision)
            return lambda: then(standing)

        if self._may_send():
            self.world.registry(self, action)

    def fetch_decisions(self, after: int, then: Callable[[tuple[Decision, ...]], None]) -> None:
        """What was decided since."""

        def action() -> Callable[[], None]:
            decisions = tuple(self.world.decisions[after:])
            return lambda: then(decisions)

        self.world.registry(self, action)

    def fetch_set(self, after: Epoch, then: Callable[[ReplicaSet], None]) -> None:
        """The newest set of the store."""

        def action() -> Callable[[], None]:
            newest = self.world.sets[-1]
            return lambda: then(newest) if newest.epoch > after else None

        self.world.registry(self, action)

    def has_retired(self, peer: PeerId, then: Callable[[bool], None]) -> None:
        """Whether a peer has left a record."""
        self.world.registry(self, lambda: lambda: then(peer in self.world.retired))

    def retire(self, peer: PeerId) -> None:
        """A peer has left."""
        if not self.alive:
            return
        self.world.checker.after_retirement(self)

        def action() -> Callable[[], None]:
            self.world.retired[peer] = None
            return lambda: None

        self.world.registry(self, action)

    def start_incarnation(self, peer: PeerId, incarnation: Incarnation, index: Index, node: NodeId) -> None:
        """Start a process for a new life."""
        assert incarnation > 0
        assert index >= 0
        if self._may_send():
            self.world.start_incarnation(peer, node)

    # Executor

    def carry_out(self, effect: effects.Effect) -> None:
        """Run the program up to its next question."""
        if not self.alive:
            return
        if isinstance(effect, effects.RestoreState):
            self.state = State(unpack_state(effect.state, self.store.chunks))
            return
        if isinstance(effect, effects.CaptureState):
            packed, self.store.chunks = self._pack_state()
            captured = events.StateCaptured(packed)
            if self.world.draw.random() < 0.2:
                self.world.later(self.world.delay(), lambda: self.when_awake(lambda: self._feed(captured)))
            else:
                self._feed(captured)
            return
        if isinstance(effect, effects.FinishReplay):
            self.world.replayed += effect.replayed
            return
        if isinstance(effect, effects.RunMain):
            self.running = run_main(self.state, self.world.programs[self.peer.id].plan)
            self._go_on(None)
        elif isinstance(effect, effects.RunCall):
            if self.world.schedule.strays and self.address[0] == "a":
                self.state.mix(bytes((self.world.draw.randrange(256),)))
            self.running = run_call(self.state, effect.call.caller, effect.payload)
            self._go_on(None)
        elif isinstance(effect, effects.OfferTask):
            self.world.later(self.world.delay(), lambda: self.when_awake(lambda: self._assign(effect.task)))
        elif isinstance(effect, effects.Resume):
            self._go_on(effect.answer)

    def _assign(self, task: int) -> None:
        """Give a task to a runner of this peer's that has nothing to do; a new one, where there is none."""
        number = self.peer.incarnation * RUNNERS_PER_LIFE if self.world.schedule.retires else 0
        while runner_name(self.name, number) in self.let_go or self._owes(runner_name(self.name, number)):
            number += 1
        runner = runner_name(self.name, number)
        self.world.start_runner(runner)
        self._feed(events.TaskAssigned(task, runner))

    def _owes(self, runner: PeerId) -> bool:
        counterpart = self.peer.counterparts.get(runner)
        return counterpart is not None and counterpart.owes_answers

    def _let_go(self) -> None:
        """Ask runners of this peer's to retire that have nothing to do; one that does not hear it is asked again."""
        for runner in self.world.runners_of(self.name):
            if self._owes(runner) or self.peer.program.values.is_planned(runner):
                continue
            if runner in self.let_go or self.world.draw.random() < LET_GO_SHARE:
                self.let_go[runner] = None
                self._feed(events.RunnerDropped(runner))
                self.world.ask_to_retire(runner)

    def _go_on(self, answer: object) -> None:
        assert self.running is not None
        event = self.running.send(answer)
        while isinstance(event, events.RefsDropped):
            self._feed(event)
            event = self.running.send(None)
        if isinstance(event, events.WaitStarted) and self.world.draw.random() < 0.2:
            self._time_out_later(event)
        if self.world.draw.random() < 0.1:
            self.world.later(self.world.draw.randrange(1, 20), lambda: self.when_awake(lambda: self._feed(event)))
        else:
            self._feed(event)

    def _time_out_later(self, event: events.WaitStarted) -> None:
        def time_out() -> None:
            if self.shell is not None and self.peer.program.waiting is event:
                self._feed(events.WaitTimedOut())

        self.world.later(self.world.draw.randrange(1, 30), lambda: self.when_awake(time_out))

    def stop(self, reason: str) -> None:
        """This incarnation is over."""
        if self.alive:
            self.alive = False
            self.world.checker.after_stop(self, reason)

    def _pack_state(self) -> tuple[bytes, dict[bytes, Buffer]]:
        most = INLINE_BYTES if self.world.schedule.chunked else MOST_INLINE_BYTES
        return pack_state(self.state.pack(), inline_bytes=most, cut=cut_small)

    def packed_fingerprint(self) -> int:
        """A checksum of the program's state as a checkpoint has it."""
        return crc32(self._pack_state()[0])

    def fingerprint(self) -> int:
        """A checksum of the program's state."""
        return crc32(self.state.pack())
