"""Runners: the peers that tasks run in, one task at a time.

A runner belongs to one caller, which gives it a task whenever it has none, so that no task ever waits behind another
that may be waiting for it. It has a log like any actor, and no state: a task is a call of it, applied exactly once. It
is hosted by a task of Ray's, which holds the resources that the user has asked for, or after a recovery by any host.
While a task waits for others, its host gives its resources back, as Ray's tasks do in `get`.
"""

from collections.abc import Callable
from typing import Any

from lineage_stash.capture.here import paused
from lineage_stash.on_ray.functions import load_function, read_function
from lineage_stash.on_ray.program import ActorProgram
from lineage_stash.on_ray.runtime import Runtime


class Stateless:
    """What a runner is instead of an object of the user's."""


class TaskProgram(ActorProgram):
    """Runs functions by their digests."""

    is_of_tasks = True

    expected_pickling_s = 0.0
    """There is no object to copy. A fork would cost the next tasks 6 ms and more, as memory is touched again."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(Stateless, runtime)

    def function(self, method: str) -> Callable[..., Any]:
        """The function with this digest; looking for it is no part of the call."""
        with paused():
            return load_function(self.runtime.process.plane, method)

    def title(self, method: str) -> str:
        """The name of the function."""
        with paused():
            return read_function(self.runtime.process.plane, method).name
