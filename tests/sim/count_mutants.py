"""`python -m tests.sim.count_mutants`: from seed 0 on, how many schedules it takes to catch each mutant, as a table."""

import gc
import os
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.sim.mutants import MUTANTS
from tests.sim.test_mutants import caught

OBJECTS_PER_COLLECTION = 500_000
"""Worlds are full of cycles, and a mutant may take thousands: seldom enough, and never more than some of them."""


def row(position: int) -> str:
    """One line of the table."""
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    mutant = MUTANTS[position]._replace(first_seed=0)
    tried, violation = caught(mutant)
    return f"| {mutant.name} | {violation} | {tried} |"


def main() -> None:
    """Print the table as the figures come in."""
    print("| the rule forgotten | the invariant that says so | schedules |\n| --- | --- | ---: |")
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for line in pool.map(row, range(len(MUTANTS))):
            print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
