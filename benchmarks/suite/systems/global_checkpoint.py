"""global-checkpoint: coordinated snapshots and a rollback of all, after Flink, on the same wire as the stash.

Barriers from the driver every second by default, aligned at actors with several inputs; snapshots on the disk in the
background; when an actor dies, all go back to the last complete checkpoint, in a warm spare process for the dead one,
and the driver sends again. Calls without lineage travel over the same connections, in the same batches, with the same
encoding, as those of the stash, so that a difference between the two is one of the protocols. Processes that are kept,
restores in place and classes that are loaded beforehand make it a lower bound of what a rollback of all takes.

It survives its actors, any number of them at once. The driver, which is the source that replays, and the node are not
survived: calls since the last checkpoint and what the last one is are in the driver's memory.
"""

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import ray

from benchmarks.suite.records import Lineage, Recovery
from benchmarks.suite.systems.base import Guarantee, killable, options_of
from benchmarks.suite.systems.global_checkpoint_driver import Driver
from benchmarks.suite.systems.global_checkpoint_handles import Handle, RestoreFailed, adopt, get
from benchmarks.suite.systems.global_checkpoint_host import Host, Settings
from benchmarks.suite.systems.global_checkpoint_station import TURN_S
from lineage_stash.on_ray import garbage
from lineage_stash.testing.failures import Targets

INTERVAL_S = 1.0
"""Between checkpoints. The suite's other streaming systems have the same."""

COME_UP_S = 60.0

SURVIVED = "of actors that die, not the driver and not the node"
AT_ONCE = Guarantee(
    "repeating",
    "state exactly once; replies leave at once and are repeated after a rollback, where the driver drops them by "
    f"number: the same ones, unless actors are not deterministic or callers race; {SURVIVED}",
)
HELD = Guarantee(
    "precise",
    "state exactly once; replies are held until a complete checkpoint covers them: once; effects act at once and are "
    f"repeated after a rollback, once at a sink that takes each key once; {SURVIVED}",
)


class GlobalCheckpoint:
    """A System."""

    name = "global-checkpoint"
    detections: tuple[type[BaseException], ...] = (RestoreFailed,)

    def __init__(self, variant: str = "") -> None:
        """`interval_s=1` between checkpoints; `output=held` holds replies until one covers them."""
        options = options_of(variant, self.name, ("interval_s", "output"))
        self._interval_s = float(options.get("interval_s", INTERVAL_S))
        self._holds_output = options.get("output", "at-once") == "held"
        self.guarantee = HELD if self._holds_output else AT_ONCE
        self.driver: Driver
        self._hosts: list[Any] = []
        self._started_at = 0.0
        self._folder = ""
        self._settings: Settings

    def start(self, *, store_delay_ms: float = 0.0) -> None:
        """Bring up a Ray of its own, and join it."""
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        self.join(store_delay_ms=store_delay_ms)

    def join(self, *, store_delay_ms: float = 0.0) -> None:
        """Be on the Ray that there is, with a spare."""
        self._started_at = time.monotonic()
        self._folder = tempfile.mkdtemp(prefix="global-checkpoint-")
        secret = secrets.token_bytes(32)
        self.driver = Driver(secret, interval_s=self._interval_s, holds_output=self._holds_output,
                             start_host=self._start_host)  # fmt: skip
        self._host_class = ray.remote(Host).options(num_cpus=0)
        self._settings = Settings(self.driver.station.address, secret, self._folder, store_delay_ms / 1e3)
        adopt(self.driver)
        garbage.look_seldom()
        self._start_host()

    def _start_host(self) -> None:
        """Have another spare."""
        host = self._host_class.remote(self._settings)
        host.run.remote()
        self._hosts.append(host)

    def stop(self) -> None:
        """End all that was started."""
        self.leave()
        ray.shutdown()

    def leave(self) -> None:
        """Be on that Ray no more."""
        self.driver.close()
        adopt(None)
        garbage.look_as_before()
        self._hosts.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def actor(self, kind: type, *arguments: Any, name: str) -> Any:
        """Create an actor, and wait until it is there."""
        self._start_host()  # the actor takes the spare that is there
        member = self.driver.create(name, cloudpickle.dumps(kind), cloudpickle.dumps(arguments))
        deadline = time.monotonic() + COME_UP_S
        while member.failure is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} did not come up within {COME_UP_S:g} s")
            self.driver.station.wait()
        if member.failure:
            raise RuntimeError(f"{name} could not be constructed:\n{member.failure}")
        return Handle(name)

    def get(self, refs: Sequence[Any], timeout_s: float) -> list[Any]:
        """The replies."""
        replies: list[Any] = get(list(refs), timeout_s)
        return replies

    def wait(self, refs: Sequence[Any], timeout_s: float) -> Sequence[Any]:
        """Those that are answered or have failed."""
        deadline = time.monotonic() + timeout_s
        while True:
            ready = [ref for ref in refs if ref.reply is not None or self.driver.lost]
            left_s = deadline - time.monotonic()
            if ready or left_s <= 0:
                return ready
            self.driver.station.wait(min(left_s, TURN_S))

    def effect(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """It acts at once; what is held until a checkpoint covers it are the replies, if they are."""
        return function

    def targets(self) -> Targets:
        """The actors."""
        return killable(list(self.driver.members), self.pid_of)

    def pid_of(self, name: str) -> int:
        """The process that an actor lives in now."""
        deadline = time.monotonic() + COME_UP_S
        while time.monotonic() < deadline:
            host = self.driver.members[name].host
            if host is not None:
                return host.pid
            self.driver.station.wait()
        raise TimeoutError(f"{name} has no process")

    def recoveries(self, since: float) -> list[Recovery]:
        """Those since a moment of `time.time()`, with seconds from then."""
        over = [rollback for rollback in self.driver.rollbacks if rollback.noticed_at >= since]
        return [recovery for rollback in over for recovery in rollback.recoveries(since)]

    def losses(self) -> str:
        """The actor that could not go back, if there is one."""
        return self.driver.lost.partition("\n")[0]

    def lineage(self) -> Lineage | None:
        """Snapshots count as what is flushed: no other lineage is written."""
        driver = self.driver
        return Lineage(
            calls=driver.calls, forwarded_entries=0, forwarded_bytes=0, flushed_entries=driver.snapshots,
            flushed_bytes=driver.snapshot_bytes, seconds=time.monotonic() - self._started_at,
        )  # fmt: skip

    def processes(self) -> dict[str, int]:
        """The driver, the actors, and the spare."""
        hosts = {name: member.host.pid for name, member in self.driver.members.items() if member.host is not None}
        spares = {f"spare-{number}": spare.pid for number, spare in enumerate(list(self.driver.spares))}
        return {"driver": os.getpid(), **hosts, **spares}
