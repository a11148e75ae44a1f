"""Refs that are passed on, streams, and tasks: one scenario each, on real peers driven by hand."""

from unittest.mock import ANY

from lineage_stash.core import effects, events
from lineage_stash.core.batch import Batch
from lineage_stash.core.channel import Message
from lineage_stash.core.entry import Assigned, Forwarded, Got, Ran
from lineage_stash.core.history import Beginning, Decision, History
from lineage_stash.core.ids import CANCELLED, NOBODY, OF_PARCEL, OF_TASK, Incarnation, Index, PeerId, Ref, Round, Seqno
from lineage_stash.core.parcels import NO_STREAM, ORPHANED, Parcel, unwrap, wrap
from lineage_stash.core.policy import Policy
from lineage_stash.core.values import CANCELLATION
from tests.core.builders import A, B, C, log_of, member, piece
from tests.core.driving import Driven, message

D = PeerId("d")
RUNNER = PeerId("a/runner")


def running(peer: PeerId = A, **more: object) -> Driven:
    """A peer whose program runs."""
    driven = Driven(peer, **more)  # type: ignore[arg-type]
    driven.handle(events.MainStarted())
    return driven


def parcels_of(messages: list[Message], receiver: PeerId) -> list[Parcel]:
    return [parcel for each in messages if each.receiver == receiver for parcel in each.parcels]


def answer(of: Driven) -> object:
    return of.of(effects.Resume)[-1].answer


def with_parcels(said: Message, *parcels: Parcel) -> Message:
    return said._replace(parcels=parcels)


# passing refs on


def test_ref_inside_a_call_is_a_parcel_that_is_filled_when_the_value_comes() -> None:
    a = running()
    a.handle(events.CallSubmitted(B, b"source"))
    ref = Ref(B, 0)
    a.handle(events.CallSubmitted(C, b"call", True, (ref,)))
    (sent,) = a.sent
    assert unwrap(sent.calls[0]) == (b"call", 0, 1)
    assert sent.parcels == ()
    a.receive(message(B, A, replies=(b"value",)))
    assert parcels_of(a.sent, C) == [Parcel(0, NO_STREAM, b"value")]


def test_ref_that_the_program_has_dropped_is_still_filled() -> None:
    a = running()
    a.handle(events.CallSubmitted(B, b"source"))
    a.handle(events.CallSubmitted(C, b"call", True, (Ref(B, 0),)))
    a.handle(events.RefsDropped((Ref(B, 0),)))
    a.receive(message(B, A, replies=(b"value",)))
    assert parcels_of(a.sent, C) == [Parcel(0, NO_STREAM, b"value")]
    assert a.peer.counterpart(B).outbox.results == {}


def test_call_that_awaits_a_value_is_held_and_so_is_what_comes_after_it_for_the_same_callee() -> None:
    a = running()
    a.handle(events.CallSubmitted(B, b"source"))
    a.handle(events.CallSubmitted(C, b"first", True, (Ref(B, 0),), 1))
    assert a.sent == []
    a.handle(events.CallSubmitted(C, b"second"))
    assert a.sent == []
    a.receive(message(B, A, replies=(b"value",)))
    (sent,) = [each for each in a.sent if each.receiver == C]
    assert [unwrap(call)[0] for call in sent.calls] == [b"first", b"second"]
    assert sent.parcels == (Parcel(0, NO_STREAM, b"value"),)


def test_parcel_that_comes_twice_or_after_its_ref_was_dropped_is_kept_once_or_not_at_all() -> None:
    b = Driven(B)
    b.receive(message(A, B, wrap(b"call", 0, 2)))
    refs = [Ref(A, number, OF_PARCEL) for number in range(2)]
    b.handle(events.RefsDropped((refs[1],)))
    b.receive(with_parcels(message(A, B, number=1), Parcel(0, NO_STREAM, b"x"), Parcel(1, NO_STREAM, b"y")))
    b.receive(with_parcels(message(A, B, number=2), Parcel(0, NO_STREAM, b"x")))
    b.handle(events.GetStarted((refs[0],)))
    assert answer(b) == (b"x",)
    incoming = b.peer.counterpart(A).incoming
    assert (incoming.frontier, list(incoming.kept), incoming.unwanted) == (2, [0], {})


def test_value_with_refs_in_it_that_is_forwarded_has_them_forwarded_too_and_that_is_logged() -> None:
    a = running()
    a.handle(events.CallSubmitted(B, b"source"))
    a.handle(events.CallSubmitted(C, b"call", True, (Ref(B, 0),)))
    a.receive(message(B, A, replies=(wrap(b"outer", 5, 1),)))
    assert parcels_of(a.sent, C) == [Parcel(0, NO_STREAM, wrap(b"outer", 1, 1))]
    a.receive(with_parcels(message(B, A, number=1), Parcel(5, NO_STREAM, b"inner")))
    assert parcels_of(a.sent, C) == [Parcel(1, NO_STREAM, b"inner")]
    a.handle(events.Lingered())
    assert [entry[:4] for entry in a.logged if isinstance(entry, Forwarded)] == [(C, 0, 1, 1)]


def test_replay_leaves_the_numbers_free_that_a_forwarded_value_got() -> None:
    history = History((Decision(Round(1), (Beginning(A, Incarnation(1), Index(1)),), (), "c"),))
    a = running(history=history, entries=(Forwarded(C, 0, 1, 1, 0, ()),))
    a.handle(events.CallSubmitted(B, b"source"))
    a.handle(events.CallSubmitted(C, b"call", True, (Ref(B, 0),)))
    a.handle(events.CallSubmitted(C, b"next", True, (b"known",)))
    assert [unwrap(call)[1] for call in a.peer.counterpart(C).outbox.calls.kept] == [0, 2]
    a.receive(message(B, A, replies=(wrap(b"outer", 5, 1),), round_=1, lives=(0, 1)))
    assert parcels_of(a.sent, C)[-1] == Parcel(0, NO_STREAM, wrap(b"outer", 1, 1))


def test_parcel_of_a_giver_that_nobody_can_run_again_is_logged_by_content_and_replayed() -> None:
    b = Driven(B)
    hello = member(A, replayable=False)
    b.receive(with_parcels(message(A, B, wrap(b"call", 0, 1), hello=hello), Parcel(0, NO_STREAM, b"value")))
    b.handle(events.Lingered())
    (got, ran) = b.logged
    assert got[:3] == (A, 0, b"value")
    assert isinstance(ran, Ran)
    history = History((Decision(Round(1), (Beginning(B, Incarnation(1), Index(2)),), (A,), "c"),))
    again = Driven(B, history=history, entries=(Got(*got), ran))
    again.handle(events.Lingered())
    again.handle(events.GetStarted((Ref(A, 0, OF_PARCEL),)))
    assert answer(again) == (b"value",)


def test_parcel_that_a_crashed_script_had_promised_is_orphaned() -> None:
    b = Driven(B)
    b.receive(message(A, B, wrap(b"call", 0, 1), hello=member(A, replayable=False)))
    b.handle(events.GetStarted((Ref(A, 0, OF_PARCEL),)))
    b.handle(events.Decided(Decision(Round(1), (), (A,), "c")))
    assert answer(b) == (ORPHANED,)


def test_value_that_was_put_aside_with_a_ref_in_it_is_passed_on_with_it() -> None:
    a = running()
    a.handle(events.CallSubmitted(B, b"source"))
    a.handle(events.ValuePut(b"put", (Ref(B, 0),)))
    put = answer(a)
    assert isinstance(put, Ref)
    a.handle(events.CallSubmitted(C, b"call", True, (put,)))
    a.receive(message(B, A, replies=(b"value",)))
    assert [parcel.value for parcel in parcels_of(a.sent, C)] == [b"value"]
    assert a.peer.program.values.find(put) == wrap(b"put", 1, 1)


def test_parcel_that_comes_before_the_constructor_lets_nobody_else_be_the_first() -> None:
    b = Driven(B, creator=A)
    hello = member(A, replayable=False)
    b.receive(with_parcels(message(A, B, hello=hello), Parcel(0, NO_STREAM, b"value")))
    b.receive(message(C, B, b"too early"))
    assert b.ran == []
    b.receive(message(A, B, wrap(b"constructor", 0, 1), number=1))
    assert [unwrap(payload)[0] for payload in b.ran] == [b"constructor"]


# streams


def test_items_of_a_stream_come_before_the_reply_and_end_with_it() -> None:
    a = running()
    a.handle(events.CallSubmitted(B, b"stream"))
    a.handle(events.NextStarted(Ref(B, 0), 0))
    assert a.of(effects.Resume) == []
    a.receive(with_parcels(message(B, A), Parcel(0, Seqno(1), b"item")))
    assert answer(a) == Ref(B, 0, OF_PARCEL)
    a.receive(message(B, A, replies=(b"reply",), number=1))
    a.handle(events.NextStarted(Ref(B, 0), 1))
    assert answer(a) is None


def test_item_goes_to_the_caller_while_the_call_runs() -> None:
    b = Driven(B)
    b.receive(message(A, B, b"stream"))
    b.handle(events.ItemYielded(b"item"))
    assert parcels_of(b.sent, A) == [Parcel(0, Seqno(1), b"item")]


# tasks


def test_task_is_offered_when_its_arguments_are_here_and_becomes_a_call_of_its_runner() -> None:
    a = running()
    a.handle(events.CallSubmitted(B, b"source"))
    a.handle(events.TaskSubmitted(b"task", True, (Ref(B, 0),), 1))
    assert answer(a) == Ref(NOBODY, 0, OF_TASK)
    assert a.of(effects.OfferTask, ever=True) == []
    a.handle(events.RefsDropped((Ref(B, 0),)))
    a.receive(message(B, A, replies=(b"value",)))
    assert a.of(effects.OfferTask) == [effects.OfferTask(0)]
    a.handle(events.TaskAssigned(0, RUNNER))
    (sent,) = [each for each in a.sent if each.receiver == RUNNER]
    assert unwrap(sent.calls[0]) == (b"task", 0, 1)
    assert [parcel.value for parcel in sent.parcels] == [b"value"]
    a.receive(message(RUNNER, A, replies=(b"result",)))
    a.handle(events.GetStarted((Ref(NOBODY, 0, OF_TASK),)))
    assert answer(a) == (b"result",)


def test_ref_of_a_task_that_has_no_runner_yet_can_be_passed_on() -> None:
    a = running()
    a.handle(events.TaskSubmitted(b"task"))
    a.handle(events.CallSubmitted(C, b"call", True, (Ref(NOBODY, 0, OF_TASK),)))
    a.handle(events.TaskAssigned(0, RUNNER))
    a.receive(message(RUNNER, A, replies=(b"result",)))
    assert parcels_of(a.sent, C) == [Parcel(0, NO_STREAM, b"result")]


def test_replayed_caller_gives_each_task_to_the_runner_that_had_it_in_the_order_in_which_they_were() -> None:
    history = History((Decision(Round(1), (Beginning(A, Incarnation(1), Index(2)),), (), "c"),))
    entries = (Assigned(1, RUNNER, 0, ()), Assigned(0, RUNNER, 0, ()))
    a = running(history=history, entries=entries)
    for payload in (b"zero", b"one", b"two"):
        a.handle(events.TaskSubmitted(payload))
    assert a.peer.counterpart(RUNNER).outbox.calls.kept == (b"one", b"zero")
    assert a.of(effects.OfferTask, ever=True) == [effects.OfferTask(2)]


def test_task_that_was_cancelled_without_a_runner_is_answered_and_so_are_those_who_wait_for_it() -> None:
    a = running()
    a.handle(events.CallSubmitted(B, b"source"))
    a.handle(events.TaskSubmitted(b"task", True, (Ref(B, 0),), 1))
    a.handle(events.CallSubmitted(C, b"call", True, (Ref(NOBODY, 0, OF_TASK),)))
    a.handle(events.TaskAssigned(0, CANCELLED))
    assert parcels_of(a.sent, C) == [Parcel(0, NO_STREAM, CANCELLATION)]
    a.handle(events.GetStarted((Ref(NOBODY, 0, OF_TASK),)))
    assert answer(a) == (CANCELLATION,)
    a.receive(message(B, A, replies=(b"value",)))
    assert [each.receiver for each in a.sent if each.calls] == []
    assert [entry for entry in a.logged if isinstance(entry, Assigned)] == [Assigned(0, CANCELLED, ANY, ())]


def test_task_that_was_cancelled_without_a_runner_is_cancelled_in_a_replay() -> None:
    history = History((Decision(Round(1), (Beginning(A, Incarnation(1), Index(1)),), (), "c"),))
    a = running(history=history, entries=(Assigned(0, CANCELLED, 0, ()),))
    a.handle(events.TaskSubmitted(b"task"))
    assert a.of(effects.OfferTask, ever=True) == []
    a.handle(events.TaskAssigned(0, CANCELLED))
    a.handle(events.GetStarted((Ref(NOBODY, 0, OF_TASK),)))
    assert answer(a) == (CANCELLATION,)


def test_no_task_is_offered_before_the_replays_end() -> None:
    history = History((Decision(Round(1), (Beginning(B, Incarnation(1), Index(1)),), (), "c"),))
    b = Driven(B, history=history, entries=(Ran(A, Seqno(0), b"x", _digest_of(b"x"), ()),))
    b.handle(events.Lingered())
    assert b.ran == [b"x"]
    b.handle(events.TaskSubmitted(b"task"))
    assert b.of(effects.OfferTask) == [effects.OfferTask(0)]


def _digest_of(payload: bytes) -> int:
    from lineage_stash.core.digest import digest

    return digest(payload)


def test_checkpoint_has_parcels_tasks_and_held_calls_and_a_restored_peer_goes_on_with_them() -> None:
    policy = Policy(checkpoint_every_entries=1)
    b = Driven(B, policy=policy)
    b.receive(message(A, B, b"x"))
    b.handle(events.CallSubmitted(D, b"source"))
    b.handle(events.CallSubmitted(C, b"held", True, (Ref(D, 0),), 1))
    b.handle(events.TaskSubmitted(b"task", True, (Ref(D, 0),), 1))
    b.handle(events.CallFinished(b"reply"))
    b.handle(events.StateCaptured(b"state"))
    b.commit(b=1)
    (stored,) = b.of(effects.StoreCheckpoint, ever=True)
    history = History((Decision(Round(1), (Beginning(B, Incarnation(1), Index(1)),), (), "c"),))
    again = Driven(B, history=history, checkpoint=stored.checkpoint)
    again.receive(message(D, B, replies=(b"value",), round_=1, lives=(0, 1)))
    (sent,) = [each for each in again.sent if each.receiver == C]
    assert (unwrap(sent.calls[0])[0], [parcel.value for parcel in sent.parcels]) == (b"held", [b"value"])
    assert again.of(effects.OfferTask) == [effects.OfferTask(0)]


def test_reply_that_is_sent_again_comes_after_all_items_of_its_stream() -> None:
    """Seed 700130: the reply came with the first of two items, and said that there was no second one."""
    b = Driven(B, policy=Policy(calls_per_message=1))
    b.receive(message(A, B, b"stream"))
    for item in (b"one", b"two"):
        b.handle(events.ItemYielded(item, ()))
    b.handle(events.CallFinished(b"end", ()))
    b.handle(events.Decided(Decision(Round(1), (Beginning(A, Incarnation(1), Index(0)),), (), "c")))
    again = [each for each in b.sent if each.receiver_incarnation == 1]
    assert [(len(each.parcels), each.replies) for each in again] == [(1, ()), (1, (b"end",))]


# output commit


def test_commit_goes_on_when_all_that_the_program_depends_on_is_committed() -> None:
    b = Driven(B, policy=Policy(flushes_at_once=False))
    b.receive(message(A, B, b"x", batch=Batch((piece(C, 0, log_of("c")),), (), ())))
    b.handle(events.CommitStarted())
    assert len(b.of(effects.AppendToStore)) == 1
    b.commit(b=1)
    assert b.of(effects.Resume) == []
    b.handle(events.Ticked())
    b.commit(b=1, c=1)
    assert answer(b) is None
    b.handle(events.CommitStarted())
    assert b.of(effects.Resume) == [effects.Resume(None)]


def test_commit_before_an_entry_of_the_script_waits_for_nobody() -> None:
    b = Driven(B, policy=Policy(flushes_at_once=False))
    b.receive(message(A, B, b"x"))
    b.handle(events.CommitStarted())
    b.commit(b=1)
    b.handle(events.ReadStarted("effect"))
    b.handle(events.ReadingTaken(b"done"))
    b.handle(events.Ticked())
    history = History((Decision(Round(1), (Beginning(B, Incarnation(1), Index(2)),), (), "c"),))
    again = Driven(B, history=history, entries=tuple(b.logged))
    again.receive(message(A, B, b"x", lives=(0, 1), round_=1, batch=Batch((piece(C, 0, log_of("c")),), (), ())))
    again.handle(events.CommitStarted())
    assert answer(again) is None
    again.handle(events.ReadStarted("effect"))
    assert (answer(again), again.of(effects.TakeReading, ever=True)) == (b"done", [])
    again.handle(events.CommitStarted())
    assert again.of(effects.Resume) == [], "what has come meanwhile is not committed"
