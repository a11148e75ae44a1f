"""The stash holds one gapless uncommitted range per log and charges exactly for what it holds."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage_stash.core.entry import ENTRY_OVERHEAD_BYTES, size_bytes
from lineage_stash.core.frontier import START
from lineage_stash.core.history import History
from lineage_stash.core.ids import Index, PeerId
from lineage_stash.core.stash import Stash
from tests.core.builders import A, B, entries, history_of, log_of, peers, piece, quick, ran, said

ONE_HISTORY = History()


def held_bytes(stash: Stash) -> int:
    return sum(size_bytes(e) for peer in stash for r in stash.ranges(peer, START, ONE_HISTORY) for e in r.entries)


def stash_of(*values: str) -> Stash:
    stash = Stash()
    stash.merge(A, START, log_of(*values))
    return stash


def test_repeated_merge_adds_nothing() -> None:
    stash = stash_of("x", "y")
    before = stash.bytes
    stash.merge(A, START, log_of("x", "y"))
    assert (stash.upper(A), stash.bytes) == (2, before)


def test_overlapping_merge_adds_only_what_reaches_beyond() -> None:
    stash = stash_of("x", "y")
    stash.merge(A, Index(1), log_of("other", "z"))
    assert stash.ranges(A, START, ONE_HISTORY) == [piece(A, 0, log_of("x", "y", "z"))]


def test_merge_with_a_gap_is_refused() -> None:
    with pytest.raises(AssertionError, match="a gap in a's log: held up to 2, given from 3"):
        stash_of("x", "y").merge(A, Index(3), log_of("z"))


def test_commit_beyond_what_is_held_closes_the_gap() -> None:
    stash = stash_of("x")
    stash.commit(A, Index(5))
    stash.merge(A, Index(5), log_of("z"))
    assert stash.ranges(A, START, ONE_HISTORY) == [piece(A, 5, log_of("z"))]


def test_late_copy_of_what_is_committed_is_not_taken_again() -> None:
    stash = stash_of("x", "y")
    stash.commit(A, Index(2))
    stash.merge(A, START, log_of("x", "y"))
    assert stash.bytes == 0
    assert list(stash) == []


def test_commit_that_goes_back_changes_nothing() -> None:
    stash = stash_of("x", "y", "z")
    stash.commit(A, Index(2))
    stash.commit(A, Index(1))
    assert (stash.lower(A), stash.upper(A)) == (2, 3)


def test_clip_drops_the_end_and_below_the_committed_index_drops_no_more_than_all() -> None:
    stash = stash_of("x", "y", "z")
    stash.commit(A, Index(1))
    stash.clip(A, Index(2))
    assert stash.ranges(A, START, ONE_HISTORY) == [piece(A, 1, log_of("y"))]
    stash.clip(A, START)
    assert (stash.lower(A), stash.upper(A), stash.bytes) == (1, 1, 0)


def test_log_written_in_two_lives_is_handed_over_in_two_ranges() -> None:
    stash = stash_of("x", "y", "z")
    assert stash.ranges(A, Index(1), history_of((A, 1, 2))) == [
        piece(A, 1, log_of("y")),
        piece(A, 2, log_of("z"), incarnation=1),
    ]


def test_entry_is_charged_for_its_content_and_overhead() -> None:
    stash = Stash()
    stash.append(A, ran(payload=b"1234"))
    stash.append(B, said(b"12"))
    stash.append(B, ran())
    assert stash.bytes == 3 * ENTRY_OVERHEAD_BYTES + 6


steps: st.SearchStrategy[Callable[[Stash], None]] = st.one_of(
    st.builds(lambda peer, entry: lambda stash: stash.append(peer, entry), peers, entries),
    st.builds(
        lambda peer, back, more: lambda stash: stash.merge(peer, Index(max(0, stash.upper(peer) - back)), tuple(more)),
        peers,
        st.integers(0, 3),
        st.lists(entries, max_size=5),
    ),
    st.builds(
        lambda peer, by: lambda stash: stash.commit(peer, Index(stash.lower(peer) + by)), peers, st.integers(-1, 4)
    ),
    st.builds(
        lambda peer, by: lambda stash: stash.clip(peer, Index(max(0, stash.upper(peer) - by))),
        peers,
        st.integers(-1, 4),
    ),
)


@quick
@given(st.lists(steps, max_size=30))
def test_bytes_are_those_of_the_held_entries_after_any_steps(history: list[Callable[[Stash], None]]) -> None:
    stash = Stash()
    for step in history:
        step(stash)
        assert stash.bytes == held_bytes(stash)


@quick
@given(st.lists(steps, max_size=30))
def test_committed_index_never_goes_back_after_any_steps(history: list[Callable[[Stash], None]]) -> None:
    stash = Stash()
    lowest: dict[PeerId, Index] = {}
    for step in history:
        step(stash)
        for peer in (*lowest, *stash):
            assert lowest.get(peer, START) <= stash.lower(peer) <= stash.upper(peer)
            lowest[peer] = stash.lower(peer)
