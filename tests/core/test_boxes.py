"""Outbox and inbox: calls and replies are kept as long as somebody may ask for them again, and counted once."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lineage_stash.core.ids import Seqno
from lineage_stash.core.inbox import Inbox
from lineage_stash.core.outbox import Outbox
from tests.core.builders import quick

ALL = 1000


def calls(*texts: str) -> tuple[bytes, ...]:
    return tuple(text.encode() for text in texts)


def outbox_of(*texts: str) -> Outbox:
    outbox = Outbox()
    for payload in calls(*texts):
        outbox.submit(payload)
    return outbox


def inbox_of(*texts: str, finished: int = 0) -> Inbox:
    inbox = Inbox()
    inbox.accept(Seqno(0), calls(*texts))
    for _ in range(finished):
        _, payload, _ = inbox.start()
        inbox.finish(b"reply to " + payload)
    return inbox


# outbox


def test_calls_are_numbered_in_the_order_of_submission_and_taken_once() -> None:
    outbox = outbox_of("x", "y", "z")
    assert outbox.calls.take_unsent(2, ALL) == (0, calls("x", "y"))
    assert outbox.calls.take_unsent(2, ALL) == (2, calls("z"))
    assert not outbox.calls.has_unsent
    assert outbox.calls.take_unsent(2, ALL) == (3, ())


def test_new_channel_sends_again_everything_that_is_not_covered() -> None:
    outbox = outbox_of("x", "y", "z")
    outbox.calls.take_unsent(ALL, ALL)
    outbox.calls.drop_below(Seqno(1))
    outbox.calls.resend_all()
    assert outbox.calls.take_unsent(ALL, ALL) == (1, calls("y", "z"))


def test_covered_payloads_are_freed_and_their_bytes_with_them() -> None:
    outbox = outbox_of("x", "yy", "zzz")
    outbox.calls.drop_below(Seqno(2))
    assert (outbox.calls.floor, outbox.calls.bytes) == (2, 3)
    outbox.calls.drop_below(Seqno(1))
    assert (outbox.calls.floor, outbox.calls.bytes) == (2, 3)


def test_replayed_call_that_the_callee_covered_long_ago_is_numbered_but_not_kept() -> None:
    outbox = Outbox()
    outbox.calls.drop_below(Seqno(2))
    assert [outbox.submit(payload) for payload in calls("x", "y", "z")] == [0, 1, 2]
    assert outbox.calls.bytes == 1
    assert outbox.calls.take_unsent(ALL, ALL) == (2, calls("z"))


def test_repeated_replies_are_dropped() -> None:
    outbox = outbox_of("x", "y", "z")
    outbox.accept_replies(Seqno(0), calls("1", "2"))
    outbox.accept_replies(Seqno(0), calls("other", "other", "3"))
    assert outbox.results == {0: b"1", 1: b"2", 2: b"3"}


def test_repeat_of_old_replies_alone_changes_nothing() -> None:
    outbox = outbox_of("x", "y", "z")
    outbox.accept_replies(Seqno(0), calls("1", "2"))
    outbox.accept_replies(Seqno(0), calls("1"))
    assert outbox.answered == 2


def test_replies_with_a_gap_are_refused() -> None:
    with pytest.raises(AssertionError, match="replies from 1 before 0 was answered"):
        outbox_of("x", "y").accept_replies(Seqno(1), calls("2"))


def test_unwanted_reply_is_dropped_on_arrival() -> None:
    outbox = Outbox()
    outbox.submit(b"x", wanted=False)
    outbox.submit(b"y")
    outbox.accept_replies(Seqno(0), calls("1", "2"))
    assert outbox.results == {1: b"2"}
    assert outbox.unwanted == {}


def test_unwanted_reply_that_came_before_the_replayed_call_is_dropped_at_the_call() -> None:
    outbox = Outbox()
    outbox.accept_replies(Seqno(0), calls("1", "2"))
    outbox.submit(b"x", wanted=False)
    outbox.submit(b"y")
    assert outbox.results == {1: b"2"}
    assert outbox.unwanted == {}


# inbox


def test_repeat_of_a_waiting_call_joins_it() -> None:
    inbox = inbox_of("x", "y")
    assert inbox.accept(Seqno(0), calls("x", "y")) == (0, [])
    assert inbox.start()[:2] == (0, b"x")
    assert inbox.start()[:2] == (1, b"y")


def test_repeat_of_a_running_call_is_not_queued() -> None:
    inbox = inbox_of("x")
    inbox.start()
    assert inbox.accept(Seqno(0), calls("x")) == (0, [])
    assert inbox.received == inbox.started == 1


def test_repeat_of_a_finished_call_finds_its_reply_on_a_new_channel() -> None:
    inbox = inbox_of("x", finished=1)
    inbox.replies.take_unsent(ALL, ALL)
    inbox.replies.resend_all()
    assert inbox.accept(Seqno(0), calls("x")) == (0, [])
    assert inbox.replies.take_unsent(ALL, ALL) == (0, (b"reply to x",))


def test_overlapping_calls_add_only_the_new_ones() -> None:
    inbox = inbox_of("x", "y")
    assert inbox.accept(Seqno(1), calls("y", "z")) == (1, [])
    assert inbox.received == 3


def test_calls_with_a_gap_are_refused() -> None:
    with pytest.raises(AssertionError, match="calls from 2 before 1 was received"):
        inbox_of("x").accept(Seqno(2), calls("z"))


@pytest.mark.parametrize("started", [0, 1])
@pytest.mark.parametrize("finished", [0, 1])
def test_repeat_with_other_arguments_is_named(started: int, finished: int) -> None:
    inbox = inbox_of("x", "y", "z", finished=finished)
    for _ in range(started):
        inbox.start()
    assert inbox.accept(Seqno(0), calls("x", "other", "z")) == (0, [1])


def test_release_frees_replies_and_forgets_their_arguments() -> None:
    inbox = inbox_of("x", "y", finished=2)
    inbox.release(Seqno(1))
    assert inbox.replies.bytes == len(b"reply to y")
    assert inbox.accept(Seqno(0), calls("forgotten", "other")) == (0, [1])


def test_release_ahead_of_a_replay_keeps_no_reply_that_nobody_will_ask_for() -> None:
    inbox = inbox_of("x", "y", "z")
    inbox.release(Seqno(2))
    for _ in range(3):
        inbox.start()
        inbox.finish(b"reply")
    assert inbox.replies.take_unsent(ALL, ALL) == (2, (b"reply",))
    assert inbox.replies.bytes == len(b"reply")


def test_release_that_goes_back_changes_nothing() -> None:
    inbox = inbox_of("x", "y", finished=2)
    inbox.release(Seqno(1))
    inbox.release(Seqno(0))
    assert (inbox.replies.floor, list(inbox.replies.items)) == (1, [b"reply to y"])


@quick
class JoinedBoxes(RuleBasedStateMachine):
    """A pair of boxes joined without a wire: everything arrives in order and once, and frontiers stay in order."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox, self.inbox = Outbox(), Inbox()
        self.submitted: list[bytes] = []
        self.executed: list[bytes] = []

    @rule(payload=st.binary(max_size=3))
    def submit(self, payload: bytes) -> None:
        assert self.outbox.submit(payload) == len(self.submitted)
        self.submitted.append(payload)

    @rule(most=st.integers(1, 4))
    def carry_calls(self, most: int) -> None:
        first, payloads = self.outbox.calls.take_unsent(most, ALL)
        if payloads:
            assert self.inbox.accept(first, payloads)[1] == []

    @rule(most=st.integers(1, 4))
    def carry_replies(self, most: int) -> None:
        first, replies = self.inbox.replies.take_unsent(most, ALL)
        if replies:
            self.outbox.accept_replies(first, replies)

    @precondition(lambda self: self.inbox.started < self.inbox.received)
    @rule()
    def execute(self) -> None:
        seqno, payload, _ = self.inbox.start()
        assert seqno == len(self.executed)
        self.executed.append(payload)
        self.inbox.finish(b"done " + payload)

    @rule()
    def renew(self) -> None:
        self.outbox.calls.resend_all()
        self.inbox.replies.resend_all()

    @rule(data=st.data())
    def cover(self, data: st.DataObject) -> None:
        self.outbox.calls.drop_below(data.draw(st.integers(0, self.inbox.replies.upper).map(Seqno)))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.inbox.release(data.draw(st.integers(0, self.outbox.answered).map(Seqno)))

    @invariant()
    def calls_ran_in_order_and_once(self) -> None:
        assert self.executed == self.submitted[: len(self.executed)]
        replies = [self.outbox.results[Seqno(n)] for n in range(self.outbox.answered)]
        assert replies == [b"done " + payload for payload in self.executed[: len(replies)]]

    @invariant()
    def frontiers_are_in_order(self) -> None:
        assert self.inbox.replies.floor <= self.inbox.replies.upper <= self.inbox.started <= self.inbox.received
        assert self.outbox.calls.floor <= self.outbox.calls.upper

    @invariant()
    def bytes_are_those_kept(self) -> None:
        assert self.outbox.calls.bytes == sum(map(len, self.submitted[self.outbox.calls.floor :]))
        waiting = sum(map(len, self.submitted[self.inbox.started : self.inbox.received]))
        cached = sum(len(b"done " + payload) for payload in self.executed[self.inbox.replies.floor :])
        assert self.inbox.queue_bytes + self.inbox.replies.bytes == waiting + cached

    def teardown(self) -> None:
        self.renew()
        self.carry_calls(ALL)
        while self.inbox.started < self.inbox.received:
            self.execute()
        self.carry_replies(ALL)
        assert self.executed == self.submitted
        self.calls_ran_in_order_and_once()
        assert self.outbox.answered == len(self.submitted)


TestBoxesUnderAnyRenewals = JoinedBoxes.TestCase
