"""Chaos: programs of the shapes that people write, while their processes are killed; answers must be right.

One number is one run: which shape, what it computes, and when who is killed. When who is killed is drawn from it, but
real time decides what each kill hits, so that a number is no proof; run it again, it is likely to find the same.
"""

import random
import sys
import time
from typing import NamedTuple

import lineage_stash as ray
from lineage_stash.testing import inject
from lineage_stash.testing.killer import Killer
from lineage_stash.testing.shapes import SHAPES


class Outcome(NamedTuple):
    """How a run ended."""

    shape: str
    kills: int
    seconds: float
    fault: str


def run_one(seed: int, shape: str | None = None) -> Outcome:
    """One run of one shape, with kills."""
    names = list(SHAPES)
    name = shape or names[seed % len(names)]
    began = time.monotonic()
    fault = ""
    with Killer(seed, inject.processes_of_this_script, inject.processes_of_services) as killer:
        try:
            answer = SHAPES[name].run(random.Random(seed))
            expected = SHAPES[name].expect(random.Random(seed))
            if answer != expected:
                fault = f"answered {answer!r} instead of {expected!r}"
        except Exception as error:  # noqa: BLE001 - whatever it was, it is a finding
            fault = f"{type(error).__name__}: {error}"
    return Outcome(name, killer.kills, time.monotonic() - began, fault)


def chaos(seed: int, minutes: float, shape: str | None) -> int:
    """Run one after the other until time is up, at least one; the exit code says whether an answer was wrong."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, spares=2)
    ends_at = time.monotonic() + 60 * minutes
    runs = kills = 0
    try:
        while not runs or time.monotonic() < ends_at:
            outcome = run_one(seed + runs, shape)
            kills += outcome.kills
            print(f"seed {seed + runs}: {outcome.shape}, {outcome.kills} killed, {outcome.seconds:.1f} s"
                  f"{'' if not outcome.fault else ': ' + outcome.fault}", flush=True)  # fmt: skip
            if outcome.fault:
                print(f"To see it again: make chaos MINUTES=0 SEED={seed + runs}", file=sys.stderr, flush=True)
                return 1
            runs += 1
    finally:
        ray.shutdown()
    print(f"{runs} runs, {kills} processes killed, every answer right")
    return 0
