"""Single rules of a peer, each as a short story told by hand: what came, and what the peer must or must not do."""

import pytest

from lineage_stash.codec import decode, encode
from lineage_stash.core import effects, events
from lineage_stash.core.batch import Batch
from lineage_stash.core.checkpoint import CallsTo, Checkpoint
from lineage_stash.core.entry import ENTRY_OVERHEAD_BYTES, Entry, Ran, Read, Waited
from lineage_stash.core.ids import FIRST_INCARNATION, Incarnation, Index, Ref, Round, Seqno
from lineage_stash.core.parcels import ORPHANED
from lineage_stash.core.peer import LOOK_UP_TICKS
from lineage_stash.core.policy import Policy
from tests.core.builders import A, B, C, D, decision, history_of, log_of, member, piece
from tests.core.driving import Driven, message

EAGER = Policy(resend_after_ticks=1, checkpoint_every_entries=None)


def needing_c(upper: int) -> Batch:
    return Batch((), ((C, Index(upper)),), ())


def life_after(*calls: bytes) -> tuple[Entry, ...]:
    """The log that these calls by `a` leave at `b`, each answered by its own payload."""
    b = Driven(B)
    b.receive(message(A, B, *calls))
    for payload in calls:
        b.handle(events.CallFinished(payload))
    return tuple(b.logged)


def reborn(*entries: Entry, **restored: object) -> Driven:
    return Driven(B, history=history_of((B, 1, len(entries))), entries=tuple(entries), **restored)  # type: ignore[arg-type]


# messages belong to a pair of incarnations


def test_message_to_a_former_life_is_refused() -> None:
    b = reborn()
    b.receive(message(A, B, b"x", lives=(0, 0), round_=1))
    assert b.ran == []
    b.receive(message(A, B, b"x", lives=(0, 1), round_=1))
    assert b.ran == [b"x"]


def test_message_of_a_former_life_is_refused_after_the_decision() -> None:
    b = Driven(B, history=history_of((A, 1, 0)))
    b.receive(message(A, B, b"zombie", lives=(0, 0), round_=0))
    assert b.ran == []
    b.receive(message(A, B, b"x", lives=(1, 0), round_=1))
    assert b.ran == [b"x"]


def test_message_of_a_later_round_makes_the_peer_fetch_decisions_and_is_not_delivered() -> None:
    b = Driven(B)
    b.receive(message(A, B, b"x", lives=(1, 0), round_=1))
    assert b.of(effects.FetchDecisions) == [effects.FetchDecisions(Round(0))]
    assert b.ran == []
    b.handle(events.Decided(decision(1, (A, 1, 0))))
    b.receive(message(A, B, b"x", lives=(1, 0), round_=1))
    assert b.ran == [b"x"]


def test_decision_that_skips_a_round_makes_the_peer_fetch_those_between() -> None:
    b = Driven(B)
    b.handle(events.Decided(decision(2, (A, 2, 0))))
    assert b.of(effects.FetchDecisions) == [effects.FetchDecisions(Round(0))]
    assert b.peer.history.round == 0


def test_repeat_of_a_running_call_joins_it_and_of_a_finished_one_is_not_run_again() -> None:
    b = Driven(B)
    b.receive(message(A, B, b"x"))
    b.receive(message(A, B, b"x"))
    b.handle(events.CallFinished(b"reply"))
    b.receive(message(A, B, b"x", number=1))
    assert b.ran == [b"x"]


def test_messages_out_of_order_are_delivered_in_order() -> None:
    b = Driven(B)
    b.receive(message(A, B, b"y", number=1, first_call=1))
    assert b.ran == []
    b.receive(message(A, B, b"x", number=0))
    b.handle(events.CallFinished(b""))
    assert b.ran == [b"x", b"y"]


# lineage and the store


def test_call_runs_and_is_answered_with_its_lineage_while_the_store_says_nothing() -> None:
    b = Driven(B)
    b.receive(message(A, B, b"x"))
    b.handle(events.CallFinished(b"reply"))
    (reply,) = b.sent
    assert reply.replies == (b"reply",)
    assert [piece.entries for piece in reply.batch.ranges] == [tuple(b.logged)]


def test_lineage_that_came_with_a_call_is_passed_on_and_named_as_needed() -> None:
    b = Driven(B)
    b.receive(message(A, B, b"x", batch=Batch((piece(C, 0, log_of("c")),), (), ())))
    b.handle(events.CallSubmitted(D, b"further"))
    (call,) = b.sent
    assert {piece.peer: piece.entries for piece in call.batch.ranges}[C] == log_of("c")
    assert b.logged[0].needs == ((C, 1),)


def test_output_waits_for_the_commit_of_what_it_depends_on() -> None:
    b = Driven(B)
    b.receive(message(A, B, b"x", batch=Batch((piece(C, 0, log_of("c")),), (), ())))
    assert b.handle(events.OutputEmitted(b"out"))[0] == effects.Resume(None)
    b.commit(b=1)
    assert b.of(effects.ReleaseOutput, ever=True) == []
    b.handle(events.Ticked())
    b.commit(b=1, c=1)
    assert [effect.output.value for effect in b.of(effects.ReleaseOutput)] == [b"out"]


def test_output_that_was_lost_on_its_way_is_offered_again_until_it_is_accepted() -> None:
    b = Driven(B)
    b.handle(events.OutputEmitted(b"out"))
    assert len(b.of(effects.ReleaseOutput)) == 1
    b.handle(events.Ticked())
    assert len(b.of(effects.ReleaseOutput)) == 1
    b.handle(events.OutputAccepted(0))
    b.handle(events.Ticked())
    assert b.of(effects.ReleaseOutput) == []


def test_stash_at_its_cap_stops_appends_and_a_commit_resumes_them() -> None:
    b = Driven(B, policy=Policy(stash_cap_bytes=2 * ENTRY_OVERHEAD_BYTES))
    b.receive(message(A, B, b"x", b"y", b"z"))
    b.handle(events.CallFinished(b""))
    b.handle(events.CallFinished(b""))
    assert b.ran == [b"x", b"y"]
    assert not b.of(effects.RunCall)
    b.commit(b=2)
    assert b.ran == [b"x", b"y", b"z"]


def test_submit_at_the_cap_resumes_only_after_a_commit() -> None:
    b = Driven(B, policy=Policy(stash_cap_bytes=ENTRY_OVERHEAD_BYTES))
    b.receive(message(A, B, b"x"))
    b.handle(events.CallSubmitted(C, b"call"))
    assert b.of(effects.Resume) == []
    b.commit(b=1)
    assert b.of(effects.Resume) == [effects.Resume(Ref(C, Seqno(0)))]


def test_payload_of_a_caller_that_nobody_can_run_again_is_in_the_callees_log() -> None:
    b = Driven(B)
    b.receive(message(A, B, b"x", hello=member(A, replayable=False)))
    b.receive(message(C, B, b"y"))
    b.handle(events.CallFinished(b""))
    b.handle(events.Lingered())
    b.commit(b=1)
    assert [entry.payload for entry in b.logged] == [b"x", None]


def test_payload_that_is_in_the_committed_log_is_covered_for_its_caller() -> None:
    b = Driven(B)
    b.receive(message(A, B, b"x", hello=member(A, replayable=False)))
    b.handle(events.CallFinished(b""))
    assert [sent.covered for sent in b.sent] == [0]
    b.commit(b=1)
    b.handle(events.Ticked())
    assert [sent.covered for sent in b.sent] == [1]


def test_payload_of_a_caller_that_its_user_may_run_again_is_in_the_callees_log_and_travels_back_to_it() -> None:
    for caller, travels in ((member(A, begun=0), True), (member(A, replayable=False), False)):
        b = Driven(B)
        b.receive(message(A, B, b"x", hello=caller))
        b.handle(events.CallFinished(b""))
        assert [entry.payload for entry in b.logged] == [b"x"]
        sent = [decode(encode(each)) for each in b.sent]
        payloads = [entry.payload for each in sent for piece in each.batch.ranges for entry in piece.entries]
        assert payloads == [b"x" if travels else None]


def test_callee_that_recovers_while_its_resumable_caller_is_away_waits_for_nobody() -> None:
    first = Driven(B)
    first.receive(message(A, B, b"x", hello=member(A, begun=0)))
    first.handle(events.CallFinished(b""))
    b = reborn(*first.logged)
    b.handle(events.Lingered())
    assert b.ran == [b"x"]


def test_replies_to_a_resumable_caller_are_kept_and_come_again_when_it_is_back() -> None:
    b = Driven(B)
    b.receive(message(A, B, b"x", hello=member(A, begun=0)))
    b.handle(events.CallFinished(b"reply"))
    b.handle(events.Decided(decision(1, (A, 1, 0))))
    (sent,) = b.sent
    assert (sent.receiver_incarnation, sent.replies) == (1, (b"reply",))


def test_a_resumable_driver_that_replays_gets_what_it_was_told_and_logs_nothing_twice() -> None:
    first = Driven(A, begun=0)
    first.handle(events.MainStarted())
    first.handle(events.CallSubmitted(B, b"x"))
    first.handle(events.ReadStarted("clock"))
    first.handle(events.ReadingTaken(b"noon"))
    again = Driven(A, begun=1, history=history_of((A, 1, 1)), entries=tuple(first.logged))
    again.handle(events.MainStarted())
    again.handle(events.CallSubmitted(B, b"x"))
    again.handle(events.ReadStarted("clock"))
    assert again.of(effects.Resume) == [effects.Resume(b"noon")]
    assert again.logged == []


def test_checkpoint_is_stored_only_when_its_past_is_committed_and_truncates_only_when_stored() -> None:
    b = Driven(B, policy=Policy(checkpoint_every_entries=1))
    b.receive(message(A, B, b"x"))
    b.handle(events.CallFinished(b"reply"))
    assert b.of(effects.CaptureState) == [effects.CaptureState()]
    b.handle(events.StateCaptured(b"state"))
    assert b.of(effects.StoreCheckpoint, ever=True) == []
    b.commit(b=1)
    (stored,) = b.of(effects.StoreCheckpoint)
    assert stored.checkpoint.state == b"state"
    assert b.of(effects.TruncateStore, ever=True) == []
    b.handle(events.CheckpointStored(Index(1)))
    assert b.of(effects.TruncateStore) == [effects.TruncateStore(Index(1))]


def test_zombie_whose_flush_the_store_refuses_stops_and_says_no_more() -> None:
    b = Driven(B)
    b.receive(message(A, B, b"x"))
    b.handle(events.StoreRefused())
    assert len(b.of(effects.Stop)) == 1
    assert b.handle(events.CallFinished(b"reply")) == []
    assert b.receive(message(A, B, b"y", number=1, first_call=1)) == []


# rounds


def ask_about_c(b: Driven, round_: int = 1) -> None:
    b.handle(events.GatherAsked(Round(round_), ((C, FIRST_INCARNATION),), "coordinator"))


def test_promise_refuses_the_dead_from_the_answer_on() -> None:
    b = Driven(B)
    ask_about_c(b)
    (answer,) = b.of(effects.SendAnswer)
    assert answer.answer.dead == answer.answer.ignored == ((C, 0),)
    b.receive(message(C, B, b"zombie"))
    assert b.ran == []


def test_message_that_depends_on_the_dead_beyond_the_answer_is_held_until_the_decision() -> None:
    b = Driven(B)
    ask_about_c(b)
    b.receive(message(A, B, b"x", batch=needing_c(2)))
    assert b.ran == []
    b.handle(events.Decided(decision(1, (C, 1, 2))))
    assert b.ran == [b"x"]


def test_message_that_depends_on_what_the_decision_ended_is_never_delivered() -> None:
    b = Driven(B)
    ask_about_c(b)
    b.receive(message(A, B, b"orphan", batch=needing_c(2)))
    b.handle(events.Decided(decision(1, (C, 1, 1))))
    b.handle(events.Ticked())
    assert b.ran == []


def test_message_that_depends_on_the_dead_no_further_than_the_answer_is_delivered_during_the_round() -> None:
    b = Driven(B)
    b.receive(message(A, B, b"x", batch=Batch((piece(C, 0, log_of("c", "c")),), (), ())))
    ask_about_c(b)
    b.receive(message(D, B, b"y", batch=needing_c(2)))
    b.handle(events.CallFinished(b""))
    assert b.ran == [b"x", b"y"]


def test_question_about_a_round_that_is_decided_is_answered_by_its_decision() -> None:
    b = Driven(B)
    b.handle(events.Decided(decision(1, (C, 1, 0))))
    ask_about_c(b)
    assert b.of(effects.SendAnswer) == []
    assert b.of(effects.SendDecision) == [effects.SendDecision("coordinator", decision(1, (C, 1, 0)))]


def test_peer_that_was_replaced_stops() -> None:
    b = Driven(B)
    b.handle(events.Decided(decision(1, (B, 1, 0))))
    assert len(b.of(effects.Stop)) == 1
    assert b.receive(message(A, B, b"x")) == []


def test_peer_that_depends_on_what_never_happened_reports_itself() -> None:
    b = Driven(B)
    b.receive(message(A, B, b"x", batch=Batch((piece(C, 0, log_of("c", "c")),), (), ())))
    b.handle(events.Decided(decision(1, (C, 1, 1))))
    assert [fault.kind for fault in b.of(effects.ReportFault)] == ["orphan"]
    assert b.of(effects.ReportSuspicion) == [effects.ReportSuspicion(B, FIRST_INCARNATION)]


def test_calls_that_the_dead_may_have_lost_are_sent_again_to_its_next_life() -> None:
    a = Driven(A)
    a.handle(events.MainStarted())
    a.handle(events.CallSubmitted(B, b"x"))
    assert [sent.calls for sent in a.sent] == [(b"x",)]
    a.handle(events.Decided(decision(1, (B, 1, 0))))
    (again,) = a.sent
    assert (again.receiver_incarnation, again.number, again.calls) == (1, 0, (b"x",))


# replay


def test_replay_runs_the_logged_calls_in_the_logged_order_and_new_ones_afterwards() -> None:
    first = Driven(B)
    for caller, payload in ((C, b"1"), (A, b"2")):
        first.receive(message(caller, B, payload))
        first.handle(events.CallFinished(b""))
    first.commit(b=1)
    b = reborn(*first.logged)
    b.receive(message(A, B, b"2", b"new", lives=(0, 1), round_=1))
    assert b.ran == []
    b.receive(message(C, B, b"1", lives=(0, 1), round_=1))
    for _ in range(3):
        b.handle(events.CallFinished(b""))
    assert b.ran == [b"1", b"2", b"new"]
    assert b.of(effects.FinishReplay, ever=True) == [effects.FinishReplay(2)]


def test_replayed_call_with_other_arguments_is_nondeterminism_and_names_the_call() -> None:
    b = reborn(*life_after(b"x"))
    b.receive(message(A, B, b"other", lives=(0, 1), round_=1))
    (fault,) = b.of(effects.ReportFault)
    assert fault.kind == "nondeterminism"
    assert "a→b#0" in fault.text
    assert b.of(effects.Stop) == [effects.Stop("nondeterminism")]
    assert b.ran == []


def test_repeated_call_with_other_arguments_is_nondeterminism_of_the_caller_and_names_the_call() -> None:
    b = Driven(B)
    b.receive(message(A, B, b"x"))
    b.receive(message(A, B, b"other", number=1))
    (fault,) = b.of(effects.ReportFault)
    assert fault.kind == "nondeterminism"
    assert "a repeated its call #0 to b" in fault.text
    assert b.ran == [b"x"]


def test_replayed_read_is_recalled_and_nobody_is_asked() -> None:
    first = Driven(B)
    first.receive(message(A, B, b"x"))
    assert first.handle(events.ReadStarted("time"))[0] == effects.TakeReading("time")
    first.handle(events.ReadingTaken(b"noon"))
    first.commit(b=1)
    b = reborn(*first.logged)
    b.receive(message(A, B, b"x", lives=(0, 1), round_=1))
    b.handle(events.ReadStarted("time"))
    assert b.of(effects.Resume) == [effects.Resume(b"noon")]
    assert b.of(effects.TakeReading) == []
    assert [type(entry) for entry in first.logged] == [Ran, Read]


def test_replayed_wait_has_the_outcome_of_the_first_run_whatever_is_ready_now() -> None:
    refs = (Ref(C, Seqno(0)), Ref(C, Seqno(1)))
    first = Driven(B)
    first.receive(message(A, B, b"x"))
    for payload in (b"1", b"2"):
        first.handle(events.CallSubmitted(C, payload))
    first.receive(message(C, B, replies=(b"reply",)))
    first.handle(events.WaitStarted(refs, 1))
    assert first.of(effects.Resume) == [effects.Resume((0,))]
    first.commit(b=1)
    assert [type(entry) for entry in first.logged] == [Ran, Waited]
    b = reborn(*first.logged)
    b.receive(message(C, B, replies=(b"reply", b"another"), lives=(0, 1), round_=1))
    b.receive(message(A, B, b"x", lives=(0, 1), round_=1))
    for payload in (b"1", b"2"):
        b.handle(events.CallSubmitted(C, payload))
    b.handle(events.WaitStarted(refs, 2))
    assert b.of(effects.Resume) == [effects.Resume((0,))]


def test_record_of_a_retired_caller_serves_a_replay() -> None:
    b = reborn(*life_after(b"x", b"y"))
    b.handle(events.Ticked())
    assert b.of(effects.FindRecord) == [effects.FindRecord(A)]
    calls = CallsTo(Seqno(0), Seqno(2), (b"x", b"y"), Seqno(2), (), ())
    record = Checkpoint(A, FIRST_INCARNATION, Index(0), b"", 0, ((B, calls),), (), (), 0, True)
    b.handle(events.Departed(A))
    b.handle(events.RecordLoaded(record))
    b.handle(events.CallFinished(b"x"))
    assert b.ran == [b"x", b"y"]


def test_payload_in_the_own_log_is_replayed_without_its_caller() -> None:
    first = Driven(B)
    first.receive(message(A, B, b"x", hello=member(A, replayable=False)))
    first.handle(events.Lingered())
    b = reborn(*first.logged)
    b.handle(events.Ticked())
    assert b.ran == [b"x"]


def test_restored_checkpoint_covers_nothing_before_a_majority_has_stored_it_again() -> None:
    first = Driven(B, policy=Policy(checkpoint_every_entries=1))
    first.receive(message(A, B, b"x"))
    first.handle(events.CallFinished(b"reply"))
    first.handle(events.StateCaptured(b"state"))
    first.commit(b=1)
    (stored,) = first.of(effects.StoreCheckpoint)
    b = Driven(B, history=history_of((B, 1, 1)), policy=EAGER, checkpoint=stored.checkpoint)
    b.receive(message(A, B, b"x", b"y", lives=(0, 1), round_=1))
    assert b.ran == [b"y"]
    assert [e.checkpoint.incarnation for e in b.of(effects.StoreCheckpoint, ever=True)] == [Incarnation(1)]
    b.handle(events.CallFinished(b"reply"))
    assert [sent.covered for sent in b.sent] == [0]
    b.handle(events.CheckpointStored(Index(1)))
    b.handle(events.Ticked())
    assert 1 in [sent.covered for sent in b.sent]


# leaving


@pytest.mark.parametrize("replayable", [True, False], ids=["with a record", "without a record"])
def test_driver_leaves_only_when_nobody_needs_it_any_more(replayable: bool) -> None:
    a = Driven(A, replayable=replayable)
    a.handle(events.MainStarted())
    a.handle(events.CallSubmitted(B, b"x"))
    a.handle(events.RetireAsked())
    a.handle(events.Ticked())
    assert a.of(effects.CaptureState, ever=True) == a.of(effects.Retire, ever=True) == []
    a.receive(message(B, A, replies=(b"reply",))._replace(covered=Seqno(1)))
    a.handle(events.Ticked())
    a.handle(events.Ticked())
    if replayable:
        (stored,) = a.of(effects.StoreCheckpoint, ever=True)
        assert stored.checkpoint.final
        assert a.of(effects.Retire, ever=True) == []
        a.handle(events.CheckpointStored(stored.checkpoint.upper))
    assert a.of(effects.Retire, ever=True) == [effects.Retire()]


def test_retirement_that_is_asked_for_during_a_replay_waits_for_the_call_that_runs() -> None:
    b = reborn(*life_after(b"x", b"y"))
    b.receive(message(A, B, b"x", b"y", lives=(0, 1), round_=1))
    assert b.ran == [b"x"]
    b.handle(events.RetireAsked())
    b.handle(events.Ticked())
    assert b.ran == [b"x"]
    b.handle(events.CallFinished(b"x"))
    assert b.ran == [b"x", b"y"]


def test_retirement_that_is_asked_for_during_a_new_call_waits_for_its_end() -> None:
    b = Driven(B)
    b.receive(message(A, B, b"x"))
    b.handle(events.RetireAsked())
    b.commit(b=1)
    b.handle(events.Ticked())
    assert b.of(effects.StoreCheckpoint, ever=True) == []
    b.handle(events.CallFinished(b"reply"))
    b.handle(events.Ticked())
    assert b.of(effects.StoreCheckpoint, ever=True) != []


def test_driver_that_leaves_abandons_tasks_without_a_runner_and_says_so_to_whoever_was_promised_a_result() -> None:
    a = Driven(A, replayable=False)
    a.handle(events.MainStarted())
    a.handle(events.TaskSubmitted(b"task"))
    (resumed,) = a.of(effects.Resume)
    a.handle(events.CallSubmitted(B, b"x", passed=(resumed.answer,)))
    a.handle(events.RetireAsked(abandons_tasks=True))
    assert [parcel.value for sent in a.sent for parcel in sent.parcels] == [ORPHANED]
    a.receive(message(B, A, replies=(b"reply",))._replace(covered=Seqno(1), parcels_covered=1))
    a.handle(events.Ticked())
    a.handle(events.Ticked())
    assert a.of(effects.Retire, ever=True) == [effects.Retire()]


def test_runner_that_was_dropped_is_forgotten_once_it_has_left_and_its_result_was_taken() -> None:
    a = Driven(A, replayable=False)
    a.handle(events.MainStarted())
    a.handle(events.TaskSubmitted(b"task"))
    (resumed,) = a.of(effects.Resume)
    a.handle(events.TaskAssigned(0, B))
    a.receive(message(B, A, replies=(b"reply",)))
    a.handle(events.RunnerDropped(B))
    for _ in range(LOOK_UP_TICKS):
        a.handle(events.Ticked())
    assert effects.FindRecord(B) in a.of(effects.FindRecord, ever=True)
    a.handle(events.Departed(B))
    for _ in range(LOOK_UP_TICKS):
        a.handle(events.Ticked())
    assert list(a.peer.counterparts) == [B]
    a.handle(events.GetStarted((resumed.answer,)))
    for _ in range(LOOK_UP_TICKS):
        a.handle(events.Ticked())
    assert list(a.peer.counterparts) == []


def test_driver_does_not_wait_for_a_callee_that_has_retired_without_a_word() -> None:
    a = Driven(A, replayable=False)
    a.handle(events.MainStarted())
    a.handle(events.CallSubmitted(B, b"x"))
    a.receive(message(B, A, replies=(b"reply",)))
    a.handle(events.RetireAsked())
    a.handle(events.Ticked())
    a.receive(message(B, A, number=1)._replace(acknowledged=9))
    for _ in range(LOOK_UP_TICKS):
        a.handle(events.Ticked())
    assert a.of(effects.FindRecord, ever=True) == [effects.FindRecord(B)]
    a.handle(events.Departed(B))
    a.handle(events.Ticked())
    assert a.of(effects.Retire, ever=True) == [effects.Retire()]


# the end of a life


def test_replaced_peer_does_nothing_after_its_stop() -> None:
    b = Driven(B)
    b.handle(events.MainStarted())
    for value in (b"flushed", b"not yet flushed"):
        b.handle(events.ReadStarted("clock"))
        b.handle(events.ReadingTaken(value))
    orders = b.peer.handle_all((events.Appended((), 1), events.Decided(decision(1, (B, 1, 0)))))
    assert [type(order) for order in orders] == [effects.Stop]
    assert b.peer.handle(events.Ticked()) == []


def test_capture_under_way_when_retirement_is_asked_for_is_not_the_record() -> None:
    b = Driven(B, policy=EAGER._replace(checkpoint_every_entries=1))
    b.receive(message(A, B, b"x"))
    b.handle(events.CallFinished(b"reply"))
    b.peer.handle(events.RetireAsked())
    b.peer.handle(events.StateCaptured(b"state"))
    assert b.peer.durability.checkpoint_under_way is not None
    assert not b.peer.durability.checkpoint_under_way.final


# what comes before its time, and what need not travel


def test_message_that_knows_a_later_decision_is_delivered_when_that_decision_comes() -> None:
    b = Driven(B)
    b.receive(message(A, B, b"x", lives=(1, 0), round_=1))
    assert b.ran == []
    b.handle(events.Decided(decision(1, (A, 1, 0))))
    assert b.ran == [b"x"]


def test_lineage_is_not_sent_back_to_whom_it_came_from() -> None:
    b = Driven(B)
    b.receive(message(A, B, b"x", batch=Batch((piece(C, 0, log_of("c")),), (), ())))
    b.handle(events.CallFinished(b"reply"))
    (reply,) = b.sent
    assert [piece.peer for piece in reply.batch.ranges] == [B]


def test_own_log_is_committed_when_the_own_flush_says_so_whatever_others_tell() -> None:
    """Others may ask less of the store; what they tell of this log covers no payload in it."""
    b = Driven(B, policy=EAGER)
    b.receive(message(A, B, b"x", hello=member(A, replayable=False)))
    b.handle(events.CallFinished(b"reply"))
    b.receive(message(C, B, batch=Batch((), (), ((B, Index(1)),))))
    b.handle(events.Ticked())
    assert [sent.covered for sent in b.sent if sent.receiver == A][-1] == 0
    b.commit(b=1)
    b.handle(events.Ticked())
    assert [sent.covered for sent in b.sent if sent.receiver == A][-1] == 1


def test_first_call_is_the_creators_whoever_calls_before() -> None:
    b = Driven(B, creator=A)
    b.receive(message(C, B, b"early"))
    assert b.ran == []
    b.receive(message(A, B, b"construct"))
    b.handle(events.CallFinished(b""))
    assert b.ran == [b"construct", b"early"]


def test_flush_that_waits_for_company_begins_when_it_is_due_or_somebody_waits_for_it() -> None:
    b = Driven(B, policy=EAGER._replace(flushes_at_once=False))
    b.receive(message(A, B, b"x"))
    b.handle(events.CallFinished(b"reply"))
    assert b.of(effects.AppendToStore, ever=True) == []
    b.handle(events.FlushDue())
    (append,) = b.of(effects.AppendToStore)
    assert [len(piece.entries) for piece in append.ranges] == [1]


# killed peers leave a record


def killed_after_one_call() -> tuple[Driven, Checkpoint]:
    """`b` has answered one call of `a`, runs the second, and is killed."""
    b = Driven(B, policy=EAGER)
    b.receive(message(A, B, b"x", b"y"))
    b.handle(events.CallFinished(b"reply"))
    b.handle(events.KillAsked(b"last words"))
    b.handle(events.Appended((((B, FIRST_INCARNATION, Index(2)),),), 1))
    (stored,) = b.of(effects.StoreCheckpoint, ever=True)
    return b, stored.checkpoint


def test_killed_peer_leaves_what_it_answered_and_goes() -> None:
    b, record = killed_after_one_call()
    assert record.final
    assert record.state == b"last words"
    assert dict(record.calls_from)[A].replies == (b"reply",)
    b.handle(events.CheckpointStored(record.upper))
    assert b.of(effects.Retire, ever=True) == [effects.Retire()]


def test_killed_peer_finishes_nothing_once_its_record_is_written() -> None:
    b, _ = killed_after_one_call()
    before = len(b.sent)
    b.handle(events.CallSubmitted(C, b"ghost"))
    b.handle(events.CallFinished(b"too late"))
    assert b.sent[before:] == []


def test_caller_gets_the_answers_in_the_record_and_the_last_words_for_the_rest() -> None:
    _, record = killed_after_one_call()
    a = Driven(A)
    a.handle(events.MainStarted())
    for payload in (b"x", b"y"):
        a.handle(events.CallSubmitted(B, payload))
    a.handle(events.Departed(B))
    a.handle(events.RecordLoaded(record))
    a.handle(events.CallSubmitted(B, b"z"))
    refs = tuple(Ref(B, Seqno(number)) for number in range(3))
    a.handle(events.GetStarted(refs))
    assert a.of(effects.Resume)[-1].answer == (b"reply", b"last words", b"last words")


def test_killed_peer_replays_first_so_that_its_record_has_what_others_saw() -> None:
    b = reborn(*life_after(b"x", b"y"))
    b.handle(events.KillAsked(b"last words"))
    b.receive(message(A, B, b"x", b"y", lives=(0, 1), round_=1))
    for payload in (b"x", b"y"):
        b.handle(events.CallFinished(payload))
    b.handle(events.Ticked())
    (stored,) = b.of(effects.StoreCheckpoint, ever=True)
    assert dict(stored.checkpoint.calls_from)[A].replies == (b"x", b"y")


def test_abandoned_part_of_a_log_is_not_replayed() -> None:
    b = reborn(*life_after(b"x", b"fatal"))
    b.handle(events.KillAsked(b"last words", Index(1)))
    b.receive(message(A, B, b"x", b"fatal", lives=(0, 1), round_=1))
    b.handle(events.CallFinished(b"x"))
    assert b.ran == [b"x"]
    b.handle(events.Ticked())
    (stored,) = b.of(effects.StoreCheckpoint, ever=True)
    assert dict(stored.checkpoint.calls_from)[A].replies == (b"x",)


# time


def test_peer_is_quiet_once_all_is_answered_acknowledged_and_committed() -> None:
    b = Driven(B, policy=EAGER)
    assert b.peer.is_quiet
    b.receive(message(A, B, b"x"))
    assert not b.peer.is_quiet
    b.handle(events.CallFinished(b"reply"))
    b.commit(b=1)
    assert not b.peer.is_quiet  # nobody has said that the reply has come
    b.receive(message(A, B, number=1)._replace(acknowledged=1))
    b.handle(events.Ticked())  # it acknowledges that in turn
    assert b.peer.is_quiet
    assert b.handle(events.Ticked()) == []


# checkpoints, refs and digests


def test_calls_go_on_while_the_state_is_being_copied() -> None:
    b = Driven(B, policy=EAGER._replace(checkpoint_every_entries=1))
    b.receive(message(A, B, b"x", b"y"))
    b.handle(events.CallFinished(b"reply"))
    assert b.of(effects.CaptureState, ever=True) == [effects.CaptureState()]
    assert b.ran == [b"x", b"y"]
    b.handle(events.CallFinished(b"reply"))
    b.handle(events.StateCaptured(b"after x"))
    b.handle(events.Appended((((B, FIRST_INCARNATION, Index(2)),),), 1))
    (stored,) = b.of(effects.StoreCheckpoint, ever=True)
    assert (stored.checkpoint.upper, stored.checkpoint.state) == (1, b"after x")
    assert dict(stored.checkpoint.calls_from)[A].finished == 1


def test_state_that_cannot_be_copied_is_asked_for_again_later() -> None:
    b = Driven(B, policy=EAGER._replace(checkpoint_every_entries=1))
    b.receive(message(A, B, b"x", b"y"))
    b.handle(events.CallFinished(b"reply"))
    b.handle(events.CaptureFailed())
    b.handle(events.CallFinished(b"reply"))
    assert len(b.of(effects.CaptureState, ever=True)) == 2
    assert b.of(effects.StoreCheckpoint, ever=True) == []


def test_dropped_ref_keeps_no_result_whether_its_reply_came_before_or_comes_after() -> None:
    a = Driven(A)
    a.handle(events.MainStarted())
    for payload in (b"x", b"y"):
        a.handle(events.CallSubmitted(B, payload))
    a.receive(message(B, A, replies=(b"1",)))
    a.handle(events.RefsDropped((Ref(B, Seqno(0)), Ref(B, Seqno(1)))))
    a.receive(message(B, A, replies=(b"2",), number=1)._replace(first_reply=Seqno(1)))
    outbox = a.peer.counterpart(B).outbox
    assert outbox.results == outbox.unwanted == {}


def test_opaque_payload_counts_by_its_head_alone() -> None:
    from lineage_stash.core.digest import OPAQUE, digest

    opaque = bytes((OPAQUE, 4)) + b"head"
    assert digest(opaque + b"one") == digest(opaque + b"two") != digest(bytes((OPAQUE, 4)) + b"HEAD" + b"one")
    assert digest(b"one") != digest(b"two")
