"""Every rule of the protocol has a mutant that some schedule catches, by the invariant that is about that rule."""

import pytest

from lineage_stash.testing.runner import run_schedule
from lineage_stash.testing.schedule import draw_schedule
from tests.sim.mutants import MUTANTS, Mutant, applied

MOST_SCHEDULES = 20_000


def caught(mutant: Mutant) -> tuple[int, str]:
    """How many schedules, of those that can show it, it takes until one of the mutant's own invariants is broken."""
    seed, tried = mutant.first_seed - 1, 0
    with applied(mutant):
        while tried < MOST_SCHEDULES:
            seed += 1
            schedule = draw_schedule(seed)
            if not mutant.worlds(schedule):
                continue
            tried += 1
            _, violation = run_schedule(schedule)
            if violation is not None and violation.invariant in mutant.invariants:
                return tried, violation.invariant
    raise AssertionError(f"{mutant.name!r} survived {MOST_SCHEDULES} schedules: the simulator has a hole")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_forgotten_rule_is_reported_by_its_invariant(mutant: Mutant) -> None:
    tried, invariant = caught(mutant)
    assert tried <= MOST_SCHEDULES
    assert invariant in mutant.invariants


def test_every_invariant_has_a_mutant() -> None:
    covered = {int(invariant.split()[0]) for mutant in MUTANTS for invariant in mutant.invariants}
    assert covered == set(range(1, 20))
