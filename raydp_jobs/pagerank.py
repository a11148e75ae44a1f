"""PageRank: Spark reads an edge list, actors hold the vertices and iterate until the ranks stand still.

    python -m raydp_jobs.pagerank links.txt --output ranks

The input is text with two vertices on each line, with blanks, tabs or a comma between them (lines that begin with # are
comments), or Parquet with columns `source` and `target`. An edge counts once, however often it is there. Every
iteration is an all-reduce in two parts: each actor gives every other one the sums of what its vertices give to that
one's vertices, and what all of them need, the rank of vertices without an edge and the change, is added up and given to
all. Sums are made in one order, so that ranks are the same to the last bit whoever is killed.

The output has `ranks/*.parquet` (vertex, rank), `top.parquet`, `bad/*.parquet` (file, reason, row) and `summary.json`.
"""

import math
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import lineage_stash as ray
from lineage_stash.on_spark import spark_stage
from raydp_jobs.inputs import Inputs
from raydp_jobs.job import Job, Summary, make_parser, run_job
from raydp_jobs.tables import Column, bad_of, check_columns, is_text, lines_of, table_of, union_of

EDGE = (Column("source"), Column("target"))
NO_EDGES = pa.schema([("source", pa.string()), ("target", pa.string()), ("owner", pa.int32())]).empty_table()
RANKS = pa.schema([("vertex", pa.string()), ("rank", pa.float64())])


def rows_of(spark: SparkSession, inputs: Inputs) -> DataFrame:
    """All rows, with the reason why one is bad."""
    frames = []
    if inputs.texts:
        lines = lines_of(spark, inputs.texts).where(~f.trim("row").startswith("#") & (f.trim("row") != ""))
        fields = f.split(f.trim("row"), r"\s*,\s*|\s+")
        reason = f.when(~is_text("row"), "it is not UTF-8").when(f.size(fields) != 2, "it is not two vertices")
        frames.append(lines.select(fields[0].alias("source"), fields[1].alias("target"), "file", "row",
                                   reason.alias("reason")))  # fmt: skip
    if inputs.tables:
        frames.append(table_of(spark, inputs.tables, EDGE))
    return union_of(frames)


@spark_stage
def edges(spark: SparkSession, inputs: Inputs, partitions: int) -> DataFrame:
    """Every edge once, those of a source in one partition, with the number of the partition that the target is in."""
    good = rows_of(spark, inputs).where("reason is null").select("source", "target").distinct()
    owner = f.pmod(f.hash("target"), f.lit(partitions)).alias("owner")  # as Spark itself spreads rows by hash
    placed = good.select("source", "target", owner)
    return placed.repartition(partitions, "source").sortWithinPartitions("source", "target", "owner")


@spark_stage
def bad_rows(spark: SparkSession, inputs: Inputs) -> DataFrame:
    """Rows that are no edges."""
    return bad_of(rows_of(spark, inputs))


class Ranker:
    """Holds the vertices of some partitions, with their ranks and the edges that leave them."""

    def __init__(self, rankers: int, damping: float) -> None:
        self.rankers = rankers
        self.damping = damping
        self.tables: list[pa.Table] = []

    def load(self, table: pa.Table) -> int:
        """Take the edges of a partition; how many these are."""
        self.tables.append(table)
        return int(table.num_rows)

    def introduce(self) -> Any:
        """Tell each ranker to which of its vertices edges from here lead, in the order in which `spread` will."""
        table = pa.concat_tables(self.tables or [NO_EDGES])
        self.sources = pc.unique(table["source"]).to_pylist()
        self.source_of = pc.index_in(table["source"], pa.array(self.sources, pa.string())).to_numpy()
        self.degrees = np.bincount(self.source_of, minlength=len(self.sources))
        owners = table["owner"].to_numpy() % self.rankers
        self.going_to, self.landing, told = [], [], []
        for ranker in range(self.rankers):
            going = np.flatnonzero(owners == ranker)
            targets = table["target"].take(going)
            distinct = pc.unique(targets)
            self.going_to.append(going)
            self.landing.append((pc.index_in(targets, distinct).to_numpy(), len(distinct)))
            told.append(distinct)
        self.tables = []
        return _returned(told)

    def meet(self, *told: pa.Array) -> int:
        """Hear from all which vertices here have edges to them; how many vertices there are."""
        known = {*self.sources, *[vertex for part in told for vertex in part.to_pylist()]}
        self.vertices = sorted(known)
        place = pa.array(self.vertices, pa.string())
        self.told_of = [pc.index_in(part, place).to_numpy(zero_copy_only=False) for part in told]
        self.place_of = pc.index_in(pa.array(self.sources, pa.string()), place).to_numpy(zero_copy_only=False)
        self.is_dangling = np.ones(len(self.vertices), bool)
        self.is_dangling[self.place_of] = False
        return len(self.vertices)

    def begin(self, total: int) -> float:
        """Have all of so many vertices equal; the rank of those here that have no edges."""
        self.total = total
        self.ranks = np.full(len(self.vertices), 1.0 / total)
        return float(self.ranks[self.is_dangling].sum())

    def spread(self) -> Any:
        """What the vertices here give to those of each ranker."""
        given = (self.ranks[self.place_of] / self.degrees)[self.source_of]
        parts = [
            np.bincount(landing, weights=given[going], minlength=count)
            for going, (landing, count) in zip(self.going_to, self.landing, strict=True)
        ]
        return _returned(parts)

    def gather(self, dangling: float, *parts: Any) -> tuple[float, float]:
        """Make the next ranks of what all have given; how much changed, and the rank of vertices without edges."""
        incoming = np.zeros(len(self.vertices))
        for places, part in zip(self.told_of, parts, strict=True):
            incoming[places] += part  # a place is told of once by each
        ranks = (1.0 - self.damping) / self.total + self.damping * (incoming + dangling / self.total)
        change = float(np.abs(ranks - self.ranks).sum())
        self.ranks = ranks
        return change, float(ranks[self.is_dangling].sum())

    def table(self) -> pa.Table:
        """The vertices here, and their ranks."""
        return pa.table([pa.array(self.vertices, pa.string()), pa.array(self.ranks)], RANKS)


def _returned(parts: list[Any]) -> Any:
    """As a method returns one value for each ref."""
    return parts if len(parts) > 1 else parts[0]


def exchange(rankers: Sequence[Any], method: str) -> list[list[Any]]:
    """Have every ranker give something to each; what each of them is given, in the order of the givers."""
    count = len(rankers)
    given = [getattr(ranker, method).options(num_returns=count).remote() for ranker in rankers]
    return [[part[to] if count > 1 else part for part in given] for to in range(count)]


def iterate(job: Job, rankers: Sequence[Any], total: int) -> tuple[int, float]:
    """All-reduce until the ranks stand still; how often, and what changed the last time."""
    dangling = math.fsum(ray.get([ranker.begin.remote(total) for ranker in rankers]))
    change = float("inf")
    for number in job.steps("iterating", job.arguments.iterations):
        parts = exchange(rankers, "spread")
        told = ray.get([ranker.gather.remote(dangling, *part) for ranker, part in zip(rankers, parts, strict=True)])
        change = math.fsum(each for each, _ in told)
        dangling = math.fsum(each for _, each in told)
        if change < job.arguments.tolerance:
            return number + 1, change
    return job.arguments.iterations, change


def find_ranks(job: Job) -> Summary:
    """The job."""
    given = job.arguments
    bad = bad_rows(job.session, job.inputs)
    refs = edges(job.session, job.inputs, given.partitions)
    rankers = job.actors = [
        ray.remote(num_cpus=0)(Ranker).remote(given.actors, given.damping) for _ in range(given.actors)
    ]
    loading = [rankers[number % len(rankers)].load.remote(ref) for number, ref in enumerate(refs)]
    count = sum(job.follow(loading, "loading"))
    told = exchange(rankers, "introduce")
    vertices = sum(ray.get([ranker.meet.remote(*part) for ranker, part in zip(rankers, told, strict=True)]))
    iterations, change = iterate(job, rankers, vertices) if vertices else (0, 0.0)
    tables = ray.get([ranker.table.remote() for ranker in rankers]) if vertices else []
    job.write_parts("ranks", tables)
    top = pa.concat_tables([RANKS.empty_table(), *tables]).sort_by([("rank", "descending"), ("vertex", "ascending")])
    job.output.write("top.parquet", top.slice(0, given.top))
    return {"vertices": vertices, "edges": count, "bad_rows": job.write_parts("bad", bad), "iterations": iterations,
            "converged": change < given.tolerance}  # fmt: skip


def check(inputs: Inputs) -> None:
    """Refuse tables that are not of edges."""
    check_columns(inputs.tables, EDGE)


def parser() -> ArgumentParser:
    """The options."""
    made = make_parser("pagerank", "Ranks vertices, in Spark and in actors that survive kill -9.",
                       what="edge lists as text (.gz and .zip too) or Parquet")  # fmt: skip
    made.add_argument("--damping", type=float, default=0.85, help="how much rank goes along edges (%(default)s)")
    made.add_argument("--tolerance", type=float, default=1e-9, help="a change that is none (%(default)s)")
    made.add_argument("--iterations", type=int, default=200, help="how many at most (%(default)s)")
    made.add_argument("--actors", type=int, default=2, help="how many actors hold vertices (%(default)s)")
    made.add_argument("--top", type=int, default=100, help="how many of the highest ranks (%(default)s)")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    return run_job(parser(), find_ranks, argv, check=check)


if __name__ == "__main__":
    sys.exit(main())
