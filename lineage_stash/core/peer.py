"""The peer: one participant with a log, as a machine. Facts in, orders out, and nothing else changes its state.

The way of a call, in the methods below: *submit* and *reply* fill the boxes, `_forward` puts them into messages with the
lineage that the receiver lacks, `_admit` judges and merges before anything becomes ready, `_flush` sends the own new
entries to the store, `_on_appended` commits, the gate releases. Rounds are in `promises.py`.

Left to others: carrying out the effects (`shell.py`), deciding rounds (`recovery.py`).
"""

from collections import deque
from collections.abc import Callable

from lineage_stash.core import events
from lineage_stash.core.channel import UNNUMBERED, Channel, Message
from lineage_stash.core.checkpoint import Checkpoint
from lineage_stash.core.counterpart import Counterpart, calls_in_record, capture, restore_inbox, restore_outbox
from lineage_stash.core.effects import (
    AppendToStore, CaptureState, Effect, FetchDecisions, FindRecord, ReleaseOutput, ReportFault, ReportSuspicion, Resume, Retire,
    SendMessage, Stop, StoreCheckpoint, TruncateStore,
)  # fmt: skip
from lineage_stash.core.entry import Entry
from lineage_stash.core.gate import Gate, Output
from lineage_stash.core.history import History
from lineage_stash.core.ids import Incarnation, Index, Member, PeerId, Seqno
from lineage_stash.core.lineage import Lineage
from lineage_stash.core.policy import Policy
from lineage_stash.core.program import Program
from lineage_stash.core.promises import Promises


LOOK_UP_TICKS = 8
"""How often a peer that is kept waiting looks whether a decision has passed it by."""


class Peer:
    """A driver, an actor or a task runner: `handle(event)` returns the effects to carry out, in order."""

    def __init__(self, member: Member, incarnation: Incarnation, history: History, policy: Policy, *,
                 checkpoint: Checkpoint | None = None, entries: tuple[Entry, ...] = (),
                 ignored: tuple[tuple[PeerId, Incarnation], ...] = ()) -> None:  # fmt: skip
        self.member = member
        self.id = member.peer
        self.incarnation = incarnation
        self.policy = policy
        self.history = history
        self.stopped = False
        self.retiring = False
        self._effects: list[Effect] = []
        self._emit = self._effects.append
        self.counterparts: dict[PeerId, Counterpart] = {}
        start = checkpoint.index if checkpoint else Index(0)
        self.lineage = Lineage(self.id, history, Index(start + len(entries)))
        self.program = Program(self.id, self.lineage, self.counterpart, self._emit,
                               logs=member.replayable, cap_bytes=policy.stash_cap_bytes)  # fmt: skip
        self.promises = Promises(self.id, incarnation, self.lineage, self._emit)
        self.promises.ignore(ignored)
        self.ticks = 0
        self.gate = Gate()
        self.next_output = 0
        self.flushed = self.lineage.upper
        self.flushing = False
        self.checkpointed = start
        self.checkpoint_under_way: Checkpoint | None = None
        self._marks: deque[tuple[Index, Counterpart, Seqno]] = deque()
        self._stirred: dict[PeerId, Counterpart] = {}
        self._handlers: dict[type, Callable[..., None]] = {
            events.MainStarted: lambda _: self.program.start_main(),
            events.CallSubmitted: self._on_submitted,
            events.GetStarted: self.program.wait,
            events.WaitStarted: self.program.wait,
            events.WaitTimedOut: lambda _: self.program.end_wait(),
            events.ReadStarted: lambda event: self.program.read(event.kind),
            events.ReadingTaken: lambda event: self.program.record_reading(event.value),
            events.OutputEmitted: self._on_output,
            events.CallFinished: self._on_finished,
            events.StateCaptured: self._on_state_captured,
            events.RetireAsked: self._on_retire_asked,
            events.MessageArrived: lambda event: self._admit(event.message),
            events.Appended: self._on_appended,
            events.CheckpointStored: self._on_checkpoint_stored,
            events.StoreRefused: self._on_store_refused,
            events.OutputAccepted: lambda event: self.gate.accept(event.number),
            events.Departed: self._on_departed,
            events.RecordLoaded: self._on_record_loaded,
            events.Lingered: lambda _: None,
            events.Ticked: self._on_ticked,
            events.GatherAsked: self.promises.answer,
            events.Decided: self._on_decided,
        }
        if checkpoint is not None:
            self._restore(checkpoint)
        if incarnation:
            self.program.begin_replay(entries)

    def handle(self, event: object) -> list[Effect]:
        """Take in one fact; return what to do about it."""
        return self.handle_all((event,))

    def handle_all(self, happened: tuple[object, ...]) -> list[Effect]:
        """Take in several facts before answering, so that what they cause travels together."""
        if not self.stopped:
            for event in happened:
                self._handlers[type(event)](event)
            if len(self.gate):
                self._release()
            self.program.try_resume()
            if not self.program.run_next():
                self._forward()
                self._flush()
        effects = self._effects[:]
        self._effects.clear()
        return effects

    def counterpart(self, peer: PeerId) -> Counterpart:
        """What is kept about another peer; made on first use."""
        counterpart = self.counterparts.get(peer)
        if counterpart is None:
            counterpart = self.counterparts[peer] = Counterpart(peer, self.history.incarnation(peer))
            counterpart.gone = peer in self.history.gone
        return counterpart

    def _stir(self, counterpart: Counterpart) -> None:
        """Something may have to be sent there."""
        self._stirred[counterpart.peer] = counterpart

    def _stop(self, effect: Stop | Retire) -> None:
        self.stopped = True
        self._emit(effect)

    def _on_submitted(self, event: events.CallSubmitted) -> None:
        self.program.submit(event.callee, event.payload, event.wanted)
        self._stir(self.counterpart(event.callee))

    # execute: judge, merge, and only then let calls become ready

    def _admit(self, message: Message) -> None:
        if message.receiver_incarnation != self.incarnation:
            return
        if message.round > self.history.round:
            self._emit(FetchDecisions(self.history.round))
            return
        if self.promises.refuses(message.sender, message.sender_incarnation):
            return
        counterpart = self.counterpart(message.sender)
        channel = counterpart.channel
        if message.sender_incarnation != channel.incarnation:
            return
        channel.acknowledge(message.acknowledged)
        if message.number == UNNUMBERED:
            return
        channel.owed_acknowledgements += 1
        self._stir(counterpart)
        if message.number >= channel.expected:
            channel.early[message.number] = message
        self._deliver_in_order(counterpart, channel)

    def _deliver_in_order(self, counterpart: Counterpart, channel: Channel) -> None:
        while (message := channel.early.get(channel.expected)) is not None:
            if self.promises.must_hold(message.batch, message.round):
                return
            if message.batch.ranges and self.program.at_cap:
                return
            del channel.early[channel.expected]
            channel.expected += 1
            self._deliver(counterpart, message)

    def _deliver_held(self) -> None:
        """A decision or a commit may have made room for what was held."""
        for counterpart in self.counterparts.values():
            if counterpart.channel.early:
                self._deliver_in_order(counterpart, counterpart.channel)

    def _deliver(self, counterpart: Counterpart, message: Message) -> None:
        if message.hello is not None:
            counterpart.greet(message.hello)
        self.lineage.merge(message.batch)
        counterpart.channel.note_held(message.batch)
        counterpart.outbox.cover(message.covered)
        counterpart.inbox.release(message.released)
        if message.replies:
            counterpart.outbox.accept_replies(message.first_reply, message.replies)
            if not self.member.replayable:
                counterpart.outbox.released = counterpart.outbox.answered
        if message.calls:
            self._receive_calls(counterpart, message.first_call, message.calls)

    def _receive_calls(self, counterpart: Counterpart, first: Seqno, calls: tuple[bytes, ...]) -> None:
        fresh, differing = counterpart.inbox.accept(first, calls)
        self.program.ready.extend([counterpart] * fresh)
        for seqno in differing:
            self._emit(ReportFault("nondeterminism", f"{counterpart.peer} repeated its call #{seqno} to {self.id} "
                                                     "with other arguments than in its first run"))  # fmt: skip

    # forward and reply: everything that waits, with the lineage that the receiver lacks

    def _forward(self) -> None:
        if not self._stirred:
            return
        for counterpart in self._stirred.values():
            while counterpart.wants_to_send and self._may_send(counterpart):
                self._send(counterpart)
            if counterpart.channel.owed_acknowledgements >= self.policy.window_messages // 2:
                self._acknowledge(counterpart)
        self._stirred.clear()

    def _may_send(self, counterpart: Counterpart) -> bool:
        return (
            len(counterpart.channel.unacknowledged) < self.policy.window_messages
            and not counterpart.gone
            and not self.promises.ignores(counterpart.peer)
        )

    def _send(self, counterpart: Counterpart) -> None:
        batch = self.lineage.batch_for(counterpart.channel, counterpart.peer, self._well_held())
        message = counterpart.compose(self.member, self.incarnation, self.history.round, batch,
                                      self.policy.calls_per_message)  # fmt: skip
        self._emit(SendMessage(message))

    def _acknowledge(self, counterpart: Counterpart) -> None:
        self._emit(SendMessage(counterpart.bare_acknowledgement(self.member, self.incarnation, self.history.round)))

    def _well_held(self) -> dict[PeerId, Index] | None:
        if self.policy.max_failures is None:
            return None
        live = [c for c in self.counterparts.values() if c.member and not c.gone and not self.promises.ignores(c.peer)]
        holders = [(c.member.node, c.channel.held) for c in live if c.member]
        writers = {c.peer: c.member.node for c in live if c.member}
        writers[self.id] = self.member.node
        return self.lineage.well_held(holders, writers, self.member.node, self.policy.max_failures)

    # flush and commit

    def _flush(self) -> None:
        if self.flushing or self.lineage.upper == self.flushed:
            return
        ranges = tuple(self.lineage.stash.ranges(self.id, self.flushed, self.history))
        self._append(ranges, self.lineage.upper)

    def _append(self, ranges: tuple[events.Range, ...], upper: Index) -> None:
        self.flushing = True
        self.flushed = upper
        self.lineage.snapshot()
        watch = self.lineage.watch
        self._emit(AppendToStore(ranges, watch if self.id in watch else (*watch, self.id)))

    def _on_appended(self, event: events.Appended) -> None:
        self.flushing = False
        self.lineage.note_durable(event.holdings, event.quorum)
        self._cover_by_content()
        self._deliver_held()

    def _on_store_refused(self, _: events.StoreRefused) -> None:
        self._stop(Stop("the store has fenced this incarnation"))

    def _cover_by_content(self) -> None:
        """Callers that nobody can run again need not keep what our committed log holds by content."""
        committed = self.lineage.committed.get(self.id, 0)
        while self._marks and self._marks[0][0] <= committed:
            _, counterpart, seqno = self._marks.popleft()
            counterpart.inbox.covered = max(counterpart.inbox.covered, seqno)

    def _poll_commits(self) -> None:
        """Ask about what is not known to be committed; flush what others' logs we hold, should their writers be slow."""
        if self.flushing or not self.lineage.needs:
            return
        held = (piece for peer in self.lineage.watch if peer != self.id
                for piece in self.lineage.stash.ranges(peer, Index(0), self.history))  # fmt: skip
        own = self.lineage.stash.ranges(self.id, Index(0), self.history)
        self._append((*own, *held), self.lineage.upper)

    # gate, checkpoint, retire

    def _on_output(self, event: events.OutputEmitted) -> None:
        self.gate.hold(Output(self.next_output, event.value), dict(self.lineage.needs))
        self.next_output += 1
        self._emit(Resume(None))

    def _release(self) -> None:
        for item in self.gate.release(self.lineage.committed):
            if isinstance(item, Output):
                self._emit(ReleaseOutput(item))
            else:
                self._emit(StoreCheckpoint(item))

    def _on_finished(self, event: events.CallFinished) -> None:
        counterpart = self.program.current
        assert counterpart is not None
        self.program.finish(event.reply)
        self._stir(counterpart)
        if counterpart.logged_by_content:
            self._marks.append((self.lineage.upper, counterpart, counterpart.inbox.finished))
            self._cover_by_content()
        every = self.policy.checkpoint_every_entries
        if every is not None and not self.program.script and self.lineage.upper - self.checkpointed >= every:
            self._begin_checkpoint()

    def _begin_checkpoint(self) -> None:
        if self.checkpoint_under_way is None and not self.program.paused:
            self.program.paused = True
            self._emit(CaptureState())

    def _on_state_captured(self, event: events.StateCaptured) -> None:
        self.program.paused = self.retiring
        calls_to, calls_from = capture(self.counterparts)
        outputs = tuple((output.number, output.value) for output in self.gate.unaccepted.values())
        checkpoint = Checkpoint(
            self.id, self.incarnation, self.lineage.upper, event.state, self.program.digest, calls_to, calls_from,
            outputs, self.next_output, self.retiring,
        )  # fmt: skip
        self.checkpointed = checkpoint.index
        self.checkpoint_under_way = checkpoint
        self.gate.hold(checkpoint, dict(self.lineage.needs))

    def _on_checkpoint_stored(self, _: events.CheckpointStored) -> None:
        checkpoint = self.checkpoint_under_way
        assert checkpoint is not None
        self.checkpoint_under_way = None
        for peer, calls in checkpoint.calls_from:
            inbox = self.counterpart(peer).inbox
            inbox.covered = max(inbox.covered, calls.finished)
        for peer, calls in checkpoint.calls_to:
            self.counterpart(peer).outbox.released = calls.answered
        self._emit(TruncateStore(checkpoint.index))
        if checkpoint.final:
            self._stop(Retire())

    def _restore(self, checkpoint: Checkpoint) -> None:
        self.program.digest = checkpoint.digest
        self.next_output = checkpoint.next_output
        for peer, calls_to in checkpoint.calls_to:
            restore_outbox(self.counterpart(peer).outbox, calls_to)
        for peer, calls_from in checkpoint.calls_from:
            restore_inbox(self.counterpart(peer).inbox, calls_from)
        for number, value in checkpoint.outputs:
            self.gate.hold(Output(number, value), {})
        self._store_again(checkpoint)

    def _store_again(self, checkpoint: Checkpoint) -> None:
        """Nothing is covered or released on the strength of what fewer than a majority may have: store it again."""
        self.checkpoint_under_way = checkpoint._replace(incarnation=self.incarnation)
        self._emit(StoreCheckpoint(self.checkpoint_under_way))

    def _on_retire_asked(self, _: events.RetireAsked) -> None:
        self.program.busy = False
        self.program.paused = True
        self.retiring = True
        self._try_retire()

    def _try_retire(self) -> None:
        """Leave when outputs are out and nobody will need this peer: its calls are in others' logs, its payloads too.

        Where it cannot be run again, its callees' committed logs hold the payloads by content. Otherwise its record will.
        And what it holds of others' lineage is committed: somebody may count on its copy.
        """
        if not self.retiring or len(self.gate) or self.gate.unaccepted or self.checkpoint_under_way:
            return
        if self.lineage.needs:
            return
        outboxes = [counterpart.outbox for counterpart in self.counterparts.values() if not counterpart.gone]
        if self.member.replayable:
            if all(outbox.answered >= outbox.next_seqno for outbox in outboxes):
                self._emit(CaptureState())
        elif all(outbox.floor >= outbox.next_seqno and outbox.released <= outbox.told_released for outbox in outboxes):
            self._stop(Retire())

    def _on_departed(self, event: events.Departed) -> None:
        self.counterpart(event.peer).gone = True
        self.promises.forget(event.peer)

    def _on_record_loaded(self, event: events.RecordLoaded) -> None:
        """A caller has retired: what it left in its record is received from there."""
        counterpart = self.counterpart(event.record.peer)
        first, calls = calls_in_record(event.record, self.id)
        if calls and first <= counterpart.inbox.received:
            self._receive_calls(counterpart, first, calls)

    # time and rounds

    def _on_ticked(self, _: events.Ticked) -> None:
        self.ticks += 1
        behind = bool(self.promises.ignored) or (self.program.is_blocked and self.ticks % LOOK_UP_TICKS == 0)
        for counterpart in self.counterparts.values():
            if counterpart.gone or self.promises.ignores(counterpart.peer):
                continue
            self._stir(counterpart)
            stale = counterpart.channel.stale_messages(self.policy.resend_after_ticks)
            for message in stale:
                self._emit(SendMessage(message))
            if stale:
                behind = True
                self._emit(FindRecord(counterpart.peer))
            if counterpart.has_news and self._may_send(counterpart):
                self._send(counterpart)
            elif counterpart.channel.owed_acknowledgements:
                self._acknowledge(counterpart)
        for output in self.gate.overdue():
            self._emit(ReleaseOutput(output))
        if behind:
            self._emit(FetchDecisions(self.history.round))
        for peer, incarnation in self.promises.ignored.items():
            self._emit(FindRecord(peer))
            if self.ticks % LOOK_UP_TICKS == 0:
                self._emit(ReportSuspicion(peer, incarnation))
        if (caller := self.program.missing_caller) is not None:
            self._emit(FindRecord(caller))
        self._poll_commits()
        self._try_retire()

    def _on_decided(self, event: events.Decided) -> None:
        decision = event.decision
        if decision.round <= self.history.round:
            return
        if decision.round > self.history.round + 1:
            self._emit(FetchDecisions(self.history.round))
            return
        self.history.apply(decision)
        if not self.promises.obey(decision):
            self.stopped = True
            return
        for beginning in decision.beginnings:
            for counterpart in self.counterparts.values():
                counterpart.channel.clip(beginning.peer, beginning.index)
            if beginning.peer in self.counterparts:
                self.counterparts[beginning.peer].renew(beginning.incarnation)
        for peer in decision.gone:
            if peer in self.counterparts:
                self.counterparts[peer].gone = True
        for counterpart in self.counterparts.values():
            self._stir(counterpart)
        self._cover_by_content()
        self._deliver_held()
