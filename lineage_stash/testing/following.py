"""Following: every event that goes into a machine and every effect that comes out, compared with the ghosts."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from lineage_stash.core import effects, events
from lineage_stash.core.channel import UNNUMBERED, Message
from lineage_stash.core.frontier import START, Frontier, join
from lineage_stash.core.ids import CallId, Incarnation, Index, NodeId, PeerId, Seqno
from lineage_stash.core.invariants import validate
from lineage_stash.core.peer import Peer
from lineage_stash.core.recovery import Coordinator
from lineage_stash.testing.ghosts import GhostEntry, Ghosts, hash_of

if TYPE_CHECKING:
    from lineage_stash.testing.process import Process
    from lineage_stash.testing.world import World


VALIDATE_EVERY = 8
"""Events between two looks at whether a machine contradicts itself: often enough, and cheap enough."""


class Followed(NamedTuple):
    """What the checker knows of one process with a peer in it."""

    process: "Process"
    needs: Frontier
    delivered: dict[tuple[PeerId, Incarnation], int]
    floors: dict[PeerId, tuple[Seqno, Seqno]]
    committed: Frontier
    logged: Frontier
    progress: list[int]
    """The round, the version of its lineage, and where its own part of the log begins."""
    wanted: Frontier
    """What its program waits to see committed, or has waited for last; nothing where it repeats itself."""


class Following(Ghosts):
    """The ghosts, kept up to date and compared by following every machine."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.followed: dict[str, Followed] = {}
        self.running: dict[str, CallId] = {}
        self.messages: dict[tuple[str, str, int], Frontier] = {}
        self.gated: dict[tuple[str, int], Frontier] = {}
        self.captured: dict[tuple[str, Index], tuple[int, dict[PeerId, int]]] = {}
        self.strayed: dict[str, str] = {}
        self.done: dict[PeerId, int] = {}
        self.unsettled_nodes: dict[NodeId, int] = {}
        self.worst_failures: dict[int, int] = {}

    # following a machine

    def watch(self, process: "Process", machine: Peer | Coordinator) -> None:
        """Look at every event that goes into a machine, and at every effect that comes out."""
        handle = machine.handle
        assert process.shell is not None
        if isinstance(machine, Coordinator):

            def coordinate(event: object) -> list[effects.Effect]:
                result = handle(event)
                self.world.events += 1
                self.story.note(process.address, event, result)
                for effect in result:
                    if isinstance(effect, effects.OpenRound):
                        self._note_dead(effect)
                return result

            process.shell.handle = coordinate
            return
        peer = machine
        followed = Followed(process, {}, {}, {}, {}, {}, [0, 0, 0], {})
        self.followed[process.address] = followed

        def follow(event: object) -> list[effects.Effect]:
            waited = isinstance(peer.program.waiting, events.CommitStarted)
            if isinstance(event, events.CommitStarted):
                waited = True
                followed.wanted.clear()
                followed.wanted.update({} if peer.program.script else followed.needs)
            was_quiet = type(event) is events.Ticked and peer.is_quiet
            result = handle(event)
            assert not (was_quiet and result), f"{process.address} was quiet, and a tick made it do {result}"
            self.world.events += 1
            self.story.note(process.address, event, result)
            self._after(followed, peer, event, result)
            if waited and peer.program.waiting is None and any(isinstance(each, effects.Resume) for each in result):
                self._check_wanted(followed, peer)
            if self.world.events % VALIDATE_EVERY == 0:
                validate(peer)
            return result

        process.shell.handle = follow

    def _after(self, followed: Followed, peer: Peer, event: object, result: list[effects.Effect]) -> None:
        self._note_deliveries(followed, peer, event)
        self._note_entries(followed, peer)
        self._check_claims(followed, peer)
        if isinstance(event, events.CallFinished):
            self._check_reply(peer, event, result)
        if any(isinstance(effect, effects.Stop | effects.Retire) for effect in result[:-1]):
            self.fail("13 zombies", f"{followed.process.address} went on after it had stopped", peer.id)
        for effect in result:
            check = self._checks.get(type(effect))
            if check is not None:
                check(self, followed, peer, effect)
        if isinstance(event, events.RetireAsked):
            self.done[peer.id] = self.world.now_ms
        if isinstance(event, events.OutputEmitted):
            number = peer.durability.next_output - 1
            position = peer.program.position
            self.gated[(followed.process.address, number)] = dict(followed.needs)
            if self.is_current(peer):
                self.emitted[(peer.id, number)] = (dict(followed.needs), event.value, position)

    def _note_deliveries(self, followed: Followed, peer: Peer, event: object) -> None:
        """Whatever a channel delivered, the peer now depends on what its sender depended on."""
        if isinstance(event, events.MessageArrived):
            senders = [event.message.sender]
        elif isinstance(event, events.Decided | events.Appended):
            senders = list(peer.counterparts)
        else:
            return
        for sender in senders:
            counterpart = peer.counterparts.get(sender)
            if counterpart is None:
                continue
            channel = counterpart.channel
            key = (sender, channel.incarnation)
            for number in range(followed.delivered.get(key, 0), channel.expected):
                self._note_delivery(followed, peer, sender, channel.incarnation, number)
            followed.delivered[key] = channel.expected

    def _note_delivery(self, followed: Followed, peer: Peer, sender: PeerId, incarnation: Incarnation,
                       number: int) -> None:  # fmt: skip
        origin = f"{sender}@{incarnation}"
        if incarnation < peer.history.incarnation(sender) or (
            incarnation <= peer.promises.ignored.get(sender, -1)
            and incarnation < self.decided(sender)
        ):  # fmt: skip
            self.fail("13 zombies", f"{followed.process.address} took a message from {origin}", origin)
        needs = self.messages[(origin, followed.process.address, number)]
        join(followed.needs, needs.items())
        for needed, upper in needs.items():
            if needed == peer.id or self.truly_durable(needed, upper):
                continue
            claimed = max(peer.lineage.needs.get(needed, START), peer.lineage.committed.get(needed, START))
            if claimed < upper:
                self.fail("1 no orphans", f"{peer.id} depends on {needed} below {upper} and knows only {claimed}",
                          peer.id, needed)  # fmt: skip
            if self.world.policy.max_failures is None and self._held_below(peer, needed) < upper:
                self.fail("1 no orphans", f"{peer.id} depends on {needed} below {upper} without holding it",
                          peer.id, needed)  # fmt: skip

    def _held_below(self, peer: Peer, needed: PeerId) -> Index:
        return max(peer.lineage.stash.upper(needed), peer.lineage.committed.get(needed, START))

    def _note_entries(self, followed: Followed, peer: Peer) -> None:
        """New entries of the own log become ghosts; they must be new."""
        upper = peer.lineage.upper
        if not peer.member.replayable or upper == followed.needs.get(peer.id, START):
            return
        known = followed.needs.get(peer.id, START)
        if peer.program.script and upper > max(known, peer.lineage.committed.get(peer.id, START)):
            self.fail("10 replay first", f"{peer.id} wrote to its log before its replay's end", peer.id)
        followed.needs[peer.id] = upper
        if not self.is_current(peer):
            return
        log = self.logs.setdefault(peer.id, [])
        stash = peer.lineage.stash
        entries = [entry for piece in stash.ranges(peer.id, Index(len(log)), peer.history) for entry in piece.entries]
        for entry in entries:
            join(followed.logged, entry.needs)
            log.append(GhostEntry(peer.incarnation, entry, dict(followed.needs)))

    def _check_claims(self, followed: Followed, peer: Peer) -> None:
        """Frontiers never go back; committed is true."""
        lineage = peer.lineage
        marks = (int(peer.history.round), lineage.version)
        if marks[0] < followed.progress[0]:
            self.fail("7 never back", f"{peer.id} forgot a round", peer.id)
        followed.progress[0] = marks[0]
        if lineage.stash.bytes > len(self.world.members) * self.world.policy.stash_cap_bytes + 128:
            self.fail("15 bounded", f"{peer.id} holds {lineage.stash.bytes} bytes of lineage", peer.id)
        if marks[1] != followed.progress[1]:
            followed.progress[1] = marks[1]
            self._check_committed(followed, peer)
        for other, counterpart in peer.counterparts.items():
            floors = (counterpart.outbox.calls.floor, counterpart.inbox.replies.floor)
            if floors != followed.floors.get(other):
                followed.floors[other] = floors
                self._check_freed(peer, other, floors)

    def _check_committed(self, followed: Followed, peer: Peer) -> None:
        for other, upper in peer.lineage.committed.items():
            before = followed.committed.get(other, START)
            if upper < before:
                self.fail("7 never back", f"{peer.id} lowered its committed frontier of {other}", peer.id)
            if upper == before:
                continue
            followed.committed[other] = upper
            if upper <= self.committed.get(other, START):
                continue
            self._check_truly_committed(peer, other, upper)
            self.committed[other] = upper

    def _check_truly_committed(self, peer: Peer, other: PeerId, upper: Index) -> None:
        """All of it is at a majority, and so is all it depends on."""
        log = self.logs.get(other, [])
        if upper > len(log):
            invariant = "13 zombies" if peer.id == other and not self.is_current(peer) else "8 truncated is committed"
            self.fail(invariant, f"{peer.id} takes {other} below {upper} for committed; it ends at {len(log)}",
                      peer.id, other)  # fmt: skip
        needs = dict(log[upper - 1].needs)
        needs[other] = upper
        for needed, index in needs.items():
            if not self.truly_durable(needed, index):
                self.fail("8 truncated is committed", f"{peer.id} takes {other} below {upper} for committed, but "
                          f"{needed} below {index} is not at a majority", peer.id, other, needed)  # fmt: skip

    def _check_wanted(self, followed: Followed, peer: Peer) -> None:
        """A program goes on after `commit` only when all that it depended on at that moment is durable."""
        for needed, upper in followed.wanted.items():
            if not self.truly_durable(needed, upper):
                self.fail("17 gate", f"{peer.id} went on before {needed} below {upper} was committed",
                          peer.id, needed)  # fmt: skip

    def _check_freed(self, peer: Peer, other: PeerId, floors: tuple[Seqno, Seqno]) -> None:
        """Payloads and replies are deleted only when nobody can ask for them again."""
        floor, released = floors
        if floor and peer.member.peer in self.world.members:
            covered = self.covered(other, peer.id, by_content=peer.member.logged_by_content)
            if floor > covered:
                self.fail("12 deleted too early", f"{peer.id} dropped calls to {other} below {floor}, of which only "
                          f"those below {covered} are covered", peer.id, other)  # fmt: skip
        if released:
            member = self.world.members.get(other)
            if member is not None and member.replayable:
                kept = self.newest_durable(other)
                calls_to = kept.calls_to if kept is not None else ()
                answered = next((calls.answered for callee, calls in calls_to if callee == peer.id), Seqno(0))
                if released > answered:
                    self.fail("12 deleted too early", f"{peer.id} dropped replies to {other} below {released}, of "
                              f"which its checkpoint has only those below {answered}", peer.id, other)  # fmt: skip

    def _note_dead(self, effect: effects.OpenRound) -> None:
        """Whoever a coordinator takes for dead may count as failed, alive or not."""
        for peer, incarnation in effect.dead:
            process = self.world.processes.get(f"{peer}@{incarnation}")
            if process is not None and self.decided(peer) == incarnation:
                self._note_failed_node(process.node)

    def _note_failed_node(self, node: NodeId) -> None:
        self.unsettled_nodes[node] = self.world.steps
        self._note_worst_failures()

    def _note_worst_failures(self) -> None:
        """How many nodes were down at once, by how many rounds were decided at the time."""
        rounds = len(self.world.decisions)
        self.worst_failures[rounds] = max(self.worst_failures.get(rounds, 0), len(self.unsettled_nodes))

    # effects

    def _check_send(self, followed: Followed, peer: Peer, effect: effects.SendMessage) -> None:
        message = effect.message
        receiver = f"{message.receiver}@{message.receiver_incarnation}"
        if message.number == UNNUMBERED:
            return
        key = (followed.process.address, receiver, message.number)
        if key in self.messages:
            return
        self.messages[key] = dict(followed.needs)
        for offset in range(len(message.calls)):
            call = CallId(peer.id, message.receiver, Seqno(message.first_call + offset))
            if self.is_current(peer) and (call not in self.calls or self.calls[call][0] < peer.incarnation):
                self.calls[call] = (peer.incarnation, self.messages[key])
        if self.world.policy.max_failures is not None:
            self._check_holders(peer, message)

    def _check_holders(self, peer: Peer, message: Message) -> None:
        """What is told without being sent, by one who holds it, is held on enough live nodes, or durable."""
        bound = self.world.policy.max_failures
        assert bound is not None
        for other, counterpart in peer.counterparts.items():
            process = self.world.processes.get(f"{other}@{counterpart.channel.incarnation}")
            if counterpart.member is not None and process is not None and counterpart.member.node != process.node:
                self.fail("8 forwarded enough", f"{peer.id} counts {other} on a node where it does not live", peer.id)
        for needed, upper in message.batch.needs:
            if self.truly_durable(needed, upper) or upper > len(self.logs.get(needed, ())):
                continue
            if not self._holds(peer, needed, upper):
                continue
            nodes = {
                other.process.node
                for other in self.followed.values()
                if other.process.alive and self._holds(other.process.peer, needed, upper)
            }
            if len(nodes | self._nodes_not_known_dead(peer)) <= bound:
                self.fail("8 forwarded enough", f"{peer.id} told {message.receiver} of {needed} below {upper} without "
                          f"sending it, but only nodes {sorted(nodes)} hold it", peer.id, needed)  # fmt: skip

    def _nodes_not_known_dead(self, peer: Peer) -> set[NodeId]:
        """Nodes with dead processes of which this peer has not been told: it cannot know better than to count them."""
        return {
            other.process.node for other in self.followed.values()
            if not other.process.alive and other.process.peer.id not in self.world.retired
            and other.process.peer.id not in peer.promises.ignored
            and other.process.peer.incarnation >= peer.history.incarnation(other.process.peer.id)
        }  # fmt: skip

    def _holds(self, peer: Peer, needed: PeerId, upper: Index) -> bool:
        return peer.id == needed or peer.lineage.stash.upper(needed) >= upper

    def _check_run(self, followed: Followed, peer: Peer, effect: effects.RunCall) -> None:
        call = effect.call
        position = peer.program.ran_at
        _, needs = self.calls.get(call, (0, {}))
        if position >= followed.progress[2] and self._caller_is_current(call.caller, needs):
            for needed, upper in needs.items():
                if needed == peer.id or self.truly_durable(needed, upper):
                    continue
                claimed = max(followed.logged.get(needed, START), peer.lineage.committed.get(needed, START))
                if peer.member.replayable and claimed < upper <= len(self.logs.get(needed, ())):
                    self.fail("2 merge before execute", f"{peer.id} runs {call}, whose caller needed {needed} below "
                              f"{upper}, but its log knows only {claimed}", peer.id, needed)  # fmt: skip
        self.running[followed.process.address] = call
        if followed.process.address in self.strayed and position < followed.progress[2]:
            self.fail("5 nondeterminism", f"nobody said so, but {self.strayed[followed.process.address]}", peer.id)
        if not self.is_current(peer):
            return
        runs = self.runs.setdefault(peer.id, {})
        before = runs.get(position)
        arguments = hash_of(effect.payload)
        if before is not None and before != (call, arguments):
            self.fail("3 replay equality", f"{peer.id} ran {call} at {position}, where it had run {before[0]}", peer.id)
        if before is None:
            expected = sum(1 for other, _ in runs.values() if other.caller == call.caller)
            if call.seqno != expected:
                self.fail("4 exactly once", f"{peer.id} runs {call}, but #{expected} of {call.caller} is next", peer.id)
            runs[position] = (call, arguments)

    def _caller_is_current(self, caller: PeerId, needs: Frontier) -> bool:
        return needs.get(caller, START) <= len(self.logs.get(caller, ()))

    def _check_reply(self, peer: Peer, event: events.CallFinished, result: list[effects.Effect]) -> None:
        """A call that ran again answers what it had answered, and leaves the state that it had left."""
        if not self.is_current(peer):
            return
        process = self.followed[f"{peer.id}@{peer.incarnation}"].process
        call = self.running[process.address]
        started_next = any(isinstance(effect, effects.RunCall) for effect in result)
        position = Index(peer.program.position - started_next)
        began = next(at for at, (ran, _) in self.runs[peer.id].items() if ran == call)
        answered = (began, event.reply, process.fingerprint())
        needs = dict(self.followed[process.address].needs)
        before = self.replies.setdefault(call, (answered, needs, position))
        if before[0] != answered and self.world.schedule.strays:
            self.strayed[process.address] = f"{peer.id} answered {call} otherwise than before"
        elif before[0] != answered:
            self.fail("3 replay equality", f"{peer.id} answered {call} otherwise than before", peer.id)

    def _note_capture(self, followed: Followed, peer: Peer, _: effects.CaptureState) -> None:
        checkpoint = peer.durability.checkpoint_under_way
        assert checkpoint is not None
        key = (followed.process.address, checkpoint.upper)
        self.captured[key] = (followed.process.packed_fingerprint(), self._submitted(peer))

    def _submitted(self, peer: Peer) -> dict[PeerId, int]:
        return {callee: int(c.outbox.calls.upper) for callee, c in peer.counterparts.items()}

    def _check_checkpoint(self, followed: Followed, peer: Peer, effect: effects.StoreCheckpoint) -> None:
        """A checkpoint that becomes visible is of one moment, and all it depends on is committed."""
        checkpoint = effect.checkpoint
        key = (followed.process.address, checkpoint.upper)
        of_the_end = (hash_of(checkpoint.state), self._submitted(peer))
        state, submitted = of_the_end if checkpoint.final else self.captured[key]
        finished = {caller: calls.finished for caller, calls in checkpoint.calls_from}
        ran: dict[PeerId, int] = {}
        for index, (call, _) in self.runs.get(peer.id, {}).items():
            if index < checkpoint.upper:
                ran[call.caller] = ran.get(call.caller, 0) + 1
        whole = all(calls.next_seqno - calls.floor <= len(calls.payloads) for _, calls in checkpoint.calls_to)
        cached = all(calls.finished - calls.released <= len(calls.replies) for _, calls in checkpoint.calls_from)
        called = {callee: int(calls.next_seqno) for callee, calls in checkpoint.calls_to}
        same = all(called.get(callee, 0) == seqno for callee, seqno in submitted.items())
        if self.is_current(peer) and not (
            finished == ran and whole and cached and same and hash_of(checkpoint.state) == state
        ):
            self.fail("11 one moment", f"the checkpoint of {peer.id} at {checkpoint.upper} mixes moments", peer.id)
        if checkpoint.upper and self.is_current(peer):
            needs = dict(self.logs[peer.id][checkpoint.upper - 1].needs)
            needs[peer.id] = checkpoint.upper
            for needed, upper in needs.items():
                if not self.truly_durable(needed, upper):
                    self.fail("17 gate", f"the checkpoint of {peer.id} at {checkpoint.upper} became visible before "
                              f"{needed} below {upper} was committed", peer.id, needed)  # fmt: skip

    _checks: ClassVar[dict[type, Callable[..., None]]] = {
        effects.SendMessage: _check_send,
        effects.RunCall: _check_run,
        effects.CaptureState: _note_capture,
        effects.StoreCheckpoint: _check_checkpoint,
    }
