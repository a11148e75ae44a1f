"""The stream on DBOS: each batch of each counter is a durable workflow whose one step is a transaction on its counts.

The databases are SQLite files, which DBOS takes by default and its docs advise where all runs on one machine. Each
counter has its own for its counts, because SQLite has one writer at a time, and they keep a write-ahead log, which
saves a sync per commit. A batch is all that is due, so it grows under load. Its workflow is named after its first
record and given the range of its records alone, as positions in a log would be: run again, it neither counts twice
nor reads anything else. A message is done when its workflow has returned the changed counts, which have then been
committed once: with effects it is the same.
"""

import json
import sqlite3
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import sqlalchemy
import stream as streams
from dbos import DBOS, SetWorkflowID, SQLAlchemyDatasource

BATCH = 1000
"""Records of one workflow, at most."""

GUARANTEE = (
    "a workflow runs to its end, its steps at least once, and its transactions exactly once, state and output alike"
)

CREATE = sqlalchemy.text("CREATE TABLE counts (word TEXT PRIMARY KEY, count INTEGER) WITHOUT ROWID")
ADD = sqlalchemy.text(
    "INSERT INTO counts SELECT key, value FROM json_each(:added) WHERE true "
    "ON CONFLICT (word) DO UPDATE SET count = count + excluded.count RETURNING word, count"
)


def new_database(path: Path) -> str:
    """The address of a new SQLite file with a write-ahead log; the file remembers that."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    return f"sqlite:///{path}"


class Counting:
    """The counts of one counter, in a database of its own."""

    def __init__(self, stream: streams.Stream, counter: int, folder: Path) -> None:
        self.stream, self.counter = stream, counter
        self.source = SQLAlchemyDatasource.create(new_database(folder / f"counts-{counter}.sqlite"))
        with self.source.engine.begin() as connection:
            connection.execute(CREATE)
        self.count = self.source.transaction(name=f"count-{counter}")(self._count)

    def words(self, number: int) -> list[str]:
        """Those words of a record that are this counter's."""
        return dict(self.stream.messages(number)).get(self.counter, [])

    def _count(self, lower: int, upper: int) -> dict[str, int]:
        """Add the records [lower, upper); what changed."""
        added = Counter(word for number in range(lower, upper) for word in self.words(number))
        changed = self.source.sql_session().execute(ADD, {"added": json.dumps(added)})
        return dict(changed.all())


class Job:
    """One thread for each counter, which hands over what is due as one workflow after the other."""

    def __init__(self, stream: streams.Stream, folder: Path) -> None:
        self.stream, self.counts, self.rows = stream, {}, []
        system = new_database(folder / "system.sqlite")
        DBOS(config={"name": "wordcount", "system_database_url": system, "log_level": "ERROR"})
        self.countings = [Counting(stream, counter, folder) for counter in range(stream.counters)]
        self.count = DBOS.workflow(name="count")(lambda counter, *records: self.countings[counter].count(*records))
        DBOS.launch()

    def run(self) -> None:
        """Count the stream to its end."""
        self.started = time.monotonic()
        with ThreadPoolExecutor(self.stream.counters) as threads:
            reached = list(threads.map(self.follow, range(self.stream.counters)))
            list(threads.map(self.catch_up, range(self.stream.counters), reached, [max(reached)] * len(reached)))

    def catch_up(self, counter: int, lower: int, upper: int) -> None:
        """Count what another counter had time for; nothing where the stream has an end."""
        while lower < upper:
            self.hand_over(counter, lower, min(upper, lower + BATCH))
            lower += BATCH

    def follow(self, counter: int) -> int:
        """Count all that is due for one counter, until nothing more will be; up to where."""
        lower = 0
        while lower != self.stream.records and (due := self.stream.due_by(time.monotonic() - self.started)):
            upper = min(due, lower + BATCH)
            if upper > lower:
                self.hand_over(counter, lower, upper)
                lower = upper
            time.sleep(max(0.0, self.started + self.stream.due_s(lower) - time.monotonic()))
        return lower

    def hand_over(self, counter: int, lower: int, upper: int) -> None:
        """Count the records [lower, upper), and note when that was done."""
        with SetWorkflowID(f"{counter}-{lower}"):
            changed = self.count(counter, lower, upper)
        done_s = time.monotonic() - self.started
        self.counts.update(changed)
        numbers = (number for number in range(lower, upper) if self.countings[counter].words(number))
        self.rows.extend((number, counter, done_s) for number in numbers)


def run(stream: streams.Stream, _effects: bool) -> dict[str, Any]:
    """Count the stream."""
    assert stream.pool_messages  # made before the clock starts
    with tempfile.TemporaryDirectory() as folder:
        job = Job(stream, Path(folder))
        try:
            job.run()
        finally:
            DBOS.destroy()
    versions = {"dbos": version("dbos"), "sqlite": sqlite3.sqlite_version}
    return streams.result(stream, job.rows, job.counts, streams.Promise(GUARANTEE, "precise", versions))


if __name__ == "__main__":
    streams.main(run, has_effects=True)
