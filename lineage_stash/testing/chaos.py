"""Chaos: programs of the shapes that people write, while their processes are killed; answers must be right.

One number is one run: which shape, what it computes, and when who is killed. When who is killed is drawn from it, but
real time decides what each kill hits, so that a number is no proof; run it again, it is likely to find the same.
"""

import contextlib
import os
import random
import signal
import sys
import threading
import time
from types import TracebackType
from typing import NamedTuple

import lineage_stash as ray
from lineage_stash.testing import inject
from lineage_stash.testing.shapes import SHAPES

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 2.5
"""Between two strikes: often enough that most runs see some, seldom enough that a run comes to its end."""

MOST_KILLS = 10
"""In one run: on a machine that is slow to start processes they would be killed faster than they come up, for ever."""

MOST_AT_ONCE = (1, 1, 1, 2, 3)


class Outcome(NamedTuple):
    """How a run ended."""

    shape: str
    kills: int
    seconds: float
    fault: str


class Killer:
    """Kills processes of this script's program, and now and then a service, until it is told to stop."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.kills = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._strike_on, name="chaos", daemon=True)

    def __enter__(self) -> "Killer":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self._over.set()
        self._thread.join()

    def _strike_on(self) -> None:
        while not self._over.wait(self.draw.uniform(SHORTEST_PAUSE_S, LONGEST_PAUSE_S)) and self.kills < MOST_KILLS:
            self._strike()

    def _strike(self) -> None:
        alive = inject.processes_of_this_script()
        victims = self.draw.sample(sorted(alive.values()), min(len(alive), self.draw.choice(MOST_AT_ONCE)))
        if self.draw.random() < 0.1:
            services = sorted(inject.processes_of_services().values())
            victims += self.draw.sample(services, min(len(services), 1))  # they may all be dead just now
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(victim, signal.SIGKILL)
                self.kills += 1


def run_one(seed: int, shape: str | None = None) -> Outcome:
    """One run of one shape, with kills."""
    names = list(SHAPES)
    name = shape or names[seed % len(names)]
    began = time.monotonic()
    fault = ""
    with Killer(seed) as killer:
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
