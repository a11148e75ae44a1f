"""The stream on PyFlink, in thread mode, with exactly-once checkpoints to disk every second.

Python has no sources of its own in Flink: a sequence of numbers, whose position is in every checkpoint, runs in front
of a function in the same task that waits until a record is due. Functions run inside the Java process, and leave what
they have seen in files when they close. With effects, a row is done when its file has been committed and is visible.
"""

import json
import os
import shutil
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import stream as streams
from pyflink.common import Configuration, Encoder, Types, WatermarkStrategy
from pyflink.datastream import DataStream, StreamExecutionEnvironment
from pyflink.datastream.connectors.base import Sink
from pyflink.datastream.connectors.file_system import FileSink, RollingPolicy
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.functions import FlatMapFunction, KeyedProcessFunction, RuntimeContext
from pyflink.datastream.state import MapStateDescriptor
from pyflink.java_gateway import get_gateway

FOLDER = Path(__file__).resolve().parent

KEY_GROUPS = 128
"""Flink's own default for small jobs; stated, because the keys of the counters depend on it."""

ENDLESS = 1 << 40

BUFFER_TIMEOUT_MS = {True: 1, False: 100}
"""With a rate, latency is measured: buffers leave at once. Without, throughput: the default."""

GUARANTEE = {
    False: "state exactly once by aligned checkpoints; output to a sink without transactions at least once",
    True: "state exactly once by aligned checkpoints; files exactly once, visible when their checkpoint is complete",
}


class Pace(FlatMapFunction):
    """Turns the number of a record into its messages, `key number word …`, when it is due."""

    def __init__(self, stream: streams.Stream, keys: list[int], folder: Path) -> None:
        self.stream, self.keys, self.folder = stream, keys, folder
        self.started: float | None = None

    def open(self, _context: RuntimeContext) -> None:
        self.lines = [
            [(self.keys[counter], counter, " ".join(words)) for counter, words in messages]
            for messages in self.stream.pool_messages
        ]

    def flat_map(self, number: int) -> Iterator[str]:
        if self.started is None:
            self.started = time.monotonic()
            (self.folder / "started").write_text(json.dumps(self.started))
        wait_s = self.started + self.stream.due_s(number) - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        for key, counter, words in self.lines[number % len(self.lines)]:
            yield f"{key} {number} {counter} {words}"


class Count(KeyedProcessFunction):
    """Counts in keyed state, and hands on what changed as `number counter word count …`."""

    def open(self, context: RuntimeContext) -> None:
        self.counts = context.get_map_state(MapStateDescriptor("counts", Types.STRING(), Types.LONG()))

    def process_element(self, message: str, _context: KeyedProcessFunction.Context) -> Iterator[str]:
        _, number, counter, *words = message.split(" ")
        changed: dict[str, int] = {}
        for word in words:
            changed[word] = (changed.get(word) or self.counts.get(word) or 0) + 1
        for word, count in changed.items():
            self.counts.put(word, count)
        yield " ".join([number, counter, *(f"{word} {count}" for word, count in changed.items())])


class Seen(FlatMapFunction):
    """Notes when the counts of each message arrive, and the last of each word."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, _context: RuntimeContext) -> None:
        self.lines: list[str] = []
        self.times: list[float] = []

    def flat_map(self, line: str) -> Iterator[str]:
        self.times.append(time.monotonic())
        self.lines.append(line)
        return iter(())

    def close(self) -> None:
        with tempfile.NamedTemporaryFile("w", prefix="seen-", dir=self.folder, delete=False) as file:
            json.dump([self.times, self.lines], file)


class Watcher(threading.Thread):
    """Sees committed files appear in a folder; those in progress begin with a dot."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.is_over = folder, threading.Event()
        self.seen: dict[Path, float] = {}

    def run(self) -> None:
        while not self.is_over.wait(0.002):
            self.look()

    def look(self) -> None:
        """Notes the time of each file that is new."""
        now = time.monotonic()
        for bucket, _, names in os.walk(self.folder):
            for name in names:
                if not name.startswith("."):
                    self.seen.setdefault(Path(bucket, name), now)

    def lines(self) -> tuple[list[float], list[str]]:
        """When each line could be seen, and the lines; call it when the job is over."""
        self.is_over.set()
        self.join()
        self.look()
        pairs = [(seen, line) for path, seen in self.seen.items() for line in path.read_text().splitlines()]
        return [seen for seen, _ in pairs], [line for _, line in pairs]


def environment(stream: streams.Stream, folder: Path) -> StreamExecutionEnvironment:
    """Flink, set up as its docs advise: for Python functions threads, for state this small the heap."""
    # The interpreter inside Java knows nothing of virtual environments, but it reads this.
    os.environ["PYTHONPATH"] = os.pathsep.join([sysconfig.get_path("purelib"), str(FOLDER)])
    configuration = Configuration()
    for name, value in {
        "python.execution-mode": "thread",
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        "execution.checkpointing.interval": f"{int(streams.CHECKPOINT_INTERVAL_S * 1000)} ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": (folder / "checkpoints").as_uri(),
        "execution.checkpointing.savepoint-dir": (folder / "savepoints").as_uri(),
        "execution.buffer-timeout.interval": f"{BUFFER_TIMEOUT_MS[bool(stream.rate)]} ms",
        "state.backend.type": "hashmap",
        "pipeline.object-reuse": "true",
        "pipeline.max-parallelism": str(KEY_GROUPS),
        "restart-strategy.type": "none",
        "rest.bind-port": "0",
    }.items():
        configuration.set_string(name, value)
    made = StreamExecutionEnvironment.get_execution_environment(configuration)
    made.set_parallelism(1)
    return made


def spread_keys(counters: int) -> list[int]:
    """A key for each counter, so that no two share a task: Flink places keys by their hash."""
    java = get_gateway().jvm
    place = java.org.apache.flink.runtime.state.KeyGroupRangeAssignment.assignKeyToParallelOperator
    keys: dict[int, int] = {}
    key = 0
    while len(keys) < counters:
        row = java.org.apache.flink.types.Row(1)
        row.setField(0, key)
        keys.setdefault(place(row, KEY_GROUPS, counters), key)
        key += 1
    return [keys[task] for task in range(counters)]


def build(flink: StreamExecutionEnvironment, stream: streams.Stream, folder: Path) -> DataStream:
    """The stream up to the changed counts."""
    last = (stream.records or ENDLESS) - 1
    numbers = flink.from_source(
        NumberSequenceSource(0, last), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    )
    messages = numbers.flat_map(Pace(stream, spread_keys(stream.counters), folder), Types.STRING())
    keyed = messages.key_by(lambda message: int(message.partition(" ")[0]), Types.INT())
    return keyed.process(Count(), Types.STRING()).set_parallelism(stream.counters)


def finish(stream: streams.Stream, job: Any, folder: Path) -> None:
    """Wait for the end of the job; where its input has none, stop it with a savepoint when the time is up."""
    if stream.records is None:
        while not (folder / "started").exists():
            if job.get_job_status().result().name in ("FAILED", "FINISHED", "CANCELED"):
                break
            time.sleep(0.01)
        time.sleep(stream.duration_s)
        # Drained (True), or no function is closed. Python's own method lacks the format that Java asks for since 2.0.
        native = get_gateway().jvm.org.apache.flink.core.execution.SavepointFormatType.NATIVE
        job._j_job_client.stopWithSavepoint(True, (folder / "savepoints").as_uri(), native).get()
    job.get_job_execution_result().result()


def measured(
    stream: streams.Stream, started: float, times: list[float], lines: list[str], effects: bool
) -> dict[str, Any]:
    """The result, from lines and when they were seen."""
    rows, counts = [], {}
    for seen, line in zip(times, lines, strict=True):
        number, counter, *pairs = line.split(" ")
        rows.append((int(number), int(counter), seen - started))
        for word, count in zip(pairs[::2], pairs[1::2], strict=True):
            counts[word] = max(counts.get(word, 0), int(count))
    promised = "precise" if effects else "repeating"
    versions = {"apache-flink": version("apache-flink")}
    return streams.result(stream, rows, counts, streams.Promise(GUARANTEE[effects], promised, versions))


def count_until_seen(flink: StreamExecutionEnvironment, stream: streams.Stream, folder: Path) -> tuple[list, list]:
    """Run the job with a sink that only looks at the clock."""
    seen = build(flink, stream, folder).flat_map(Seen(folder), Types.STRING()).set_parallelism(stream.counters)
    discard = get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink()
    seen.sink_to(Sink(discard)).set_parallelism(stream.counters)
    finish(stream, flink.execute_async("wordcount"), folder)
    parts = [json.loads(path.read_text()) for path in folder.glob("seen-*")]
    return [seen for times, _ in parts for seen in times], [line for _, lines in parts for line in lines]


def count_until_committed(flink: StreamExecutionEnvironment, stream: streams.Stream, folder: Path) -> tuple[list, list]:
    """Run the job with the exactly-once file sink, and watch its folder."""
    output = folder / "output"
    rolling = RollingPolicy.on_checkpoint_rolling_policy()
    sink = FileSink.for_row_format(str(output), Encoder.simple_string_encoder()).with_rolling_policy(rolling).build()
    build(flink, stream, folder).sink_to(sink).set_parallelism(stream.counters)
    watcher = Watcher(output)
    watcher.start()
    finish(stream, flink.execute_async("effects"), folder)
    return watcher.lines()


def run(stream: streams.Stream, effects: bool) -> dict[str, Any]:
    """Count the stream."""
    folder = Path(tempfile.mkdtemp(prefix="pyflink-"))
    try:
        way = count_until_committed if effects else count_until_seen
        times, lines = way(environment(stream, folder), stream, folder)
        started = json.loads((folder / "started").read_text())
        return measured(stream, started, times, lines, effects)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    streams.main(run, has_effects=True)
