"""Redis and the nodes of a Ray cluster as real processes of this machine, which can be killed and started again.

Nothing is left of them: each is started in a session of its own, and whatever is in that session is killed at the end.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path

from lineage_stash.testing.inject import wait_until

START_S = 120.0
"""A busy machine takes half a minute to start a head."""

RAY = str(Path(sys.executable).parent / "ray")

ANOTHER_NAME = "127.0.0.9"
"""Under which nodes know the head. `ray start --head` refuses to start where a node of the same address runs, and here
all nodes are on one machine."""


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Redis:
    """A redis-server with a password, which writes every change to its disk before it answers."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.password = secrets.token_hex(8)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it on its folder unless it runs, and wait until it answers."""
        if self._process is not None:
            return
        command = [
            "redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder),
            "--requirepass", self.password, "--save", "", "--appendonly", "yes", "--appendfsync", "always",
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers, "redis-server answers", START_S)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                return bool(connection.recv(64))
        except OSError:
            return False

    def kill(self) -> None:
        """`kill -9` it; what it has answered is on its disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Node:
    """A node of a Ray cluster, as `ray start` makes it."""

    def __init__(self, folder: Path, options: list[str], redis: Redis | None = None) -> None:
        self.folder = folder
        self._options = options
        self._redis = redis
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start it, and wait until Ray says that it runs."""
        command = [
            RAY, "start", *self._options, "--num-cpus=2", "--disable-usage-stats", "--dashboard-agent-listen-port=0",
            "--min-worker-port=0", "--max-worker-port=0",
        ]  # fmt: skip
        environment = dict(os.environ)
        if self._redis is not None:
            environment["RAY_REDIS_ADDRESS"] = f"127.0.0.1:{self._redis.port}"
            command.append(f"--redis-password={self._redis.password}")
        said = self.folder / "said"
        with said.open("ab") as output:
            starter = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
        self._started.append(starter)
        assert starter.wait(START_S) == 0, said.read_text(encoding="utf-8")

    def processes(self) -> list[int]:
        """Every process of it that runs."""
        sessions = [process.pid for process in self._started]
        return [pid for pid in all_processes() if is_running(pid) and session_of(pid) in sessions]

    def kill(self) -> None:
        """`kill -9` all of it, as when the machine has lost its power."""
        while left := self.processes():
            for pid in left:
                kill_if_running(pid)
        for process in self._started:
            process.wait()


class Head(Node):
    """The head, with the GCS. Nobody starts a GCS again that `ray start` has started: that is for a test to do."""

    def __init__(self, folder: Path, redis: Redis) -> None:
        self.port = free_port()
        self.address = f"{ANOTHER_NAME}:{self.port}"
        options = [
            "--head", f"--port={self.port}", f"--temp-dir={folder}/ray", "--include-dashboard=false",
            f"--dashboard-port={free_port()}", f"--ray-client-server-port={free_port()}",
        ]  # fmt: skip
        super().__init__(folder, options, redis)
        self._command: list[bytes] = []
        self._environment: dict[bytes, bytes] = {}

    def start(self) -> None:
        """Start it, and note how Ray has started the GCS."""
        super().start()
        pid = self.gcs()
        assert pid is not None, "the head has no GCS"
        self._command = command_of(pid)
        variables = Path(f"/proc/{pid}/environ").read_bytes().rstrip(b"\0").split(b"\0")
        self._environment = dict(variable.split(b"=", 1) for variable in variables)

    def gcs(self) -> int | None:
        """The process of the GCS, if it runs."""
        return next((pid for pid in self.processes() if command_of(pid)[0].endswith(b"/gcs_server")), None)

    def kill_gcs(self) -> None:
        """`kill -9` the GCS, and wait until it is gone."""
        pid = self.gcs()
        assert pid is not None, "there is no GCS to kill"
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_running(pid), "the GCS is gone")

    def start_gcs(self) -> None:
        """Start the GCS again exactly as Ray had started it, unless it runs."""
        if self.gcs() is not None:
            return
        again = subprocess.Popen(
            self._command, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        self._started.append(again)


def all_processes() -> list[int]:
    """All processes of this machine."""
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdecimal()]


def session_of(pid: int) -> int | None:
    """The session that a process is in, unless it has ended."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def command_of(pid: int) -> list[bytes]:
    """The command line of a process; one empty word if it has none or has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1] or [b""]
    except (FileNotFoundError, ProcessLookupError):
        return [b""]


def is_running(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has waited for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill_if_running(pid: int) -> None:
    """`kill -9` a process, unless it has ended meanwhile."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
