"""The store's contract as tests: every backend inherits `StoreContract` and gives it a `store` fixture.

A backend implements `ask`: the answers to one request, or none where nothing can be known yet. The verbs and what they
promise are written once, here. A backend of several replicas answers by a majority and merges what they say.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import pytest

from lineage_stash.codec import pack_span, unpack_spans
from lineage_stash.core.batch import Range
from lineage_stash.core.checkpoint import Checkpoint, age
from lineage_stash.core.entry import Entry, Read
from lineage_stash.core.frontier import START
from lineage_stash.core.history import Beginning, Decision, History, Segments
from lineage_stash.core.ids import Incarnation, Index, PeerId, Round
from lineage_stash.core.settle import assemble
from lineage_stash.store import contract

P, Q = PeerId("p"), PeerId("q")
FIRST_LIFE: Segments = ((Incarnation(0), START),)


def two_lives(began: int) -> Segments:
    return (*FIRST_LIFE, (Incarnation(1), Index(began)))


def entry(index: int, life: int = 0) -> Entry:
    return Read(b"life %d wrote %d" % (life, index), index, ())


def log(lower: int, upper: int, *, life: int = 0, peer: PeerId = P) -> Range:
    return Range(peer, Incarnation(life), Index(lower), tuple(entry(index, life) for index in range(lower, upper)))


def checkpoint(upper: int, *, life: int = 0, final: bool = False, state: bytes = b"state") -> Checkpoint:
    return Checkpoint(P, Incarnation(life), Index(upper), state, 0, (), (), (), 0, final)


class Appended(NamedTuple):
    """What is known after an append: up to where a quorum holds each log, and whether anyone refused."""

    upper: int
    refused: bool


class Verbs(ABC):
    """The verbs over whatever answers requests."""

    def __init__(self, quorum: int = 1) -> None:
        self.quorum = quorum

    @abstractmethod
    def ask(self, request: contract.Request) -> tuple[Any, ...]:
        """The answers of a quorum, or none: then nobody knows."""

    def append(self, *ranges: Range, segments: Segments = FIRST_LIFE, settling: bool = False) -> Appended:
        """Append, and how far the first range's log is durable by all that is known."""
        known = tuple((peer, segments) for peer in dict.fromkeys(piece.peer for piece in ranges))
        answers = self.ask(contract.Append(tuple(map(pack_span, ranges)), known, (), (), settling))
        uppers = sorted((answer.holdings[0][2] for answer in answers), reverse=True)
        refused = any(answer.refused for answer in answers)
        return Appended(uppers[self.quorum - 1] if len(uppers) >= self.quorum else 0, refused)

    def watch(self, peer: PeerId) -> tuple[tuple[PeerId, Incarnation, Index], ...]:
        """What each of a quorum says that it holds of a log."""
        return tuple(answer.holdings[0] for answer in self.ask(contract.Append((), (), (), (peer,), False)))

    def read(self, peer: PeerId = P, lower: int = 0, segments: Segments = FIRST_LIFE) -> list[Entry]:
        """The log from an index on, as a reader puts it together from a quorum's answers."""
        return self._joined(self.ask(contract.Read(peer, Index(lower))), peer, lower, segments)

    def fence(self, life: int = 0, lower: int = 0, peer: PeerId = P) -> list[Entry]:
        """Shut a life out, and what was held of it at that moment."""
        request = contract.Fence(((peer, Incarnation(life)),), ((peer, Index(lower)),))
        return self._joined(self.ask(request), peer, lower, FIRST_LIFE)

    def _joined(self, answers: tuple[Any, ...], peer: PeerId, lower: int, segments: Segments) -> list[Entry]:
        lives = enumerate(segments[1:], 1)
        history = History(tuple(Decision(Round(n), (Beginning(peer, *life),), (), "test") for n, life in lives))
        base = max([Index(lower), *(base for answer in answers for _, base in answer.bases)])
        ranges = unpack_spans([span for answer in answers for span in answer.spans])
        stretch = assemble(ranges, {peer: base}, history).get(peer)
        return list(stretch.entries) if stretch else []

    def truncate(self, below: int, segments: Segments = FIRST_LIFE) -> None:
        self.ask(contract.Truncate(P, segments, Index(below)))

    def put_checkpoint(self, stored: Checkpoint) -> bool:
        answers = self.ask(contract.PutCheckpoint(stored))
        return bool(answers) and all(answer.stored for answer in answers)

    def get_checkpoint(self) -> Checkpoint | None:
        found = [answer.checkpoint for answer in self.ask(contract.GetCheckpoint(P)) if answer.checkpoint is not None]
        return max(found, key=age, default=None)

    def observe(self) -> tuple[Any, ...]:
        """All that anybody can see of the store."""
        return self.read(P), self.read(Q), self.watch(P), self.watch(Q), self.get_checkpoint()


class StoreContract:
    """What every backend promises."""

    # append

    def test_appended_range_is_held_and_read_back(self, store: Verbs) -> None:
        assert store.append(log(0, 3)) == Appended(3, False)
        assert store.read() == [entry(0), entry(1), entry(2)]
        assert store.read(lower=2) == [entry(2)]

    def test_repeated_append_changes_nothing(self, store: Verbs) -> None:
        store.append(log(0, 3))
        before = store.observe()
        assert store.append(log(0, 3)) == Appended(3, False)
        assert store.append(log(1, 2)) == Appended(3, False)
        assert store.observe() == before

    def test_overlapping_append_adds_only_what_is_new(self, store: Verbs) -> None:
        store.append(log(0, 2))
        store.append(Range(P, Incarnation(0), Index(1), (entry(99), entry(2))))
        assert store.read() == [entry(0), entry(1), entry(2)]

    def test_append_with_a_gap_that_nobody_can_fill_is_not_held(self, store: Verbs) -> None:
        store.append(log(0, 1))
        assert store.append(log(2, 4)).upper <= 1
        assert store.read() == [entry(0)]

    def test_gap_that_is_filled_later_lets_the_append_through(self, store: Verbs) -> None:
        store.append(log(2, 4))
        store.append(log(0, 2))
        assert store.append(log(2, 4)) == Appended(4, False)
        assert store.read() == [entry(index) for index in range(4)]

    def test_several_logs_in_one_append_are_all_held(self, store: Verbs) -> None:
        store.append(log(0, 2), log(0, 3, peer=Q))
        assert (len(store.read(P)), len(store.read(Q))) == (2, 3)

    def test_log_that_nobody_wrote_reads_as_empty(self, store: Verbs) -> None:
        assert store.read() == []
        assert store.get_checkpoint() is None

    def test_watch_tells_the_writer_and_the_end_of_a_log(self, store: Verbs) -> None:
        store.append(log(0, 3))
        store.append(log(3, 4, life=1), segments=two_lives(3))
        assert max(store.watch(P)) == (P, 1, 4)

    # fence

    def test_fence_returns_what_was_held_and_shuts_the_dead_out(self, store: Verbs) -> None:
        store.append(log(0, 2))
        assert store.fence() == [entry(0), entry(1)]
        assert store.append(log(2, 3)).refused
        assert store.read() == [entry(0), entry(1)]

    def test_fence_before_the_first_append_shuts_the_dead_out(self, store: Verbs) -> None:
        assert store.fence() == []
        assert store.append(log(0, 1)).refused
        assert store.read() == []

    def test_fence_reads_only_from_the_asked_index(self, store: Verbs) -> None:
        store.append(log(0, 3))
        assert store.fence(lower=2) == [entry(2)]

    def test_fence_of_one_log_leaves_the_others_open(self, store: Verbs) -> None:
        store.fence(peer=Q)
        assert store.append(log(0, 1)) == Appended(1, False)

    def test_fence_of_an_older_life_does_not_lift_that_of_a_newer_one(self, store: Verbs) -> None:
        store.fence(life=1)
        store.fence(life=0)
        assert store.append(log(0, 1, life=1), segments=two_lives(0)).refused

    def test_settlement_is_stored_in_spite_of_the_fence(self, store: Verbs) -> None:
        store.append(log(0, 1))
        store.fence()
        assert store.append(log(0, 3), settling=True) == Appended(3, False)
        assert store.read() == [entry(0), entry(1), entry(2)]

    def test_next_life_appends_after_the_fence(self, store: Verbs) -> None:
        store.append(log(0, 2))
        store.fence()
        assert store.append(log(2, 3, life=1), segments=two_lives(2)) == Appended(3, False)
        assert store.read(segments=two_lives(2)) == [entry(0), entry(1), entry(2, life=1)]

    def test_fenced_life_whose_end_is_known_is_taken_up_to_that_end(self, store: Verbs) -> None:
        store.append(log(0, 1))
        store.fence()
        assert store.append(log(1, 5), segments=two_lives(3)) == Appended(3, False)
        assert store.read() == [entry(0), entry(1), entry(2)]

    def test_leftovers_are_dropped_where_the_next_life_began(self, store: Verbs) -> None:
        store.append(log(0, 5))
        store.fence()
        store.append(log(2, 3, life=1), segments=two_lives(2))
        assert store.read(segments=two_lives(2)) == [entry(0), entry(1), entry(2, life=1)]
        assert max(store.watch(P)) == (P, 1, 3)

    def test_zombie_that_repeats_its_flush_changes_nothing_after_the_next_life_began(self, store: Verbs) -> None:
        store.append(log(0, 5))
        store.fence()
        store.append(log(2, 3, life=1), segments=two_lives(2))
        before = store.observe()
        store.append(log(0, 5))
        assert store.observe() == before

    # truncate

    def test_truncation_drops_what_is_below_and_keeps_what_is_above(self, store: Verbs) -> None:
        store.append(log(0, 4))
        store.truncate(2)
        assert store.read() == [entry(2), entry(3)]
        assert store.append(log(4, 5)) == Appended(5, False)

    def test_truncation_that_goes_back_changes_nothing(self, store: Verbs) -> None:
        store.append(log(0, 4))
        store.truncate(3)
        before = store.observe()
        store.truncate(1)
        assert store.observe() == before

    def test_truncation_beyond_what_came_lets_the_log_go_on_from_there(self, store: Verbs) -> None:
        store.append(log(0, 1))
        store.truncate(3)
        assert store.append(log(3, 4)) == Appended(4, False)
        assert store.read(lower=3) == [entry(3)]

    def test_late_append_of_what_is_truncated_brings_nothing_back(self, store: Verbs) -> None:
        store.append(log(0, 4))
        store.truncate(4)
        assert store.append(log(0, 4)) == Appended(4, False)
        assert store.read() == []

    # checkpoints

    def test_newest_checkpoint_wins_in_whatever_order_they_come(self, store: Verbs) -> None:
        for upper in (3, 9, 6, 1):
            assert store.put_checkpoint(checkpoint(upper))
        assert store.get_checkpoint() == checkpoint(9)

    def test_record_wins_over_a_checkpoint_of_the_same_moment(self, store: Verbs) -> None:
        for final in (False, True, False):
            store.put_checkpoint(checkpoint(3, final=final))
        assert store.get_checkpoint() == checkpoint(3, final=True)

    def test_later_life_wins_over_a_checkpoint_of_the_same_index(self, store: Verbs) -> None:
        for life in (1, 2, 0):
            store.put_checkpoint(checkpoint(3, life=life))
        assert store.get_checkpoint() == checkpoint(3, life=2)

    def test_repeated_checkpoint_changes_nothing(self, store: Verbs) -> None:
        for upper in (3, 6):
            store.put_checkpoint(checkpoint(upper))
        assert store.put_checkpoint(checkpoint(3))
        assert store.put_checkpoint(checkpoint(6))
        assert store.get_checkpoint() == checkpoint(6)

    def test_fenced_life_can_store_no_checkpoint_and_the_next_one_can(self, store: Verbs) -> None:
        store.put_checkpoint(checkpoint(3))
        store.fence()
        assert not store.put_checkpoint(checkpoint(9))
        assert store.get_checkpoint() == checkpoint(3)
        assert store.put_checkpoint(checkpoint(9, life=1))
        assert store.get_checkpoint() == checkpoint(9, life=1)


# happened? × reported?


class DidNotHappen(Exception):
    """The request was not carried out, and that is known."""


class DontKnow(Exception):
    """The request may have been carried out."""


class Outcome(NamedTuple):
    """What becomes of one request: whether it happens, and whether the asker learns which."""

    happened: bool
    reported: bool


OUTCOMES = tuple(Outcome(happened, reported) for happened, reported in product((True, False), repeat=2))


class Unreliable(Verbs):
    """A store that does with each first try what it is told to; whoever does not know better repeats."""

    def __init__(self, store: Verbs, outcomes: tuple[Outcome, ...]) -> None:
        super().__init__(store.quorum)
        self.store = store
        self.outcomes = list(outcomes)

    def try_once(self, request: contract.Request, outcome: Outcome) -> tuple[Any, ...]:
        answers = self.store.ask(request) if outcome.happened else ()
        if not outcome.reported:
            raise DontKnow
        if not outcome.happened:
            raise DidNotHappen
        return answers

    def ask(self, request: contract.Request) -> tuple[Any, ...]:
        outcome = self.outcomes.pop(0) if self.outcomes else OUTCOMES[0]
        try:
            return self.try_once(request, outcome)
        except (DidNotHappen, DontKnow):
            return self.store.ask(request)


Story = tuple[Callable[[Verbs], object], ...]

STORIES: dict[str, Story] = {
    "flush, checkpoint, truncate, flush": (
        lambda store: store.append(log(0, 3)),
        lambda store: store.put_checkpoint(checkpoint(2)),
        lambda store: store.truncate(2),
        lambda store: store.append(log(3, 5)),
    ),
    "flush, fence, zombie, settle": (
        lambda store: store.append(log(0, 2)),
        lambda store: store.fence(),
        lambda store: store.append(log(2, 4)),
        lambda store: store.append(log(0, 3), settling=True),
    ),
    "fence, next life, its checkpoint, zombie": (
        lambda store: store.append(log(0, 4)),
        lambda store: store.fence(),
        lambda store: store.append(log(2, 5, life=1), segments=two_lives(2)),
        lambda store: store.put_checkpoint(checkpoint(4, life=1)),
        lambda store: store.put_checkpoint(checkpoint(9)),
    ),
    "gap, the missing part, the rest, another log": (
        lambda store: store.append(log(0, 1)),
        lambda store: store.append(log(0, 3), log(0, 1, peer=Q)),
        lambda store: store.append(log(3, 4), log(1, 2, peer=Q)),
    ),
}


class UnreliableStoreContract:
    """A backend whose requests may or may not happen, and may or may not say so, ends in the same state."""

    @pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
    def test_repeats_after_any_outcomes_leave_the_same_answers_and_state(
        self, make_store: Callable[[], Verbs], story: Story
    ) -> None:
        reliable = make_store()
        answers = [step(reliable) for step in story]
        expected = reliable.observe()
        for outcomes in product(OUTCOMES, repeat=len(story)):
            store = make_store()
            unreliable = Unreliable(store, outcomes)
            assert [step(unreliable) for step in story] == answers, outcomes
            assert store.observe() == expected, outcomes

    @pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
    def test_late_repeat_of_any_earlier_request_changes_nothing(
        self, make_store: Callable[[], Verbs], story: Story
    ) -> None:
        reliable = make_store()
        for step in story:
            step(reliable)
        expected = reliable.observe()
        for late in range(len(story)):
            for after in range(late, len(story)):
                store = make_store()
                for at, step in enumerate(story):
                    step(store)
                    if at == after:
                        story[late](store)
                assert store.observe() == expected, (late, after)
