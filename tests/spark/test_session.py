"""Sessions: they start on Ray at the first use, say why when they cannot, and leave no process behind."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray as plain_ray

import lineage_stash as ray
from lineage_stash.on_ray import outsiders
from lineage_stash.on_spark import SparkNotStarted, SparkTimedOut, application, processes, spark_session
from lineage_stash.on_spark.settings import parse_memory_mb
from lineage_stash.testing.inject import wait_until

pytestmark = [
    pytest.mark.ray, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300),
    # py4j leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def jobs_alive() -> int:
    """How many Ray jobs there are besides this script's."""
    return sum(not job["IsDead"] for job in plain_ray._private.state.state.job_table()) - 1


def nothing_is_left() -> bool:
    return not processes.find_processes() and not outsiders.actor_names() and jobs_alive() == 0


def test_session_starts_at_its_first_use_and_leaves_no_process_and_no_ray_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with spark_session() as session:
        assert not session.is_started
        assert session.range(10).count() == 10
        assert "UI at http" in capsys.readouterr().err
        assert session.is_alive()
        parts = {process.part for process in processes.find_processes()}
        assert {processes.DRIVER, processes.MASTER, processes.APP_MASTER, processes.EXECUTOR} <= parts
        with spark_session(spark=session.spark) as lent:
            assert lent.range(3).count() == 3
        assert session.is_alive(), "a session that was only lent goes on"
        with pytest.raises(SparkNotStarted, match="pass it on"):
            _ = spark_session().spark
    wait_until(nothing_is_left, "the end of Spark")
    with pytest.raises(SparkNotStarted, match="was stopped"):
        session.range(3)


def test_start_that_takes_too_long_names_what_it_waited_for_and_leaves_nothing() -> None:
    with pytest.raises(SparkTimedOut, match=r"did not start within 0\.5 s: it was waiting for RayDP's master"):
        spark_session(timeout_s=0.5, eager=True)
    wait_until(nothing_is_left, "the end of Spark")


def test_start_whose_java_dies_says_so_and_leaves_nothing() -> None:
    with pytest.raises(SparkNotStarted, match="no_such_agent"):
        spark_session(configs={"spark.driver.extraJavaOptions": "-agentlib:no_such_agent"}, eager=True)
    wait_until(nothing_is_left, "the end of Spark")


def test_more_than_the_cluster_has_is_refused_at_once() -> None:
    with pytest.raises(SparkNotStarted, match=r"100 executors.*Ask for less"):
        spark_session(executors=100, executor_cores=2, eager=True)
    with pytest.raises(ValueError, match="at least 1"):
        spark_session(executors=0, eager=True)


def test_application_whose_master_is_killed_is_not_alive_and_another_one_starts() -> None:
    with spark_session() as session:
        first = session.spark
        (master,) = [each.pid for each in processes.find_processes() if each.part == processes.MASTER]
        os.kill(master, signal.SIGKILL)
        wait_until(lambda: not session.is_alive(), "the death of the master is noticed")
        assert session.restart() is not first
        assert session.range(10).count() == 10
    wait_until(nothing_is_left, "the end of Spark")


def test_script_without_ray_is_told_to_join_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outsiders, "is_connected", lambda: False)
    with pytest.raises(SparkNotStarted, match=r"call lineage_stash\.init\(\) first"):
        spark_session(eager=True)


@pytest.mark.parametrize(
    ("size", "megabytes"), [("1g", 1024), ("512m", 512), ("1 GB", 1024), ("2GiB", 2048), (2**30, 1024)]
)
def test_sizes_are_read_as_spark_writes_them(size: str | int, megabytes: int) -> None:
    assert parse_memory_mb(size) == megabytes


@pytest.mark.parametrize("size", ["much", "", "-1g", "1024"])
def test_what_is_no_size_is_refused(size: str) -> None:
    with pytest.raises(ValueError, match="executor_memory"):
        parse_memory_mb(size)


def test_node_without_java_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outsiders, "java_of_node", lambda: None)
    with pytest.raises(SparkNotStarted, match="started where there was no Java"):
        application.java_path()


def test_java_of_another_version_is_replaced_in_the_workers_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "java-11"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="11.0.2"')
    monkeypatch.setattr(outsiders, "java_of_node", lambda: home / "bin" / "java")
    path = application.java_path()
    assert path is not None
    assert path.endswith("/bin:${PATH}")
