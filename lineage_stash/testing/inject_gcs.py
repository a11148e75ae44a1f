"""The GCS of a cluster on this machine, which can be killed and started again exactly as Ray had started it.

Only one with Redis behind it has its facts when it is back. Nobody else starts one again that `ray start` has started.
"""

import subprocess

from lineage_stash.testing import signals

PROGRAM = b"/gcs_server"


class Gcs:
    """The GCS that listens on a port of this machine."""

    def __init__(self, port: int) -> None:
        self._mark = f"--gcs_server_port={port}".encode()
        self._command: list[bytes] = []
        self._environment: dict[bytes, bytes] = {}
        self.started: list[subprocess.Popen[bytes]] = []
        """What was started again, each in a session of its own; it belongs to the cluster, which ends it."""

    def pid(self) -> int | None:
        """Its process, if it runs."""
        for pid in signals.all_processes():
            command = signals.command_of(pid)
            if command[0].endswith(PROGRAM) and self._mark in command and signals.is_running(pid):
                self._note(pid, command)
                return pid
        return None

    def _note(self, pid: int, command: list[bytes]) -> None:
        """How it was started, as long as that can be seen."""
        if not self._command:
            self._command, self._environment = command, signals.environment_of(pid)

    @property
    def has_redis(self) -> bool:
        """Whether its facts outlive it; known once it was seen."""
        return any(word.startswith(b"--redis_address=") for word in self._command)

    def start_again(self) -> None:
        """Start it as Ray had started it, unless it runs."""
        if self.pid() is not None:
            return
        assert self._command, "a GCS that was never seen cannot be started again"
        again = subprocess.Popen(
            self._command, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        self.started.append(again)
