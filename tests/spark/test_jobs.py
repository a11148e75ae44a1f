"""The jobs: what each makes of its input is the truth, whoever is killed, and appears once.

One cluster and one Spark for the cases in which the script lives; those in which it dies are jobs of their own on it.
"""

import re
import runpy
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import ray as plain_ray

import lineage_stash as ray
from lineage_stash.on_spark import SparkOnRay, processes, spark_session
from lineage_stash.testing.inject_nodes import LocalNodes, local_nodes
from raydp_jobs.job import work_in
from raydp_jobs.output import Output
from tests.spark.jobs import ROOT, run, started
from tests.spark.truths import CASES, PARTITIONS, Case, read, reasons

KILLED = -9
EXAMPLE = ROOT / "docs" / "examples" / "payments.py"

by_job = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
needs_spark = [
    pytest.mark.ray, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600),
    # py4j leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The input of each job."""
    folder = tmp_path_factory.mktemp("inputs")
    return {case.name: case.write(folder / case.name) for case in CASES}


class Here(NamedTuple):
    """Spark in this process, and the cluster that it runs on."""

    session: SparkOnRay
    address: str
    outputs: Path

    def work(self, case: Case, given: Path, name: str, *options: str) -> Path:
        """Do the work of a job; its output."""
        path = self.outputs / f"{case.name}-{name}"
        arguments = case.module.parser().parse_args(
            [str(given), "--output", str(path), "--quiet", "--partitions", PARTITIONS, *case.options, *options]
        )
        output = Output(str(path), name)
        output.begin()
        work_in(self.session, arguments, output, case.work, time.time())
        return path


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        with spark_session("jobs", executor_cores=1, executor_memory="1g", progress=False) as session:
            address = plain_ray.get_runtime_context().gcs_address
            yield Here(session, address, tmp_path_factory.mktemp("outputs"))
    finally:
        ray.shutdown()


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalNodes]:
    """Nodes of which one is lost for each job; Ray is told to notice that soon."""
    soon = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    with local_nodes(3, _system_config=soon) as cluster:
        yield cluster


class TestOnSpark:
    pytestmark = needs_spark

    @by_job
    @pytest.mark.long
    def test_nobody_is_killed_and_the_output_is_the_truth(
        self, case: Case, here: Here, inputs: dict[str, Path]
    ) -> None:
        case.check(inputs[case.name], here.work(case, inputs[case.name], "calm"))

    @by_job
    def test_killed_actor_and_executor_change_nothing(
        self, case: Case, here: Here, inputs: dict[str, Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        kills = ("--kill", "executor@1", "--kill", "actor@2", "--kill", "actor@4")
        output = here.work(case, inputs[case.name], "killed", *kills)
        assert capsys.readouterr().err.count("kill -9: ") == 3
        case.check(inputs[case.name], output)

    def test_job_of_the_page_about_jobs_runs_as_printed(self, here: Here, tmp_path: Path) -> None:
        payments = runpy.run_path(str(EXAMPLE))
        (tmp_path / "payments.csv").write_text("customer,cents\nada,5\nbob,7\nada,-2\nada,much\n")
        (tmp_path / "more.csv").write_text("cents,customer\n1,bob\n")
        parser = payments["make_parser"]("payments", "Adds up payments.")
        case = Case("payments", SimpleNamespace(parser=lambda: parser), payments["add_up"], (), "", Path, print)
        output = here.work(case, tmp_path, "page")
        assert read(output / "totals", "customer").to_dict("list") == {"customer": ["ada", "bob"], "cents": [3, 8]}
        assert reasons(output) == [("payments.csv", "its cents is not a whole number")]

    @by_job
    @pytest.mark.long
    def test_killed_driver_is_started_again_and_does_nothing_twice(
        self, case: Case, here: Here, inputs: dict[str, Path], tmp_path: Path
    ) -> None:
        arguments = (str(inputs[case.name]), "--output", str(tmp_path / "out"), *case.options, "--run-id", case.name,
                     "--partitions", PARTITIONS, "--executor-cores", "1", "--executor-memory", "1g")  # fmt: skip
        status, printed = run(here.address, *arguments, "--kill", "driver@3", job=case.name)
        assert status == KILLED, printed
        assert not (tmp_path / "out").exists()
        status, printed = run(here.address, *arguments, "--kill", "driver@3", job=case.name)
        assert status == 0, printed
        assert f"resumed the run '{case.name}'" in printed
        case.check(inputs[case.name], tmp_path / "out")
        assert [path.name for path in tmp_path.iterdir()] == ["out"]


class TestOnNodes:
    pytestmark = needs_spark

    @by_job
    @pytest.mark.long
    def test_lost_node_takes_executor_and_actors_with_it_and_changes_nothing(
        self, case: Case, nodes: LocalNodes, inputs: dict[str, Path], tmp_path: Path
    ) -> None:
        arguments = (str(inputs[case.name]), "--output", str(tmp_path / "out"), *case.options, "--partitions", "12")
        with started(nodes.address, *arguments, job=case.name) as job:
            job.read_until(f"{case.doing}: 1 of")
            executors = {each.pid for each in processes.find_processes(script_pid=job.process.pid)}
            doomed = [node for node in nodes.others if executors & set(nodes.processes_of(node))]
            nodes.kill(*(doomed[:1] or nodes.others[:1]))
            nodes.add()
            assert job.end() == 0, job.printed
        case.check(inputs[case.name], tmp_path / "out")


def test_page_shows_the_job_that_is_run() -> None:
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8"), re.DOTALL)
    assert shown[0] == EXAMPLE.read_text(encoding="utf-8")
