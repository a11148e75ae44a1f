"""Calls of plain Ray from recovered actors and tasks are made once where the log has them, and answered by the log."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import ray as plain_ray
from ray import get as early_get

import lineage_stash as ray
from lineage_stash.testing import inject
from tests.ray.checkpoints import wait_for_checkpoint

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(120)]

PATIENCE_S = 60.0


@plain_ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
class Ledger:
    """A plain actor that remembers every call."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.open = True

    def note(self, what: Any) -> int:
        self.calls.append(what)
        return len(self.calls)

    def fail(self) -> None:
        self.calls.append("fail")
        raise KeyError("no such page")

    def open(self, refs: list[Any]) -> Any:
        return plain_ray.get(refs[0])

    def nested(self) -> list[Any]:
        return [plain_ray.put("inner")]

    def noted(self) -> list[Any]:
        return self.calls


@plain_ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
def double(ledger: Any, number: int) -> int:
    plain_ray.get(ledger.note.remote(f"double {number}"))
    return 2 * number


@plain_ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
def count_up(to: int) -> Iterator[int]:
    yield from range(to)


async def await_one(ref: Any) -> Any:
    return await ref


@ray.remote(num_cpus=0)
class Caller:
    """A recovered actor that calls plain Ray, and remembers what it was told."""

    def __init__(self, ledger: Any) -> None:
        self.ledger = ledger
        self.told: list[Any] = []
        self.kept: Any = None

    def pid(self) -> int:
        return os.getpid()

    def call_all(self) -> list[Any]:
        ledger = self.ledger
        self.told.append(plain_ray.get(ledger.note.remote("by real ray")))
        self.told.append(ray.get(ledger.note.remote("by ours"), timeout=PATIENCE_S))
        self.told.append(early_get(ledger.note.options(name="named").remote("by an early name")))
        self.told.append(plain_ray.get([double.remote(ledger, 1), double.options(num_cpus=0).remote(ledger, 2)]))
        refs = [ledger.note.remote("waited"), ledger.note.remote("for")]
        ready, rest = ray.wait(refs, num_returns=2, timeout=PATIENCE_S)
        self.told.append((ready == refs, rest))
        self.told.append(plain_ray.get(plain_ray.get(ledger.nested.remote())[0]))
        self.told.append(plain_ray.get(double.remote(ledger, plain_ray.put(3))))
        self.told.append(plain_ray.get(ledger.open.remote([plain_ray.put("inside")])))
        try:
            plain_ray.get(ledger.fail.remote())
        except KeyError:
            self.told.append("failed")
        self.told.append(asyncio.run(await_one(ledger.note.remote("awaited"))))
        ledger.note.remote("and forgotten")
        return self.told

    def all_told(self) -> list[Any]:
        return self.told

    def begin(self) -> str:
        self.kept = self.ledger.note.remote("begun")
        return str(self.kept.hex())

    def end(self) -> Any:
        return plain_ray.get(self.kept)

    def die_with(self, flag: str) -> Any:
        ref = self.ledger.note.remote("before the end")
        plain_ray.get(self.ledger.noted.remote())
        if not os.path.exists(flag):
            with open(flag, "w", encoding="utf-8"):
                pass
            ray.get(ray.remote(num_cpus=0)(hold).remote(), timeout=PATIENCE_S)
            os.kill(os.getpid(), signal.SIGKILL)
        return plain_ray.get(ref)

    def stream(self) -> Any:
        return list(count_up.remote(3))

    def give(self) -> Any:
        return self.ledger.noted.remote()

    def find(self, name: str) -> Any:
        self.found = plain_ray.get_actor(name)
        made = Ledger.options(name=f"{name}-2", lifetime="detached").remote()
        self.told.append(plain_ray.get([self.found.note.remote("found"), made.note.remote("made")]))
        return self.told[-1]


def hold() -> None:
    """Whoever runs this has the entries of its caller, which survive with it."""


@ray.remote(num_cpus=0, checkpoint_every=1)
class Saver(Caller._cls):  # type: ignore[misc,name-defined]
    """The same with checkpoints."""


@ray.remote(num_cpus=0)
def task_of_ours(ledger: Any, flag: str) -> Any:
    number = plain_ray.get(ledger.note.remote("from a task"))
    ray.get(ray.remote(num_cpus=0)(hold).remote(), timeout=PATIENCE_S)
    if not os.path.exists(flag):
        with open(flag, "w", encoding="utf-8"):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.fixture
def ledger() -> Iterator[Any]:
    made = Ledger.remote()
    yield made
    plain_ray.kill(made)


def noted_by(ledger: Any) -> list[Any]:
    found: list[Any] = plain_ray.get(ledger.noted.remote(), timeout=PATIENCE_S)
    return found


def test_plain_calls_are_not_made_again_and_their_results_are_recalled(ledger: Any) -> None:
    caller = Caller.remote(ledger)
    told = ray.get(caller.call_all.remote(), timeout=PATIENCE_S)
    assert told[:4] == [1, 2, 3, [2, 4]]
    assert told[4:9] == [(True, []), "inner", 6, "inside", "failed"]
    assert plain_ray.get(ledger.open.remote([plain_ray.put("as ever")]), timeout=PATIENCE_S) == "as ever"
    ray.get(caller.pid.remote())
    noted = noted_by(ledger)
    assert noted[-1] == "and forgotten"
    inject.kill_process(caller)
    assert ray.get(caller.all_told.remote(), timeout=PATIENCE_S) == told
    assert noted_by(ledger) == noted


def test_plain_result_that_was_not_got_is_asked_for_again(ledger: Any, tmp_path: Any) -> None:
    caller = Caller.remote(ledger)
    assert ray.get(caller.die_with.remote(str(tmp_path / "flag")), timeout=PATIENCE_S) == 2
    assert noted_by(ledger) == ["before the end"] * 2


def test_plain_ref_in_a_checkpoint_says_that_its_result_is_lost(ledger: Any) -> None:
    saver = Saver.remote(ledger)
    ray.get(saver.begin.remote(), timeout=PATIENCE_S)
    wait_for_checkpoint(saver, 3)
    inject.kill_process(saver)
    with pytest.raises(plain_ray.exceptions.OwnerDiedError, match="Make the call again"):
        ray.get(saver.end.remote(), timeout=PATIENCE_S)


def test_plain_calls_of_a_task_are_not_made_again(ledger: Any, tmp_path: Any) -> None:
    assert ray.get(task_of_ours.remote(ledger, str(tmp_path / "flag")), timeout=PATIENCE_S) == 1
    assert noted_by(ledger) == ["from a task"]


def test_what_cannot_be_recorded_of_plain_ray_is_refused(ledger: Any) -> None:
    caller = Caller.remote(ledger)
    with pytest.raises(NotImplementedError, match="streams of plain Ray"):
        ray.get(caller.stream.remote(), timeout=PATIENCE_S)
    with pytest.raises(TypeError, match="Pass its value"):
        ray.get(caller.give.remote(), timeout=PATIENCE_S)
    with pytest.raises(TypeError, match="Pass its value"):
        caller.die_with.remote([plain_ray.put(1)])


def test_plain_actors_are_found_and_created_once() -> None:
    first = Ledger.options(name="ledger-of-all", lifetime="detached").remote()
    caller = Caller.remote(first)
    told = ray.get(caller.find.remote("ledger-of-all"), timeout=PATIENCE_S)
    inject.kill_process(caller)
    assert ray.get(caller.all_told.remote(), timeout=PATIENCE_S) == [told] == [[1, 1]]
    for name in ("ledger-of-all", "ledger-of-all-2"):
        plain_ray.kill(plain_ray.get_actor(name))
