"""What may go wrong with the global-checkpoint system, with real processes on one Ray: each test has its own driver."""

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from benchmarks.suite.systems.global_checkpoint import GlobalCheckpoint
from benchmarks.suite.systems.global_checkpoint_driver import NEW_SPARE_S
from benchmarks.suite.systems.global_checkpoint_handles import RestoreFailed
from lineage_stash.on_ray import garbage
from lineage_stash.testing.inject import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow]

WAIT_S = 30.0


class Counter:
    """Counts words."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, word: str) -> int:
        self.counts[word] = self.counts.get(word, 0) + 1
        return self.counts[word]

    def wait_for(self, gate: Path) -> None:
        while not gate.exists():
            time.sleep(0.01)

    def pid(self) -> int:
        return os.getpid()

    def garbage(self) -> tuple[tuple[int, int, int], bool]:
        return gc.get_threshold(), gc.get_freeze_count() > 0


class Brittle(Counter):
    """One that cannot be restored while there is a certain file."""

    def __init__(self, flag: Path) -> None:
        super().__init__()
        self.flag = flag

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["flag"].exists():
            raise ValueError("this state is of no use")
        self.__dict__.update(state)


class Mark:
    """Whoever loads it leaves a line in a file that is named by the process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return leave_a_line, (self.folder,)


def leave_a_line(folder: Path) -> str:
    with (folder / str(os.getpid())).open("a") as file:
        file.write("loaded\n")
    return ""


@pytest.fixture(scope="module", autouse=True)
def one_ray() -> Iterator[None]:
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


Start = Callable[[str], GlobalCheckpoint]


@pytest.fixture
def start(one_ray: None) -> Iterator[Start]:  # noqa: ARG001 - it must be there
    started: list[GlobalCheckpoint] = []

    def join(variant: str) -> GlobalCheckpoint:
        started.append(GlobalCheckpoint(variant))
        started[-1].join()
        return started[-1]

    yield join
    for system in started:
        system.leave()  # which may be said twice


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_spare_has_loaded_the_class_before_it_is_needed(start: Start, tmp_path: Path) -> None:
    class Marked(Counter):
        mark = Mark(tmp_path)

    system = start("interval_s=0.2")
    handle = system.actor(Marked, name="one")
    assert system.get([handle.add.remote("word")], WAIT_S) == [1]
    wait_until(lambda: bool(system.driver.spares), "a spare", WAIT_S)
    (spare,) = system.driver.spares
    wait_until(lambda: (tmp_path / str(spare.pid)).exists(), "the class in the spare", WAIT_S)
    kill(system.pid_of("one"))
    assert system.get([handle.add.remote("word"), handle.pid.remote()], WAIT_S) == [2, spare.pid]
    assert (tmp_path / str(spare.pid)).read_text() == "loaded\n"


def test_used_spare_is_replaced_later_by_another_thread(start: Start) -> None:
    system = start("interval_s=0.2")
    handles = [system.actor(Counter, name=name) for name in ("left", "right")]
    wait_until(lambda: bool(system.driver.spares), "a spare", WAIT_S)
    starts = starts_of(system)
    kill(system.pid_of("left"))
    killed_at = time.monotonic()
    assert system.get([handle.add.remote("word") for handle in handles], WAIT_S) == [1, 1]
    wait_until(lambda: bool(starts), "the start of another spare", WAIT_S)
    ((started_at, had_lock),) = starts
    assert started_at - killed_at >= NEW_SPARE_S
    assert not had_lock


def test_two_actors_that_die_together_are_as_before_both_though_there_is_one_spare(start: Start) -> None:
    system = start("interval_s=0.2")
    handles = [system.actor(Counter, name=name) for name in ("left", "right")]
    wait_until(lambda: bool(system.driver.spares), "a spare", WAIT_S)
    assert system.get([handle.add.remote("word") for handle in handles], WAIT_S) == [1, 1]
    starts = starts_of(system)
    killed_at = time.monotonic()
    kill(*[system.pid_of(name) for name in ("left", "right")])
    assert system.get([handle.add.remote("word") for handle in handles], WAIT_S) == [2, 2]
    assert starts[0][0] - killed_at < NEW_SPARE_S, "the second actor waits for a host"
    wait_until(lambda: bool(system.driver.spares), "as many processes as before", WAIT_S)
    assert len(starts) == 2


def starts_of(system: GlobalCheckpoint) -> list[tuple[float, bool]]:
    """When a host is started from now on, and whether whoever starts it holds the driver's lock."""
    starts: list[tuple[float, bool]] = []
    start_host = system.driver._start_host

    def start_noted() -> None:
        starts.append((time.monotonic(), system.driver.station.lock._is_owned()))  # type: ignore[attr-defined]
        start_host()

    system.driver._start_host = start_noted
    return starts


def test_driver_and_hosts_look_for_cycles_as_seldom_as_those_they_are_compared_with(start: Start) -> None:
    before = gc.get_threshold()
    system = start("")
    assert gc.get_threshold() == garbage.SELDOM
    handle = system.actor(Counter, name="one")
    assert system.get([handle.garbage.remote()], WAIT_S) == [(garbage.SELDOM, True)]
    system.leave()
    assert gc.get_threshold() == before


def test_actor_that_cannot_go_back_is_told_and_nothing_is_counted_twice(start: Start, tmp_path: Path) -> None:
    system = start("interval_s=0.2")
    flag = tmp_path / "flag"
    left, right = system.actor(Brittle, flag, name="left"), system.actor(Counter, name="right")
    assert system.get([left.add.remote("word"), right.add.remote("word")], WAIT_S) == [1, 1]
    wait_until(lambda: system.driver.completed > 0, "a checkpoint", WAIT_S)
    flag.touch()
    kill(system.pid_of("right"))
    refs = [left.add.remote("word"), right.add.remote("word")]
    with pytest.raises(RestoreFailed, match="this state is of no use"):
        system.get(refs, WAIT_S)
    assert RestoreFailed in system.detections
    said = "left could not go back to the last complete checkpoint: ValueError: this state is of no use"
    assert system.losses() == said
    late = right.add.remote("word")
    assert system.wait([late], WAIT_S) == [late]
    with pytest.raises(RestoreFailed):
        system.get([late], WAIT_S)


def test_actor_that_comes_up_in_a_replay_works_and_nothing_is_sent_twice(start: Start, tmp_path: Path) -> None:
    system = start("interval_s=3600")
    gate = tmp_path / "gate"
    gate.touch()
    left, right = (system.actor(Counter, name=name) for name in ("left", "right"))
    system.get([left.add.remote("word"), left.wait_for.remote(gate), right.add.remote("word")], WAIT_S)
    gate.unlink()
    kill(system.pid_of("right"))
    assert system.get([right.add.remote("word")], WAIT_S) == [2]
    late = system.actor(Counter, name="late")
    assert system.get([late.add.remote("word")], WAIT_S) == [1]
    assert system.driver.rollbacks == [], "left is still behind"
    gate.touch()
    assert system.get([each.add.remote("word") for each in (left, right, late)], WAIT_S) == [2, 3, 2]
    assert len(system.driver.rollbacks) == 1
