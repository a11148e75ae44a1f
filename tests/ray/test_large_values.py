"""Large values: one memory for all processes of a machine that have them, whoever of them is killed."""

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import lineage_stash as ray
from lineage_stash.testing import inject

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(180)]

PATIENCE_S = 120.0
SIZE = 2_000_000
"""Numbers of eight bytes."""


def memory_of(array: np.ndarray) -> str:
    """In which file in memory an array lies; empty if it is this process's own."""
    address = array.ctypes.data
    for line in Path("/proc/self/maps").read_text(encoding="ascii").splitlines():
        reach, _, _, _, inode, *name = line.split()
        lower, upper = (int(end, 16) for end in reach.split("-"))
        if lower <= address < upper and name and name[0].startswith("/memfd:"):
            return inode
    return ""


@ray.remote(num_cpus=0)
class Holder:
    """Holds an array, and adds up what it was given."""

    def __init__(self) -> None:
        self.total = 0.0
        self.kept: np.ndarray | None = None

    def add(self, array: np.ndarray) -> tuple[float, str]:
        self.total += float(array.sum())
        return self.total, ray.observe(memory_of, array)

    def keep(self, array: np.ndarray) -> int:
        self.kept = array
        return len(array)

    def give(self) -> np.ndarray:
        assert self.kept is not None
        return self.kept

    def hand_to(self, other: "ray.ActorHandle", array: np.ndarray) -> tuple[float, str]:
        return ray.get(other.add.remote(array))

    def pid(self) -> int:
        return ray.observe(os.getpid)


@ray.remote(num_cpus=0)
def doubled(array: np.ndarray) -> np.ndarray:
    return array * 2


def test_a_value_put_once_is_one_memory_in_all_actors_that_get_it() -> None:
    array = np.arange(SIZE, dtype=np.float64)
    ref = ray.put(array)
    holders = [Holder.remote() for _ in range(3)]
    said = ray.get([holder.add.remote(ref) for holder in holders], timeout=PATIENCE_S)
    assert [total for total, _ in said] == [array.sum()] * 3
    memories = {memory for _, memory in said}
    assert len(memories) == 1
    assert "" not in memories
    assert memory_of(ray.get(ref)) in memories


def test_values_are_read_only_and_aligned_as_those_of_ray_are() -> None:
    back = ray.get(doubled.remote(np.arange(SIZE)), timeout=PATIENCE_S)
    assert not back.flags.writeable
    assert back.flags.aligned
    assert np.array_equal(back, np.arange(SIZE) * 2)


def test_an_actor_that_is_killed_has_its_large_arguments_again() -> None:
    holder, other = Holder.remote(), Holder.remote()
    array = np.ones(SIZE)
    ref = ray.put(array)
    before = ray.get(
        [holder.add.remote(ref), holder.keep.remote(ref), holder.add.remote(array * 2)], timeout=PATIENCE_S
    )
    assert before[2][0] == 3 * SIZE
    result = holder.give.remote()
    handed = other.hand_to.remote(holder, ref)
    assert ray.get(handed, timeout=PATIENCE_S)[0] == 4 * SIZE
    inject.kill_process(holder)
    assert ray.get(holder.add.remote(ref), timeout=PATIENCE_S)[0] == 5 * SIZE
    assert np.array_equal(ray.get(result, timeout=PATIENCE_S), array)
    assert np.array_equal(ray.get(holder.give.remote(), timeout=PATIENCE_S), array)


def test_results_survive_both_who_made_them_and_who_passed_them_on() -> None:
    holder, other = Holder.remote(), Holder.remote()
    made = doubled.remote(np.ones(SIZE))
    ray.get(holder.keep.remote(made), timeout=PATIENCE_S)
    result = other.add.remote(holder.give.remote())
    assert ray.get(result, timeout=PATIENCE_S)[0] == 2 * SIZE
    inject.kill_process(holder)
    inject.kill_process(other)
    again = ray.get(other.add.remote(holder.give.remote()), timeout=PATIENCE_S)
    assert again[0] == 4 * SIZE


def shared_by(pid: int) -> int:
    """How many descriptors of shared memory a process has; some may be closed while this is counted."""
    found = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found += "/memfd:lineage_stash" in os.readlink(descriptor)
    return found


def test_memory_is_given_back_when_nobody_has_the_value() -> None:
    holder = Holder.remote()
    pids = [os.getpid(), ray.get(holder.pid.remote(), timeout=PATIENCE_S)]
    before = [shared_by(pid) for pid in pids]
    for number in range(30):
        assert ray.get(holder.add.remote(np.full(SIZE // 10, number)), timeout=PATIENCE_S)
    inject.wait_until(
        lambda: all(shared_by(pid) <= past + 4 for pid, past in zip(pids, before, strict=True)),
        "the descriptors of values that nobody has were closed",
    )
