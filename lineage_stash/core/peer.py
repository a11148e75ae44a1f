"""The peer: one participant with a log, as a machine. Facts in, orders out, and nothing else changes its state.

The way of a call, in the methods below: *submit* and *reply* fill the boxes, `_forward` puts them into messages with
the lineage that the receiver lacks, `_admit` judges and merges before anything becomes ready. Which call runs is
decided in `program.py`; flush, commit, gate and checkpoint are in `durability.py`; rounds are in `promises.py`.

Left to others: carrying out the effects (`shell.py`), deciding rounds (`recovery.py`).
"""

from collections.abc import Callable

from lineage_stash.core import events
from lineage_stash.core.backlog import Spool, spool_in_memory
from lineage_stash.core.channel import UNNUMBERED, Channel, Message
from lineage_stash.core.checkpoint import Checkpoint
from lineage_stash.core.counterpart import Counterpart, calls_in_record, parcels_in_record, replies_in_record
from lineage_stash.core.durability import Durability
from lineage_stash.core.effects import (
    Effect,
    FetchDecisions,
    FindRecord,
    ReportFault,
    ReportSuspicion,
    Retire,
    SendMessage,
    Stop,
)
from lineage_stash.core.entry import Entry
from lineage_stash.core.frontier import START
from lineage_stash.core.history import History
from lineage_stash.core.ids import CANCELLED, Incarnation, Index, Member, PeerId, Seqno
from lineage_stash.core.lineage import Lineage
from lineage_stash.core.parcels import Parcel
from lineage_stash.core.policy import Policy
from lineage_stash.core.program import Program
from lineage_stash.core.promises import Promises
from lineage_stash.core.values import CANCELLATION

LOOK_UP_TICKS = 8
"""How often a peer that is kept waiting looks whether a decision has passed it by."""

MOST_AHEAD = 256
"""Messages kept that were sent in the knowledge of a decision that has not come here yet; more are sent again."""

OF_THE_PROGRAM = frozenset((
    events.CallSubmitted, events.TaskSubmitted, events.TaskAssigned, events.GetStarted, events.WaitStarted,
    events.NextStarted, events.CommitStarted, events.ValuePut, events.ReadStarted, events.ReadingTaken,
    events.OutputEmitted, events.ItemYielded, events.CallFinished,
))  # fmt: skip
"""What a program that was killed says no more, once its record is written."""


class Peer:
    """A driver, an actor or a task runner: `handle(event)` returns the effects to carry out, in order."""

    def __init__(self, member: Member, incarnation: Incarnation, history: History, policy: Policy, *,
                 checkpoint: Checkpoint | None = None, entries: tuple[Entry, ...] = (),
                 ignored: tuple[tuple[PeerId, Incarnation], ...] = (),
                 creator: PeerId | None = None, spool: Spool | None = None) -> None:  # fmt: skip
        self.spool = spool if spool is not None else spool_in_memory()
        self.member = member
        self.id = member.peer
        self.incarnation = incarnation
        self.policy = policy
        self.history = history
        self.stopped = False
        self._effects: list[Effect] = []
        self._emit = self._effects.append
        self.counterparts: dict[PeerId, Counterpart] = {}
        start = checkpoint.upper if checkpoint else START
        self.lineage = Lineage(self.id, history, Index(start + len(entries)))
        self._stirred: dict[PeerId, Counterpart] = {}
        self.program = Program(self.id, self.lineage, self.counterpart, self._emit, self._stir,
                               logs=member.replayable, cap_bytes=policy.stash_cap_bytes,
                               creator=creator)  # fmt: skip
        self.promises = Promises(self.id, incarnation, self.lineage, self._emit)
        self.promises.ignore(ignored)
        self.ticks = 0
        self.durability = Durability(
            member, incarnation, policy, self.lineage, self.program, self.counterparts, self._emit
        )
        self._ahead: list[Message] = []
        self._waits_for_replay = False
        """Whether a message is held until the replay is over."""
        self._handlers: dict[type, Callable[..., None]] = {
            events.MainStarted: lambda _: self.program.start_main(),
            events.CallSubmitted: self._on_submitted,
            events.TaskSubmitted: self.program.submit_task,
            events.TaskAssigned: self.program.assign,
            events.ValuePut: self.program.put,
            events.GetStarted: self.program.wait,
            events.WaitStarted: self.program.wait,
            events.NextStarted: self.program.wait,
            events.CommitStarted: self._on_commit_started,
            events.WaitTimedOut: lambda _: self.program.end_wait(),
            events.ReadStarted: lambda event: self.program.read(event.kind),
            events.ReadingTaken: lambda event: self.program.record_reading(event.value),
            events.OutputEmitted: self.durability.on_output,
            events.ItemYielded: self.program.yield_item,
            events.CallFinished: self._on_finished,
            events.StateCaptured: self.durability.on_state_captured,
            events.CaptureFailed: self.durability.on_capture_failed,
            events.RefsDropped: self._on_dropped,
            events.RetireAsked: self._on_retire_asked,
            events.RunnerDropped: self._on_runner_dropped,
            events.KillAsked: self._on_kill_asked,
            events.MessageArrived: lambda event: self._admit(event.message),
            events.Appended: self._on_appended,
            events.CheckpointStored: self._on_checkpoint_stored,
            events.StoreRefused: self._on_store_refused,
            events.OutputAccepted: lambda event: self.durability.gate.accept(event.number),
            events.Departed: self._on_departed,
            events.RecordLoaded: self._on_record_loaded,
            events.FlushDue: self.durability.on_flush_due,
            events.CommitWanted: self.durability.on_commit_wanted,
            events.Lingered: lambda _: None,
            events.Ticked: self._on_ticked,
            events.GatherAsked: self.promises.answer,
            events.Decided: self._on_decided,
        }
        if checkpoint is not None:
            self.durability.restore(checkpoint, self.counterpart)
        if incarnation:
            self.program.begin_replay(entries)

    def handle(self, event: object) -> list[Effect]:
        """Take in one fact; return what to do about it."""
        self._take_in(event)
        return self._conclude()

    def handle_all(self, happened: tuple[object, ...]) -> list[Effect]:
        """Take in several facts before answering, so that what they cause travels together."""
        for event in happened:
            self._take_in(event)
        return self._conclude()

    def _take_in(self, event: object) -> None:
        if not self.stopped and not (self.durability.killed and self._is_void(event)):
            self._handlers[type(event)](event)

    def _conclude(self) -> list[Effect]:
        if not self.stopped:
            self._act()
        effects = self._effects[:]
        self._effects.clear()
        return effects

    def _is_void(self, event: object) -> bool:
        return self.durability.is_over and type(event) in OF_THE_PROGRAM

    def _act(self) -> None:
        """Do what the facts have made possible; what they caused to be sent waits while calls follow one another."""
        self.durability.release()
        program = self.program
        if program.waiting is not None or program.held_back is not None:
            program.try_resume()
        running = not program.busy and program.run_next()
        if self._waits_for_replay and not program.script:
            self._waits_for_replay = False
            self._deliver_held()
            running = running or (not program.busy and program.run_next())
        if program.strayed:
            self._stop(Stop("nondeterminism"))
        elif not running:
            if self._stirred:
                self._forward()
            self.durability.flush()

    def counterpart(self, peer: PeerId) -> Counterpart:
        """What is kept about another peer; made on first use."""
        counterpart = self.counterparts.get(peer)
        if counterpart is None:
            counterpart = self.counterparts[peer] = Counterpart(peer, self.history.incarnation(peer))
            counterpart.gone = counterpart.incoming.orphaned = peer in self.history.gone
            counterpart.outbox.room_bytes = self.policy.under_way_bytes
            if peer == CANCELLED:
                counterpart.gone = True
                counterpart.outbox.fail_rest(CANCELLATION)
        return counterpart

    def _stir(self, counterpart: Counterpart) -> None:
        """Something may have to be sent there."""
        self._stirred[counterpart.peer] = counterpart

    def _stop(self, effect: Stop | Retire) -> None:
        self.stopped = True
        self._emit(effect)

    def _on_submitted(self, event: events.CallSubmitted) -> None:
        self.program.submit(event)
        self._stir(self.counterpart(event.callee))

    def _on_commit_started(self, event: events.CommitStarted) -> None:
        self.program.wait_for_commit(event)
        if self.program.waiting is not None:
            self.durability.commit_is_wanted = True

    def _on_dropped(self, event: events.RefsDropped) -> None:
        for ref in event.refs:
            self.program.values.drop(ref)
        for ref in event.opened:
            self.program.values.drop(ref, opened=True)

    # execute: judge, merge, and only then let calls become ready

    def _admit(self, message: Message) -> None:
        if message.receiver_incarnation != self.incarnation:
            return
        if message.round > self.history.round:
            self._emit(FetchDecisions(self.history.round))
            if len(self._ahead) < MOST_AHEAD:
                self._ahead.append(message)
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
        if self.promises.refuses(counterpart.peer, channel.incarnation):
            return
        while (message := channel.early.get(channel.expected)) is not None:
            if self.promises.must_hold(message.batch, message.round):
                return
            if (message.batch.ranges or message.parcels) and self.program.at_cap:
                return
            if message.parcels and self.program.script and self._must_log(counterpart, message):
                self._waits_for_replay = True  # the log goes on where the replay ends
                return
            del channel.early[channel.expected]
            channel.expected += 1
            self._deliver(counterpart, message)

    def _must_log(self, giver: Counterpart, message: Message) -> bool:
        """Whether parcels come from somebody who may never be back."""
        return giver.logged_by_content or (message.hello is not None and message.hello.logged_by_content)

    def _deliver_held(self) -> None:
        """A decision or a commit may have made room for what was held."""
        for counterpart in self.counterparts.values():
            if counterpart.channel.early:
                self._deliver_in_order(counterpart, counterpart.channel)

    def _deliver(self, counterpart: Counterpart, message: Message) -> None:
        if message.hello is not None:
            counterpart.greet(message.hello)
        batch = message.batch
        if batch.ranges and not self.member.replayable:
            batch = counterpart.fill_in(batch, self.id)
        self.lineage.merge(batch)
        counterpart.channel.note_received(batch)
        if batch.committed:
            self.durability.cover_logged_calls()
        if message.covered > counterpart.outbox.calls.floor:
            counterpart.outbox.calls.drop_below(message.covered)
            counterpart.release_held()
        counterpart.outgoing.drop_below(message.parcels_covered)
        counterpart.inbox.release(message.released)
        if message.parcels:
            self._receive_parcels(counterpart, message.parcels)
        if message.replies:
            self.program.values.on_replies(counterpart, message.first_reply, message.replies)
            if not self.member.replayable:
                counterpart.outbox.released = counterpart.outbox.answered
        if message.calls:
            self._receive_calls(counterpart, message.first_call, message.calls)

    def _receive_parcels(self, giver: Counterpart, parcels: tuple[Parcel, ...]) -> None:
        fresh = self.program.values.on_parcels(giver, parcels)
        if not self.member.replayable:
            giver.incoming.covered = giver.incoming.frontier
        elif fresh and giver.logged_by_content:
            self.program.record_parcels(giver, fresh)
            self.durability.note_logged_parcels(giver)

    def _receive_calls(self, counterpart: Counterpart, first: Seqno, calls: tuple[bytes, ...]) -> None:
        fresh, differing = counterpart.inbox.accept(first, calls)
        self.program.ready.extend([counterpart] * fresh)
        for seqno in differing:
            self._emit(ReportFault("nondeterminism", f"{counterpart.peer} repeated its call #{seqno} to {self.id} "
                                                     "with other arguments than in its first run"))  # fmt: skip

    # forward and reply: everything that waits, with the lineage that the receiver lacks

    def _forward(self) -> None:
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
                                      self.policy.calls_per_message, self.policy.bytes_per_message)  # fmt: skip
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

    def _spill(self) -> None:
        """Move payloads out of memory, from whom most are kept for, until they are within the cap."""
        surplus = sum([counterpart.buffer_bytes for counterpart in self.counterparts.values()])
        surplus -= self.policy.buffer_cap_bytes
        if surplus <= 0:
            return
        for counterpart in sorted(self.counterparts.values(), key=lambda each: -each.buffer_bytes):
            surplus -= counterpart.spill(self.spool, surplus)
            if surplus <= 0:
                return

    # what the store and the program report

    def _on_appended(self, event: events.Appended) -> None:
        self.durability.on_appended(event)
        self._deliver_held()
        if self.durability.retiring:
            self._try_to_leave()

    def _on_store_refused(self, _: events.StoreRefused) -> None:
        self._stop(Stop("the store has fenced this incarnation"))

    def _on_finished(self, event: events.CallFinished) -> None:
        counterpart = self.program.finish(event.reply, event.passed)
        self._stir(counterpart)
        if counterpart.logged_by_content:
            self.durability.note_logged_call(counterpart)
        self.durability.checkpoint_if_due()

    def _on_checkpoint_stored(self, event: events.CheckpointStored) -> None:
        self.durability.on_checkpoint_stored(event)
        self._try_to_leave()

    def _on_retire_asked(self, event: events.RetireAsked) -> None:
        self.durability.on_retire_asked(event)
        self._try_to_leave()

    def _on_kill_asked(self, event: events.KillAsked) -> None:
        self.durability.on_kill_asked(event)
        self._try_to_leave()

    def _try_to_leave(self) -> None:
        retire = self.durability.try_to_leave()
        if retire is not None:
            self._stop(retire)

    def _on_departed(self, event: events.Departed) -> None:
        counterpart = self.counterparts.get(event.peer)
        if counterpart is not None:
            self._let_go(counterpart)
        self.promises.forget(event.peer)

    def _let_go(self, counterpart: Counterpart) -> None:
        """Nobody will ever ask on behalf of this peer again."""
        counterpart.gone = True
        counterpart.inbox.release(counterpart.inbox.replies.upper)
        counterpart.outgoing.drop_below(counterpart.outgoing.upper)

    def _on_record_loaded(self, event: events.RecordLoaded) -> None:
        """A peer has retired: what it left in its record for this one, calls and replies, is received from there."""
        counterpart = self.counterparts.get(event.record.peer)
        if counterpart is None:
            return  # it was forgotten since
        first, calls = calls_in_record(event.record, self.id)
        if calls and first <= counterpart.inbox.received:
            self._receive_calls(counterpart, first, calls)
        self.program.values.on_parcels(counterpart, parcels_in_record(event.record, self.id))
        if counterpart.outbox.calls.upper:
            self.program.values.on_replies(counterpart, *replies_in_record(event.record, self.id))
            self.program.values.fail_rest(counterpart, event.record.state)
        self.program.values.orphan(counterpart)

    # time and rounds

    @property
    def is_quiet(self) -> bool:
        """Whether ticks find nothing to do until something happens, so that they may be fewer."""
        return not (
            self.lineage.needs or self.promises.ignored or self.program.busy or self.program.is_blocked
        ) and self.durability.is_quiet and all(other.is_quiet for other in self.counterparts.values())  # fmt: skip

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
        self.durability.offer_again()
        self._spill()
        if behind:
            self._emit(FetchDecisions(self.history.round))
        for peer, incarnation in self.promises.ignored.items():
            self._emit(FindRecord(peer))
            if self.ticks % LOOK_UP_TICKS == 0:
                self._emit(ReportSuspicion(peer, incarnation))
        if (caller := self.program.missing_caller) is not None:
            self._emit(FindRecord(caller))
        if self.ticks % LOOK_UP_TICKS == 0:
            for giver in self.program.awaited_givers:
                self._emit(FindRecord(giver))
            if self.durability.retiring:  # whoever needed something may have retired without a word
                for other in self.durability.in_need:
                    self._emit(FindRecord(other))
            self._forget_runners()
        self.durability.poll()
        self._try_to_leave()

    def _forget_runners(self) -> None:
        """Look whether runners that were let go have left, and forget those of which nothing is wanted any more."""
        dropped = [counterpart for counterpart in self.counterparts.values() if counterpart.dropped]
        for counterpart in dropped:
            if not counterpart.gone:
                self._emit(FindRecord(counterpart.peer))
            elif counterpart.may_be_forgotten and not self.program.script and not self.durability.checkpoint_under_way:
                del self.counterparts[counterpart.peer]

    def _on_runner_dropped(self, event: events.RunnerDropped) -> None:
        counterpart = self.counterparts.get(event.runner)
        if counterpart is not None:
            counterpart.dropped = True

    def _on_decided(self, event: events.Decided) -> None:
        decision = event.decision
        if decision.round <= self.history.round:
            return
        if decision.round > self.history.round + 1:
            self._emit(FetchDecisions(self.history.round))
            return
        if (over := self.promises.end_of_this_life(decision)) is not None:
            self._stop(over)
            return
        self.history.apply(decision)
        if not self.promises.obey(decision):
            self._stop(Stop("depends on what never happened"))
            return
        for beginning in decision.beginnings:
            for counterpart in self.counterparts.values():
                counterpart.channel.clip(beginning.peer, beginning.lower)
            if beginning.peer in self.counterparts:
                self.counterparts[beginning.peer].renew(beginning.incarnation)
        for peer in decision.gone:
            if peer in self.counterparts:
                self._let_go(self.counterparts[peer])
                self.program.values.orphan(self.counterparts[peer])
        for counterpart in self.counterparts.values():
            self._stir(counterpart)
        self.durability.cover_logged_calls()
        self._deliver_held()
        ahead, self._ahead = self._ahead, []
        for message in ahead:
            self._admit(message)
