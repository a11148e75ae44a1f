"""What a durable group commit costs on this disk: segment files beside SQLite, both with nothing left unsynced.

A commit makes a group of ranges durable and returns: one group in a segment file, one transaction with a row per range
in SQLite (WAL, `synchronous=FULL`). Both write the same bytes, and neither decodes them: the figure is the engine's
own. A third engine, a file that is only ever made longer, shows what the zeros ahead of a segment's end are for, and
what checksums cost. The engines take turns in short stretches, because a shared disk has good and bad seconds.
"""

import os
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from statistics import quantiles
from zlib import crc32

from rich.console import Console
from rich.table import Table

from lineage_stash.store.groups import Body, Kind, Record
from lineage_stash.store.segment import Segment

RANGE_BYTES = (2 * 1024, 64 * 1024)
GROUP_SIZES = (1, 16)
STRETCH = 20
BUDGET_BYTES = 48 * 1024 * 1024
"""About what each engine writes per row of the table, unless that takes too many commits."""

Commit = Callable[[Sequence[bytes]], None]


class Growing:
    """A file that every commit makes longer."""

    def __init__(self, folder: Path) -> None:
        self.descriptor = os.open(folder / "growing", os.O_WRONLY | os.O_CREAT)

    def commit(self, ranges: Sequence[bytes]) -> None:
        os.write(self.descriptor, b"".join(ranges))
        os.fdatasync(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


class Sqlite:
    """A table with one row per range."""

    def __init__(self, folder: Path) -> None:
        self.connection = sqlite3.connect(folder / "ranges.sqlite", isolation_level=None)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=FULL")
        self.connection.execute("CREATE TABLE ranges (number INTEGER PRIMARY KEY, content BLOB)")

    def commit(self, ranges: Sequence[bytes]) -> None:
        self.connection.execute("BEGIN")
        self.connection.executemany("INSERT INTO ranges (content) VALUES (?)", [(content,) for content in ranges])
        self.connection.execute("COMMIT")

    def close(self) -> None:
        self.connection.close()


class SegmentFile:
    """A segment with a record per range, added up as a replica does it."""

    def __init__(self, folder: Path) -> None:
        self.segment = Segment.create(folder / "segment", 1, "")

    def commit(self, ranges: Sequence[bytes]) -> None:
        records = [Record(Kind.REQUEST, 1, b"", (Body(content, crc32(content)),)) for content in ranges]
        self.segment.commit(records)

    def close(self) -> None:
        self.segment.close()


def latencies(engines: dict[str, Commit], ranges: Sequence[bytes], commits: int) -> dict[str, list[float]]:
    """Seconds per commit, for each engine."""
    taken: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(max(1, commits // STRETCH)):
        for name, commit in engines.items():
            for _ in range(STRETCH):
                started = time.perf_counter()
                commit(ranges)
                taken[name].append(time.perf_counter() - started)
    return taken


def measure(range_bytes: int, group_size: int, commits: int, folder: Path) -> dict[str, list[float]]:
    """Seconds per commit of groups of that many ranges of that size."""
    draws = random.Random(0)
    ranges = [draws.randbytes(range_bytes) for _ in range(group_size)]
    with closing(SegmentFile(folder)) as segment, closing(Sqlite(folder)) as sqlite, closing(Growing(folder)) as file:
        engines = {"segment file": segment.commit, "SQLite": sqlite.commit, "file that grows": file.commit}
        return latencies(engines, ranges, commits)


def main(most_commits: int = 1000) -> None:
    """Print a table of all engines, sizes of ranges and sizes of groups."""
    table = Table(title="Durable group commits: appends per second, and milliseconds until a commit is confirmed")
    for heading in ("range", "group", "engine", "appends/s", "median", "99 %", "worst"):
        table.add_column(heading, justify="left" if heading == "engine" else "right")
    for range_bytes in RANGE_BYTES:
        for group_size in GROUP_SIZES:
            commits = min(most_commits, BUDGET_BYTES // (range_bytes * group_size))
            # Here and not in the usual place, which on many machines is memory.
            with tempfile.TemporaryDirectory(dir=".") as folder:
                figures = measure(range_bytes, group_size, commits, Path(folder))
            for name, taken in figures.items():
                hundredths = [second * 1000 for second in quantiles(taken, n=100, method="inclusive")]
                table.add_row(
                    f"{range_bytes // 1024} KB", str(group_size), name, f"{len(taken) * group_size / sum(taken):,.0f}",
                    f"{hundredths[49]:.2f}", f"{hundredths[98]:.2f}", f"{max(taken) * 1000:.2f}",
                )  # fmt: skip
            table.add_section()
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
