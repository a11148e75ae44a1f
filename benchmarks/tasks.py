"""Tasks against plain Ray's, in turns in one run: how many small ones a second, and how long a single one takes."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import ray as plain

import lineage_stash as stash
from benchmarks.against_ray import Figure, at_least, at_most, in_turns, joined, percentile, show
from benchmarks.against_ray import Sizes as Windows


class Sizes(NamedTuple):
    """How much of everything; small in the test of this file."""

    windows: int = 5
    single_tasks: int = 200
    pipelined_tasks: int = 3000
    pause_s: float = 1.0


def small(number: int) -> int:
    """The workload: as good as nothing."""
    return number + 1


def times_us(get: Callable[[Any], Any], task: Any, tasks: int) -> list[float]:
    """How long single tasks take, one after the other."""
    taken = []
    for number in range(tasks):
        started = time.perf_counter()
        get(task.remote(number))
        taken.append((time.perf_counter() - started) * 1e6)
    return taken


def tasks_per_second(get: Callable[[Any], Any], task: Any, tasks: int) -> float:
    """How many are answered when nobody waits in between."""
    started = time.perf_counter()
    answers = get([task.remote(number) for number in range(tasks)])
    seconds = time.perf_counter() - started
    if answers != list(range(1, tasks + 1)):
        raise AssertionError("a task gave a wrong answer")
    return tasks / seconds


def measure(sizes: Sizes) -> list[Figure]:
    """Everything, on a cluster of its own."""
    stash.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        mine, rays = stash.remote(small), plain.remote(small)
        windows = Windows(windows=sizes.windows, pause_s=sizes.pause_s)
        tasks_per_second(stash.get, mine, sizes.pipelined_tasks)
        tasks_per_second(plain.get, rays, sizes.pipelined_tasks)
        ours, theirs = in_turns(windows, lambda: times_us(stash.get, mine, sizes.single_tasks),
                                lambda: times_us(plain.get, rays, sizes.single_tasks))  # fmt: skip
        many, rays_many = in_turns(windows, lambda: tasks_per_second(stash.get, mine, sizes.pipelined_tasks),
                                   lambda: tasks_per_second(plain.get, rays, sizes.pipelined_tasks))  # fmt: skip
    finally:
        stash.shutdown()
    ours, theirs = joined(ours), joined(theirs)
    return [
        at_most("one task at a time, p50", percentile(ours, 0.5), percentile(theirs, 0.5), 1.1, "µs"),
        at_most("one task at a time, p99", percentile(ours, 0.99), percentile(theirs, 0.99), 1.1, "µs"),
        at_least("tasks, pipelined", statistics.median(many), statistics.median(rays_many), 0.9, "tasks/s"),
    ]


def main(sizes: Sizes | None = None) -> list[Figure]:
    """Measure and print."""
    figures = measure(sizes or Sizes())
    show(figures)
    return figures
