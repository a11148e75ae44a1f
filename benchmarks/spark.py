"""Spark to actors against RayDP's own way with plain Ray actors, in turns in one run; a lost partition; the memory.

The workload is rows of three columns, made by Spark and summed by two actors. RayDP's `from_spark` gives plain refs of
Arrow tables, which go to plain Ray actors: nothing of that survives the application.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc
import ray as plain
from pyspark.sql import DataFrame, SparkSession
from raydp.spark import dataset

import lineage_stash as stash
from benchmarks.against_ray import Figure, at_least, at_most, in_turns, show
from benchmarks.against_ray import Sizes as Windows
from lineage_stash.on_ray.far_files import session_folder
from lineage_stash.on_spark import SparkOnRay, spark_session, spark_stage

MB = 2**20


class Sizes(NamedTuple):
    """How much of everything; small in the test of this file."""

    rows: int = 10_000_000
    partitions: int = 16
    windows: int = 3
    pause_s: float = 2.0
    few_rows: int = 1_000_000


class Summing:
    """The workload of the actors."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, table: Any) -> int:
        """Sum a column; how many rows there were."""
        self.total += pc.sum(table.column("id")).as_py()
        return int(table.num_rows)


def frame_of(spark: SparkSession, rows: int, partitions: int) -> DataFrame:
    """The workload of Spark."""
    return spark.range(0, rows, 1, partitions).selectExpr("id", "id % 1000 as key", "sqrt(id) as value")


made = spark_stage(frame_of)


def ours(session: SparkOnRay, actors: list[Any], rows: int, partitions: int) -> float:
    """Rows a second through a stage and recovered actors."""
    started = time.perf_counter()
    refs = made(session, rows, partitions)
    counted = stash.get([actors[at % len(actors)].add.remote(ref) for at, ref in enumerate(refs)])
    return _rate(sum(counted), rows, started)


def theirs(session: SparkOnRay, actors: list[Any], rows: int, partitions: int) -> float:
    """Rows a second through RayDP's own way and plain actors."""
    started = time.perf_counter()
    frame = frame_of(session.spark, rows, partitions)
    refs = dataset.from_spark_recoverable(frame).get_internal_block_refs()
    counted = plain.get([actors[at % len(actors)].add.remote(ref) for at, ref in enumerate(refs)])
    rate = _rate(sum(counted), rows, started)
    dataset.release_spark_recoverable(frame)
    return rate


def _rate(counted: int, rows: int, started: float) -> float:
    if counted != rows:
        raise AssertionError(f"{counted} rows of {rows} have come")
    return rows / (time.perf_counter() - started)


def seconds_of(action: Callable[[], Any]) -> float:
    """How long something takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def measure_lost_partition(session: SparkOnRay, sizes: Sizes) -> Figure:
    """One partition of a stage is lost, and somebody reads it."""
    actor = stash.remote(num_cpus=0)(Summing).remote()
    refs: list[Any] = []

    def whole() -> None:
        refs.extend(made(session, sizes.rows, sizes.partitions))
        stash.get([actor.add.remote(ref) for ref in refs])

    stage_s = seconds_of(whole)
    newest = max(session_folder().glob("partitions/*"), key=lambda folder: folder.stat().st_mtime)
    sorted(newest.iterdir())[sizes.partitions // 2].unlink()
    lost_s = seconds_of(lambda: stash.get(actor.add.remote(refs[sizes.partitions // 2])))
    return at_most(f"one of {sizes.partitions} partitions lost, and the whole stage", lost_s, stage_s, 0.25, "s")


def measure_memory(session: SparkOnRay, sizes: Sizes) -> Figure:
    """The memory of this process after a stage of few rows, and after one of ten times as many."""
    actors = [stash.remote(num_cpus=0)(Summing).remote()]
    ours(session, actors, sizes.few_rows, sizes.partitions)
    few = resident_mb()
    ours(session, actors, sizes.rows, sizes.partitions)
    return at_most(f"driver's memory, {sizes.rows:,} and {sizes.few_rows:,} rows", resident_mb(), few, 1.1, "MB")


def resident_mb() -> float:
    """The memory that this process has of its own; files that are only mapped do not count."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon:"))


def measure(sizes: Sizes) -> list[Figure]:
    """Everything, on a cluster of its own."""
    stash.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    try:
        with spark_session(progress=False) as session:
            mine = [stash.remote(num_cpus=0)(Summing).remote() for _ in range(2)]
            rays = [plain.remote(num_cpus=0)(Summing).remote() for _ in range(2)]
            for warm_up, actors in ((ours, mine), (theirs, rays)):
                warm_up(session, actors, sizes.few_rows, sizes.partitions)
            fast, plain_fast = in_turns(
                Windows(windows=sizes.windows, pause_s=sizes.pause_s),
                lambda: ours(session, mine, sizes.rows, sizes.partitions),
                lambda: theirs(session, rays, sizes.rows, sizes.partitions),
            )
            rate = at_least("rows from Spark to actors, against from_spark and plain actors", statistics.median(fast),
                            statistics.median(plain_fast), 0.8, "rows/s")  # fmt: skip
            figures = [rate, measure_lost_partition(session, sizes), measure_memory(session, sizes)]
            session.release()
    finally:
        stash.shutdown()
    return figures


def main(sizes: Sizes | None = None) -> list[Figure]:
    """Measure and print."""
    figures = measure(sizes or Sizes())
    show(figures)
    return figures
