"""What may go wrong with the global-checkpoint system, with real processes on one Ray: each test has its own driver."""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from benchmarks.suite.systems import global_checkpoint_driver
from benchmarks.suite.systems.global_checkpoint import GlobalCheckpoint
from benchmarks.suite.systems.global_checkpoint_driver import NEW_SPARE_S
from benchmarks.suite.systems.global_checkpoint_handles import RestoreFailed
from benchmarks.suite.systems.global_checkpoint_snapshots import IN_PLACE_S
from lineage_stash.on_ray import garbage
from lineage_stash.testing.inject import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow]

WAIT_S = 30.0
CALLS = 300


class Counter:
    """Counts words."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, word: str) -> int:
        self.counts[word] = self.counts.get(word, 0) + 1
        return self.counts[word]

    def pass_on(self, word: str, other: Any) -> int:
        other.add.remote(word)
        return self.add(word)

    def count(self, word: str) -> int:
        return self.counts.get(word, 0)

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


class Stubborn(Counter):
    """One that can be made slow to pickle, or not to be pickled at all."""

    def spoil(self, *, slow: bool = False) -> None:
        self.slow = slow
        self.lock: Any = threading.Lock()

    def mend(self) -> None:
        del self.lock

    def __getstate__(self) -> dict[str, Any]:
        if getattr(self, "slow", False):
            time.sleep(2 * IN_PLACE_S)
        return self.__dict__


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


def test_snapshots_that_fail_end_neither_the_actor_nor_the_checkpoints(start: Start) -> None:
    system = start("interval_s=0.1")
    actor = system.actor(Stubborn, name="one")
    (pid,) = system.get([actor.pid.remote()], WAIT_S)
    for slow in (False, True, True):  # in place, and by a child once it is known to be slow
        system.get([actor.spoil.remote(slow=slow)], WAIT_S)
        wait_until_given_up(system, "lock")
        system.get([actor.mend.remote()], WAIT_S)
        wait_until_complete(system)
    Path(system._folder).rename(f"{system._folder}-away")
    wait_until_given_up(system, "No such file")
    Path(f"{system._folder}-away").rename(system._folder)
    wait_until_complete(system)
    assert system.get([actor.pid.remote()], WAIT_S) == [pid]
    assert system.driver.rollbacks == []


def test_checkpoint_that_takes_too_long_is_given_up_and_the_next_is_complete(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(global_checkpoint_driver, "ATTEMPT_S", 0.3)
    system = start("interval_s=0.1")
    actor = system.actor(Counter, name="one")
    gate = tmp_path / "gate"
    ref = actor.wait_for.remote(gate)
    wait_until_given_up(system, "took longer")
    gate.touch()
    system.get([ref], WAIT_S)
    wait_until_complete(system)


def wait_until_given_up(system: GlobalCheckpoint, why: str) -> None:
    count = len(system.driver.given_up)
    wait_until(lambda: any(why in each for each in system.driver.given_up[count:]), f"given up: {why}", WAIT_S)


def wait_until_complete(system: GlobalCheckpoint) -> None:
    begun = system.driver.begun
    wait_until(lambda: system.driver.completed > begun, "a checkpoint that began now", WAIT_S)


@pytest.mark.parametrize("victims", [("left",), ("both", "right")])
def test_calls_of_two_actors_to_a_third_count_once_whoever_dies(start: Start, victims: tuple[str, ...]) -> None:
    system = start("interval_s=0.1")
    left, right, both = (system.actor(Counter, name=name) for name in ("left", "right", "both"))
    refs = []
    for number in range(CALLS):
        refs += [left.pass_on.remote("word", both), right.pass_on.remote("word", both)]
        if number == CALLS // 2:
            wait_until_complete(system)  # aligned at the third, once its callers are known
            refs += [left.pass_on.remote("word", both), right.pass_on.remote("word", both)]
            kill(*[system.pid_of(name) for name in victims])
    assert system.get(refs, WAIT_S)[-2:] == [CALLS + 1, CALLS + 1]
    assert system.driver.completed > 0
    done = 2 * (CALLS + 1)
    wait_until(lambda: system.get([both.count.remote("word")], WAIT_S)[0] >= done, "the calls to the third", WAIT_S)
    assert system.get([both.count.remote("word")], WAIT_S) == [done]
