"""Failures on purpose: `--kill actor@3` kills the process of an actor when three steps are done, to see it recover.

For demonstrations and tests, on the machine where the processes run. Somebody is killed: one who is not there, because
he has died before, is waited for, and who it was is told. A run that is resumed kills nothing a second time: what was
killed when is in its log.
"""

import contextlib
import os
import signal
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import lineage_stash as ray
from lineage_stash.on_spark import processes
from lineage_stash.testing import inject

DRIVER = "driver"
ACTOR = "actor"
PARTS = {"executor": processes.EXECUTOR, "master": processes.MASTER, "spark": processes.DRIVER}
"""What of Spark can be killed: an executor, RayDP's master, and the driver of the application."""

VICTIMS = (ACTOR, *PARTS, DRIVER)


class Failure(NamedTuple):
    """Whom to kill, and after how many steps."""

    victim: str
    step: int


def parse_failure(text: str) -> Failure:
    """A failure from the command line."""
    victim, _, step = text.partition("@")
    if victim not in VICTIMS or not step.isdecimal():
        raise ArgumentTypeError(f"{text!r} is none of {', '.join(f'{each}@3' for each in VICTIMS)}")
    return Failure(victim, int(step))


class Failures:
    """The failures of one run, each once."""

    def __init__(self, failures: Sequence[Failure], actors: Callable[[], Sequence[Any]]) -> None:
        self._failures = list(failures)
        self._actors = actors

    def after(self, step: int) -> None:
        """Kill whoever is due after this step."""
        due = [failure for failure in self._failures if failure.step == step]
        for failure in due:
            self._failures.remove(failure)
            is_first_time = ray.observe(os.getpid) == os.getpid()
            ray.commit()
            if is_first_time:
                self._kill(failure)

    def _kill(self, failure: Failure) -> None:
        if failure.victim == DRIVER:
            _tell(failure, os.getpid())
            os.kill(os.getpid(), signal.SIGKILL)
        elif failure.victim == ACTOR:
            for actor in self._actors()[:1]:
                _tell(failure, inject.kill_process(actor))
        else:
            _tell(failure, _kill_one_of_spark(PARTS[failure.victim]))


def _kill_one_of_spark(part: str) -> int:
    """Kill a process of Spark's that has this part; its pid."""
    killed: list[int] = []

    def has_died() -> bool:
        there = [process.pid for process in processes.find_processes() if process.part == part]
        with contextlib.suppress(ProcessLookupError):
            for pid in there[:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        return bool(killed)

    inject.wait_until(has_died, f"a process of Spark that is its {part}")
    return killed[0]


def _tell(failure: Failure, pid: int) -> None:
    print(f"kill -9: {failure.victim} {pid}, after step {failure.step}", file=sys.stderr, flush=True)
