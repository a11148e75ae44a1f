"""Durability: flush, commit, gate, checkpoint, retire: all that waits for the store, none of it on the way of a call.

Rules:
- One flush is under way at a time: at once when idle, gathered while one is under way.
- A checkpoint is of one moment between two calls: whoever executes copies the state when it is asked, before anything
  else runs, and may hand the copy over later. It is held by the gate like any output, and covers or releases nothing
  before a majority has stored it. One that was restored is stored again first: fewer may have had it.
- A peer leaves when its outputs are out, all it holds of anybody's lineage is committed, and its calls are in others'
  committed logs. Where it can be run again its payloads are in its record; otherwise they are in its callees' logs.
"""

from collections import deque
from collections.abc import Callable, Iterable

from lineage_stash.core import events
from lineage_stash.core.batch import Range
from lineage_stash.core.checkpoint import Checkpoint
from lineage_stash.core.counterpart import (
    Counterpart,
    capture,
    capture_parcels,
    restore_inbox,
    restore_outbox,
)
from lineage_stash.core.effects import (
    AppendToStore,
    CaptureState,
    Effect,
    ReleaseOutput,
    RestoreState,
    Resume,
    Retire,
    StoreCheckpoint,
    TruncateStore,
)
from lineage_stash.core.frontier import START, Frontier
from lineage_stash.core.gate import Gate, Output
from lineage_stash.core.ids import Incarnation, Index, Member, PeerId, Seqno
from lineage_stash.core.lineage import Lineage
from lineage_stash.core.policy import Policy
from lineage_stash.core.program import Program

Counterparts = dict[PeerId, Counterpart]


class Durability:
    """What of one peer is on its way to the store, and what waits for it to get there."""

    def __init__(self, member: Member, incarnation: Incarnation, policy: Policy, lineage: Lineage, program: Program,
                 counterparts: Counterparts, emit: Callable[[Effect], None]) -> None:  # fmt: skip
        self.member = member
        self.incarnation = incarnation
        self.policy = policy
        self.lineage = lineage
        self.program = program
        self.counterparts = counterparts
        self.emit = emit
        self.gate = Gate()
        self.next_output = 0
        self.flushed = lineage.upper
        self.flushing = False
        self.flush_is_due = False
        self.commit_is_wanted = False
        self.checkpointed = START
        self.checkpointed_bytes = 0
        self.checkpoints = 0
        """How many a majority has stored, for whoever watches."""
        self.checkpoint_under_way: Checkpoint | None = None
        self.capturing: Frontier | None = None
        self.retiring = False
        self.killed = False
        self.last_words = b""
        self.recorded = False
        self._logged_calls: deque[tuple[Index, Counterpart, Seqno, int]] = deque()
        """Per call or parcel that was logged by content: where the log was, and what of its sender's was in it."""

    # flush and commit

    def flush(self) -> None:
        """Send own new entries to the store, unless a flush is under way or should wait for company."""
        if self.flushing:
            return
        if self.commit_is_wanted:
            self.commit_is_wanted = False
            self._append_of(self.lineage.needs)
        elif self.lineage.upper != self.flushed and self._should_flush():
            self.flush_is_due = False
            self._append(self.lineage.stash.ranges(self.member.peer, self.flushed, self.lineage.history))

    def _should_flush(self) -> bool:
        if self.policy.flushes_at_once or self.flush_is_due or self.retiring or len(self.gate):
            return True
        return self.lineage.upper - self.flushed >= self.policy.entries_per_flush

    @property
    def has_unflushed(self) -> bool:
        """Whether something waits that no flush has taken."""
        return not self.flushing and self.lineage.upper != self.flushed

    def on_flush_due(self, _: events.FlushDue) -> None:
        """Wait no longer."""
        self.flush_is_due = True

    def on_commit_wanted(self, _: events.CommitWanted) -> None:
        """Wait neither for company nor for the flushes of others."""
        self.commit_is_wanted = True

    def _append(self, ranges: list[Range]) -> None:
        self.flushing = True
        self.flushed = self.lineage.upper
        self.lineage.snapshot()
        watch = self.lineage.watch
        me = self.member.peer
        self.emit(AppendToStore(tuple(ranges), watch if me in watch else (*watch, me)))

    def on_appended(self, event: events.Appended) -> None:
        """A quorum has answered: commit what it completes."""
        self.flushing = False
        self.lineage.note_durable(event.holdings, event.quorum)
        self.cover_logged_calls()

    def poll(self) -> None:
        """Ask about what is not known to be committed, and flush what we hold of others, should they be slow."""
        if not self.flushing:
            self._append_of(self.lineage.watch)

    def _append_of(self, peers: Iterable[PeerId]) -> None:
        """Send all that is held and not known to be committed of own entries and of theirs."""
        if not self.lineage.needs:
            return
        stash, history = self.lineage.stash, self.lineage.history
        logs = dict.fromkeys((self.member.peer, *peers))
        self._append([piece for peer in logs for piece in stash.ranges(peer, START, history)])

    def note_logged_call(self, counterpart: Counterpart) -> None:
        """A call has run whose payload is in the log: once that is committed, its caller need not keep it."""
        finished = counterpart.inbox.replies.upper
        self._logged_calls.append((self.lineage.upper, counterpart, finished, counterpart.incoming.frontier))
        self.cover_logged_calls()

    def note_logged_parcels(self, counterpart: Counterpart) -> None:
        """Parcels have come that are in the log: once that is committed, their giver need not keep them."""
        frontier = counterpart.incoming.frontier
        self._logged_calls.append((self.lineage.upper, counterpart, Seqno(0), frontier))

    def cover_logged_calls(self) -> None:
        """Let go of the payloads that the committed log holds by content."""
        committed = self.lineage.committed.get(self.member.peer, START)
        while self._logged_calls and self._logged_calls[0][0] <= committed:
            _, counterpart, finished, frontier = self._logged_calls.popleft()
            counterpart.inbox.covered = max(counterpart.inbox.covered, finished)
            counterpart.incoming.covered = max(counterpart.incoming.covered, frontier)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on its way to the store, nor waits for it."""
        gate = self.gate
        return not (self.flushing or self.retiring or self.checkpoint_under_way or len(gate) or gate.unaccepted)

    # gate

    def on_output(self, event: events.OutputEmitted) -> None:
        """Hold an output until its past is committed; the program goes on at once."""
        self.gate.hold(Output(self.next_output, event.value), dict(self.lineage.needs))
        self.next_output += 1
        self.emit(Resume(None))

    def release(self) -> None:
        """Let out whatever has its past committed."""
        if not len(self.gate):
            return
        for item in self.gate.release(self.lineage.committed):
            self.emit(ReleaseOutput(item) if isinstance(item, Output) else StoreCheckpoint(item))

    def offer_again(self) -> None:
        """Offer released outputs that no sink has accepted."""
        for output in self.gate.overdue():
            self.emit(ReleaseOutput(output))

    # checkpoint

    def checkpoint_if_due(self) -> None:
        """Have the state copied, if enough was logged since the last time."""
        every = self.policy.checkpoint_every_entries
        if every is None or self.program.script or self.checkpoint_under_way or self.program.leaving:
            return
        logged_bytes = self.lineage.content_bytes - self.checkpointed_bytes
        if self.lineage.upper - self.checkpointed >= every or logged_bytes >= self.policy.checkpoint_every_bytes:
            self._capture(last=False)

    def want_checkpoint(self) -> None:
        """Have the state copied after this call, unless it never is."""
        self.checkpointed_bytes = self.lineage.content_bytes - self.policy.checkpoint_every_bytes

    def _capture(self, *, last: bool) -> None:
        """Put together a checkpoint of this moment, all but the state."""
        calls_to, calls_from = capture(self.counterparts)
        parcels_to, parcels_from = capture_parcels(self.counterparts)
        outputs = tuple((output.number, output.value) for output in self.gate.unaccepted.values())
        self.checkpoint_under_way = Checkpoint(
            self.member.peer, self.incarnation, self.lineage.upper, self.last_words, self.program.digest, calls_to,
            calls_from, outputs, self.next_output, last, parcels_to, parcels_from, self.program.values.capture(),
        )  # fmt: skip
        self.checkpointed = self.lineage.upper
        self.checkpointed_bytes = self.lineage.content_bytes
        self.capturing = dict(self.lineage.needs)
        if last:
            self.on_state_captured(events.StateCaptured(self.last_words))
        else:
            self.emit(CaptureState())

    def on_state_captured(self, event: events.StateCaptured) -> None:
        """The state of the moment that was asked for is here."""
        assert self.checkpoint_under_way is not None, "a state was captured that was not asked for"
        assert self.capturing is not None, "a state was captured twice"
        self.checkpoint_under_way = self.checkpoint_under_way._replace(state=event.state)
        self.gate.hold(self.checkpoint_under_way, self.capturing)
        self.capturing = None

    def on_capture_failed(self, _: events.CaptureFailed) -> None:
        """The state cannot be copied: the log alone must do until the next attempt."""
        self.checkpoint_under_way = None
        self.capturing = None

    def on_checkpoint_stored(self, event: events.CheckpointStored) -> None:
        """A majority has it: free what it covers."""
        checkpoint = self.checkpoint_under_way
        assert checkpoint is not None, "a checkpoint was stored that was not under way"
        assert checkpoint.upper == event.upper, "another checkpoint was stored than the one under way"
        self.checkpoint_under_way = None
        self.checkpoints += 1
        for caller, calls_from in checkpoint.calls_from:
            inbox = self.counterparts[caller].inbox
            inbox.covered = max(inbox.covered, calls_from.finished)
        for callee, calls_to in checkpoint.calls_to:
            self.counterparts[callee].outbox.released = calls_to.answered
        for giver, parcels in checkpoint.parcels_from:
            if giver == self.member.peer:
                continue
            incoming = self.counterparts[giver].incoming
            incoming.covered = max(incoming.covered, parcels.frontier)
        self.emit(TruncateStore(checkpoint.upper))
        self.recorded = checkpoint.final

    def restore(self, checkpoint: Checkpoint, counterpart: Callable[[PeerId], Counterpart]) -> None:
        """Go on from the moment of a checkpoint."""
        self.emit(RestoreState(checkpoint.state))
        self.checkpointed = checkpoint.upper
        self.program.digest = checkpoint.digest
        self.program.has_run = True
        self.next_output = checkpoint.next_output
        for callee, calls_to in checkpoint.calls_to:
            restore_outbox(counterpart(callee).outbox, calls_to)
        for caller, calls_from in checkpoint.calls_from:
            restore_inbox(counterpart(caller).inbox, calls_from)
        for receiver, parcels_to in checkpoint.parcels_to:
            counterpart(receiver).outgoing.restore(parcels_to)
        for giver, parcels_from in checkpoint.parcels_from:
            counterpart(giver).incoming.restore(parcels_from)
        self.program.values.restore(checkpoint.tasks, list(self.counterparts.values()))
        for number, value in checkpoint.outputs:
            self.gate.hold(Output(number, value), {})
        self.store_again(checkpoint)

    def store_again(self, checkpoint: Checkpoint) -> None:
        """Have a majority store what was restored before anything is freed on its strength."""
        self.checkpoint_under_way = checkpoint._replace(incarnation=self.incarnation)
        self.emit(StoreCheckpoint(self.checkpoint_under_way))

    # retire

    def on_retire_asked(self, event: events.RetireAsked) -> None:
        """The program has ended: run nothing more, and leave when nobody needs this peer and no call runs."""
        self.program.end_main()
        if event.abandons_tasks:
            self.program.values.abandon_tasks()
        self.program.leaving = True
        self.retiring = True

    def on_kill_asked(self, event: events.KillAsked) -> None:
        """Run nothing new, leave what is known as the record, and let every other call fail with the last words."""
        self.program.leave(event.abandons_from)
        self.retiring = self.killed = True
        self.last_words = event.last_words

    @property
    def is_over(self) -> bool:
        """Whether the record is written: nothing that the program does from here on happens."""
        under_way = self.checkpoint_under_way
        return self.killed and (self.recorded or (under_way is not None and under_way.final))

    @property
    def may_leave(self) -> bool:
        """Whether nobody needs this peer any more; where it can be run again, a last checkpoint is taken first."""
        if not self.retiring or len(self.gate) or self.gate.unaccepted or self.lineage.needs:
            return False
        if self.checkpoint_under_way or self.program.is_replaying:
            return False
        if self.killed:
            return True
        return not self.program.busy and not self.program.values.waiting and not self.in_need

    @property
    def in_need(self) -> list[PeerId]:
        """Whom this peer cannot leave behind yet: what they need of it is in no record."""
        others = [counterpart for counterpart in self.counterparts.values() if not counterpart.gone]
        if not self.member.replayable:
            return [other.peer for other in others if not other.needs_nothing]
        return [other.peer for other in others if other.owes_answers]

    def try_to_leave(self) -> Retire | None:
        """Leave, or take the last checkpoint, if it is time."""
        if not self.may_leave:
            return None
        if self.recorded or not self.member.replayable:
            return Retire()
        self._capture(last=True)
        return None
