"""What a replica on a disk costs: flushes of any number of entries, large bodies, opening, and a compaction beside it.

`python -m benchmarks.disk_replica`. Writes to the folder it is started in, because the usual place for temporary files
is memory on many machines. Milliseconds of the clock, except where it says processor time: a shared machine has good
and bad seconds, and processor time shows what a replica does to itself.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from lineage_stash.codec import encode, pack_span
from lineage_stash.core.batch import Range
from lineage_stash.core.entry import Ran
from lineage_stash.core.history import Segments
from lineage_stash.core.ids import Incarnation, Index, PeerId, Seqno
from lineage_stash.store.contract import Append, Read, Span, Truncate
from lineage_stash.store.disk import Asked, DiskReplica
from lineage_stash.store.replica import FIRST_EPOCH

P, CALLER = PeerId("peer"), PeerId("caller")
LIFE = Incarnation(0)
LIVES: Segments = ((LIFE, Index(0)),)
MEGABYTE = 1 << 20


class Sizes(NamedTuple):
    """How much is measured."""

    flushes: int = 2000
    entries: tuple[int, ...] = (1, 200, 2000)
    large_bodies: int = 200
    live_spans: int = 20_000
    live_body_bytes: int = 3000


class Figure(NamedTuple):
    """One row of the table."""

    measure: str
    median: float
    high: float
    worst: float


def figure(measure: str, seconds: list[float]) -> Figure:
    hundredths = quantiles(seconds, n=100, method="inclusive")
    return Figure(measure, hundredths[49] * 1e3, hundredths[98] * 1e3, max(seconds) * 1e3)


def flush(lower: int, entries: int) -> bytes:
    """The request of a flush of calls in a row."""
    ran = tuple([Ran(CALLER, Seqno(index), None, index, ()) for index in range(lower, lower + entries)])
    return encode(Append((pack_span(Range(P, LIFE, Index(lower), ran)),), (), (), (), False))


def append(peer: str, index: int, body: bytes) -> bytes:
    """The request to append one entry whose body has these bytes."""
    span = Span(PeerId(peer), LIFE, Index(index), Index(index + 1), Index(index), body, len(body))
    return encode(Append((span,), (), (), (), False))


def timed(replica: DiskReplica, frames: Iterator[bytes]) -> tuple[list[float], list[float]]:
    """Seconds of the processor to apply each request, and seconds until it is durable."""
    applied, durable = [], []
    for frame in frames:
        began, began_applying = time.perf_counter(), time.thread_time()
        replica.apply([Asked(FIRST_EPOCH, frame)])
        applied.append(time.thread_time() - began_applying)
        replica.commit()
        durable.append(time.perf_counter() - began)
    return applied, durable


def measure_flushes(folder: Path, sizes: Sizes) -> Iterator[Figure]:
    """A flush costs the same whatever is in it, however many came before."""
    for entries in sizes.entries:
        count = sizes.flushes if entries < 1000 else sizes.flushes // 8
        with closing(DiskReplica(folder / f"flushes of {entries}")) as replica:
            applied, durable = timed(replica, (flush(at * entries, entries) for at in range(count)))
        yield figure(f"flush of {entries}: processor time to apply", applied)
        yield figure(f"flush of {entries}: until durable", durable)
        if entries == 1:
            yield figure("the last quarter of these", durable[-(count // 4) :])


def measure_large(folder: Path, sizes: Sizes) -> Iterator[Figure]:
    """Bodies of a megabyte, written and read."""
    body = bytes(range(256)) * (MEGABYTE // 256)
    with closing(DiskReplica(folder / "large")) as replica:
        _, durable = timed(replica, (append(P, at, body) for at in range(sizes.large_bodies)))
        yield figure("1 MB: until durable", durable)
        read = [Asked(FIRST_EPOCH, encode(Read(P, Index(sizes.large_bodies - 1))))]
        yield figure("1 MB: read", [seconds(lambda: replica.apply(read)) for _ in range(20)])
    yield figure(f"open {sizes.large_bodies} MB in large bodies", opening(folder / "large"))


def measure_compaction(folder: Path, sizes: Sizes) -> Iterator[Figure]:
    """Appends before, during and after a compaction of many small bodies."""
    body = bytes(sizes.live_body_bytes)
    path = folder / "compaction"
    with closing(DiskReplica(path, segment_bytes=1 << 40)) as replica:
        for lower in range(0, sizes.live_spans, 100):
            replica.handle_all([append("live", index, body) for index in range(lower, lower + 100)])
        dead_bytes = 2 * replica.live_bytes + 2 * MEGABYTE
        for index in range(dead_bytes // MEGABYTE):
            replica.handle(append("dead", index, bytes(MEGABYTE)))
        replica.handle(encode(Truncate(PeerId("dead"), LIVES, Index(dead_bytes))))
        _, before = timed(replica, (append("before", index, body) for index in range(sizes.flushes)))
        yield figure(f"{sizes.live_body_bytes} bytes beside nothing: until durable", before)
        replica.segment_bytes = replica._compact_above = MEGABYTE
        replica.apply([])
        _, during = timed(replica, (append("during", index, body) for index in until_compacted(replica)))
        yield figure(f"the same beside the compaction of {sizes.live_spans:,} bodies", during)
    yield figure(f"open {sizes.live_spans:,} small bodies", opening(path))


def until_compacted(replica: DiskReplica) -> Iterator[int]:
    """Numbers for as long as a compaction takes."""
    index = 0
    while replica._worker is not None or index < 2:
        yield index
        index += 1


def opening(folder: Path) -> list[float]:
    """Seconds that it takes to open a folder, some times."""
    return [seconds(lambda: DiskReplica(folder).close()) for _ in range(5)]


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def main(sizes: Sizes | None = None) -> list[Figure]:
    """Print a table of all figures."""
    chosen = sizes or Sizes()
    table = Table(title="A replica on a disk, in milliseconds")
    for heading in ("measure", "median", "99 %", "worst"):
        table.add_column(heading, justify="left" if heading == "measure" else "right")
    figures = []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for part in (measure_flushes, measure_large, measure_compaction):
            figures += list(part(Path(folder), chosen))
    for row in figures:
        table.add_row(row.measure, f"{row.median:.3f}", f"{row.high:.3f}", f"{row.worst:.3f}")
    Console(width=100).print(table)
    return figures


if __name__ == "__main__":
    main()
