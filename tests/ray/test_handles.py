"""Actors whose handles are kept elsewhere end when the last of these goes, and never before, whatever dies."""

import os
import pickle
import signal
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

import lineage_stash as ray
from lineage_stash.testing import inject
from tests.ray.checkpoints import checkpoint_of

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

    def open(self, refs: list[Any]) -> None:
        self.kept.append(ray.get(refs[0]))

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
    """Opens lists and refs until there is a handle."""
    while isinstance(kept, list | ray.ObjectRef):
        kept = kept[-1] if isinstance(kept, list) else ray.get(kept)
    return kept


def has_gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


def get(ref: Any) -> Any:
    return ray.get(ref, timeout=PATIENCE_S)


def wait_for_end(pid: int) -> None:
    inject.wait_until(lambda: has_gone(pid), "the end of an actor that nobody has a handle of", PATIENCE_S)


@pytest.fixture(scope="module")
def sweep(request: pytest.FixtureRequest) -> Callable[[], None]:
    """Waits until somebody who was given away and dropped just now has ended: then everybody was looked at, too."""
    request.getfixturevalue("cluster")
    keeper = Keeper.remote()

    def wait_for_sweep() -> None:
        worker = Worker.remote()
        pid = get(worker.pid.remote())
        get(keeper.keep.remote(worker))
        del worker
        get(keeper.drop.remote())
        wait_for_end(pid)

    return wait_for_sweep


def test_kept_handle_keeps_its_actor_until_it_is_dropped_also_when_its_keeper_was_killed(
    sweep: Callable[[], None],
) -> None:
    keeper, worker = Keeper.remote(), Worker.remote()
    pid = get(worker.pid.remote())
    assert get(keeper.keep.remote([worker])) == 1
    del worker
    sweep()
    assert get(keeper.have_done.remote()) == 1
    inject.kill_process(keeper)
    sweep()
    assert get(keeper.have_done.remote()) == 2
    assert not has_gone(pid)
    get(keeper.drop.remote())
    wait_for_end(pid)


def test_handle_in_a_result_keeps_its_actor_before_and_after_it_is_opened(sweep: Callable[[], None]) -> None:
    keeper = Keeper.remote()
    results = [keeper.hire.remote(), hire.remote()]
    sweep()
    workers = [get(results[0])[0], get(results[1])]
    pids = [get(worker.pid.remote()) for worker in workers]
    del results
    sweep()
    assert [get(worker.work.remote()) for worker in workers] == [1, 1]
    del workers
    for pid in pids:
        wait_for_end(pid)


def test_handle_in_a_value_that_was_put_aside_keeps_its_actor_wherever_the_ref_goes(sweep: Callable[[], None]) -> None:
    keeper, worker = Keeper.remote(), Worker.remote()
    pid = get(worker.pid.remote())
    value = ray.put([worker])
    del worker
    get(keeper.keep.remote([value]))
    del value
    sweep()
    assert get(keeper.have_done.remote()) == 1
    inject.kill_process(keeper)
    assert get(keeper.have_done.remote()) == 2
    get(keeper.drop.remote())
    wait_for_end(pid)


def test_value_that_a_call_has_opened_and_dropped_is_in_no_checkpoint() -> None:
    keeper, worker = Keeper.options(checkpoint_every=1).remote(), Worker.remote()
    pid = get(worker.pid.remote())
    get(keeper.open.remote([ray.put([worker])]))
    del worker

    def is_copied() -> bool:
        found = checkpoint_of(keeper)
        return found is not None and any(calls.finished >= 2 for _, calls in found.calls_from)

    inject.wait_until(is_copied, "a checkpoint after the last call", PATIENCE_S)
    inject.kill_process(keeper)
    assert get(keeper.have_done.remote()) == 1
    get(keeper.drop.remote())
    wait_for_end(pid)


def test_actors_that_nobody_has_but_they_themselves_end(sweep: Callable[[], None]) -> None:
    one, other = Worker.remote(), Worker.remote()
    pids = get([one.pid.remote(), other.pid.remote()])
    get([one.keep.remote(other), other.keep.remote([one])])
    del other
    sweep()
    assert not any(map(has_gone, pids))
    del one
    for pid in pids:
        wait_for_end(pid)


def test_end_of_a_keeper_is_the_end_of_what_it_alone_has_kept() -> None:
    keeper, worker = Keeper.remote(), Worker.remote()
    pid = get(worker.pid.remote())
    get(keeper.keep.remote(worker))
    del worker
    ray.kill(keeper)
    wait_for_end(pid)


def test_handle_that_is_out_of_sight_keeps_its_actor(sweep: Callable[[], None]) -> None:
    keeper, worker = Keeper.remote(), Worker.remote()
    get(keeper.keep.remote(worker))
    hidden = cloudpickle.dumps(worker)
    del worker
    get(keeper.drop.remote())
    sweep()
    assert get(pickle.loads(hidden).work.remote()) == 1


def test_another_coordinator_goes_on_where_the_last_one_died() -> None:
    keeper, worker = Keeper.remote(), Worker.remote()
    pid = get(worker.pid.remote())
    get(keeper.keep.remote(worker))
    del worker
    os.kill(inject.coordinator_pid(), signal.SIGKILL)
    get(keeper.drop.remote())
    wait_for_end(pid)
