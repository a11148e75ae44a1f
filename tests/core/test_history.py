"""History is a chain that never goes back, and an entry survives iff every later incarnation began after it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage_stash.core.frontier import START
from lineage_stash.core.history import History
from lineage_stash.core.ids import FIRST_INCARNATION, Incarnation, Index
from tests.core.builders import A, B, decision, history_of, quick

begun = st.lists(st.integers(0, 8), max_size=4).map(
    lambda indices: history_of(*((A, number, index) for number, index in enumerate(indices, 1)))
)


def writer_of(history: History, index: int) -> Incarnation:
    """By the words of the rule: the last one that began at or below, and that nobody later began at or below."""
    survivors = [
        incarnation
        for at, (incarnation, began) in enumerate(history.segments(A))
        if began <= index and all(later > index for _, later in history.segments(A)[at + 1 :])
    ]
    (writer,) = survivors
    return writer


def test_peer_that_never_failed_is_in_its_first_life_without_an_end() -> None:
    history = History()
    assert history.incarnation(A) == FIRST_INCARNATION
    assert history.limit(A, FIRST_INCARNATION) is None
    assert history.pieces(A, Index(2), Index(5)) == [(0, 2, 5)]


def test_leftovers_of_an_old_life_are_judged_against_all_that_came_after() -> None:
    history = history_of((A, 1, 5), (A, 2, 3))
    assert history.limit(A, Incarnation(0)) == 3
    assert history.limit(A, Incarnation(1)) == 3
    assert history.limit(A, Incarnation(2)) is None


def test_life_that_wrote_nothing_that_survived_has_no_piece() -> None:
    history = history_of((A, 1, 5), (A, 2, 3))
    assert history.pieces(A, START, Index(6)) == [(0, 0, 3), (2, 3, 6)]


def test_decision_that_skips_a_round_is_refused() -> None:
    with pytest.raises(AssertionError, match="decision 3 after round 1"):
        history_of((A, 1, 0)).apply(decision(3, (A, 2, 0)))


def test_decision_that_is_repeated_is_refused() -> None:
    history = history_of((A, 1, 0))
    with pytest.raises(AssertionError, match="decision 1 after round 1"):
        history.apply(decision(1, (A, 1, 0)))


def test_incarnation_that_goes_back_is_refused() -> None:
    with pytest.raises(AssertionError, match="incarnation went back"):
        history_of((A, 2, 0)).apply(decision(2, (A, 1, 0)))


def test_peer_that_cannot_be_run_again_is_gone_from_the_round_that_said_so() -> None:
    history = History((decision(1, (A, 1, 0)), decision(2, gone=(B,))))
    assert history.gone == {B: 2}
    assert history.incarnation(B) == FIRST_INCARNATION


def test_round_of_another_peer_ends_nothing() -> None:
    history = history_of((B, 1, 0))
    assert history.round == 1
    assert history.limit(A, FIRST_INCARNATION) is None


@quick
@given(begun, st.integers(0, 10), st.integers(0, 10))
def test_pieces_name_for_every_index_the_one_writer_that_survives(history: History, lower: int, upper: int) -> None:
    pieces = history.pieces(A, Index(lower), Index(upper))
    named = [(index, writer) for writer, start, end in pieces for index in range(start, end)]
    assert named == [(index, writer_of(history, index)) for index in range(lower, upper)]


@quick
@given(begun, st.integers(0, 8))
def test_another_beginning_never_raises_the_end_of_an_older_life(history: History, index: int) -> None:
    before = {incarnation: history.limit(A, incarnation) for incarnation, _ in history.segments(A)}
    newest = history.incarnation(A)
    history.apply(decision(history.round + 1, (A, newest + 1, index)))
    for incarnation, limit in before.items():
        assert history.limit(A, incarnation) == (index if limit is None else min(limit, index))


@quick
@given(begun)
def test_history_built_from_its_own_decisions_says_the_same(history: History) -> None:
    again = History(tuple(history.decisions))
    assert again.round == history.round
    assert again.segments(A) == history.segments(A)
