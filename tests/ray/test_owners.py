"""Constructor arguments outlive whoever made them: an actor is recovered although the owner of its arguments is gone.

In Ray an actor cannot be started again when the owner of an object that its constructor was given has died
(ray-project/ray#47043).
"""

import os
import signal

import numpy as np
import pytest
import ray as plain_ray

import lineage_stash as ray
from lineage_stash.testing import inject

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(240)]

PATIENCE_S = 120.0
SIZE = 50_000
WHOLE = [SIZE * (SIZE - 1) // 2, 42, "nested", 42]


@ray.remote(num_cpus=0)
class Helper:
    """Makes the result that is an argument."""

    def double(self, number: int) -> int:
        return 2 * number


@ray.remote(num_cpus=0, max_crashes=10)
class Child:
    """Its state is what its constructor was given."""

    def __init__(self, array: "np.ndarray", result: int, nested: "list[ray.ObjectRef]") -> None:
        self.seen = [int(array.sum()), result]
        self.nested = nested
        self.calls = 0

    def look(self) -> list[object]:
        return [*self.seen, *ray.get(self.nested)]

    def count(self) -> int:
        self.calls += 1
        return self.calls


def create(helper: "ray.ActorHandle", **options: object) -> "ray.ActorHandle":
    array, result = ray.put(np.arange(SIZE)), helper.double.remote(21)
    return Child.options(**options).remote(array, result, [ray.put("nested"), helper.double.remote(21)])


@ray.remote(num_cpus=0)
class Creator:
    """Owns the arguments of the actors that it creates."""

    def __init__(self) -> None:
        self.helper = Helper.remote()

    def make(self, **options: object) -> "ray.ActorHandle":
        return create(self.helper, **options)


@ray.remote(num_cpus=0)
def make(helper: "ray.ActorHandle", **options: object) -> "ray.ActorHandle":
    return create(helper, **options)


def kill_and_wait(child: "ray.ActorHandle") -> None:
    before = inject.recoveries_of(child)
    inject.kill_process(child)
    inject.wait_until(lambda: inject.recoveries_of(child) > before, "a recovery")


def test_creator_and_created_killed_together_come_back_with_the_arguments() -> None:
    creator = Creator.remote()
    child = ray.get(creator.make.remote(), timeout=PATIENCE_S)
    assert ray.get([child.count.remote() for _ in range(3)], timeout=PATIENCE_S) == [1, 2, 3]
    pids = inject.pid_of(creator), inject.pid_of(child)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert ray.get(child.look.remote(), timeout=PATIENCE_S) == WHOLE
    assert ray.get(child.count.remote(), timeout=PATIENCE_S) == 4
    kill_and_wait(child)
    assert ray.get(child.look.remote(), timeout=PATIENCE_S) == WHOLE


def test_actor_whose_creator_is_killed_for_good_is_recovered_with_its_arguments() -> None:
    creator = Creator.remote()
    child = ray.get(creator.make.remote(lifetime="detached", name="left alone"), timeout=PATIENCE_S)
    assert ray.get(child.count.remote(), timeout=PATIENCE_S) == 1
    ray.kill(creator)
    with pytest.raises(plain_ray.exceptions.RayActorError):
        ray.get(creator.make.remote(), timeout=PATIENCE_S)
    for life in range(2):
        kill_and_wait(child)
        assert ray.get(child.look.remote(), timeout=PATIENCE_S) == WHOLE
        assert ray.get(child.count.remote(), timeout=PATIENCE_S) == 2 + life
    ray.kill(child)


def test_actor_that_a_finished_task_created_is_recovered_with_its_arguments() -> None:
    helper = Helper.remote()
    child = ray.get(make.remote(helper), timeout=PATIENCE_S)
    assert ray.get(child.count.remote(), timeout=PATIENCE_S) == 1
    kill_and_wait(child)
    assert ray.get(child.look.remote(), timeout=PATIENCE_S) == WHOLE
    assert ray.get(child.count.remote(), timeout=PATIENCE_S) == 2
