"""Running many schedules on all cores, and telling of the first violation so that somebody can act on it."""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from lineage_stash.testing.ghosts import StrayNoticed, Violation
from lineage_stash.testing.schedule import Schedule, draw_schedule
from lineage_stash.testing.world import World

CHUNK = 50


class Tally(NamedTuple):
    """What a number of schedules amounted to."""

    schedules: int = 0
    events: int = 0
    crashes: int = 0
    recoveries: int = 0
    replayed: int = 0
    violations: tuple[tuple[int, str, str], ...] = ()

    def plus(self, other: "Tally") -> "Tally":
        """Both together."""
        return Tally(
            self.schedules + other.schedules,
            self.events + other.events,
            self.crashes + other.crashes,
            self.recoveries + other.recoveries,
            self.replayed + other.replayed,
            self.violations + other.violations,
        )


def run_schedule(schedule: Schedule) -> tuple[World, Violation | None]:
    """Run one schedule to its end or to its first violation; a crash of the code is a violation too."""
    world = World(schedule)
    try:
        world.run()
    except Violation as violation:
        return world, violation
    except StrayNoticed:
        return world, None
    except Exception as error:  # noqa: BLE001 (whatever the code under test raises is a finding)
        names = tuple(world.members)
        crash = Violation("crash of the code", f"{type(error).__name__}: {error}", world.checker.story.about(names))
        crash.__cause__ = error
        return world, crash
    return world, None


def run_chunk(first: int, count: int) -> Tally:
    """Run the schedules of some consecutive seeds."""
    gc.disable()
    tally = Tally()
    for seed in range(first, first + count):
        world, violation = run_schedule(draw_schedule(seed))
        found = () if violation is None else ((seed, violation.invariant, violation.text),)
        tally = tally.plus(Tally(1, world.events, world.crashes, len(world.decisions), world.replayed, found))
    gc.collect()
    return tally


def run_many(first: int, count: int, workers: int, on_progress: Callable[[Tally], None]) -> Tally:
    """Run `count` schedules from seed `first` on, on `workers` processes."""
    starts = range(first, first + count, CHUNK)
    sizes = [min(CHUNK, first + count - start) for start in starts]
    total = Tally()
    for tally in _tallies(starts, sizes, workers):
        total = total.plus(tally)
        on_progress(total)
    return total


def _tallies(starts: range, sizes: list[int], workers: int) -> Iterator[Tally]:
    if workers <= 1 or len(sizes) == 1:
        yield from map(run_chunk, starts, sizes)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(run_chunk, starts, sizes)


def simulate(first: int, count: int, workers: int) -> int:
    """Run schedules, print one line, and the story of the first violation; the exit code says whether there was any."""
    started = time.perf_counter()
    on_progress = _progress_bar(count) if sys.stderr.isatty() else _progress_lines(count)
    total = run_many(first, count, workers, on_progress)
    seconds = time.perf_counter() - started
    if total.violations:
        tell(min(total.violations)[0])
        for seed, invariant, text in sorted(total.violations)[1:]:
            print(f"also seed {seed}: {invariant}: {text}")
    print(
        f"schedules={total.schedules} events={total.events} crashes={total.crashes} recoveries={total.recoveries} "
        f"replayed={total.replayed} violations={len(total.violations)} rate={total.schedules / seconds:.0f}/s"
    )
    return 1 if total.violations else 0


def _progress_lines(count: int) -> Callable[[Tally], None]:
    """A line after every tenth, for whoever reads a log."""
    told = 0

    def advance(total: Tally) -> None:
        nonlocal told
        tenths = total.schedules * 10 // count
        if told < tenths < 10:
            told = tenths
            print(f"{tenths * 10} %: {total.schedules} schedules, {len(total.violations)} violations", file=sys.stderr)

    return advance


def _progress_bar(count: int) -> Callable[[Tally], None]:
    from rich.console import Console
    from rich.progress import Progress

    progress = Progress(console=Console(stderr=True))
    task = progress.add_task("schedules", total=count)
    progress.start()

    def advance(total: Tally) -> None:
        progress.update(task, completed=total.schedules, description=f"schedules, {len(total.violations)} violations")
        if total.schedules >= count:
            progress.stop()

    return advance


def tell(seed: int) -> None:
    """Print what went wrong with a seed: the story, how to see it again, and the smallest schedule that shows it."""
    from lineage_stash.testing.shrink import describe, shrink

    schedule = draw_schedule(seed)
    _, violation = run_schedule(schedule)
    if violation is None:
        print(f"seed {seed} violates nothing when it is run alone: is something outside the seed?")
        return
    smallest, violation = shrink(schedule, violation)
    print(f"violation of {violation.invariant}: {violation.text}\n")
    print("The story of those involved, in the smallest schedule that shows it:")
    print("\n".join(violation.story))
    print(f"\nTo see it again: make simulate SCHEDULES=1 SEED={seed}")
    print("The smallest schedule:")
    print(describe(smallest))
