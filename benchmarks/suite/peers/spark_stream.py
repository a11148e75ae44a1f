"""The stream on Spark Structured Streaming: the word count of its guide, in micro-batches one after the other.

The input is a folder of text files, the one replayable source that Spark has without another system: a thread adds a
file for what has become due. The counts are an aggregation in the state store, checkpointed with each micro-batch, and
the sink is handed those that changed. All words of a micro-batch are done together. The sink knows how many words have
been counted, and takes the records as counted in the order of their files; two files that came within one listing of
the folder may be taken for each other, which moves the time of their records by no more than one micro-batch.
"""

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pyspark
import stream as streams
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import explode, split
from pyspark.sql.streaming import StreamingQuery

TICK_S = 0.02
"""How often a file is added."""

FILES_PER_S = 50
"""Without a rate, so many files of a whole pool wait for each second of the run: more than this machine can count."""

FILES_PER_BATCH = 8
"""Without a rate, so many go into a micro-batch, which then takes a second or two."""

GUARANTEE = "state exactly once by checkpoints and a replayable source; output by foreachBatch at least once"

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


class Seen:
    """Keeps the last count of each word, and when the sum of all counts has grown to what."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.sums: list[tuple[float, int]] = [(0.0, 0)]
        self.grown = threading.Condition()

    def take(self, changed: DataFrame, _batch: int) -> None:
        """One micro-batch; taken again after a failure, it changes nothing."""
        counts = dict(changed.collect())
        with self.grown:
            self.counts.update(counts)
            self.sums.append((time.monotonic(), sum(self.counts.values())))
            self.grown.notify_all()

    def rows(self, stream: streams.Stream, started: float) -> list[streams.Row]:
        """When each message was done."""
        return [
            (number, counter, seen - started)
            for (_, lower), (seen, upper) in zip(self.sums, self.sums[1:], strict=False)
            for number in range(lower // stream.words, upper // stream.words)
            for counter, _ in stream.messages(number)
        ]


class Folder:
    """The input."""

    def __init__(self, stream: streams.Stream, path: Path) -> None:
        self.stream, self.path = stream, path
        (path / "input").mkdir()

    def add(self, name: str, records: list[list[str]]) -> None:
        """One file, whole or not at all."""
        partial = self.path / name
        partial.write_text("".join(" ".join(record) + "\n" for record in records))
        partial.rename(self.path / "input" / name)

    def fill(self) -> None:
        """All files at once, each a pool: links, because they are the same."""
        self.add("first.txt", self.stream.pool)
        for number in range(int(FILES_PER_S * self.stream.duration_s)):
            os.link(self.path / "input" / "first.txt", self.path / "input" / f"{number:06}.txt")

    def feed(self, started: float) -> None:
        """A file for what is due, every tick, to the end of the stream."""
        pool, lower = self.stream.pool, 0
        while lower < self.stream.records:
            upper = self.stream.due_by(time.monotonic() - started)
            if upper > lower:
                self.add(f"{lower:09}.txt", [pool[number % len(pool)] for number in range(lower, upper)])
                lower = upper
            time.sleep(max(TICK_S, started + self.stream.due_s(lower) - time.monotonic()))


def session(stream: streams.Stream) -> SparkSession:
    """Spark in this process, with as many partitions of state as there are counters."""
    builder = SparkSession.builder.master("local[*]").appName("wordcount")
    for name, value in (SETTINGS | {"spark.sql.shuffle.partitions": str(stream.counters)}).items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made


def start(spark: SparkSession, stream: streams.Stream, path: Path, seen: Seen) -> StreamingQuery:
    """The query, running."""
    files = spark.readStream.option("cleanSource", "delete" if stream.rate else "off")
    if not stream.rate:
        files = files.option("maxFilesPerTrigger", FILES_PER_BATCH)
    lines = files.text(str(path / "input"))
    counts = lines.select(explode(split(lines.value, " ")).alias("word")).groupBy("word").count()
    sink = counts.writeStream.outputMode("update").option("checkpointLocation", str(path / "checkpoint"))
    return sink.foreachBatch(seen.take).start()


def wait_for(query: StreamingQuery, seen: Seen, words: int) -> None:
    """Until so many words have been counted; raises what ends the query."""
    with seen.grown:
        while seen.sums[-1][1] < words:
            if not query.isActive:
                raise query.exception() or RuntimeError("the query ended before its input")
            seen.grown.wait(0.1)


def count_at_rate(spark: SparkSession, stream: streams.Stream, path: Path, seen: Seen) -> float:
    """Count the stream as it becomes due; when it started."""
    folder = Folder(stream, path)
    query = start(spark, stream, path, seen)
    while query.isActive and query.status["message"] != "Waiting for data to arrive":
        time.sleep(0.01)
    started = time.monotonic()
    threading.Thread(target=folder.feed, args=[started], daemon=True).start()
    wait_for(query, seen, stream.records * stream.words)
    query.stop()
    return started


def count_all(spark: SparkSession, stream: streams.Stream, path: Path, seen: Seen) -> float:
    """Count what is there until the time is up; when it started."""
    Folder(stream, path).fill()
    started = time.monotonic()
    query = start(spark, stream, path, seen)
    if query.awaitTermination(stream.duration_s):
        raise query.exception() or RuntimeError("the query ended before its input")
    query.stop()
    return started


def run(stream: streams.Stream, _effects: bool) -> dict[str, Any]:
    """Count the stream."""
    assert stream.pool_messages  # made before the clock starts
    seen = Seen()
    spark = session(stream)
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            way = count_at_rate if stream.rate else count_all
            started = way(spark, stream, Path(folder), seen)
    finally:
        spark.stop()
    promise = streams.Promise(GUARANTEE, "repeating", {"pyspark": pyspark.__version__})
    return streams.result(stream, seen.rows(stream, started), seen.counts, promise)


if __name__ == "__main__":
    streams.main(run)
