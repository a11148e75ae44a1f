"""Sessions of visitors: Spark cleans and sorts events of clicks, actors cut each user's events into sessions.

    python -m raydp_jobs.sessions clicks/ --output sessions

The input is CSV or Parquet with columns `user`, `time` and `page`. Files are taken in the order of their names, as if
each had come after the one before it; the same event is counted once, however often it comes. A session is events of
one user with at most `--gap` minutes from one to the next, in event time. An event that comes late still finds its
session, and may join two. One that comes with a later file than an event of the same user that is more than
`--lateness` minutes newer comes too late, and is written aside.

The output has `sessions/*.parquet` (user, start, end, events, pages, entry, exit), `late/*.parquet` (user, time, page,
reason), `bad/*.parquet` (file, reason, row) and `summary.json`.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import lineage_stash as ray
from lineage_stash.on_spark import spark_stage
from raydp_jobs.inputs import Inputs
from raydp_jobs.job import Job, Summary, make_parser, run_job
from raydp_jobs.tables import Column, arrow_of, bad_of, check_columns, table_of

EVENT = (Column("user"), Column("time", "timestamp"), Column("page"))
TIME = pa.timestamp("us", "UTC")
SESSIONS = pa.schema([("user", pa.string()), ("start", TIME), ("end", TIME), ("events", pa.int64()),
                      ("pages", pa.int64()), ("entry", pa.string()), ("exit", pa.string())])  # fmt: skip
LATE = pa.schema([("user", pa.string()), ("time", TIME), ("page", pa.string()), ("reason", pa.string())])


@spark_stage
def events(spark: SparkSession, files: Sequence[str], partitions: int) -> DataFrame:
    """Every event once, all of a user in the same partition, in the order in which they have come."""
    good = table_of(spark, files, EVENT).where("reason is null")
    once = good.groupBy("user", "time", "page").agg(f.min("file").alias("file"), f.count("*").alias("times"))
    order = ("file", "time", "user", "page", "times")
    return once.select(*order).repartition(partitions, "user").sortWithinPartitions(*order)


@spark_stage
def bad_rows(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """Rows that are no events."""
    return bad_of(table_of(spark, files, EVENT))


class Session(NamedTuple):
    """Events of one user: the first and the last one, how many, and the pages."""

    first: tuple[datetime, str]
    last: tuple[datetime, str]
    events: int
    pages: frozenset[str]

    def join(self, other: "Session") -> "Session":
        """Both as one."""
        return Session(min(self.first, other.first), max(self.last, other.last), self.events + other.events,
                       self.pages | other.pages)  # fmt: skip


class Visits:
    """Cuts events into sessions, which stay open until no event that is in time can change them."""

    def __init__(self, gap: timedelta, lateness: timedelta) -> None:
        self.gap = gap
        self.lateness = lateness
        self.newest: dict[str, datetime] = {}
        self.open: dict[str, list[Session]] = {}
        self.closed: list[tuple[str, Session]] = []
        self.late: list[tuple[str, datetime, str, str]] = []

    def add(self, table: pa.Table) -> tuple[int, int]:
        """Take the events of a partition; how many these are, and how many more were the same."""
        rows = table.to_pydict()
        for user, time, page in zip(rows["user"], rows["time"], rows["page"], strict=True):
            self._visit(user, time, page)
        return table.num_rows, sum(rows["times"]) - table.num_rows

    def _visit(self, user: str, time: datetime, page: str) -> None:
        newest = max(time, self.newest.get(user, time))
        if newest - time > self.lateness:
            self.late.append((user, time, page, f"it came {newest - time} after a newer event of its user"))
            return
        self.newest[user] = newest
        visit = Session((time, page), (time, page), 1, frozenset((page,)))
        still_open = []
        for session in self.open.get(user, ()):
            if session.first[0] - self.gap <= time <= session.last[0] + self.gap:
                visit = visit.join(session)
            elif newest - session.last[0] > self.lateness + self.gap:
                self.closed.append((user, session))
            else:
                still_open.append(session)
        self.open[user] = [*still_open, visit]

    def sessions(self) -> pa.Table:
        """All sessions, in the order of users and of time."""
        still_open = [(user, session) for user, sessions in self.open.items() for session in sessions]
        found = sorted([*self.closed, *still_open], key=lambda pair: (pair[0], pair[1].first))
        rows = [(user, session.first[0], session.last[0], session.events, len(session.pages), session.first[1],
                 session.last[1]) for user, session in found]  # fmt: skip
        return arrow_of(rows, SESSIONS)

    def too_late(self) -> pa.Table:
        """The events that came too late."""
        return arrow_of(sorted(self.late), LATE)


def find_sessions(job: Job) -> Summary:
    """The job."""
    given = job.arguments
    bad = bad_rows(job.session, job.inputs.files)
    refs = events(job.session, job.inputs.files, given.partitions)
    limits = (timedelta(minutes=given.gap), timedelta(minutes=given.lateness))
    visits = job.actors = [ray.remote(num_cpus=0)(Visits).remote(*limits) for _ in range(given.actors)]
    adding = [visits[number % len(visits)].add.remote(ref) for number, ref in enumerate(refs)]
    counts = list(job.follow(adding, "cutting"))
    return {
        "events": sum(count for count, _ in counts),
        "duplicates": sum(more for _, more in counts),
        "sessions": job.write_parts("sessions", [each.sessions.remote() for each in visits]),
        "late_events": job.write_parts("late", [each.too_late.remote() for each in visits]),
        "bad_rows": job.write_parts("bad", bad),
    }


def check(inputs: Inputs) -> None:
    """Refuse tables that are not of events."""
    check_columns(inputs.files, EVENT)


def parser() -> ArgumentParser:
    """The options."""
    made = make_parser("sessions", "Cuts clicks into sessions, in Spark and in actors that survive kill -9.")
    made.add_argument("--gap", type=float, default=30.0, help="minutes that end a session (%(default)s)")
    made.add_argument("--lateness", type=float, default=60.0, help="minutes that an event may be late (%(default)s)")
    made.add_argument("--actors", type=int, default=2, help="how many actors have users (%(default)s)")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    return run_job(parser(), find_sessions, argv, check=check)


if __name__ == "__main__":
    sys.exit(main())
