"""Jobs through Ray's job server, on a cluster that asks for a token: as printed, as a wheel, stopped, and resumed."""

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lineage_stash.on_spark import processes
from lineage_stash.testing.signals import signal_all
from tests.spark.jobs import ROOT, WITHIN_S, counts_in, printed_by, truth, wait_for, write_texts
from tests.spark.submitting import SUBMITS, StartedCluster, submission_lines
from tests.spark.truths import CASES, Case

on_a_cluster = [pytest.mark.ray, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]
"""All waits of a test together are shorter: it fails, and says why, before it is ended."""

WHEEL_S = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedCluster]:
    started = StartedCluster(tmp_path_factory.mktemp("cluster"))
    try:
        started.start()
        yield started
    finally:
        started.close()


def pids_of(output: Path) -> list[int]:
    """The processes whose command line names this output."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"raydp_jobs.wordcount" in words and str(output).encode() in words:
                found.append(int(folder.name))
    return found


def executors_of(output: Path) -> list[int]:
    """The executors of the job that has this output."""
    found = [process for pid in pids_of(output) for process in processes.find_processes(script_pid=pid)]
    return [process.pid for process in found if process.part == processes.EXECUTOR]


def test_both_pages_print_the_same_lines() -> None:
    assert submission_lines("docs/spark.md") == submission_lines("README.md")
    assert submission_lines("README.md")[-1].startswith(SUBMITS)


class TestOnACluster:
    pytestmark = on_a_cluster

    def test_lines_of_the_readme_count_its_words_as_printed(self, cluster: StartedCluster) -> None:
        printed = cluster.bash(cluster.submission, cluster.environment, WITHIN_S)
        assert "succeeded" in printed
        counts = counts_in(cluster.project / "counted")
        assert counts["lineage"] > 0
        assert sum(counts.values()) == json.loads((cluster.project / "counted/summary.json").read_text())["words"]

    @pytest.mark.parametrize("case", CASES[1:], ids=[case.name for case in CASES[1:]])
    def test_every_other_job_is_submitted_in_the_same_way(
        self, case: Case, cluster: StartedCluster, tmp_path: Path
    ) -> None:
        given = case.write(tmp_path / "in")
        words = shlex.join(case.arguments(given, tmp_path / "out"))
        line = f"{SUBMITS} --working-dir . -- python -m raydp_jobs.{case.name} {words}"
        assert "succeeded" in cluster.bash(line, cluster.environment, WITHIN_S)
        case.check(given, tmp_path / "out")

    def test_without_a_token_nobody_submits(self, cluster: StartedCluster) -> None:
        environment = {**cluster.environment, "RAY_AUTH_MODE": "disabled"}
        with pytest.raises(AssertionError, match="Missing authentication token"):
            cluster.bash("ray job list", environment)

    def test_project_as_a_wheel_needs_no_working_directory(self, cluster: StartedCluster, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "."]
        subprocess.run([*command, "--wheel-dir", tmp_path], cwd=cluster.project, check=True, timeout=WHEEL_S)
        (wheel,) = tmp_path.glob("*.whl")
        output = tmp_path / "out"
        texts = write_texts(tmp_path / "texts", lines=100)
        job = f"python -m raydp_jobs.wordcount {texts} --output {output} --longest-row 4000 --partitions 2"
        where = 'python -c "import raydp_jobs; print(raydp_jobs.__file__)"'
        entry = ("--", "sh", "-c", f"cd / && {where} && {job}")  # out of the folder that the cluster was started in
        status, printed = cluster.ask("submit", "--runtime-env-json", json.dumps({"py_modules": [str(wheel)]}), *entry)
        assert status == 0, printed
        assert "py_modules_files" in printed
        assert str(ROOT / "raydp_jobs") not in printed
        assert counts_in(output) == truth(lines=100)

    def test_stopped_job_ends_with_its_spark_and_is_resumed_under_its_submission_id(
        self, cluster: StartedCluster, tmp_path: Path
    ) -> None:
        output = tmp_path / "out"
        texts = write_texts(tmp_path / "texts")
        entry = ("--", "python", "-m", "raydp_jobs.wordcount", str(texts), "--output", str(output),
                 "--longest-row", "4000", "--partitions", "40")  # fmt: skip
        first = cluster.job("submit", "--submission-id", "count-1", "--working-dir", ".", *entry)
        try:
            wait_for(lambda: bool(executors_of(output)) or first.poll() is not None, "an executor of the job", WITHIN_S)
            signal_all(executors_of(output), signal.SIGSTOP)  # so that the job is still there when it is told to end
            scripts = pids_of(output)
            assert "stopped" in cluster.ask("stop", "count-1")[1]
        finally:
            told = printed_by(first, "the job that was stopped", 60.0)
        wait_for(lambda: not any(processes.find_processes(script_pid=pid) for pid in scripts), "the end of its Spark")
        assert not output.exists(), told

        again = ("submit", "--submission-id", "count-2", "--working-dir", ".", *entry, "--run-id", "count-1")
        status, printed = cluster.ask(*again)
        assert status == 0, printed
        assert "resumed the run 'count-1'" in printed
        assert counts_in(output) == truth()
