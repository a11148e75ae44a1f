"""The gate lets nothing out before its causal past is committed, keeps the order, and offers again until accepted."""

from hypothesis import given
from hypothesis import strategies as st

from lineage_stash.core.checkpoint import Checkpoint
from lineage_stash.core.frontier import Frontier, covers, join
from lineage_stash.core.gate import Gate, Output
from lineage_stash.core.ids import FIRST_INCARNATION, Index
from tests.core.builders import A, B, frontiers, quick

CHECKPOINT = Checkpoint(A, FIRST_INCARNATION, Index(3), b"state", 0, (), (), (), 0, False)


def output(number: int) -> Output:
    return Output(number, b"value %d" % number)


def test_output_waits_until_all_of_its_past_is_committed() -> None:
    gate = Gate()
    gate.hold(output(0), {A: Index(2), B: Index(1)})
    assert gate.release({A: Index(9)}) == []
    assert gate.release({A: Index(2), B: Index(1)}) == [output(0)]
    assert gate.release({A: Index(9), B: Index(9)}) == []


def test_output_without_a_past_leaves_at_once() -> None:
    gate = Gate()
    gate.hold(output(0), {})
    assert gate.release({}) == [output(0)]


def test_checkpoint_waits_in_the_same_line_as_outputs() -> None:
    gate = Gate()
    gate.hold(output(0), {A: Index(1)})
    gate.hold(CHECKPOINT, {A: Index(3)})
    gate.hold(output(1), {A: Index(3)})
    assert gate.release({A: Index(2)}) == [output(0)]
    assert len(gate) == 2
    assert gate.release({A: Index(3)}) == [CHECKPOINT, output(1)]


def test_output_that_no_sink_accepted_is_offered_again_until_it_is() -> None:
    gate = Gate()
    for number in range(3):
        gate.hold(output(number), {A: Index(number)})
    gate.release({A: Index(1)})
    assert gate.overdue() == [output(0), output(1)]
    gate.accept(0)
    gate.accept(0)
    assert gate.overdue() == [output(1)]


def test_output_that_is_still_held_is_not_offered() -> None:
    gate = Gate()
    gate.hold(output(0), {A: Index(1)})
    assert gate.overdue() == []
    assert list(gate.unaccepted) == [0]


@quick
@given(st.lists(frontiers, max_size=6), st.lists(frontiers, max_size=6))
def test_whatever_is_committed_outputs_leave_in_order_once_and_never_early(
    growths: list[Frontier], commits: list[Frontier]
) -> None:
    gate = Gate()
    needed: Frontier = {}
    pasts: list[Frontier] = []
    for number, growth in enumerate(growths):
        join(needed, growth.items())
        pasts.append(dict(needed))
        gate.hold(output(number), dict(needed))
    committed: Frontier = {}
    released: list[Output] = []
    for commit in commits:
        join(committed, commit.items())
        released += gate.release(committed)
        covered = [covers(committed, past.items()) for past in pasts]
        assert released == [output(number) for number in range(len(pasts)) if covered[number]]
