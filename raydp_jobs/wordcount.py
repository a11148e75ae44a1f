"""Counts words: Spark reads and cuts texts into words, actors count them, each word always the same actor.

    python -m raydp_jobs.wordcount --output counted texts/ more.txt.gz

The output has `counts/*.parquet` (word, count), `top.parquet` (rank, word, count), `bad/*.parquet` (file, reason, row)
and `summary.json`. A word is letters and digits of any script, in lower case, with apostrophes inside it. A row is bad
if it has no text, is not UTF-8, or is longer than `--longest-row` characters; bad rows count for nothing.
"""

import heapq
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import lineage_stash as ray
from lineage_stash.on_spark import spark_stage
from raydp_jobs.inputs import Inputs
from raydp_jobs.job import Job, Summary, make_parser, run_job
from raydp_jobs.tables import bad_of, is_text, lines_of

WORD = r"[\p{L}\p{N}]+(?:'[\p{L}\p{N}]+)*"


def rows_of(spark: SparkSession, inputs: Inputs, column: str | None, longest: int) -> DataFrame:
    """All rows, with the reason why one is bad."""
    frames = []
    if inputs.texts:
        frames.append(lines_of(spark, inputs.texts))
    if inputs.tables:
        read = spark.read.parquet(*inputs.tables)
        name = column or next((field.name for field in read.schema if field.dataType.simpleString() == "string"), "")
        frames.append(read.select(f.col(f"`{name}`").alias("row"), f.col("_metadata.file_path").alias("file")))
    rows = frames[0] if len(frames) == 1 else frames[0].union(frames[1])
    reason = (
        f.when(f.col("row").isNull(), "it has no text")
        .when(~is_text("row"), "it is not UTF-8")
        .when(f.length("row") > longest, f"it is longer than {longest} characters")
    )
    return rows.withColumn("reason", reason)


@spark_stage
def words(spark: SparkSession, inputs: Inputs, column: str | None, longest: int, partitions: int) -> DataFrame:
    """Every word of every good row, the same word always in the same partition."""
    rows = rows_of(spark, inputs, column, longest).where("reason is null")
    text = f.translate(f.lower("row"), "’", "'")
    found = rows.select(f.explode(f.regexp_extract_all(text, f.lit(WORD), f.lit(0))).alias("word"))
    return found.repartition(partitions, "word")


@spark_stage
def bad_rows(spark: SparkSession, inputs: Inputs, column: str | None, longest: int) -> DataFrame:
    """Every bad row, with its file and the reason."""
    return bad_of(rows_of(spark, inputs, column, longest))


@ray.remote(num_cpus=0)
class Counter:
    """Counts the words of some partitions, which have no word in common with those of other counters."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, table: pa.Table) -> int:
        """Count the words of a partition; how many these are."""
        for counted in pc.value_counts(table.column("word")).to_pylist():
            word = counted["values"]
            self.counts[word] = self.counts.get(word, 0) + counted["counts"]
        return int(table.num_rows)

    def top(self, count: int) -> list[tuple[str, int]]:
        """The most frequent words."""
        return heapq.nsmallest(count, self.counts.items(), key=_rank)

    def table(self) -> pa.Table:
        """All words, in order."""
        pairs = sorted(self.counts.items())
        return pa.table({"word": [word for word, _ in pairs], "count": [count for _, count in pairs]}, schema=COUNTS)


COUNTS = pa.schema([("word", pa.string()), ("count", pa.int64())])


def _rank(pair: tuple[str, int]) -> tuple[int, str]:
    return -pair[1], pair[0]


def count_words(job: Job) -> Summary:
    """The job."""
    given = job.arguments
    bad = bad_rows(job.session, job.inputs, given.column, given.longest_row)
    refs = words(job.session, job.inputs, given.column, given.longest_row, given.partitions)
    counters = job.actors = [Counter.remote() for _ in range(given.counters)]
    counting = [counters[number % len(counters)].add.remote(ref) for number, ref in enumerate(refs)]
    total = sum(job.follow(counting, "counting"))
    bad_count = job.write_parts("bad", bad)
    distinct = job.write_parts("counts", [counter.table.remote() for counter in counters])
    tops = ray.get([counter.top.remote(given.top) for counter in counters])
    top = heapq.nsmallest(given.top, [pair for part in tops for pair in part], key=_rank)
    job.output.write("top.parquet", _ranked(top))
    most = ", ".join(f"{word} ({count:,})" for word, count in top[:5])
    return {"words": total, "distinct_words": distinct, "bad_rows": bad_count, "most_frequent": most}


def _ranked(top: Sequence[tuple[str, int]]) -> Any:
    return pa.table(
        {
            "rank": pa.array(range(1, len(top) + 1), pa.int64()),
            "word": pa.array([word for word, _ in top], pa.string()),
            "count": pa.array([count for _, count in top], pa.int64()),
        }
    )


def parser() -> ArgumentParser:
    """The options."""
    made = make_parser("wordcount", "Counts the words of texts, in Spark and in actors that survive kill -9.",
                       what="text (.gz and .zip too) or Parquet")  # fmt: skip
    made.add_argument("--top", type=int, default=100, help="how many of the most frequent words (%(default)s)")
    made.add_argument("--counters", type=int, default=2, help="how many actors count (%(default)s)")
    made.add_argument("--column", help="the column of Parquet files that has the text (default: the first of strings)")
    made.add_argument("--longest-row", type=int, default=1_000_000, help="in characters (%(default)s)")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    return run_job(parser(), count_words, argv)


if __name__ == "__main__":
    sys.exit(main())
