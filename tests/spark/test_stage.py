"""Stages: partitions are refs, and one that is lost is computed again, whatever has died meanwhile."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, functions

import lineage_stash as ray
from lineage_stash.on_ray.far_files import session_folder
from lineage_stash.on_spark import SparkOnRay, dataframe_of, processes, spark_session, spark_stage
from lineage_stash.on_spark.plans import judge
from lineage_stash.testing import inject
from tests.spark.listening import TaskCounter

pytestmark = [
    pytest.mark.ray, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300),
    # py4j leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]  # fmt: skip

PATIENCE_S = 120.0
PARTITIONS = 4


@pytest.fixture(scope="module")
def session() -> Iterator[SparkOnRay]:
    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    try:
        with spark_session(timeout_s=200.0) as session:  # the machine may have other work to do
            yield session
    finally:
        ray.shutdown()


@spark_stage
def words(spark: SparkSession, path: str) -> DataFrame:
    """The words of a text, each in the partition of its own."""
    lines = spark.read.text(path)
    split = lines.select(functions.explode(functions.split(functions.lower("value"), r"\W+")).alias("word")).where(
        "word != ''"
    )
    return split.repartition(PARTITIONS, "word")


@spark_stage
def lines(spark: SparkSession, path: str) -> DataFrame:
    """A text as it is: no exchange keeps what Spark has read."""
    return spark.read.text(path).withColumnRenamed("value", "word")


@spark_stage
def draws(spark: SparkSession, upper: int) -> DataFrame:
    """Numbers that are others whenever they are drawn."""
    return spark.range(0, upper, 1, 2).withColumn("draw", functions.rand())


@ray.remote(num_cpus=0)
class WordCounter:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, table: pa.Table) -> int:
        self.counts.update(table.column("word").to_pylist())
        return int(table.num_rows)

    def all(self) -> dict[str, int]:
        return dict(self.counts)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_text("\n".join(f"line {number} of many, {number % 7} again" for number in range(500)))
    return path


def truth(path: Path) -> dict[str, int]:
    return dict(Counter(path.read_text().lower().replace(",", "").split()))


def files_of(name: str) -> list[Path]:
    """The files of the newest stage of this name."""
    folders = sorted(session_folder().glob(f"partitions/*-{name}-*"), key=lambda folder: folder.stat().st_mtime)
    return sorted(folders[-1].iterdir())


def test_partitions_go_to_an_actor_that_is_killed_and_every_word_counts_once(session: SparkOnRay, text: Path) -> None:
    refs = words(session, str(text))
    assert len(refs) == PARTITIONS
    counter = WordCounter.remote()
    added = [counter.add.remote(ref) for ref in refs]
    ray.get(added[0], timeout=PATIENCE_S)
    inject.kill_process(counter)
    assert sum(ray.get(added, timeout=PATIENCE_S)) == sum(truth(text).values())
    assert ray.get(counter.all.remote(), timeout=PATIENCE_S) == truth(text)


def test_lost_partition_is_computed_again_and_no_other_task_runs(session: SparkOnRay, text: Path) -> None:
    refs = words(session, str(text))
    before = [table.to_pydict() for table in ray.get(refs, timeout=PATIENCE_S)]
    lost = files_of("words")[2]
    lost.unlink()
    session.spark.sparkContext._jvm.System.gc()  # after which Spark's cleaner removes what nobody holds
    counter = TaskCounter(session.spark)
    try:
        assert ray.get(WordCounter.remote().add.remote(refs[2]), timeout=PATIENCE_S) == len(before[2]["word"])
        assert counter.settle() == 1
    finally:
        counter.close()
    assert pa.ipc.open_file(str(lost)).read_all().to_pydict() == before[2]


def test_partition_that_is_not_what_it_was_stops_whoever_waits_for_it(session: SparkOnRay, text: Path) -> None:
    refs = lines(session, str(text))
    ray.get(refs, timeout=PATIENCE_S)
    for file in files_of("lines"):
        file.unlink()
    text.write_text(text.read_text().replace("again", "never"))
    with pytest.raises(Exception, match="is not what it was"):
        ray.get([WordCounter.remote().add.remote(ref) for ref in refs], timeout=PATIENCE_S)


def test_what_cannot_be_computed_again_is_kept_by_its_content(session: SparkOnRay) -> None:
    refs = draws(session, 100)
    first = [table.to_pydict() for table in ray.get(refs, timeout=PATIENCE_S)]
    for file in files_of("draws"):
        file.unlink()

    @ray.remote(num_cpus=0)
    def read(table: pa.Table) -> Any:
        return table.to_pydict()

    assert ray.get([read.remote(ref) for ref in refs], timeout=PATIENCE_S) == first


def test_application_that_is_gone_is_started_again_for_what_is_lost(session: SparkOnRay, text: Path) -> None:
    refs = words(session, str(text))
    rows = [table.num_rows for table in ray.get(refs, timeout=PATIENCE_S)]
    session.spark.sparkContext._gateway.proc.kill()
    for file in files_of("words")[:2]:
        file.unlink()
    counter = WordCounter.remote()
    assert ray.get([counter.add.remote(ref) for ref in refs], timeout=PATIENCE_S) == rows
    assert session.spark.range(3).count() == 3


def test_application_that_goes_while_a_stage_is_planned_is_started_again(session: SparkOnRay) -> None:
    """Spark itself would wait for ever: its jobs, also those that a plan needs, have no executor any more."""
    planned: list[SparkSession] = []

    @spark_stage
    def counted(spark: SparkSession) -> DataFrame:
        if not planned:
            (master,) = [each.pid for each in processes.find_processes() if each.part == processes.MASTER]
            os.kill(master, signal.SIGKILL)
            inject.wait_until(lambda: not _executors(), "the executors end with the master")
        planned.append(spark)
        return spark.range(spark.range(7).count())

    tables = ray.get(counted(session), timeout=PATIENCE_S)
    assert sorted(row for table in tables for row in table.column("id").to_pylist()) == list(range(7))
    assert len(set(map(id, planned))) == 2


def _executors() -> list[int]:
    return [process.pid for process in processes.find_processes() if process.part == processes.EXECUTOR]


def test_failure_of_a_stage_is_told_to_whoever_waits(session: SparkOnRay, text: Path) -> None:
    @spark_stage
    def broken(spark: SparkSession, path: str) -> DataFrame:
        fail = functions.udf(lambda word: 1 // len(word[:0]))
        return spark.read.text(path).select(fail("value").alias("nothing"))

    with pytest.raises(Exception, match=r"broken.*has failed[\s\S]*ZeroDivisionError"):
        ray.get(broken(session, str(text)), timeout=PATIENCE_S)


def test_results_of_tasks_come_back_as_a_frame_and_feed_a_stage(session: SparkOnRay) -> None:
    @ray.remote(num_cpus=0)
    def make(lower: int) -> pa.Table:
        names = [None, *[f"n{at}" for at in range(1, 10)]]
        return pa.table({"number": list(range(lower, lower + 10)), "name": names})

    @spark_stage
    def doubled(_spark: SparkSession, numbers: DataFrame) -> DataFrame:
        return numbers.select((functions.col("number") * 2).alias("twice"))

    made = [make.remote(lower) for lower in (0, 10, 20)]
    frame = dataframe_of(session.spark, ray.get(made, timeout=PATIENCE_S))
    assert frame.count() == 30
    assert frame.where("name is null").count() == 3
    assert judge(frame).repeatable
    assert frame.rdd.getNumPartitions() <= session.spark.sparkContext.defaultParallelism
    tables = ray.get(doubled(session, made), timeout=PATIENCE_S)
    assert sorted(row for table in tables for row in table.column("twice").to_pylist()) == list(range(0, 60, 2))


PLANS: dict[str, tuple[Callable[[SparkSession], DataFrame], bool]] = {
    "scan": (lambda spark: spark.range(10), True),
    "filter": (lambda spark: spark.range(10).where("id > 3"), True),
    "hash exchange and sort": (lambda spark: spark.range(10).repartition(2, "id").sortWithinPartitions("id"), True),
    "hash exchange": (lambda spark: spark.range(10).repartition(2, "id"), True),
    "count by key": (lambda spark: spark.range(10).groupBy("id").count(), True),
    "join": (lambda spark: spark.range(10).join(spark.range(5), "id"), True),
    "mean by key": (lambda spark: spark.range(10).groupBy("id").avg(), False),
    "random": (lambda spark: spark.range(10).withColumn("draw", functions.rand()), False),
    "clock": (lambda spark: spark.range(10).withColumn("at", functions.current_timestamp()), False),
    "sorted by range": (lambda spark: spark.range(10).selectExpr("id % 3 as rest").orderBy("rest"), False),
    "sorted by some columns": (
        lambda spark: spark.range(10).selectExpr("id", "-id as less").repartition(2, "id").sortWithinPartitions("id"),
        False,
    ),
    "in turn": (lambda spark: spark.range(10).repartition(3), False),
    "limit": (lambda spark: spark.range(10).limit(3), False),
    "map column after exchange": (
        lambda spark: spark.range(4).select("id", functions.create_map("id", "id").alias("map")).repartition(2, "id"),
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("plan", PLANS)
def test_plan_is_computed_again_only_where_it_is_sure_to_give_the_same(session: SparkOnRay, plan: str) -> None:
    make, is_repeatable = PLANS[plan]
    verdict = judge(make(session.spark))
    assert verdict.repeatable is is_repeatable
    assert bool(verdict.reason) is not is_repeatable


def test_partitions_outlive_the_session_and_lost_ones_are_computed_in_another(session: SparkOnRay, text: Path) -> None:
    """Runs last: there is no Spark after it."""
    with session:
        refs = words(session, str(text))
    assert not session.is_started
    rows = [table.num_rows for table in ray.get(refs, timeout=PATIENCE_S)]
    assert sum(rows) == sum(truth(text).values())
    files_of("words")[1].unlink()
    assert ray.get(WordCounter.remote().add.remote(refs[1]), timeout=PATIENCE_S) == rows[1]
