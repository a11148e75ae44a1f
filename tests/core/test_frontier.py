"""Frontiers only grow, whatever the order and however often facts arrive; only a settled round lowers one."""

from hypothesis import given
from hypothesis import strategies as st

from lineage_stash.core.frontier import START, Frontier, Positions, clip, covers, join
from lineage_stash.core.ids import Index, PeerId
from tests.core.builders import A, B, frontiers, peers, positions, quick, small


def joined(*facts: Positions) -> Frontier:
    frontier: Frontier = {}
    for fact in facts:
        join(frontier, fact)
    return frontier


def test_join_takes_the_greater_index_of_each_peer() -> None:
    assert joined(((A, Index(3)), (B, Index(1))), ((A, Index(2)), (B, Index(5)))) == {A: 3, B: 5}


def test_join_with_the_start_leaves_no_trace() -> None:
    assert joined(((A, START),)) == {}


def test_peer_that_was_never_named_is_covered_only_at_the_start() -> None:
    assert covers({}, ((A, START),))
    assert not covers({}, ((A, Index(1)),))


def test_clip_lowers_one_peer_and_raises_none() -> None:
    frontier: Frontier = {A: Index(5), B: Index(5)}
    clip(frontier, A, Index(2))
    clip(frontier, B, Index(9))
    assert frontier == {A: 2, B: 5}


@quick
@given(positions, positions)
def test_facts_in_the_other_order_join_to_the_same_frontier(one: Positions, other: Positions) -> None:
    assert joined(one, other) == joined(other, one)


@quick
@given(positions, positions, positions)
def test_facts_grouped_otherwise_join_to_the_same_frontier(one: Positions, two: Positions, three: Positions) -> None:
    assert joined(one, tuple(joined(two, three).items())) == joined(tuple(joined(one, two).items()), three)


@quick
@given(frontiers, positions)
def test_facts_that_are_repeated_change_nothing(frontier: Frontier, facts: Positions) -> None:
    join(frontier, facts)
    once = dict(frontier)
    join(frontier, facts)
    assert frontier == once


@quick
@given(frontiers, positions)
def test_join_covers_both_sides_and_nothing_lower_does(frontier: Frontier, facts: Positions) -> None:
    before = dict(frontier)
    join(frontier, facts)
    assert covers(frontier, before.items())
    assert covers(frontier, facts)
    for peer, upper in frontier.items():
        assert upper in [before.get(peer), *(index for other, index in facts if other == peer)]


@quick
@given(frontiers, peers, small)
def test_clip_never_raises_and_lowers_nobody_else(frontier: Frontier, peer: PeerId, upper: Index) -> None:
    before = dict(frontier)
    clip(frontier, peer, upper)
    assert frontier.get(peer, START) == min(before.get(peer, START), upper)
    assert {p: u for p, u in frontier.items() if p != peer} == {p: u for p, u in before.items() if p != peer}


@quick
@given(frontiers, positions, st.randoms(use_true_random=False))
def test_covers_does_not_depend_on_the_order_of_facts(frontier: Frontier, facts: Positions, draw: object) -> None:
    shuffled = list(facts)
    draw.shuffle(shuffled)  # type: ignore[attr-defined]
    assert covers(frontier, facts) == covers(frontier, shuffled)
