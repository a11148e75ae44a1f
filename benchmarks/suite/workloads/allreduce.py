"""allreduce: actors add up large arrays. Each has an array in as many parts as there are actors; each adds up one part
of all, and all take the sums. Parts travel as refs, from actor to actor.
"""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.suite.driving import PATIENCE_S
from benchmarks.suite.measuring import latency_of
from benchmarks.suite.oracle import Judged
from benchmarks.suite.records import Cell
from benchmarks.suite.systems.base import System
from benchmarks.suite.workloads.base import Measured, Parameter

PARAMETERS = {
    "megabytes": Parameter(1, "of each actor's array"),
    "actors": Parameter(4, "that have one"),
    "rounds": Parameter(20, "that are measured, after two that are not"),
}

WARM_UP = 2


class Worker:
    """Has an array."""

    def __init__(self, number: int, parts: int, length: int) -> None:
        self.arrays = [np.full(length, float(number + part)) for part in range(parts)]

    def part(self, which: int) -> Any:
        return self.arrays[which]

    def add_up(self, *arrays: Any) -> Any:
        return np.sum(arrays, axis=0)

    def take(self, *sums: Any) -> float:
        return float(sum(array[0] + array[-1] for array in sums))


def run(system: System, cell: Cell, parameters: Mapping[str, Any]) -> Measured:
    """Round after round; every sum is looked at."""
    if cell.failure:
        raise ValueError("allreduce has no failures; wordcount does")
    count = parameters["actors"]
    length = parameters["megabytes"] * 2**20 // 8 // count
    workers = [system.actor(Worker, number, count, length, name=f"worker-{number}") for number in range(count)]
    wanted = 2.0 * sum(number + part for part in range(count) for number in range(count))
    taken_ms, wrong = [], 0
    for number in range(WARM_UP + parameters["rounds"]):
        began_at = time.perf_counter()
        answers = reduce_once(system, workers)
        if number >= WARM_UP:
            taken_ms.append(1e3 * (time.perf_counter() - began_at))
        wrong += sum(answer != wanted for answer in answers)
    judged = Judged("divergent", f"{wrong} sums are wrong") if wrong else Judged("precise")
    rate = len(taken_ms) / (sum(taken_ms) / 1e3)
    return Measured(judged, latency=latency_of(taken_ms), throughput_per_s=rate,
                    figures={"megabytes_per_s": rate * parameters["megabytes"] * count})  # fmt: skip


def reduce_once(system: System, workers: list[Any]) -> list[float]:
    """One all-reduce."""
    parts = [[worker.part.remote(which) for worker in workers] for which in range(len(workers))]
    sums = [worker.add_up.remote(*of_all) for worker, of_all in zip(workers, parts, strict=True)]
    return system.get([worker.take.remote(*sums) for worker in workers], PATIENCE_S)
