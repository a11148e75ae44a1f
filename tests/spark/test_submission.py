"""Jobs through Ray's job server, on a cluster of `ray start` that asks for a token: submitted, stopped, and resumed."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lineage_stash.on_spark import processes
from lineage_stash.testing.inject_nodes import free_port, signal_all, with_descendants
from tests.spark.jobs import ROOT, WITHIN_S, counts_in, truth, wait_for, write_texts

pytestmark = [pytest.mark.ray, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(700)]

RAY = str(Path(sys.executable).with_name("ray"))


class StartedCluster:
    """What `ray start --head` starts, and what its clients need to know."""

    def __init__(self, log: Path) -> None:
        port = free_port()
        self._log = log
        self.environment = {
            **os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "RAY_ADDRESS": "",
        }  # fmt: skip
        command = (
            RAY, "start", "--head", "--block", f"--port={free_port()}", f"--dashboard-port={port}", "--num-cpus=3",
            f"--ray-client-server-port={free_port()}", "--disable-usage-stats",
            f"--dashboard-agent-listen-port={free_port()}",
        )  # fmt: skip
        with log.open("w") as printed:
            self.process = subprocess.Popen(command, env=self.environment, stdout=printed, stderr=subprocess.STDOUT)
        self.environment["RAY_ADDRESS"] = f"http://127.0.0.1:{port}"

    def job(self, *arguments: str) -> "subprocess.Popen[str]":
        """`ray job ...`"""
        return subprocess.Popen([RAY, "job", *arguments], cwd=ROOT, env=self.environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip

    def is_up(self) -> bool:
        """Whether jobs can be submitted."""
        assert self.process.poll() is None, self._log.read_text()
        listing = self.job("list")
        listing.communicate(timeout=WITHIN_S)
        return listing.returncode == 0

    def close(self) -> None:
        """End all of it."""
        signal_all(with_descendants([self.process.pid]), signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedCluster]:
    started = StartedCluster(tmp_path_factory.mktemp("cluster") / "log")
    try:
        wait_for(started.is_up, WITHIN_S)
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


def test_submitted_job_is_stopped_with_its_spark_and_resumed_under_its_submission_id(
    cluster: StartedCluster, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    texts = write_texts(tmp_path / "texts")
    entry = ("--", "python", "-m", "raydp_jobs.wordcount", str(texts), "--output", str(output), "--longest-row", "4000",
             "--partitions", "40")  # fmt: skip
    first = cluster.job("submit", "--submission-id", "count-1", "--working-dir", ".", *entry)
    wait_for(lambda: bool(executors_of(output)), WITHIN_S)
    signal_all(executors_of(output), signal.SIGSTOP)  # so that the job is still there when it is told to end
    scripts = pids_of(output)
    stop = cluster.job("stop", "count-1")
    assert "stopped" in stop.communicate(timeout=WITHIN_S)[0]
    first.communicate(timeout=WITHIN_S)
    wait_for(lambda: not any(processes.find_processes(script_pid=pid) for pid in scripts))
    assert not output.exists()

    second = cluster.job("submit", "--submission-id", "count-2", "--working-dir", ".", *entry, "--run-id", "count-1")
    try:
        printed, _ = second.communicate(timeout=WITHIN_S)
    except subprocess.TimeoutExpired:
        second.kill()
        printed, _ = second.communicate()
    assert second.returncode == 0, printed
    assert "resumed the run 'count-1'" in printed
    assert counts_in(output) == truth()
