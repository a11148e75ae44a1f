"""The checker: sees everything, trusts nothing, and keeps its own account of what happened.

It follows every machine from outside (what went in, what came out) and keeps *ghosts*: for each log the entries that
really happened and their full dependency frontier, for each call where it ran and what it answered, for each process what
it truly depends on. The machines' own claims (needs, committed, covered, checkpointed) are compared with the ghosts.
A broken rule raises `Violation`, with the number of the invariant and the story of whoever is involved.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from lineage_stash.core import effects, events
from lineage_stash.core.channel import UNNUMBERED, Message
from lineage_stash.core.checkpoint import Checkpoint
from lineage_stash.core.entry import Entry, Ran, size_bytes
from lineage_stash.core.frontier import START, Frontier, join
from lineage_stash.core.history import Decision
from lineage_stash.core.ids import CallId, Incarnation, Index, NodeId, PeerId, Seqno
from lineage_stash.core.peer import Peer
from lineage_stash.core.recovery import Coordinator
from lineage_stash.store import contract
from lineage_stash.testing.stories import Story, say

if TYPE_CHECKING:
    from lineage_stash.testing.process import Process
    from lineage_stash.testing.world import World


class Violation(Exception):
    """A rule was broken; `invariant` says which."""

    def __init__(self, invariant: str, text: str, story: list[str]) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
        self.text = text
        self.story = story


class StrayNoticed(Exception):
    """A program that does not repeat itself was noticed, as it should be; there is nothing left to check."""


class GhostEntry(NamedTuple):
    """An entry that really happened, who wrote it, and all it depends on."""

    incarnation: Incarnation
    entry: Entry
    needs: Frontier


class Followed(NamedTuple):
    """What the checker knows of one process with a peer in it."""

    process: "Process"
    needs: Frontier
    delivered: dict[tuple[PeerId, Incarnation], int]
    floors: dict[PeerId, tuple[Seqno, Seqno]]
    committed: Frontier
    logged: Frontier
    progress: list[int]


class Checker:
    """Ghosts of one world."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.story = Story(world)
        self.logs: dict[PeerId, list[GhostEntry]] = {}
        self.runs: dict[PeerId, dict[Index, tuple[CallId, int]]] = {}
        self.replies: dict[CallId, tuple[tuple[Index, bytes, int], Frontier]] = {}
        self.running: dict[str, CallId] = {}
        self.messages: dict[tuple[str, str, int], Frontier] = {}
        self.calls: dict[CallId, tuple[Incarnation, Frontier]] = {}
        self.outputs: dict[tuple[PeerId, int], bytes] = {}
        self.emitted: dict[tuple[PeerId, int], tuple[Frontier, bytes, Index]] = {}
        self.gated: dict[tuple[str, int], Frontier] = {}
        self.committed: Frontier = {}
        self.followed: dict[str, Followed] = {}
        self.captured: dict[tuple[str, Index], tuple[int, dict[PeerId, int]]] = {}
        self.orphaned: list[str] = []
        self.fenced: dict[tuple[int, PeerId], int] = {}
        self.strayed: dict[str, str] = {}
        self.done: dict[PeerId, int] = {}
        self.unsettled_nodes: dict[NodeId, int] = {}
        self.worst_failures = 0

    def fail(self, invariant: str, text: str, *about: str) -> None:
        """Raise, with the story of those involved; where programs stray, that they differ is no news."""
        if self.world.schedule.strays and invariant in ("3 replay equality", "4 exactly once"):
            return
        raise Violation(invariant, text, self.story.about(about))

    # following a machine

    def watch(self, process: "Process", machine: Peer | Coordinator) -> None:
        """Look at every event that goes into a machine, and at every effect that comes out."""
        handle = machine.handle
        if isinstance(machine, Coordinator):

            def coordinate(event: object) -> list[effects.Effect]:
                result = handle(event)
                self.world.events += 1
                self.story.note(process.address, event, result)
                for effect in result:
                    if isinstance(effect, effects.OpenRound):
                        self._note_dead(effect)
                return result

            machine.handle = coordinate  # type: ignore[method-assign]
            return
        peer = machine
        followed = Followed(process, {}, {}, {}, {}, {}, [0, 0])
        self.followed[process.address] = followed

        def follow(event: object) -> list[effects.Effect]:
            result = handle(event)
            self.world.events += 1
            self.story.note(process.address, event, result)
            self._after(followed, peer, event, result)
            return result

        machine.handle = follow  # type: ignore[method-assign]

    def _after(self, followed: Followed, peer: Peer, event: object, result: list[effects.Effect]) -> None:
        self._note_deliveries(followed, peer, event)
        self._note_entries(followed, peer)
        self._check_claims(followed, peer)
        if isinstance(event, events.CallFinished):
            self._check_reply(peer, event, result)
        if isinstance(event, events.StateCaptured):
            self._check_capture(followed, peer)
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
            if self._is_current(peer):
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
            and incarnation < self._decided(sender)
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

    def _decided(self, peer: PeerId) -> Incarnation:
        return max(
            (b.incarnation for d in self.world.decisions for b in d.beginnings if b.peer == peer),
            default=Incarnation(0),
        )

    def _is_current(self, peer: Peer) -> bool:
        return peer.incarnation == self._decided(peer.id)

    def _note_entries(self, followed: Followed, peer: Peer) -> None:
        """New entries of the own log become ghosts; they must be new."""
        upper = peer.lineage.upper
        if not peer.member.replayable or upper == followed.needs.get(peer.id, START):
            return
        known = followed.needs.get(peer.id, START)
        if peer.program.script and upper > max(known, peer.lineage.committed.get(peer.id, START)):
            self.fail("10 replay first", f"{peer.id} wrote to its log before its replay's end", peer.id)
        followed.needs[peer.id] = upper
        if not self._is_current(peer):
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
        if lineage.stash.bytes > len(self.world.members) * self.world.policy.stash_cap_bytes + 512:
            self.fail("15 bounded", f"{peer.id} holds {lineage.stash.bytes} bytes of lineage", peer.id)
        if marks[1] != followed.progress[1]:
            followed.progress[1] = marks[1]
            self._check_committed(followed, peer)
        for other, counterpart in peer.counterparts.items():
            floors = (counterpart.outbox.floor, counterpart.inbox.released)
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
            invariant = "13 zombies" if peer.id == other and not self._is_current(peer) else "8 truncated is committed"
            self.fail(invariant, f"{peer.id} takes {other} below {upper} for committed; it ends at {len(log)}",
                      peer.id, other)  # fmt: skip
        needs = dict(log[upper - 1].needs)
        needs[other] = upper
        for needed, index in needs.items():
            if not self.truly_durable(needed, index):
                self.fail("8 truncated is committed", f"{peer.id} takes {other} below {upper} for committed, but "
                          f"{needed} below {index} is not at a majority", peer.id, other, needed)  # fmt: skip

    def truly_durable(self, peer: PeerId, upper: Index) -> bool:
        """Whether a majority of replicas really holds a surviving log below `upper`."""
        ghosts = self.logs.get(peer, [])
        if upper == 0 or upper <= self.committed.get(peer, START):
            return True
        if upper > len(ghosts):
            return False
        holders = 0
        for replica in self.world.replicas:
            log = replica.logs.get(peer)
            if log is None or log.upper < upper:
                continue
            if log.base >= upper or log.entries[upper - 1 - log.base] == ghosts[upper - 1].entry:
                holders += 1
        return holders > len(self.world.replicas) // 2

    def _check_freed(self, peer: Peer, other: PeerId, floors: tuple[Seqno, Seqno]) -> None:
        """Payloads and replies are deleted only when nobody can ask for them again."""
        floor, released = floors
        if floor and peer.member.peer in self.world.members:
            covered = self._covered(other, peer.id, by_content=not peer.member.replayable)
            if floor > covered:
                self.fail("12 deleted too early", f"{peer.id} dropped calls to {other} below {floor}, of which only "
                          f"those below {covered} are covered", peer.id, other)  # fmt: skip
        if released:
            member = self.world.members.get(other)
            if member is not None and member.replayable:
                kept = self._newest_durable(other)
                answered = next((calls.answered for callee, calls in kept.calls_to if callee == peer.id), Seqno(0)) \
                    if kept is not None else Seqno(0)  # fmt: skip
                if released > answered:
                    self.fail("12 deleted too early", f"{peer.id} dropped replies to {other} below {released}, of which "
                              f"its checkpoint has only those below {answered}", peer.id, other)  # fmt: skip

    def _newest_durable(self, peer: PeerId) -> Checkpoint | None:
        """The newest checkpoint that a majority of replicas has."""
        majority = len(self.world.replicas) // 2 + 1
        counts: dict[tuple[Index, bool], list[Checkpoint]] = {}
        for replica in self.world.replicas:
            for checkpoint in replica.checkpoints.get(peer, ()):
                counts.setdefault((checkpoint.upper, checkpoint.final), []).append(checkpoint)
        durable = [found[0] for found in counts.values() if len(found) >= majority]
        return max(durable, key=lambda checkpoint: checkpoint.upper, default=None)

    def _covered(self, callee: PeerId, caller: PeerId, *, by_content: bool) -> Seqno:
        kept = self._newest_durable(callee)
        covered = next((calls.finished for peer, calls in kept.calls_from if peer == caller), Seqno(0)) if kept else 0
        if by_content:
            for index, ghost in enumerate(self.logs.get(callee, ())):
                entry = ghost.entry
                if isinstance(entry, Ran) and entry.caller == caller and entry.payload is not None:
                    if not self.truly_durable(callee, Index(index + 1)):
                        break
                    covered = max(covered, entry.seqno + 1)
        return Seqno(covered)

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
            if self._is_current(peer) and (call not in self.calls or self.calls[call][0] < peer.incarnation):
                self.calls[call] = (peer.incarnation, self.messages[key])
        if self.world.policy.max_failures is not None:
            self._check_holders(peer, message)

    def _check_holders(self, peer: Peer, message: Message) -> None:
        """What is told without being sent, by one who holds it, is held on enough live nodes, or durable."""
        bound = self.world.policy.max_failures
        assert bound is not None
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
            if not other.process.alive and other.process.peer.id not in peer.promises.ignored
            and other.process.peer.incarnation >= peer.history.incarnation(other.process.peer.id)
        }  # fmt: skip

    def _holds(self, peer: Peer, needed: PeerId, upper: Index) -> bool:
        return peer.id == needed or peer.lineage.stash.upper(needed) >= upper

    def _check_run(self, followed: Followed, peer: Peer, effect: effects.RunCall) -> None:
        call = effect.call
        position = Index(peer.program.position - 1)
        _, needs = self.calls.get(call, (0, {}))
        if self._caller_is_current(call.caller, needs):
            for needed, upper in needs.items():
                if needed == peer.id or peer.program.script or self.truly_durable(needed, upper):
                    continue
                claimed = max(followed.logged.get(needed, START), peer.lineage.committed.get(needed, START))
                if peer.member.replayable and claimed < upper <= len(self.logs.get(needed, ())):
                    self.fail("2 merge before execute", f"{peer.id} runs {call}, whose caller needed {needed} below "
                              f"{upper}, but its log knows only {claimed}", peer.id, needed)  # fmt: skip
        self.running[followed.process.address] = call
        if followed.process.address in self.strayed and position < self.world.began(peer.id):
            self.fail("5 nondeterminism", f"nobody said so, but {self.strayed[followed.process.address]}", peer.id)
        if not self._is_current(peer):
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
        if not self._is_current(peer):
            return
        process = self.followed[f"{peer.id}@{peer.incarnation}"].process
        call = self.running[process.address]
        started_next = any(isinstance(effect, effects.RunCall) for effect in result)
        position = Index(peer.program.position - started_next)
        answered = (position, event.reply, process.fingerprint())
        needs = dict(self.followed[process.address].needs)
        before = self.replies.setdefault(call, (answered, needs))
        if before[0] != answered and self.world.schedule.strays:
            self.strayed[process.address] = f"{peer.id} answered {call} otherwise than before"
        elif before[0] != answered:
            self.fail("3 replay equality", f"{peer.id} answered {call} otherwise than before", peer.id)

    def _check_capture(self, followed: Followed, peer: Peer) -> None:
        checkpoint = peer.durability.checkpoint_under_way
        if checkpoint is not None:
            submitted = {callee: int(c.outbox.next_seqno) for callee, c in peer.counterparts.items()}
            key = (followed.process.address, checkpoint.upper)
            self.captured[key] = (followed.process.fingerprint(), submitted)

    def _check_checkpoint(self, followed: Followed, peer: Peer, effect: effects.StoreCheckpoint) -> None:
        """A checkpoint that becomes visible is of one moment, and all it depends on is committed."""
        checkpoint = effect.checkpoint
        state, submitted = self.captured[(followed.process.address, checkpoint.upper)]
        finished = {caller: calls.finished for caller, calls in checkpoint.calls_from}
        ran: dict[PeerId, int] = {}
        for index, (call, _) in self.runs.get(peer.id, {}).items():
            if index < checkpoint.upper:
                ran[call.caller] = ran.get(call.caller, 0) + 1
        whole = all(calls.next_seqno - calls.floor <= len(calls.payloads) for _, calls in checkpoint.calls_to)
        cached = all(calls.finished - calls.released <= len(calls.replies) for _, calls in checkpoint.calls_from)
        called = {callee: int(calls.next_seqno) for callee, calls in checkpoint.calls_to}
        same = all(called.get(callee, 0) == seqno for callee, seqno in submitted.items())
        if self._is_current(peer) and not (
            finished == ran and whole and cached and same and hash_of(checkpoint.state) == state
        ):
            self.fail("11 one moment", f"the checkpoint of {peer.id} at {checkpoint.upper} mixes moments", peer.id)
        if checkpoint.upper and self._is_current(peer):
            needs = dict(self.logs[peer.id][checkpoint.upper - 1].needs)
            needs[peer.id] = checkpoint.upper
            for needed, upper in needs.items():
                if not self.truly_durable(needed, upper):
                    self.fail("17 gate", f"the checkpoint of {peer.id} at {checkpoint.upper} became visible before "
                              f"{needed} below {upper} was committed", peer.id, needed)  # fmt: skip

    _checks: dict[type, Callable[..., None]] = {
        effects.SendMessage: _check_send,
        effects.RunCall: _check_run,
        effects.StoreCheckpoint: _check_checkpoint,
    }

    # the world around

    def after_start(self, process: "Process", peer: Peer) -> None:
        """A restored peer has exactly the log that survived."""
        followed = self.followed[process.address]
        followed.needs[peer.id] = peer.lineage.upper
        if peer.program.script:
            log = self.logs.get(peer.id, [])
            lower = peer.program.position
            if [ghost.entry for ghost in log[lower : peer.lineage.upper]] != list(peer.program.script):
                self.fail("3 replay equality", f"{peer.id} restored another log than the one that survived", peer.id)
        if peer.durability.checkpointed:
            process.state = type(process.state)(self._restored_state(peer))
            self._check_capture(followed, peer)

    def _restored_state(self, peer: Peer) -> bytes:
        for replica in self.world.replicas:
            for checkpoint in replica.checkpoints.get(peer.id, ()):
                if checkpoint.upper == peer.durability.checkpointed:
                    return checkpoint.state
        raise AssertionError("a restored checkpoint is nowhere")

    def after_crash(self, process: "Process") -> None:
        """A node with a crashed process counts as failed until the next decision settles it."""
        self.story.tell(process.address, "is killed")
        if "@" in process.address:
            self._note_failed_node(process.node)

    def after_suspicion(self, process: "Process") -> None:
        """Being taken for dead counts as dying."""
        self.story.tell(process.address, "is taken for dead")
        self._note_failed_node(process.node)

    def _note_dead(self, effect: effects.OpenRound) -> None:
        """Whoever a coordinator takes for dead may count as failed, alive or not."""
        for peer, incarnation in effect.dead:
            process = self.world.processes.get(f"{peer}@{incarnation}")
            if process is not None and self._decided(peer) == incarnation:
                self._note_failed_node(process.node)

    def _note_failed_node(self, node: NodeId) -> None:
        self.unsettled_nodes[node] = self.world.steps
        self.worst_failures = max(self.worst_failures, len(self.unsettled_nodes))

    def after_stop(self, process: "Process", reason: str) -> None:
        """A process has ended itself."""
        self.story.tell(process.address, f"stops: {reason}")
        if reason != "retired":
            self._note_failed_node(process.node)

    def after_retirement(self, process: "Process") -> None:
        """A driver has left: all its calls have run."""
        self.story.tell(process.address, "retires")
        peer = process.peer
        for callee, counterpart in peer.counterparts.items():
            ran = sum(1 for call, _ in self.runs.get(callee, {}).values() if call.caller == peer.id)
            if ran < counterpart.outbox.next_seqno:
                self.fail(
                    "4 exactly once", f"{peer.id} left, but {callee} ran only {ran} of its calls", peer.id, callee
                )

    def after_request(self, asker: "Process", replica: int, request: object, reply: object) -> None:
        """What replicas delete must be covered by a durable checkpoint; what is fenced must stay out."""
        if isinstance(request, contract.Truncate):
            kept = self._newest_durable(request.peer)
            if kept is None or kept.upper < request.below:
                self.fail("8 truncated is committed", f"replica {replica} truncates {request.peer} below "
                          f"{request.below} without a durable checkpoint there", asker.address)  # fmt: skip
        if isinstance(request, contract.Fence):
            for peer, incarnation in request.dead:
                self.fenced[(replica, peer)] = max(self.fenced.get((replica, peer), incarnation), incarnation)
        if isinstance(request, contract.PutCheckpoint) and isinstance(reply, contract.Stored) and reply.stored:
            checkpoint = request.checkpoint
            if checkpoint.incarnation <= self.fenced.get((replica, checkpoint.peer), -1):
                self.fail("13 zombies", f"replica {replica} took a checkpoint of {checkpoint.peer}@"
                          f"{checkpoint.incarnation} after fencing it", asker.address)  # fmt: skip
            if checkpoint.upper > len(self.logs.get(checkpoint.peer, ())):
                self.fail("13 zombies", f"replica {replica} took a checkpoint of {checkpoint.peer}@"
                          f"{checkpoint.incarnation} beyond its surviving log", asker.address)  # fmt: skip

    def after_output(self, process: "Process", peer: PeerId, number: int, value: bytes) -> None:
        """An output leaves once, always the same, and only when its past is committed."""
        before = self.outputs.get((peer, number))
        if before is not None and before != value:
            self.fail("4 exactly once", f"output {number} of {peer} left twice with different values", peer)
        self.outputs[(peer, number)] = value
        needs = self.gated.get((process.address, number), {})
        for needed, upper in needs.items():
            if not self.truly_durable(needed, upper):
                self.fail("17 gate", f"output {number} of {process.address} left before {needed} below {upper} was "
                          "committed", peer, needed)  # fmt: skip

    def after_fault(self, process: "Process", kind: str, text: str) -> None:
        """Nondeterminism never happens here; orphans only beyond the bound."""
        self.story.tell(process.address, f"reports {kind}: {text}")
        if kind == "nondeterminism" and self.world.schedule.strays:
            raise StrayNoticed
        if kind == "nondeterminism":
            self.fail("5 nondeterminism", text, process.address.split("@")[0])
        if kind == "orphan":
            bound = self.world.policy.max_failures
            if bound is None or self.worst_failures <= bound:
                self.fail("6 max_failures", f"lineage was lost with {self.worst_failures} failed nodes: {text}",
                          *self.world.members)  # fmt: skip
            self.orphaned.append(text)

    def after_decision(self, decision: Decision) -> None:
        """What a round ends never happened: forget it, after checking that nobody alive depends on it."""
        self.story.tell(decision.writer, f"decides round {decision.round}: {say(decision)}")
        replaced = {beginning.peer for beginning in decision.beginnings} | set(decision.gone)
        for beginning in decision.beginnings:
            peer, index = beginning.peer, beginning.lower
            if index < self.committed.get(peer, START):
                self.fail("8 truncated is committed", f"round {decision.round} ends {peer} at {index}, but "
                          f"{self.committed[peer]} was committed", peer)  # fmt: skip
            if index <= len(self.logs.get(peer, ())) and not self.truly_durable(peer, index):
                self.fail("14 crash in recovery", f"round {decision.round} ends {peer} at {index}, which is not at a "
                          "majority: one more crash loses it", peer)  # fmt: skip
            if index > len(self.logs.get(peer, ())):
                self.fail(
                    "3 replay equality", f"round {decision.round} ends {peer} at {index}, beyond what it wrote", peer
                )
        for followed in self.followed.values():
            process = followed.process
            owner = process.peer.id
            if not process.alive or owner in replaced or not self._was_current(process.peer, decision):
                continue
            for beginning in decision.beginnings:
                if followed.needs.get(beginning.peer, START) > beginning.lower and owner not in self.world.retired:
                    self.fail("1 no orphans", f"round {decision.round} ends {beginning.peer} at {beginning.lower}, but "
                              f"{process.address} depends on it to {followed.needs[beginning.peer]}",
                              owner, beginning.peer)  # fmt: skip
        for beginning in decision.beginnings:
            self._forget(beginning.peer, beginning.lower)
        self.unsettled_nodes = {
            process.node: 0 for process in self.world.processes.values()
            if not process.alive and "@" in process.address and process.shell is not None
            and process.peer.id not in replaced and process.peer.id not in self.world.retired
            and self._was_current(process.peer, decision)
        }  # fmt: skip

    def _was_current(self, peer: Peer, decision: Decision) -> bool:
        earlier = [
            b.incarnation for d in self.world.decisions if d.round < decision.round
            for b in d.beginnings if b.peer == peer.id
        ]  # fmt: skip
        return peer.incarnation == max(earlier, default=0)

    def _forget(self, peer: PeerId, index: Index) -> None:
        del self.logs.setdefault(peer, [])[index:]
        runs = self.runs.get(peer, {})
        for position in [position for position in runs if position >= index]:
            del runs[position]
        for call, ((position, _, _), needs) in list(self.replies.items()):
            if (call.callee == peer and position > index) or needs.get(peer, START) > index:
                del self.replies[call]
        for key, (needs, _, position) in list(self.emitted.items()):
            if (key[0] == peer and position > index) or needs.get(peer, START) > index:
                if key in self.outputs:
                    self.fail("17 gate", f"output {key[1]} of {key[0]} left and then never happened", peer, key[0])
                del self.emitted[key]
        for call in [call for call, (_, needs) in self.calls.items() if needs.get(peer, START) > index]:
            del self.calls[call]

    def before_store_returns(self) -> None:
        """The store was away from the beginning, nothing else failed, and the stash had room: all programs are done."""
        waiting = [name for name in self.world.programs if name not in self.done]
        if waiting:
            self.fail("16 zero waits", f"{', '.join(waiting)} waited for the store", *self.world.members)

    # the end

    def stuck(self) -> None:
        """Healed, and yet something never ends."""
        waiting = [text for text in map(self._why_waiting, self.world.members) if text]
        invariant = "10 recovery ends"
        peers = [followed.process.peer for followed in self.followed.values() if followed.process.alive]
        if self.world.store_was_away and any(peer.durability.flushing for peer in peers):
            invariant = "18 store outage"
        elif not self.world.drivers_here and any(peer.lineage.needs for peer in peers):
            invariant = "9 committed in the end"
        self.fail(invariant, "the world is healed and yet does not come to rest: " + "; ".join(waiting),
                  *self.world.members)  # fmt: skip

    def _why_waiting(self, name: PeerId) -> str:
        process = self.world.current(name)
        if name in self.world.retired:
            return ""
        if process is None or process.shell is None or not process.alive:
            return f"{name} is not there"
        peer = process.peer
        if peer.program.script:
            return f"{name} replays and waits for {peer.program.missing_caller}"
        if peer.program.waiting:
            return f"{name} waits for {peer.program.waiting}"
        if peer.lineage.needs:
            return f"{name} has uncommitted needs {peer.lineage.needs}"
        return ""

    def finish(self) -> None:
        """Everything that was held is committed, every call ran, every output left."""
        for followed in self.followed.values():
            process = followed.process
            if not process.alive or not self._is_current(process.peer) or self._has_gone(process.peer.id):
                continue
            stash = process.peer.lineage.stash
            held = [entry for piece in process.peer.lineage.all_ranges() for entry in piece.entries]
            if stash.bytes != sum(map(size_bytes, held)):
                self.fail("15 bounded", f"{process.address} charges {stash.bytes} bytes for {len(held)} entries",
                          process.peer.id)  # fmt: skip
            if process.peer.lineage.needs:
                self.fail("9 committed in the end", f"{process.address} still needs {process.peer.lineage.needs}",
                          process.peer.id)  # fmt: skip
            self._check_all_ran(process.peer)
        for peer, log in self.logs.items():
            if not self.truly_durable(peer, Index(len(log))):
                self.fail("9 committed in the end", f"the log of {peer} is not committed to {len(log)}", peer)
        for (peer, number), (_, value, _) in self.emitted.items():
            if not self._has_gone(peer) and self.outputs.get((peer, number)) != value:
                self.fail("4 exactly once", f"output {number} of {peer} never left, or left otherwise", peer)

    def _has_gone(self, peer: PeerId) -> bool:
        return any(peer in decision.gone for decision in self.world.decisions)

    def _check_all_ran(self, peer: Peer) -> None:
        for callee, counterpart in peer.counterparts.items():
            ran = sum(1 for call, _ in self.runs.get(callee, {}).values() if call.caller == peer.id)
            if ran != counterpart.outbox.next_seqno:
                self.fail("4 exactly once", f"{callee} ran {ran} of {counterpart.outbox.next_seqno} calls of {peer.id}",
                          peer.id, callee)  # fmt: skip


def hash_of(payload: bytes) -> int:
    """A checksum for comparing."""
    from zlib import crc32

    return crc32(payload)
