"""The jobs on a cluster that loses a node: Spark's executor and actors go with it, and the output is the truth.

A module of its own, because `test_jobs.py` has joined a cluster in this process, and one at a time can be joined.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lineage_stash.on_spark import processes
from lineage_stash.testing.inject_nodes import LocalNodes, local_nodes
from tests.spark.jobs import started
from tests.spark.truths import CASES, Case

pytestmark = [pytest.mark.ray, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PARTITIONS = 24
"""So many that some are still to come when the first one has arrived, which an actor takes its time for."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalNodes]:
    """A head without CPUs, so that executors are elsewhere, and two nodes, of which each job loses one.

    Ray is told to notice that soon.
    """
    soon = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    with local_nodes(3, num_cpus=0, include_dashboard=False, _system_config=soon) as cluster:
        yield cluster


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_lost_node_takes_the_executor_with_it_and_changes_nothing(
    case: Case, nodes: LocalNodes, tmp_path: Path
) -> None:
    given = case.write(tmp_path / "in")
    arguments = case.arguments(given, tmp_path / "out", "--executor-memory", "1g", partitions=PARTITIONS)
    with started(nodes.address, *arguments, job=case.name) as job:
        job.read_until(f"{case.doing}: 1 of")
        of_spark = processes.find_processes(script_pid=job.process.pid)
        (executor,) = [process.pid for process in of_spark if process.part == processes.EXECUTOR]
        (doomed,) = [node for node in nodes.others if executor in nodes.processes_of(node)]
        nodes.kill(doomed)
        assert job.process.poll() is None, "the job is not over yet"
        nodes.add()
        assert job.end() == 0, job.printed
    case.check(given, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
