"""Settling finds the greatest causally closed cut of what is known, and names whom it leaves without a cause."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from lineage_stash.core.batch import Range
from lineage_stash.core.frontier import START, Frontier
from lineage_stash.core.history import History
from lineage_stash.core.ids import Index, PeerId
from lineage_stash.core.settle import Cut, Stretch, assemble, find_cut
from tests.core.builders import A, B, C, D, history_of, log_of, needing, piece, quick, said

NOTHING = History()


def stretch(lower: int, *entries: object) -> Stretch:
    return Stretch(Index(lower), tuple(entries))  # type: ignore[arg-type]


# assemble


def test_overlapping_evidence_is_joined_without_repeats() -> None:
    ranges = [piece(A, 1, log_of("y", "z")), piece(A, 0, log_of("x", "y")), piece(A, 0, log_of("x"))]
    assert assemble(ranges, {}, NOTHING) == {A: Stretch(START, log_of("x", "y", "z"))}


def test_evidence_beyond_a_gap_does_not_survive() -> None:
    ranges = [piece(A, 0, log_of("x")), piece(A, 2, log_of("z"))]
    assert assemble(ranges, {}, NOTHING) == {A: Stretch(START, log_of("x"))}


def test_gap_below_the_committed_index_is_none() -> None:
    assert assemble([piece(A, 1, log_of("y", "z"))], {A: Index(2)}, NOTHING) == {A: Stretch(Index(2), log_of("z"))}


def test_evidence_that_is_all_committed_leaves_an_empty_stretch_at_the_committed_index() -> None:
    assert assemble([piece(A, 0, log_of("x"))], {A: Index(4)}, NOTHING) == {A: Stretch(Index(4), ())}


def test_leftovers_of_an_old_life_are_dropped_where_a_later_one_began() -> None:
    ranges = [
        piece(A, 0, log_of("x", "y", "lost", "lost")),
        piece(A, 2, log_of("z"), incarnation=1),
    ]
    assert assemble(ranges, {}, history_of((A, 1, 2))) == {A: Stretch(START, log_of("x", "y", "z"))}


def test_leftovers_that_lie_wholly_beyond_their_end_count_for_nothing() -> None:
    assert assemble([piece(A, 3, log_of("lost"))], {}, history_of((A, 1, 2))) == {}


def test_leftovers_of_two_old_lives_are_judged_by_the_lowest_later_beginning() -> None:
    ranges = [
        piece(A, 0, log_of("0", "1", "lost", "lost", "lost")),
        piece(A, 3, log_of("lost too"), incarnation=1),
        piece(A, 2, log_of("2"), incarnation=2),
    ]
    assert assemble(ranges, {}, history_of((A, 1, 3), (A, 2, 2))) == {A: Stretch(START, log_of("0", "1", "2"))}


pieces_of_evidence = st.lists(
    st.tuples(st.sampled_from((A, B)), st.integers(0, 6), st.integers(0, 4), st.integers(0, 2)), max_size=8
)


@quick
@given(pieces_of_evidence, st.integers(0, 4), st.lists(st.integers(0, 6), max_size=2))
def test_any_evidence_is_assembled_to_what_an_index_by_index_search_finds(
    drawn: list[tuple[PeerId, int, int, int]], committed: int, beginnings: list[int]
) -> None:
    history = history_of(*((A, number, index) for number, index in enumerate(beginnings, 1)))
    writers = {(p, i): w for p in (A, B) for w, s, e in history.pieces(p, START, Index(20)) for i in range(s, e)}
    began = {(A, number): index for number, index in enumerate(beginnings, 1)}
    ranges: list[Range] = []
    known: set[tuple[PeerId, int]] = set()
    for peer, lower, count, incarnation in drawn:
        if incarnation > history.incarnation(peer) or lower < began.get((peer, incarnation), 0):
            continue  # nobody wrote that: a life that never was, or below where it began
        survives = [writers[peer, index] == incarnation for index in range(lower, lower + count)]
        known |= {(peer, lower + at) for at, real in enumerate(survives) if real}
        written = tuple(said(b"%d:%d" % (incarnation, index)) for index in range(lower, lower + count))
        ranges.append(piece(peer, lower, written, incarnation=incarnation))
    for peer, found in assemble(ranges, {A: Index(committed), B: Index(committed)}, history).items():
        upper = committed
        while (peer, upper) in known:
            upper += 1
        assert (found.lower, found.upper) == (committed, upper)
        assert found.entries == tuple(said(b"%d:%d" % (writers[peer, i], i)) for i in range(committed, upper))


# find_cut


def test_log_without_evidence_ends_where_it_is_committed() -> None:
    assert find_cut({}, {A: Index(3)}, (A, B), {}) == Cut({A: Index(3), B: START}, (), ())


def test_entry_that_needs_what_is_lost_is_cut_off_with_all_after_it() -> None:
    stretches = {A: stretch(0, needing(), needing((B, 2)), needing()), B: stretch(0, needing())}
    assert find_cut(stretches, {}, (A, B), {}).ends == {A: 1, B: 1}


def test_loss_passes_through_a_chain_of_dead_logs() -> None:
    stretches = {
        A: stretch(0, needing((B, 1))),
        B: stretch(0, needing((C, 1))),
        C: stretch(0, needing((D, 1))),
    }
    assert find_cut(stretches, {}, (A, B, C, D), {}).ends == {A: 0, B: 0, C: 0, D: 0}


def test_logs_that_need_only_each_other_survive_together() -> None:
    stretches = {A: stretch(0, needing(), needing((B, 1))), B: stretch(0, needing((A, 1)))}
    assert find_cut(stretches, {}, (A, B), {}).ends == {A: 2, B: 1}


def test_what_is_committed_is_never_cut_off() -> None:
    stretches = {A: stretch(2, needing((B, 5)))}
    assert find_cut(stretches, {A: Index(2), B: Index(4)}, (A, B), {}).ends == {A: 2, B: 4}


def test_live_peer_that_needs_what_is_lost_is_an_orphan() -> None:
    stretches = {A: stretch(0, needing())}
    live = {C: ((A, Index(2)),), D: ((A, Index(1)),)}
    assert find_cut(stretches, {}, (A,), live) == Cut({A: Index(1)}, (C,), ())


def test_live_peer_that_has_not_shown_what_a_survivor_needs_is_asked_once_more() -> None:
    stretches = {A: stretch(0, needing((C, 3))), C: stretch(0, needing())}
    assert find_cut(stretches, {}, (A,), {C: ()}) == Cut({A: Index(1)}, (), (C,))


def test_live_peer_that_is_committed_far_enough_is_not_asked_again() -> None:
    stretches = {A: stretch(0, needing((C, 3)))}
    assert find_cut(stretches, {C: Index(3)}, (A,), {C: ()}).short == ()


def test_entry_that_is_cut_off_asks_nobody() -> None:
    stretches = {A: stretch(0, needing((B, 1), (C, 3)))}
    assert find_cut(stretches, {}, (A, B), {C: ()}) == Cut({A: START, B: START}, (), ())


@st.composite
def tiny_worlds(
    draw: st.DrawFn,
) -> tuple[dict[PeerId, Stretch], Frontier, dict[PeerId, tuple[tuple[PeerId, Index], ...]]]:
    needs = st.lists(st.tuples(st.sampled_from((A, B, C, D)), st.integers(1, 5)), max_size=2)
    committed = {peer: Index(draw(st.integers(0, 2))) for peer in (A, B, C)}
    stretches = {
        peer: stretch(committed[peer], *(needing(*draw(needs)) for _ in range(draw(st.integers(0, 3)))))
        for peer in (A, B, C)
        if draw(st.booleans()) or peer is A
    }
    positions = st.lists(st.tuples(st.sampled_from((A, B, C)), st.integers(1, 5).map(Index)), max_size=2)
    return stretches, committed, {D: tuple(draw(positions))}


def is_closed(ends: Frontier, stretches: dict[PeerId, Stretch]) -> bool:
    return all(
        upper <= ends.get(needed, upper)
        for peer, found in stretches.items()
        for entry in found.entries[: ends[peer] - found.lower]
        for needed, upper in entry.needs
    )


@quick
@given(tiny_worlds())
def test_cut_is_the_greatest_of_all_closed_cuts(world: tuple[dict, Frontier, dict]) -> None:  # type: ignore[type-arg]
    stretches, committed, live = world
    cut = find_cut(stretches, committed, (A, B, C), live)
    tops = {peer: stretches[peer].upper if peer in stretches else committed[peer] for peer in (A, B, C)}
    candidates = [
        {A: a, B: b, C: c}
        for a, b, c in product(*(range(committed[peer], tops[peer] + 1) for peer in (A, B, C)))
    ]  # fmt: skip
    closed = [ends for ends in candidates if is_closed(ends, stretches)]
    assert cut.ends in closed
    for ends in closed:
        assert all(ends[peer] <= cut.ends[peer] for peer in ends)
    assert cut.orphans == ((D,) if any(upper > cut.ends[needed] for needed, upper in live[D]) else ())


@quick
@given(tiny_worlds())
def test_more_evidence_never_lowers_the_cut(world: tuple[dict, Frontier, dict]) -> None:  # type: ignore[type-arg]
    stretches, committed, live = world
    less = {peer: Stretch(found.lower, found.entries[:-1]) for peer, found in stretches.items()}
    before, after = (find_cut(known, committed, (A, B, C), live).ends for known in (less, stretches))
    assert all(before[peer] <= after[peer] for peer in before)
