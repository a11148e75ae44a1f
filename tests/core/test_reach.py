"""Actors that nobody can reach end, and no others do, whatever travels, crashes and is rolled back meanwhile."""

import pytest

from tests.core.handle_world import MUTANTS, EndedTooEarly, World

SEEDS = 3000
SEEDS_FOR_MUTANTS = 400
STEPS = 250


def test_whoever_can_be_reached_lives_and_everybody_else_ends() -> None:
    ended = 0
    for seed in range(SEEDS):
        world = World(seed)
        world.run(STEPS)
        world.heal()
        assert world.left_over() == [], f"seed {seed}"
        ended += len(world.ended)
    assert ended > SEEDS, "hardly anybody was ever ended: the world is too kind"


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_rule_less_is_found_out(mutant: str) -> None:
    for seed in range(SEEDS_FOR_MUTANTS):
        world = World(seed, mutant)
        try:
            world.run(STEPS)
            world.heal()
        except EndedTooEarly:
            return
    pytest.fail(f"{mutant}: no seed of {SEEDS_FOR_MUTANTS} has shown the difference")
