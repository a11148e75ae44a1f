"""A channel keeps what was not acknowledged, and counts as held only what was."""

from hypothesis import given
from hypothesis import strategies as st

from lineage_stash.core.batch import EMPTY, Batch
from lineage_stash.core.channel import Channel, Message
from lineage_stash.core.frontier import Frontier
from lineage_stash.core.ids import FIRST_INCARNATION, Index, Round, Seqno
from tests.core.builders import A, B, C, D, log_of, piece, quick


def message(number: int, batch: Batch = EMPTY) -> Message:
    life, zero = FIRST_INCARNATION, Seqno(0)
    return Message(A, life, B, life, Round(0), number, 0, None, zero, (), zero, (), zero, zero, batch)


def batch_of(lower: int, upper: int) -> Batch:
    return Batch((piece(C, lower, log_of("x") * (upper - lower)),), (), ())


def send(channel: Channel, batch: Batch = EMPTY) -> Message:
    sent = message(channel.next_number, batch)
    channel.record_sent(sent)
    return sent


def under_way(channel: Channel) -> list[int]:
    return [sent.number for sent in channel.unacknowledged]


def test_lineage_that_was_sent_but_not_acknowledged_is_not_held() -> None:
    channel = Channel(FIRST_INCARNATION)
    send(channel, batch_of(0, 3))
    assert channel.held == {}
    channel.acknowledge(1)
    assert channel.held == {C: 3}


def test_acknowledgement_of_less_than_all_forgets_no_more_than_that() -> None:
    channel = Channel(FIRST_INCARNATION)
    for upper in (1, 2, 3):
        send(channel, batch_of(upper - 1, upper))
    channel.acknowledge(2)
    assert under_way(channel) == [2]
    assert channel.held == {C: 2}


def test_late_acknowledgement_changes_nothing() -> None:
    channel = Channel(FIRST_INCARNATION)
    for _ in range(3):
        send(channel)
    channel.acknowledge(3)
    channel.acknowledge(1)
    assert under_way(channel) == []


def test_silence_sends_all_that_is_unacknowledged_again_and_in_order() -> None:
    channel = Channel(FIRST_INCARNATION)
    sent = (send(channel), send(channel))
    assert channel.stale_messages(3) == ()
    assert channel.stale_messages(3) == ()
    assert channel.stale_messages(3) == sent
    assert channel.stale_messages(3) == ()


def test_acknowledgement_ends_the_silence() -> None:
    channel = Channel(FIRST_INCARNATION)
    send(channel)
    later = send(channel)
    assert channel.stale_messages(2) == ()
    channel.acknowledge(1)
    assert channel.stale_messages(2) == ()
    assert channel.stale_messages(2) == (later,)


def test_silence_of_a_channel_that_waits_for_nothing_sends_nothing() -> None:
    channel = Channel(FIRST_INCARNATION)
    assert [channel.stale_messages(1) for _ in range(3)] == [()] * 3


def test_ended_log_is_no_longer_counted_as_passed_on() -> None:
    channel = Channel(FIRST_INCARNATION)
    channel.sent.update({C: Index(5), D: Index(5)})
    channel.told.update({C: Index(6)})
    channel.note_held(batch_of(0, 4))
    channel.clip(C, Index(2))
    assert (channel.sent, channel.told, channel.held) == ({C: 2, D: 5}, {C: 2}, {C: 2})


@quick
@given(st.lists(st.one_of(st.none(), st.integers(0, 12)), max_size=20))
def test_any_acknowledgements_leave_held_exactly_what_they_cover(steps: list[int | None]) -> None:
    channel = Channel(FIRST_INCARNATION)
    covered, number = 0, 0
    for step in steps:
        if step is None:
            send(channel, batch_of(number, number + 1))
            number += 1
        else:
            covered = max(covered, min(step, number))
            channel.acknowledge(min(step, number))
        assert under_way(channel) == list(range(covered, number))
        expected: Frontier = {C: Index(covered)} if covered else {}
        assert channel.held == expected
