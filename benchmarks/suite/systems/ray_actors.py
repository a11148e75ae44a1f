"""plain: Ray's actors as they are; and ray-retry: Ray's actors with restarts, retries and a checkpoint file.

What ray-retry does is what Ray's documentation advises for an actor with state: `max_restarts` and `max_task_retries`
without end, the state in a file after every so many calls, and a constructor that takes it from there.
"""

import functools
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import ray

from benchmarks.suite.records import Lineage, Recovery
from benchmarks.suite.systems.base import Guarantee, killable, options_of, wrapped_methods
from lineage_stash.testing.failures import Targets

COME_UP_S = 120.0
CHECKPOINT_EVERY = 100


class Plain:
    """A System."""

    name = "plain"
    guarantee = Guarantee("gap", "none: the state of an actor that dies is gone, and calls to it fail")
    detections: tuple[type[BaseException], ...] = ()
    options: ClassVar[dict[str, Any]] = {"num_cpus": 0}

    def __init__(self, variant: str = "") -> None:
        options_of(variant, self.name, ())
        self._actors: dict[str, Any] = {}

    def start(self, *, store_delay_ms: float = 0.0) -> None:
        """Bring up a Ray of its own; there is no store that could be late."""
        del store_delay_ms
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)

    def stop(self) -> None:
        """End all that was started."""
        self._actors.clear()
        ray.shutdown()

    def actor(self, kind: type, *arguments: Any, name: str) -> Any:
        """Create an actor, and wait until it is there."""
        handle = ray.remote(self.made(kind, name)).options(**self.options).remote(*arguments)
        self._actors[name] = handle
        ray.get(handle.process_id.remote(), timeout=COME_UP_S)
        return handle

    def made(self, kind: type, name: str) -> type:
        """The class as this system runs it; it can say which process it is in."""
        del name
        return type(kind.__name__, (kind,), {"__module__": __name__, "process_id": process_id})

    def effect(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """It acts at once."""
        return function

    def get(self, refs: Sequence[Any], timeout_s: float) -> list[Any]:
        """The replies."""
        replies: list[Any] = ray.get(list(refs), timeout=timeout_s)
        return replies

    def wait(self, refs: Sequence[Any], timeout_s: float) -> Sequence[Any]:
        """Those that are answered or have failed."""
        ready: list[Any] = ray.wait(list(refs), timeout=timeout_s)[0]
        return ready

    def targets(self) -> Targets:
        """The actors."""
        return killable(list(self._actors), self.pid_of)

    def pid_of(self, name: str) -> int:
        """The process that an actor lives in now."""
        return int(ray.get(self._actors[name].process_id.remote(), timeout=COME_UP_S))

    def recoveries(self, since: float) -> list[Recovery]:
        """Ray keeps no record of them."""
        del since
        return []

    def losses(self) -> str:
        """It reports none."""
        return ""

    def lineage(self) -> Lineage | None:
        """None is written."""
        return None

    def processes(self) -> dict[str, int]:
        """The driver, and the actors that are there."""
        found = {"driver": os.getpid()}
        for name in self._actors:
            try:
                found[name] = self.pid_of(name)
            except ray.exceptions.RayActorError:
                continue
        return found


def process_id(_: Any) -> int:
    """A method of every actor."""
    return os.getpid()


class RayRetry(Plain):
    """A System."""

    name = "ray-retry"
    guarantee = Guarantee(
        "gap", "calls at least once; state from the last checkpoint file, and what was counted since then is lost"
    )
    options: ClassVar[dict[str, Any]] = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}

    def __init__(self, variant: str = "") -> None:
        """`every=100`: after how many calls the state is written."""
        self._every = int(options_of(variant, self.name, ("every",)).get("every", CHECKPOINT_EVERY))
        self._actors = {}
        self._folder = ""

    def start(self, *, store_delay_ms: float = 0.0) -> None:
        """Bring up a Ray of its own, and a folder for the states."""
        self._folder = tempfile.mkdtemp(prefix="ray-retry-")
        super().start(store_delay_ms=store_delay_ms)

    def stop(self) -> None:
        """End all that was started."""
        super().stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def made(self, kind: type, name: str) -> type:
        """The class with a state that is in a file."""
        return super().made(checkpointed(kind, Path(self._folder) / name, self._every), name)


def checkpointed(kind: type, path: Path, every: int) -> type:
    """A class that writes its state after every so many calls, and begins with what it finds."""

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = method(self, *args, **kwargs)
            self.calls_so_far += 1
            if self.calls_so_far % every == 0:
                _write(path, cloudpickle.dumps(vars(self)))
            return result

        return run

    wrapped = wrapped_methods(kind, counted)

    def begin(self: Any, *args: Any) -> None:
        if path.exists():
            vars(self).update(pickle.loads(path.read_bytes()))
        else:
            self.calls_so_far = 0
            kind.__init__(self, *args)  # type: ignore[misc]

    return type(kind.__name__, (wrapped,), {"__module__": __name__, "__init__": begin})


def _write(path: Path, content: bytes) -> None:
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.replace(path)
