"""Calls that are cancelled fail for good, and the same in every replay; whatever is finished stays as it is."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray as plain_ray
from ray.exceptions import TaskCancelledError

import lineage_stash as ray
from lineage_stash.on_ray.host import Life
from lineage_stash.on_ray.present import current
from lineage_stash.testing import inject

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(120)]

PATIENCE_S = 60.0


@ray.remote(num_cpus=0)
def linger(folder: str, *_: Any) -> str:
    """Run until the test is over."""
    note = Path(folder, f"{os.getpid()}")
    note.touch()
    while not Path(folder, "stop").exists():
        time.sleep(0.01)
    return "was not stopped"


@ray.remote(num_cpus=0)
def linger_below(folder: str) -> Any:
    return ray.get(linger.remote(folder), timeout=PATIENCE_S)


@ray.remote(num_cpus=3)
def never_placed() -> int:
    return 1


@ray.remote(num_cpus=0)
def double(number: int) -> int:
    return 2 * number


@ray.remote(num_cpus=0)
class Teller:
    """Counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def ask(self, number: int) -> list[int]:
        self.asked.append(number)
        return self.asked

    def block(self, folder: str) -> str:
        """Run until a request to cancel something has come."""
        life = current()
        assert isinstance(life, Life)
        Path(folder, "blocked").touch()
        while not life.cancelled and not life.peer.program.repeats and not Path(folder, "stop").exists():
            time.sleep(0.01)
        return "went"

    def pid(self) -> int:
        return os.getpid()


@ray.remote(num_cpus=0)
class Canceller:
    """Cancels what it has begun."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def cancel_all(self, folder: str) -> list[Any]:
        refs = [never_placed.remote(), linger.remote(folder), double.remote(4)]
        inject.wait_until(lambda: bool(ray.observe(os.listdir, folder)), "a task that runs")
        self.seen.append(ray.get(refs[2], timeout=PATIENCE_S))
        for ref in refs:
            ray.cancel(ref)
        for ref in refs[:2]:
            try:
                self.seen.append(ray.get(ref, timeout=PATIENCE_S))
            except TaskCancelledError:
                self.seen.append("cancelled")
        return self.seen

    def all_seen(self) -> list[Any]:
        return self.seen


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)
    (tmp_path / "stop").touch()


def pids_in(folder: str) -> list[int]:
    return [int(name) for name in os.listdir(folder) if name.isdigit()]


def wait_for_end_of(pid: int) -> None:
    def has_ended() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    inject.wait_until(has_ended, f"the end of {pid}")


def test_running_task_is_cancelled_with_its_process_and_others_are_not(folder: str) -> None:
    ref = linger.remote(folder)
    inject.wait_until(lambda: bool(pids_in(folder)), "a task that runs")
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        ray.get(ref, timeout=PATIENCE_S)
    wait_for_end_of(pids_in(folder)[0])
    assert ray.get([double.remote(number) for number in range(3)], timeout=PATIENCE_S) == [0, 2, 4]
    with pytest.raises(TaskCancelledError):
        ray.get(ref, timeout=PATIENCE_S)


def test_task_that_waits_for_a_runner_or_for_arguments_is_cancelled(folder: str) -> None:
    running = linger.remote(folder)
    unplaced, waiting = never_placed.remote(), linger.remote(folder, running)
    follower = double.remote(waiting)
    for ref in (unplaced, waiting):
        ray.cancel(ref)
        with pytest.raises(TaskCancelledError):
            ray.get(ref, timeout=PATIENCE_S)
    with pytest.raises(TaskCancelledError):
        ray.get(follower, timeout=PATIENCE_S)
    ray.cancel(running)
    ray.cancel(running)


def test_what_a_cancelled_task_waits_for_is_cancelled_too(folder: str) -> None:
    ref = linger_below.remote(folder)
    inject.wait_until(lambda: bool(pids_in(folder)), "a task that runs")
    ray.cancel(ref, force=True)
    with pytest.raises(TaskCancelledError):
        ray.get(ref, timeout=PATIENCE_S)
    wait_for_end_of(pids_in(folder)[0])


def test_finished_calls_are_left_alone_and_what_is_no_call_is_refused() -> None:
    ref, put = double.remote(3), ray.put(1)
    ray.wait([ref], timeout=PATIENCE_S)
    ray.cancel(ref)
    ray.cancel(put)
    assert ray.get([ref, put], timeout=PATIENCE_S) == [6, 1]
    with pytest.raises(TypeError, match=r"ray.kill\(\)"):
        ray.cancel(Teller.remote())
    with pytest.raises(ValueError, match="force=True"):
        ray.cancel(Teller.remote().ask.remote(1), force=True)
    ray.cancel(plain_ray.put(1))


def test_call_of_an_actor_is_cancelled_before_it_begins_and_is_not_in_a_replay_either(folder: str) -> None:
    teller = Teller.remote()
    first, blocked = teller.ask.remote(1), teller.block.remote(folder)
    second, third = teller.ask.remote(2), teller.ask.remote(3)
    inject.wait_until(lambda: os.path.exists(f"{folder}/blocked"), "a call that runs")
    ray.cancel(blocked)
    ray.cancel(second)
    assert ray.get([first, blocked, third], timeout=PATIENCE_S) == [[1], "went", [1, 3]]
    with pytest.raises(TaskCancelledError):
        ray.get(second, timeout=PATIENCE_S)
    os.kill(ray.get(teller.pid.remote()), signal.SIGKILL)
    assert ray.get(teller.ask.remote(4), timeout=PATIENCE_S) == [1, 3, 4]


def test_actor_that_cancels_sees_the_same_in_a_replay(folder: str) -> None:
    canceller = Canceller.remote()
    assert ray.get(canceller.cancel_all.remote(folder), timeout=PATIENCE_S) == [8, "cancelled", "cancelled"]
    inject.kill_process(canceller)
    assert ray.get(canceller.all_seen.remote(), timeout=PATIENCE_S) == [8, "cancelled", "cancelled"]
    assert len(pids_in(folder)) == 1
