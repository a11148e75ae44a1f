"""Tasks and refs whose processes are killed: results are the same, and what they did is done once."""

import os
import signal
import time
from pathlib import Path

import pytest

import lineage_stash as ray
from lineage_stash.testing import inject

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(240)]

PATIENCE_S = 150.0


@ray.remote(num_cpus=0, checkpoint_every=20)
class Total:
    """Adds up, has tasks add for it, and keeps refs."""

    def __init__(self) -> None:
        self.total = 0
        self.kept: list[ray.ObjectRef] = []

    def add(self, number: int) -> int:
        self.total += number
        return self.total

    def read(self) -> int:
        return self.total

    def keep(self, refs: "list[ray.ObjectRef]") -> int:
        self.kept.extend(refs)
        return len(self.kept)

    def open(self) -> list[object]:
        return list(ray.get(self.kept))

    def have_doubled(self, numbers: list[int], seconds: float) -> list[int]:
        return list(ray.get([double.remote(number, seconds) for number in numbers]))

    def count(self, upper: int, seconds: float) -> object:
        for number in range(upper):
            time.sleep(seconds)
            self.total += 1
            yield number


@ray.remote(num_cpus=0)
def double(number: int, seconds: float = 0.0) -> int:
    time.sleep(seconds)
    return 2 * number


@ray.remote(num_cpus=0)
def add_and_die_once(total: "ray.ActorHandle", number: int, mark: str) -> int:
    """Add to an actor, and be killed right after that, the first time."""
    result = int(ray.get(total.add.remote(number)))
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return result


def test_task_killed_after_it_called_an_actor_has_called_it_once(tmp_path: Path) -> None:
    total = Total.remote()
    marks = [str(tmp_path / f"{number}") for number in range(3)]
    results = ray.get([add_and_die_once.remote(total, 1, mark) for mark in marks], timeout=PATIENCE_S)
    assert sorted(results) == [1, 2, 3]
    assert ray.get(total.read.remote(), timeout=PATIENCE_S) == 3


def test_task_that_kills_its_process_every_time_fails_and_says_so() -> None:
    @ray.remote(num_cpus=0, max_retries=1)
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ray.exceptions.WorkerCrashedError, match=r"die\(\) failed: its process died 2 times"):
        ray.get(die.remote(), timeout=PATIENCE_S)
    assert ray.get(double.remote(4), timeout=PATIENCE_S) == 8


def test_actor_killed_while_its_tasks_run_gets_their_results() -> None:
    total = Total.remote()
    ref = total.have_doubled.remote(list(range(6)), 0.3)
    ray.wait([ref], timeout=0.7)
    inject.kill_process(total)
    assert ray.get(ref, timeout=PATIENCE_S) == [0, 2, 4, 6, 8, 10]


def test_refs_in_the_state_of_a_killed_actor_have_their_values_and_refs_in_flight_get_them() -> None:
    total, other = Total.remote(), Total.remote()
    ray.get(total.keep.remote([other.add.remote(5), double.remote(7), ray.put("put")]), timeout=PATIENCE_S)
    ray.get([total.add.remote(0) for _ in range(50)], timeout=PATIENCE_S)
    late = double.remote(8, 1.0)
    ray.get(total.keep.remote([late]), timeout=PATIENCE_S)
    inject.kill_process(total)
    assert ray.get(total.open.remote(), timeout=PATIENCE_S) == [5, 14, "put", 16]
    inject.kill_process(total)
    assert ray.get(total.open.remote(), timeout=PATIENCE_S) == [5, 14, "put", 16]


def test_stream_of_a_killed_actor_goes_on_where_it_was() -> None:
    total = Total.remote()
    items = total.count.remote(8, 0.1)
    seen = [ray.get(next(items), timeout=PATIENCE_S) for _ in range(3)]
    inject.kill_process(total)
    seen += [ray.get(ref, timeout=PATIENCE_S) for ref in items]
    assert seen == list(range(8))
    assert ray.get(total.read.remote(), timeout=PATIENCE_S) == 8


def test_call_that_waits_for_an_argument_is_made_once_though_both_its_sides_are_killed() -> None:
    source, sink = Total.remote(), Total.remote()
    refs = [sink.add.remote(double.remote(source.add.remote(1))) for _ in range(20)]
    inject.kill_process(source)
    inject.kill_process(sink)
    assert ray.get(refs, timeout=PATIENCE_S)[-1] == 2 * sum(range(1, 21))
