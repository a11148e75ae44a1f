"""Actors whose handles are kept elsewhere end when the last of these goes, and never before, whatever dies meanwhile."""

import os
from typing import Any

import pytest

import lineage_stash as ray
from lineage_stash.testing import inject

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(240)]

PATIENCE_S = 60.0


@ray.remote(num_cpus=0)
class Worker:
    """Somebody to be held, who may hold others."""

    def __init__(self) -> None:
        self.done = 0
        self.kept: Any = None

    def work(self) -> int:
        self.done += 1
        return self.done

    def keep(self, something: Any) -> None:
        self.kept = something

    def pid(self) -> int:
        return int(ray.observe(os.getpid))


@ray.remote(num_cpus=0)
class Keeper:
    """Keeps whatever it is given, also in lists."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def keep(self, something: Any) -> int:
        self.kept.append(something)
        return len(self.kept)

    def drop(self) -> None:
        self.kept.clear()

    def have_done(self) -> int:
        return ray.get(_handle_in(self.kept).work.remote())

    def hand_over(self) -> Any:
        return self.kept[-1]

    def hire(self) -> Any:
        return [Worker.remote()]


@ray.remote(num_cpus=0)
def hire() -> Any:
    return Worker.remote()


def _handle_in(kept: Any) -> Any:
    while isinstance(kept, list | dict | ray.ObjectRef):
        kept = ray.get(kept) if isinstance(kept, ray.ObjectRef) else list(kept.values() if isinstance(kept, dict) else kept)[-1]
    return kept


def has_gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


def get(ref: Any) -> Any:
    return ray.get(ref, timeout=PATIENCE_S)


def wait_for_end(pid: int) -> None:
    inject.wait_until(lambda: has_gone(pid), "the end of an actor that nobody has a handle of", PATIENCE_S)


def test_kept_handle_keeps_its_actor_until_it_is_dropped() -> None:
    keeper, worker = Keeper.remote(), Worker.remote()
    pid = get(worker.pid.remote())
    assert get(keeper.keep.remote([worker])) == 1
    del worker
    assert get(keeper.have_done.remote()) == 1
    get(keeper.drop.remote())
    wait_for_end(pid)
