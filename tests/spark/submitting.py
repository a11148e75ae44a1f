"""A cluster that is started as the README says, in a copy of the project, and the jobs that are submitted to it.

The lines come from the README. What a test adds to them is in the environment: a home of its own, in which there is no
token yet, and the ports, because other clusters may run on the same machine.
"""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from lineage_stash.testing.inject_nodes import free_port
from lineage_stash.testing.signals import signal_all
from tests.spark.jobs import ROOT, printed_by, wait_for

MARK = "LINEAGE_STASH_TESTED_CLUSTER"
"""The variable by which all processes of a cluster are found, those that have left their parent included."""

BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
STARTS = "ray start"
SUBMITS = "ray job submit"

PORTS = """
ray() {
    if [ "$1" = start ]; then command ray "$@" $STARTED_WITH; else command ray "$@"; fi
}
"""
"""What a test puts before the lines, so that `ray start` takes ports of its own."""

START_S = 200.0
PROJECT = ("README.md", "docs", "lineage_stash", "raydp_jobs", "pyproject.toml", "LICENSE", ".gitignore")


def submission_lines(page: str) -> list[str]:
    """The lines with which a page of the documentation has a cluster started and a job submitted."""
    blocks = [block.splitlines() for block in BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))]
    (found,) = [lines for lines in blocks if any(line.startswith(STARTS) for line in lines)]
    return found


def copy_project(folder: Path) -> Path:
    """The project as a newcomer has it: the files, and the environment in `.venv`."""
    folder.mkdir()
    for name in PROJECT:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "_compiled"))
        else:
            shutil.copy(source, folder / name)
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


class StartedCluster:
    """What the README's lines start, and what its clients need to know."""

    def __init__(self, folder: Path) -> None:
        self.project = copy_project(folder / "project")
        self.environment: dict[str, str] = {}
        self._folder = folder
        self._log = folder / "log"
        # Short, because there are sockets in it, whose paths have at most 107 characters.
        self._session_folder = tempfile.mkdtemp(prefix="ray-")
        self._mark = f"{MARK}={secrets.token_hex(16)}"
        lines = submission_lines("README.md")
        self.submission = next(line for line in lines if line.startswith(SUBMITS))
        self._before = "\n".join(line for line in lines if line != self.submission)

    def start(self) -> None:
        """Run the lines before the submission, and keep what they have put into the environment."""
        found = self._folder / "environment"
        self.bash(f"{PORTS}\n{self._before}\nenv -0 > '{found}'", self._newcomer())
        entries = found.read_text().rstrip("\0").split("\0")
        self.environment = dict(entry.split("=", 1) for entry in entries if not entry.startswith("BASH_FUNC_"))

    def _newcomer(self) -> dict[str, str]:
        """The environment of somebody who has never used Ray."""
        port = free_port()
        ports = {"port": free_port(), "dashboard-port": port, "ray-client-server-port": free_port(),
                 "dashboard-agent-listen-port": free_port(), "num-cpus": 3}  # fmt: skip
        own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        name, _, value = self._mark.partition("=")
        return {
            **own, name: value, "HOME": str(self._folder), "RAY_TMPDIR": self._session_folder,
            "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{port}",
            "STARTED_WITH": " ".join(f"--{option}={number}" for option, number in ports.items()),
            "RAY_USAGE_STATS_ENABLED": "0",
            "PIP_NO_DEPS": "1",  # as docs/spark.md says, for those who submit a wheel
        }  # fmt: skip

    def bash(self, lines: str, environment: dict[str, str], timeout_s: float = START_S) -> str:
        """Run lines as somebody who types them in; what they print. Ends also where they leave processes behind."""
        with self._log.open("w") as log:
            shell = subprocess.Popen(
                ["bash", "-euc", lines], cwd=self.project, env=environment, stdout=log, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        try:
            status = shell.wait(timeout_s)
        except subprocess.TimeoutExpired:
            shell.kill()
            shell.wait()
            raise AssertionError(f"not within {timeout_s:g} s:\n{lines}\n{self._log.read_text()}") from None
        assert status == 0, f"{lines}\n{self._log.read_text()}"
        return self._log.read_text()

    def job(self, *arguments: str) -> "subprocess.Popen[str]":
        """`ray job ...`"""
        command = [str(Path(sys.executable).with_name("ray")), "job", *arguments]
        return subprocess.Popen(command, cwd=self.project, env=self.environment, text=True, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip

    def ask(self, *arguments: str) -> tuple[int, str]:
        """`ray job ...` to its end: the exit status, and what it printed."""
        asked = self.job(*arguments)
        printed = printed_by(asked, f"ray job {arguments[0]}")
        return asked.returncode, printed

    def pids(self) -> list[int]:
        """Its processes, and those of the jobs in it."""
        mark = self._mark.encode()
        return [int(folder.name) for folder in Path("/proc").iterdir()
                if folder.name.isdecimal() and mark in _environment_of(folder)]  # fmt: skip

    def close(self) -> None:
        """End all of it."""

        def has_ended() -> bool:
            signal_all(self.pids(), signal.SIGKILL)
            return not self.pids()

        wait_for(has_ended, "the end of the cluster's processes")
        shutil.rmtree(self._session_folder, ignore_errors=True)


def _environment_of(folder: Path) -> list[bytes]:
    try:
        return (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
