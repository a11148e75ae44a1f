"""The stream on bytewax, with snapshots of state and input into its SQLite recovery store every second.

One process with one worker, which has the keys of all counters: workers of one process share one interpreter, and with
two of them it counts a quarter to a half as much. So no message leaves its thread here, and that is part of its speed.
The input is one partition whose snapshot is the number of the next record.
"""

import tempfile
import time
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any

import bytewax.operators as operators
import stream as streams
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main

BATCH = 100
"""Records that the input hands over at once, at most."""

GUARANTEE = (
    "state exactly once, from the last snapshot on; output at least once: what followed the snapshot is repeated"
)


class Clock:
    """Seconds since the first record was due, which is when the input is first asked for one."""

    def __init__(self) -> None:
        self.started: float | None = None

    def now_s(self) -> float:
        if self.started is None:
            self.started = time.monotonic()
        return time.monotonic() - self.started


class Input(StatefulSourcePartition):
    """Hands over the records that are due."""

    def __init__(self, stream: streams.Stream, clock: Clock, number: int) -> None:
        self.stream, self.clock, self.number = stream, clock, number

    def next_batch(self) -> list[tuple[str, tuple[int, list[str]]]]:
        due = self.stream.due_by(self.clock.now_s())
        if due == 0 or self.number == self.stream.records:
            raise StopIteration
        first, self.number = self.number, max(self.number, min(due, self.number + BATCH))
        return [
            (str(counter), (number, words))
            for number in range(first, self.number)
            for counter, words in self.stream.messages(number)
        ]

    def next_awake(self) -> datetime | None:
        wait_s = self.stream.due_s(self.number) - self.clock.now_s()
        return datetime.now(UTC) + timedelta(seconds=wait_s) if wait_s > 0 else None

    def snapshot(self) -> int:
        return self.number


class Records(FixedPartitionedSource):
    """The stream, as one partition that can be resumed at any record."""

    def __init__(self, stream: streams.Stream, clock: Clock) -> None:
        self.stream, self.clock = stream, clock

    def list_parts(self) -> list[str]:
        return ["records"]

    def build_part(self, _step_id: str, _part: str, number: int | None) -> Input:
        return Input(self.stream, self.clock, number or 0)


class Counting(StatefulBatchLogic):
    """The counts of one counter."""

    def __init__(self, counts: dict[str, int] | None) -> None:
        self.counts = counts or {}

    def on_batch(self, values: list[tuple[int, list[str]]]) -> tuple[list[tuple[int, dict[str, int]]], bool]:
        return [(number, self.count(words)) for number, words in values], StatefulBatchLogic.RETAIN

    def count(self, words: list[str]) -> dict[str, int]:
        counts = self.counts
        for word in words:
            counts[word] = counts.get(word, 0) + 1
        return {word: counts[word] for word in words}

    def snapshot(self) -> dict[str, int]:
        return dict(self.counts)


class Seen(DynamicSink, StatelessSinkPartition):
    """Notes when the counts of each message arrive, and the last of each word."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.rows, self.counts = clock, [], {}

    def build(self, _step_id: str, _worker_index: int, _worker_count: int) -> "Seen":
        return self

    def write_batch(self, items: list[tuple[str, tuple[int, dict[str, int]]]]) -> None:
        now_s = self.clock.now_s()
        for counter, (number, counts) in items:
            self.rows.append((number, int(counter), now_s))
            self.counts.update(counts)


def run(stream: streams.Stream, _effects: bool) -> dict[str, Any]:
    """Count the stream."""
    assert stream.pool_messages  # made before the clock starts
    clock = Clock()
    sink = Seen(clock)
    flow = Dataflow("wordcount")
    records = operators.input("records", flow, Records(stream, clock))
    counted = operators.stateful_batch("count", records, Counting)
    operators.output("seen", counted, sink)
    with tempfile.TemporaryDirectory() as folder:
        init_db_dir(folder, 1)
        interval = timedelta(seconds=streams.CHECKPOINT_INTERVAL_S)
        cli_main(flow, epoch_interval=interval, recovery_config=RecoveryConfig(folder))
    promise = streams.Promise(GUARANTEE, "repeating", {"bytewax": version("bytewax")})
    return streams.result(stream, sink.rows, sink.counts, promise)


if __name__ == "__main__":
    streams.main(run)
