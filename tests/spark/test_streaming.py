"""Streams into actors: every batch counts once, over restarts of the query, of the actors, and of both."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray as plain_ray
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

import lineage_stash as ray
from lineage_stash.on_spark import SparkOnRay, foreach_batch, spark_session
from lineage_stash.testing import inject
from tests.spark.jobs import ROOT

pytestmark = [
    pytest.mark.ray, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(700),
    # py4j leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]  # fmt: skip

PATIENCE_S = 280.0


class Words:
    """Counts words, and remembers in which batches these came."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.batches: list[int] = []

    def add(self, table: pa.Table, batch_id: int) -> None:
        words = table.column("value").to_pylist()
        if "poison" in words:
            raise ValueError("nobody can count poison")
        self.counts.update(words)
        self.batches.append(batch_id)

    def all(self) -> tuple[dict[str, int], list[int]]:
        return dict(self.counts), self.batches


def deliver(batch: pa.Table, batch_id: int, actors: list[Any]) -> list[Any]:
    return [actor.add.remote(batch, batch_id) for actor in actors]


@pytest.fixture(scope="module")
def session() -> Iterator[SparkOnRay]:
    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    try:
        with spark_session("streams", executor_cores=1, executor_memory="1g", progress=False) as session:
            yield session
    finally:
        ray.shutdown()


class Stream:
    """A folder that files come into, and the queries that read it, one after the other, from one checkpoint."""

    def __init__(self, session: SparkOnRay, folder: Path) -> None:
        self._session = session
        self._folder = folder
        (folder / "incoming").mkdir()
        self._written_at_s = int(time.time()) - 1000
        self.expected: Counter[str] = Counter()
        self.actors = [ray.remote(num_cpus=0)(Words).remote() for _ in range(2)]
        self.feed = foreach_batch(deliver, self.actors, name=folder.name)

    def write(self, *names: str) -> None:
        """Some files, each a batch of its own."""
        for name in names:
            words = [name, "again", "again"]
            unfinished = self._folder / f".{name}"
            unfinished.write_text("\n".join(words))
            self._written_at_s += 1  # Spark takes files in the order of these times
            os.utime(unfinished, (self._written_at_s, self._written_at_s))
            unfinished.rename(self._folder / "incoming" / name)
            self.expected.update(words)

    def start(self, feed: Any = None) -> StreamingQuery:
        """A query that takes all files that are there."""
        read = self._session.readStream.option("maxFilesPerTrigger", 1).text(str(self._folder / "incoming"))
        write = read.writeStream.foreachBatch(feed or self.feed).trigger(availableNow=True)
        return write.option("checkpointLocation", str(self._folder / "checkpoint")).start()

    def finish(self, feed: Any = None) -> None:
        """A query to its end, which is an error if it has failed."""
        assert self.start(feed).awaitTermination(int(PATIENCE_S))

    def counted(self) -> list[tuple[dict[str, int], list[int]]]:
        """What each actor has counted, in which batches."""
        return ray.get([actor.all.remote() for actor in self.actors], timeout=PATIENCE_S)


def test_batch_counts_once_over_restarts_of_query_actors_and_both(session: SparkOnRay, tmp_path: Path) -> None:
    stream = Stream(session, tmp_path)

    def fail_after(lost: int, *victims: Any) -> Any:
        """Deliver, and let Spark believe that one batch was not delivered."""

        def feed(frame: DataFrame, batch_id: int) -> None:
            stream.feed(frame, batch_id)
            if batch_id == lost:
                for victim in victims:
                    inject.kill_process(victim)
                raise ConnectionError("lost on the way back")

        return feed

    stream.write("one", "two", "three")
    with pytest.raises(Exception, match="lost on the way back"):
        stream.finish(fail_after(1))  # the query, which is started again and delivers batch 1 once more
    stream.finish()
    assert stream.counted() == [(dict(stream.expected), [0, 1, 2])] * 2

    inject.kill_process(stream.actors[0])  # the actors, and who feeds them
    inject.kill_process(stream.feed.feeder)
    stream.write("four")
    stream.finish()
    assert stream.counted() == [(dict(stream.expected), [0, 1, 2, 3])] * 2

    stream.write("five", "six")
    with pytest.raises(Exception, match="lost on the way back"):
        stream.finish(fail_after(4, stream.actors[1], stream.feed.feeder))  # both
    stream.finish()
    assert stream.counted() == [(dict(stream.expected), [0, 1, 2, 3, 4, 5])] * 2
    (last,) = ray.get(stream.feed.feeder.delivered.remote(), timeout=PATIENCE_S).values()
    assert last == 5


def test_error_is_the_outcome_of_its_batch_and_stops_every_query_that_comes_to_it(
    session: SparkOnRay, tmp_path: Path
) -> None:
    stream = Stream(session, tmp_path)
    stream.write("good", "poison")
    for _ in range(2):
        with pytest.raises(Exception, match="nobody can count poison"):
            stream.finish()
    assert {tuple(batches) for _, batches in stream.counted()} == {(0,)}


def test_script_that_is_killed_after_a_batch_is_resumed_and_counts_it_once(session: SparkOnRay, tmp_path: Path) -> None:
    Stream(session, tmp_path).write("one", "two", "three")
    environment = {**os.environ, "RAY_ADDRESS": plain_ray.get_runtime_context().gcs_address}

    def run(dies_after: int) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "tests.spark.stream_script", str(tmp_path), str(dies_after)]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
                              timeout=PATIENCE_S)  # fmt: skip

    assert run(1).returncode == -signal.SIGKILL
    again = run(-1)
    assert again.returncode == 0, again.stderr
    assert "resumed the run 'stream'" in again.stderr
    assert again.stdout.splitlines() == ["counted 9 [0, 1, 2]"] * 2
