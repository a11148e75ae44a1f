"""Handles in payloads are found wherever these are kept, from one peer to the other, and on every step of the way."""

from lineage_stash.core import events
from lineage_stash.core.channel import Message
from lineage_stash.core.digest import digest
from lineage_stash.core.handles import actors_in, name_actors, without_names
from lineage_stash.core.holding import Holding, answer_of, on_their_way
from lineage_stash.core.ids import OF_PARCEL, PeerId, Ref, Seqno
from lineage_stash.core.parcels import NO_STREAM, Parcel, wrap
from lineage_stash.core.rope import rope, whole
from tests.core.builders import A, B, C
from tests.core.driving import Driven, message

X, Y = PeerId("driver/X-1"), PeerId("driver/Y-2")
NAMED = name_actors(b"payload", [X])


def held(driven: Driven) -> set[PeerId]:
    """The actors that are held, whatever else it is."""
    return {X, Y}.intersection(answer_of(driven.peer, Holding(), "look", ()).held)


def running(peer: PeerId) -> Driven:
    driven = Driven(peer)
    driven.handle(events.MainStarted())
    return driven


def acknowledge(driven: Driven, by: PeerId, upper: int) -> None:
    driven.receive(message(by, driven.peer.id)._replace(acknowledged=upper))


def test_names_are_read_without_opening_and_count_in_no_digest() -> None:
    named = name_actors(b"payload", [X, Y])
    assert actors_in(named) == actors_in(wrap(named, 7, 2)) == (X, Y)
    assert without_names(named) == b"payload"
    assert digest(named) == digest(wrap(named, 7, 2)) == digest(b"payload")
    assert [actors_in(payload) for payload in (b"", b"payload", b"\xfd", b"\xfd\xff\xff\xff\xff", wrap(b"", 0, 1))] == [
        ()
    ] * 5


def test_names_go_before_what_lies_elsewhere_in_memory() -> None:
    named = name_actors(rope(b"head", [(4, memoryview(b"elsewhere"))]), [X])
    assert actors_in(named) == (X,)
    assert whole(without_names(named)) == b"headelsewhere"


def test_call_is_its_callers_until_it_has_come_and_its_callees_until_it_is_opened() -> None:
    caller, callee = running(A), Driven(B)
    caller.handle(events.CallSubmitted(B, NAMED, True, (), 0))
    sent = caller.sent
    assert held(caller) == set(on_their_way(caller.peer)) - {B} == {X}
    callee.receive(message(C, B, b"another call"))  # which runs, so that the next one waits
    callee.receive(sent[0])
    assert held(callee) == {X}
    acknowledge(caller, B, 1)
    assert held(caller) == set()
    assert on_their_way(caller.peer) == {}


def test_reply_is_the_callees_until_it_has_come_and_the_callers_until_it_is_dropped() -> None:
    caller, callee = running(A), Driven(B)
    caller.handle(events.CallSubmitted(B, b"call", True, (), 0))
    callee.receive(caller.sent[0])
    callee.handle(events.CallFinished(NAMED, ()))
    assert held(callee) == {X}
    caller.receive(callee.sent[0])
    acknowledge(callee, A, 1)
    assert (held(caller), held(callee)) == ({X}, set())
    caller.handle(events.RefsDropped((Ref(B, 0),), ()))
    assert held(caller) == set()
    assert list(caller.peer.program.values.touched) == [X]


def test_value_that_is_passed_on_unopened_is_noted() -> None:
    middle = running(A)
    middle.handle(events.CallSubmitted(B, b"call", True, (), 0))
    middle.handle(events.CallSubmitted(C, b"with a ref", True, (Ref(B, 0),), 0))
    middle.handle(events.RefsDropped((Ref(B, 0),), ()))
    middle.receive(message(B, A, replies=(NAMED,)))
    assert list(middle.peer.program.values.touched) == [X]
    assert held(middle) == {X}


def test_parcel_is_held_until_its_ref_is_dropped_and_noted_where_it_was_dropped_before() -> None:
    receiver = running(A)

    def parcel(number: int) -> Message:
        return message(B, A, number=number)._replace(parcels=(Parcel(number, NO_STREAM, NAMED),))

    receiver.receive(parcel(0))
    assert held(receiver) == {X}
    receiver.handle(events.RefsDropped((Ref(B, 0, OF_PARCEL), Ref(B, 1, OF_PARCEL)), ()))
    receiver.peer.program.values.touched.clear()
    receiver.receive(parcel(1))
    assert held(receiver) == set()
    assert list(receiver.peer.program.values.touched) == [X]


def test_call_that_is_not_answered_holds_its_callee() -> None:
    caller = running(A)
    caller.handle(events.CallSubmitted(X, b"call", False, (), 0))
    acknowledge(caller, X, 1)
    assert held(caller) == {X}
    caller.receive(message(X, A, number=1, replies=(b"reply",)))
    assert caller.peer.counterparts[X].outbox.answered == Seqno(1)
    assert held(caller) == set()
