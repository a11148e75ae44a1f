"""A script run as a process of its own, which failures can happen to: killed, it is started again and goes on.

It goes on only if it is one that can be resumed, and joins a cluster that stays when it dies.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from types import TracebackType

from lineage_stash.testing import signals

RUN_ID = "LINEAGE_STASH_RUN_ID"


class DriverProcess:
    """One script under one run id, life after life; the command is what comes after `python`."""

    def __init__(self, command: Sequence[str], *, run_id: str, environment: Mapping[str, str] | None = None) -> None:
        self._command = [sys.executable, *command]
        self._environment = {**os.environ, **(environment or {}), RUN_ID: run_id}
        self._lives: list[subprocess.Popen[str]] = []
        self._lock = threading.Lock()
        self._is_over = False

    def __enter__(self) -> "DriverProcess":
        self.start_again()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        with self._lock:
            self._is_over = True
        for life in self._lives:
            life.kill()
            life.wait()

    def pids(self) -> list[int]:
        """The process of the present life, if it runs."""
        return [self._lives[-1].pid] if self._lives and signals.is_running(self._lives[-1].pid) else []

    @property
    def lives(self) -> int:
        """How many times it was started."""
        return len(self._lives)

    def start_again(self) -> None:
        """The next life, with the same command and run id."""
        with self._lock:
            if not self._is_over:
                self._lives.append(subprocess.Popen(self._command, env=self._environment, text=True))

    def wait(self, timeout_s: float) -> int:
        """Wait until a life ends by itself, and not by a `kill -9`; its exit code."""
        deadline = time.monotonic() + timeout_s
        code = 0
        for number in count():
            signals.wait_until(partial(self._has_begun, number), "the next life", deadline - time.monotonic())
            code = self._lives[number].wait(max(0.0, deadline - time.monotonic()))
            if code != -signal.SIGKILL:
                break
        return code

    def _has_begun(self, number: int) -> bool:
        return self.lives > number
