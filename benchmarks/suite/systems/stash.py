"""stash: this project; and sync-log: the same, where each call's lineage is committed before it runs."""

import functools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import lineage_stash as stash
from benchmarks.suite.records import Lineage, Recovery
from benchmarks.suite.systems.base import Guarantee, options_of, wrapped_methods
from lineage_stash.cli import records, tallies
from lineage_stash.on_ray import tally
from lineage_stash.on_ray.present import current
from lineage_stash.on_ray.recoveries import ORPHANED
from lineage_stash.testing import inject
from lineage_stash.testing.failures import Targets
from lineage_stash.testing.inject_nodes import LocalNodes, local_nodes
from lineage_stash.testing.inject_program import Program

PRECISE = Guarantee("precise", "state exactly once; effects exactly once at a sink that takes each key once")
DETECTED = Guarantee("detected", "with more failures at once than max_failures: no silent loss; it is said")


class Stash:
    """A System."""

    name = "stash"
    detections: tuple[type[BaseException], ...] = (stash.LineageLost,)
    known: Sequence[str] = ("max_failures", "level", "nodes", "counted", "promised")

    def __init__(self, variant: str = "") -> None:
        """`max_failures=2` or `unlimited`, `level=memory`, `disk` or `remote`, `nodes=3`; `counted=1` counts lineage,
        which costs something; `promised=detected` where more is to fail than `max_failures`."""
        options = options_of(variant, self.name, self.known)
        bound = options.get("max_failures", "unlimited")
        self._max_failures = None if bound == "unlimited" else int(bound)
        self._level = options.get("level")
        self._node_count = int(options.get("nodes", 1))
        self._is_counted = "counted" in options
        self.guarantee = DETECTED if options.get("promised") == "detected" else PRECISE
        self._actors: dict[str, Any] = {}
        self._nodes: LocalNodes | None = None
        self._began_at = 0.0
        self._folder = Path()
        self._stack = ExitStack()

    def start(self, *, store_delay_ms: float = 0.0) -> None:
        """Bring up a Ray of its own, or one of several nodes."""
        self._folder = Path(tempfile.mkdtemp(prefix="suite-"))
        self._stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
        if self._is_counted:
            os.environ[tally.VARIABLE] = "1"
        place: dict[str, Any] = {"address": "local", "num_cpus": 2, "include_dashboard": False}
        if self._node_count > 1:
            self._nodes = self._stack.enter_context(local_nodes(self._node_count, include_dashboard=False))
            place = {"address": self._nodes.address, "replicas": 1 if self.guarantee is DETECTED else None}
        archive = (self._folder / "archive").as_uri() if self._level == "remote" else None
        stash.init(**place, log_to_driver=False, durability=self._level, archive=archive,
                   max_failures=self._max_failures)  # fmt: skip
        self._stack.callback(stash.shutdown)
        if store_delay_ms:
            for replica in current().process.registry.present_set().replicas:
                inject.disturb_replica(replica, pause=False, delay_ms=store_delay_ms)
        self._began_at = time.monotonic()
        self._places = cycle(self._nodes.others if self._nodes else [""])

    def stop(self) -> None:
        """End all that was started."""
        self._actors.clear()
        self._stack.close()

    def actor(self, kind: type, *arguments: Any, name: str) -> Any:
        """Create an actor, and wait until it is there."""
        options: dict[str, Any] = {"num_cpus": 0}
        node = next(self._places)
        if node:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
        handle = stash.remote(self.made(kind)).options(**options).remote(*arguments)
        self._actors[name] = handle
        inject.pid_of(handle)
        return handle

    def made(self, kind: type) -> type:
        """The class as this system runs it."""
        return kind

    def effect(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """One that the gate releases."""
        return stash.effect(function)

    def get(self, refs: Sequence[Any], timeout_s: float) -> list[Any]:
        """The replies."""
        replies: list[Any] = stash.get(list(refs), timeout=timeout_s)
        return replies

    def wait(self, refs: Sequence[Any], timeout_s: float) -> Sequence[Any]:
        """Those that are answered or have failed."""
        return stash.wait(list(refs), timeout=timeout_s)[0]

    def targets(self) -> Targets:
        """The whole program."""
        return Program(actors=self._actors, nodes=self._nodes)

    def recoveries(self, since: float) -> list[Recovery]:
        """Those since a moment of `time.time()`, with seconds from then."""
        names = {handle._peer: name for name, handle in self._actors.items()}
        return [
            Recovery(
                second=one["noticed_at"] - since, peer=names.get(one["peer"], one["peer"]), detect_ms=one["detect_ms"],
                gather_ms=one["gather_ms"], settle_ms=one["settle_ms"], replay_ms=one["replay_ms"],
                restore_ms=one["start_ms"] + one["restore_ms"], replayed=one["replayed"],
            )
            for one in self._recovered() if one["noticed_at"] >= since
        ]  # fmt: skip

    def losses(self) -> str:
        """Whoever was rolled back because more had failed than the bound."""
        orphans = [one["peer"] for one in self._recovered() if one["reason"] == ORPHANED]
        return f"{len(orphans)} of {len(self._actors)} actors reported as rolled back" if orphans else ""

    def _recovered(self) -> list[dict[str, Any]]:
        return [json.loads(one) for one in current().process.plane.get_all("recoveries/").values()]

    def lineage(self) -> Lineage | None:
        """What all processes have counted, if they were told to count."""
        if not self._is_counted:
            return None
        runtime = current()
        total = tallies.total_of(tallies.read_tallies(records.read(runtime.process.plane), runtime.process.node))
        return Lineage(
            calls=total.calls, forwarded_entries=total.forwarded_entries, forwarded_bytes=total.forwarded_bytes,
            flushed_entries=total.flushed_entries, flushed_bytes=total.flushed_bytes,
            seconds=time.monotonic() - self._began_at,
        )  # fmt: skip

    def processes(self) -> dict[str, int]:
        """The driver, the actors, the coordinator and the replicas."""
        places = {name: inject.pid_of(handle) for name, handle in self._actors.items()}
        replicas = {f"replica-{replica}": pid for replica, pid in inject.replica_pids().items()}
        return {"driver": os.getpid(), **places, **replicas, "coordinator": inject.coordinator_pid()}


def written_first(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that runs when its call, and all that led to it, is committed."""

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        stash.commit()
        return method(self, *args, **kwargs)

    return run


class SyncLog(Stash):
    """The same actors, each of whose calls waits for the store before it runs."""

    name = "sync-log"
    known = ("level",)

    def made(self, kind: type) -> type:
        """The class with methods that wait first."""
        return wrapped_methods(kind, written_first)
