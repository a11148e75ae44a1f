"""The jobs: what each makes of its input is the truth, whoever is killed, and appears once.

Every job with nobody, an actor, an executor and the driver killed; `test_jobs_on_nodes.py` has the nodes. What takes
time is Spark's start, so there is one cluster and one Spark for the cases in which the script lives; those in which it
dies are jobs of their own on that cluster.
"""

import gc
import re
import runpy
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import ray as plain_ray

import lineage_stash as ray
from lineage_stash.on_spark import SparkOnRay, processes, spark_session
from lineage_stash.testing import inject
from raydp_jobs.job import Job, Summary, work_in
from raydp_jobs.output import Output
from tests.spark.jobs import ROOT, run
from tests.spark.truths import CASES, PARTITIONS, Case, read, reasons

KILLED = -9
KILL = re.compile(r"^kill -9: (\w+) (\d+), after step \d+$", re.MULTILINE)
MANY = 12
"""Partitions, so that an executor is killed with some of them still to come."""
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

    def work(self, case: Case, arguments: list[str]) -> list[Any]:
        """Do the work of a job; the actors that it had."""
        actors: list[Any] = []

        def work(job: Job) -> Summary:
            summary: Summary = case.work(job)
            actors.extend(job.actors)
            return summary

        gc.collect()  # the actors of the job before, which end when nobody knows them any more
        parsed = case.module.parser().parse_args([*arguments, "--quiet"])
        output = Output(parsed.output, "run")
        output.begin()
        work_in(self.session, parsed, output, work, time.time())
        return actors

    def executors(self) -> set[int]:
        """The executors of Spark that there are."""
        return {process.pid for process in processes.find_processes() if process.part == processes.EXECUTOR}


@pytest.fixture(scope="module")
def here() -> Iterator[Here]:
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        with spark_session("jobs", executor_cores=1, executor_memory="1g", progress=False, timeout_s=200.0) as session:
            yield Here(session, plain_ray.get_runtime_context().gcs_address)
    finally:
        ray.shutdown()


def killed_in(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, int]]:
    """Who was killed meanwhile, and the process of each."""
    return [(victim, int(pid)) for victim, pid in KILL.findall(capsys.readouterr().err)]


def check_once(case: Case, given: Path, folder: Path) -> None:
    """The output is the truth, and nothing lies beside it."""
    case.check(given, folder / "out")
    assert [path.name for path in folder.iterdir()] == ["out"]


def times_of(folder: Path) -> dict[Path, int]:
    """When each file in a folder was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


class TestOnSpark:
    pytestmark = needs_spark

    @by_job
    def test_nobody_is_killed_and_the_output_is_the_truth(
        self, case: Case, here: Here, inputs: dict[str, Path], tmp_path: Path
    ) -> None:
        given = inputs[case.name]
        here.work(case, case.arguments(given, tmp_path / "out"))
        check_once(case, given, tmp_path)

    @by_job
    def test_actor_killed_twice_is_recovered_and_changes_nothing(
        self, case: Case, here: Here, inputs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        given = inputs[case.name]
        kills = ("--kill", "actor@2", "--kill", "actor@4")
        actors = here.work(case, case.arguments(given, tmp_path / "out", *kills))
        killed = killed_in(capsys)
        assert [victim for victim, _ in killed] == ["actor", "actor"]
        assert not any(inject.is_running(pid) for _, pid in killed)
        assert [inject.recoveries_of(actor) for actor in actors] == [2, 0]
        check_once(case, given, tmp_path)

    @by_job
    def test_killed_executor_is_replaced_and_changes_nothing(
        self, case: Case, here: Here, inputs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        given = inputs[case.name]
        before = here.executors()
        here.work(case, case.arguments(given, tmp_path / "out", "--kill", "executor@1", partitions=MANY))
        ((victim, pid),) = killed_in(capsys)
        assert victim == "executor"
        assert pid in before
        inject.wait_until(lambda: bool(here.executors()) and pid not in here.executors(), "an executor in its place")
        check_once(case, given, tmp_path)

    @by_job
    def test_killed_driver_is_started_again_and_does_nothing_twice(
        self, case: Case, here: Here, inputs: dict[str, Path], tmp_path: Path
    ) -> None:
        given = inputs[case.name]
        arguments = case.arguments(given, tmp_path / "out", "--run-id", case.name, "--kill", "driver@3",
                                   "--executor-cores", "1", "--executor-memory", "1g")  # fmt: skip
        status, printed = run(here.address, *arguments, job=case.name)
        assert status == KILLED, printed
        assert not (tmp_path / "out").exists()
        status, printed = run(here.address, *arguments, job=case.name)
        assert status == 0, printed
        assert f"resumed the run '{case.name}'" in printed
        check_once(case, given, tmp_path)
        files = times_of(tmp_path)
        status, printed = run(here.address, *arguments, job=case.name)
        assert status == 0, printed
        assert times_of(tmp_path) == files

    def test_killed_master_costs_another_application_and_changes_nothing(
        self, here: Here, inputs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (case,) = [case for case in CASES if case.name == "wordcount"]
        given, first = inputs[case.name], here.session.spark
        here.work(case, case.arguments(given, tmp_path / "out", "--kill", "master@1", partitions=10 * PARTITIONS))
        printed = capsys.readouterr().err
        assert [victim for victim, _ in KILL.findall(printed)] == ["master"]
        assert "starting another one" in printed
        assert here.session.spark is not first
        check_once(case, given, tmp_path)

    def test_job_of_the_page_about_jobs_runs_as_printed(self, here: Here, tmp_path: Path) -> None:
        payments = runpy.run_path(str(EXAMPLE))
        given = tmp_path / "in"
        given.mkdir()
        (given / "payments.csv").write_text("customer,cents\nada,5\nbob,7\nada,-2\nada,much\n")
        (given / "more.csv").write_text("cents,customer\n1,bob\n")
        parser = payments["make_parser"]("payments", "Adds up payments.")
        case = Case("payments", SimpleNamespace(parser=lambda: parser), payments["add_up"], (), "", Path, print)
        output = tmp_path / "out"
        here.work(case, case.arguments(given, output))
        assert read(output / "totals", "customer").to_dict("list") == {"customer": ["ada", "bob"], "cents": [3, 8]}
        assert reasons(output) == [("payments.csv", "its cents is not a whole number")]


def test_page_shows_the_job_that_is_run() -> None:
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8"), re.DOTALL)
    assert shown[0] == EXAMPLE.read_text(encoding="utf-8")
