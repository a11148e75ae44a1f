"""Actors that an actor has created end when it drops their handles, and never before, also when it was killed."""

import os

import pytest

import lineage_stash as ray
from lineage_stash.testing import inject
from tests.ray.checkpoints import wait_for_checkpoint

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(240)]

PATIENCE_S = 60.0


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self) -> None:
        self.done = 0

    def work(self) -> int:
        self.done += 1
        return self.done

    def pid(self) -> int:
        return int(ray.observe(os.getpid))


@ray.remote(num_cpus=0, checkpoint_every=1)
class Supervisor:
    """Has the same worker twice, and is copied after every call."""

    def __init__(self) -> None:
        self.workers: list[ray.ActorHandle] = []

    def hire(self) -> int:
        worker = Worker.remote()
        self.workers += [worker, worker]
        return ray.get(worker.pid.remote())

    def dismiss(self) -> int:
        self.workers.pop()
        return len(self.workers)

    def work(self) -> int:
        return ray.get(self.workers[-1].work.remote())


@ray.remote(num_cpus=0, checkpoint_every=1_000_000)
class Forgetful:
    """Is never copied, so that it repeats all that it has done."""

    def __init__(self) -> None:
        self.total = 0

    def have_done(self, times: int) -> int:
        worker = Worker.remote()
        self.total += ray.get([worker.work.remote() for _ in range(times)])[-1]
        return self.total


def has_gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


def test_handles_in_a_checkpoint_keep_their_actor_until_the_last_of_them_is_dropped() -> None:
    supervisor = Supervisor.remote()
    pid = ray.get(supervisor.hire.remote(), timeout=PATIENCE_S)
    assert ray.get(supervisor.work.remote(), timeout=PATIENCE_S) == 1
    wait_for_checkpoint(supervisor, 3)
    inject.kill_process(supervisor)
    assert ray.get(supervisor.work.remote(), timeout=PATIENCE_S) == 2
    assert ray.get(supervisor.dismiss.remote(), timeout=PATIENCE_S) == 1
    assert ray.get(supervisor.work.remote(), timeout=PATIENCE_S) == 3
    assert not has_gone(pid)
    assert ray.get(supervisor.dismiss.remote(), timeout=PATIENCE_S) == 0
    inject.wait_until(lambda: has_gone(pid), "the end of the worker", PATIENCE_S)


def test_replay_of_calls_to_actors_that_have_ended_since_gives_the_same() -> None:
    forgetful = Forgetful.remote()
    totals = [ray.get(forgetful.have_done.remote(times), timeout=PATIENCE_S) for times in (1, 2, 3)]
    assert totals == [1, 3, 6]
    workers = [pid for address, pid in inject.processes_of_this_script().items() if "Worker" in address]
    inject.wait_until(lambda: all(map(has_gone, workers)), "the end of the workers", PATIENCE_S)
    inject.kill_process(forgetful)
    assert ray.get(forgetful.have_done.remote(4), timeout=PATIENCE_S) == 10
