"""Remote functions: run once, elsewhere, with whatever arguments Ray's take."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray as plain_ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import lineage_stash as ray
from lineage_stash.on_ray.dispatcher import MOST_COMING
from lineage_stash.on_ray.present import current

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(180)]

PATIENCE_S = 120.0


def wait_until(is_so: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


@ray.remote
def add(*numbers: int, start: int = 0) -> int:
    """Add up."""
    return sum(numbers, start)


@ray.remote
def fail(text: str) -> None:
    raise KeyError(text)


@ray.remote
def tree(depth: int) -> int:
    """Count the leaves of a tree of tasks; each waits for two others."""
    return 1 if depth == 0 else sum(ray.get([tree.remote(depth - 1), tree.remote(depth - 1)]))


@ray.remote
def count(upper: int) -> Iterator[int]:
    yield from range(upper)


@ray.remote(num_returns=2)
def divide(number: int, by: int) -> tuple[int, int]:
    return divmod(number, by)


@ray.remote
def make(value: int) -> "list[ray.ObjectRef]":
    return [add.remote(value, 1)]


@ray.remote(num_cpus=0)
class Total:
    """Adds up what tasks give it."""

    def __init__(self) -> None:
        self.total = 0

    def take(self, number: int) -> int:
        self.total += number
        return self.total

    def have_added(self, numbers: list[int]) -> int:
        self.total += sum(ray.get([add.remote(number, 1) for number in numbers]))
        return self.total

    def take_slowly(self, number: int) -> int:
        time.sleep(1.0)
        return self.take(number)

    def pid(self) -> int:
        return os.getpid()


@ray.remote
def create(number: int) -> "tuple[ray.ActorHandle, int]":
    total = Total.remote()
    return total, int(ray.get(total.take.remote(number)))


@ray.remote
def create_and_drop() -> int:
    return int(ray.get(Total.remote().pid.remote()))


@ray.remote
def create_and_leave() -> "list[ray.ObjectRef]":
    return [Total.remote().take_slowly.remote(3)]


@ray.remote
def give(total: "ray.ActorHandle", number: int) -> int:
    return int(ray.get(total.take.remote(number)))


def test_tasks_run_and_take_results_of_others_without_a_wait() -> None:
    assert ray.get(add.remote(add.remote(1, 2), add.remote(3), start=4), timeout=PATIENCE_S) == 10
    assert ray.get([add.remote(number, 1) for number in range(500)], timeout=PATIENCE_S) == list(range(1, 501))


def test_tree_of_tasks_that_is_deeper_than_there_are_cpus_finishes() -> None:
    assert ray.get(tree.remote(3), timeout=PATIENCE_S) == 8


def test_error_has_the_remote_traceback_and_the_functions_name() -> None:
    with pytest.raises(KeyError, match="on purpose") as raised:
        ray.get(fail.remote("on purpose"), timeout=PATIENCE_S)
    assert isinstance(raised.value, plain_ray.exceptions.RayTaskError)
    assert "in fail" in str(raised.value)
    with pytest.raises(KeyError, match="on purpose"):
        ray.get(add.remote(fail.remote("on purpose")), timeout=PATIENCE_S)


def test_tasks_return_refs_several_values_and_streams() -> None:
    (inner,) = ray.get(make.remote(5), timeout=PATIENCE_S)
    assert ray.get(inner, timeout=PATIENCE_S) == 6
    quotient, rest = divide.remote(17, 5)
    assert ray.get([quotient, rest], timeout=PATIENCE_S) == [3, 2]
    assert [ray.get(ref, timeout=PATIENCE_S) for ref in count.remote(3)] == [0, 1, 2]


def test_tasks_and_actors_call_each_other() -> None:
    total = Total.remote()
    ray.get([give.remote(total, number) for number in range(20)], timeout=PATIENCE_S)
    assert ray.get(total.take.remote(0), timeout=PATIENCE_S) == 190
    assert ray.get(total.have_added.remote([1, 2, 3]), timeout=PATIENCE_S) == 199


def test_actor_outlives_the_task_that_has_created_it_while_somebody_has_its_handle() -> None:
    total, taken = ray.get(create.remote(5), timeout=PATIENCE_S)
    pid = ray.get(create_and_drop.remote(), timeout=PATIENCE_S)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    assert ray.get(total.take.remote(taken), timeout=PATIENCE_S) == 10


def test_ref_that_a_task_has_returned_gets_its_value_after_the_task_and_its_actor_have_ended() -> None:
    (ref,) = ray.get(create_and_leave.remote(), timeout=PATIENCE_S)
    assert ray.get(ref, timeout=PATIENCE_S) == 3


def test_function_may_refer_to_refs_and_handles_and_to_itself() -> None:
    ref, total = ray.put([1, 2]), Total.remote()

    @ray.remote
    def count_down(number: int) -> int:
        if number == 0:
            return int(ray.get(total.take.remote(len(ray.get(ref)))))
        return int(ray.get(count_down.remote(number - 1)))

    @ray.remote
    def call(function: "ray.remote_function.RemoteFunction", number: int) -> int:
        return int(ray.get(function.remote(number)))

    assert ray.get(call.remote(count_down, 1), timeout=PATIENCE_S) == 2


def test_tasks_of_a_task_run_in_the_placement_group_that_captures_them() -> None:
    group = ray.util.placement_group([{"CPU": 2}])
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    try:
        assert ray.get(tree.options(scheduling_strategy=strategy).remote(1), timeout=PATIENCE_S) == 2
    finally:
        ray.util.remove_placement_group(group)


def test_task_whose_placement_group_was_removed_runs_again_and_an_actor_there_is_dead(tmp_path: Path) -> None:
    ran, may_end = tmp_path / "ran", tmp_path / "may_end"

    @ray.remote
    class Resident:
        def pid(self) -> int:
            return int(ray.observe(os.getpid))

    @ray.remote
    def work() -> str:
        ran.touch()
        wait_until(may_end.exists)
        return "done"

    group = ray.util.placement_group([{"CPU": 1}])
    strategy = PlacementGroupSchedulingStrategy(group)
    actor = Resident.options(scheduling_strategy=strategy, num_cpus=0).remote()
    pid = ray.get(actor.pid.remote(), timeout=PATIENCE_S)
    done = work.options(scheduling_strategy=strategy).remote()
    wait_until(ran.exists)
    ran.unlink()
    ray.util.remove_placement_group(group)
    wait_until(ran.exists)
    may_end.touch()
    assert ray.get(done, timeout=PATIENCE_S) == "done"
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    with pytest.raises(ray.exceptions.ActorDiedError, match="its placement group was removed"):
        ray.get(actor.pid.remote(), timeout=PATIENCE_S)


def test_tasks_that_need_no_processor_all_run_at_once_however_they_were_submitted(tmp_path: Path) -> None:
    @ray.remote(num_cpus=0)
    def meet(number: int, of: int) -> None:
        (tmp_path / str(number)).touch()
        wait_until(lambda: len(list(tmp_path.iterdir())) == of, timeout_s=PATIENCE_S)

    number = MOST_COMING + 2
    refs = [meet.remote(0, number)]
    runners = current().dispatcher.runners
    wait_until(lambda: any(not runner.is_up for runner in list(runners.values())))  # one was asked for by now
    refs += [meet.remote(index, number) for index in range(1, number)]
    ray.get(refs, timeout=PATIENCE_S)


def test_wait_takes_the_tasks_that_are_ready(tmp_path: Path) -> None:
    may_end = tmp_path / "may_end"

    @ray.remote(num_cpus=0)
    def wait_for(path: Path | None) -> None:
        wait_until(lambda: path is None or path.exists(), timeout_s=PATIENCE_S)

    slow, quick = wait_for.remote(may_end), wait_for.remote(None)
    assert ray.wait([slow, quick], timeout=PATIENCE_S) == ([quick], [slow])
    may_end.touch()
    assert ray.wait([slow], timeout=PATIENCE_S) == ([slow], [])


def test_function_that_raises_what_it_is_to_be_repeated_for_is_repeated() -> None:
    total = Total.remote()

    @ray.remote(max_retries=3, retry_exceptions=[ValueError])
    def fail_twice() -> int:
        tries = int(ray.get(total.take.remote(1)))
        if tries < 3:
            raise ValueError(tries)
        return tries

    assert ray.get(fail_twice.remote(), timeout=PATIENCE_S) == 3


def test_mistakes_say_what_to_write_instead() -> None:
    with pytest.raises(TypeError, match=r"add\.remote"):
        add(1)
    with pytest.raises(TypeError, match="missing"):
        fail.remote()
    with pytest.raises(ValueError, match="num_cpu"):
        add.options(num_cpu=1)

    async def coroutine() -> None: ...

    with pytest.raises(ValueError, match="async"):
        ray.remote(coroutine)


LEAVES_TASKS_BEHIND = """
import pathlib, sys, time
import lineage_stash as ray

ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
began = pathlib.Path(sys.argv[1])

@ray.remote
def endless():
    began.touch()
    time.sleep(1000)

refs = [endless.remote() for _ in range(3)]
while not began.exists():
    time.sleep(0.01)
print("leaves")
"""


def test_script_leaves_at_once_though_tasks_run_and_wait(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEAVES_TASKS_BEHIND, str(tmp_path / "began")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert "leaves" in ran.stdout.splitlines(), ran.stderr
    assert "goodbye" not in ran.stderr
    assert ran.returncode == 0
