"""calls: the micro-benchmark. Calls of one script to its actors in turn: one at a time, then as many as go through."""

import time
from collections.abc import Mapping
from typing import Any

from benchmarks.suite.driving import PATIENCE_S
from benchmarks.suite.measuring import latency_of
from benchmarks.suite.oracle import Judged
from benchmarks.suite.records import Cell
from benchmarks.suite.systems.base import System
from benchmarks.suite.workloads.base import Measured, Parameter

PARAMETERS = {
    "actors": Parameter(2, "that are called in turn"),
    "single": Parameter(2000, "calls one at a time"),
    "pipelined": Parameter(20_000, "calls that nobody waits for in between"),
    "calls_before": Parameter(0, "made before anything is measured"),
}

CHUNK = 1000


class Adder:
    """Adds."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, amount: int) -> int:
        self.total += amount
        return self.total


def run(system: System, cell: Cell, parameters: Mapping[str, Any]) -> Measured:
    """One at a time, then pipelined."""
    if cell.failure:
        raise ValueError("calls has no failures; wordcount does")
    actors = [system.actor(Adder, name=f"adder-{number}") for number in range(parameters["actors"])]
    before, single = max(parameters["calls_before"], 10 * len(actors)), parameters["single"]
    pipeline(system, actors, before)
    taken_ms = [one_call(system, actors[number % len(actors)]) for number in range(single)]
    began_at = time.perf_counter()
    pipeline(system, actors, parameters["pipelined"])
    rate = parameters["pipelined"] / (time.perf_counter() - began_at)
    totals = system.get([actor.add.remote(0) for actor in actors], PATIENCE_S)
    wanted = before + single + parameters["pipelined"]
    judged = Judged("precise") if sum(totals) == wanted else Judged("divergent", f"{sum(totals)} instead of {wanted}")
    return Measured(judged, latency=latency_of(taken_ms), throughput_per_s=rate, figures={"calls_per_s": rate})


def one_call(system: System, actor: Any) -> float:
    """How long it takes, in milliseconds."""
    began_at = time.perf_counter()
    system.get([actor.add.remote(1)], PATIENCE_S)
    return 1e3 * (time.perf_counter() - began_at)


def pipeline(system: System, actors: list[Any], calls: int) -> None:
    """So many calls, a thousand under way at a time."""
    for first in range(0, calls, CHUNK):
        last = min(first + CHUNK, calls)
        system.get([actors[number % len(actors)].add.remote(1) for number in range(first, last)], PATIENCE_S)
