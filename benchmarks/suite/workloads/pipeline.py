"""pipeline: Spark on Ray makes rows, and actors add them up. The latency is that of one stage with all its partitions.

stash takes a recoverable stage; plain takes what RayDP offers, `from_spark`, whose partitions are gone with their
application. Other systems have no way from Spark to their actors.
"""

import time
from collections.abc import Mapping
from typing import Any

from benchmarks import spark
from benchmarks.suite.driving import PATIENCE_S
from benchmarks.suite.measuring import latency_of
from benchmarks.suite.oracle import Judged
from benchmarks.suite.records import Cell
from benchmarks.suite.systems.base import System
from benchmarks.suite.workloads.base import Injection, Measured, Parameter
from lineage_stash.on_spark import spark_session

PARAMETERS = {
    "rows": Parameter(2_000_000, "of each stage"),
    "partitions": Parameter(8, "of each stage"),
    "rounds": Parameter(6, "stages, after one that is not measured"),
    "actors": Parameter(2, "that add up"),
}

WAYS = {"stash": spark.ours, "plain": spark.theirs}


class Summing(spark.Summing):
    """Adds up, and tells."""

    def told(self) -> int:
        return self.total


def run(system: System, cell: Cell, parameters: Mapping[str, Any]) -> Measured:
    """Stage after stage, with the failures of the cell."""
    if system.name not in WAYS:
        raise ValueError(f"there is no way from Spark to the actors of {system.name}, only to {' and '.join(WAYS)}")
    way, rows, rounds = WAYS[system.name], parameters["rows"], parameters["rounds"]
    actors = [system.actor(Summing, name=f"summing-{number}") for number in range(parameters["actors"])]
    taken_ms: list[float] = []
    with spark_session(progress=False) as session:
        way(session, actors, rows, parameters["partitions"])
        with Injection(cell, system, lambda: len(taken_ms) / rounds) as injection:
            for _ in range(rounds):
                began_at = time.perf_counter()
                way(session, actors, rows, parameters["partitions"])
                taken_ms.append(1e3 * (time.perf_counter() - began_at))
        totals = system.get([actor.told.remote() for actor in actors], PATIENCE_S)
        session.release()
    wanted = (rounds + 1) * rows * (rows - 1) // 2
    judged = Judged("precise") if sum(totals) == wanted else Judged("divergent", f"{sum(totals)} instead of {wanted}")
    rate = rounds / (sum(taken_ms) / 1e3)
    return Measured(judged, latency=latency_of(taken_ms), injection=injection, throughput_per_s=rate,
                    figures={"rows_per_s": rate * rows})  # fmt: skip
