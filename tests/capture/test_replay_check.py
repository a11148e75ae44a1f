"""The check that users run in their own tests: finds what cannot be replayed, names the call, and passes what can."""

import os
import random
import time
import uuid
from typing import Any

import pytest

import lineage_stash
from lineage_stash.testing import ReplayDiffers, replay_check

ENVIRONMENT = "LINEAGE_STASH_TEST_OF_REPLAYS"
counted = 0


def look_up(name: str) -> str | None:
    """Observes within an observation."""
    return lineage_stash.observe(os.environ.get, name)  # type: ignore[no-any-return]


class Careful:
    """Reads a lot, and all of it is captured or observed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.born = time.time()
        self.history: list[Any] = []

    def read(self, count: int = 1) -> list[Any]:
        for _ in range(count):
            self.history += [time.monotonic(), random.random(), uuid.uuid4(), os.urandom(4)]
        return self.history

    def watch(self, name: str) -> str | None:
        return lineage_stash.observe(look_up, name)  # type: ignore[no-any-return]

    def fail(self) -> None:
        raise ValueError(f"at {time.time()}")

    def fail_outside(self) -> None:
        lineage_stash.observe(open, "/nowhere/at/all")


class Node:
    """Hashed by its address."""

    def __init__(self, number: int) -> None:
        self.number = number


class Careless:
    def __init__(self) -> None:
        self.last: Any = None

    def harmless(self) -> int:
        return 1

    def environment(self) -> str | None:
        return os.environ.get(ENVIRONMENT)

    def counter(self) -> int:
        global counted
        counted += 1
        return counted

    def order(self) -> list[int]:
        return [node.number for node in {Node(number) for number in range(12)}]

    def quietly(self) -> None:
        global counted
        counted += 1
        self.last = counted

    def now_and_then(self) -> None:
        global counted
        counted += 1
        if counted % 2:
            time.time()
        else:
            os.urandom(4)

    def more_and_more(self) -> None:
        global counted
        counted += 1
        for _ in range(counted):
            time.time()

    def less_and_less(self) -> None:
        global counted
        counted -= 1
        for _ in range(counted):
            time.time()


def change_environment() -> None:
    os.environ[ENVIRONMENT] = os.environ.get(ENVIRONMENT, "") + "x"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    global counted
    counted = 10
    monkeypatch.setenv(ENVIRONMENT, "at first")


def test_class_whose_reads_are_captured_passes() -> None:
    calls = [
        ("read",),
        ("read", (3,)),
        ("watch", (ENVIRONMENT,)),
        ("fail",),
        ("fail_outside",),
        ("read", (), {"count": 2}),
    ]
    replies = replay_check(Careful, calls, args=("it",), disturb=change_environment)
    assert len(replies[-1]) == 24
    assert replies[2] == "at first"
    assert isinstance(replies[3], ValueError)
    assert isinstance(replies[4], FileNotFoundError)


def test_scenario_is_followed_once_and_its_calls_are_replayed() -> None:
    followed: list[Any] = []

    def scenario(careful: Any) -> None:
        followed.append(careful.read(2))
        with pytest.raises(ValueError, match="at "):
            careful.fail()
        careful.watch(str(len(followed)))

    assert len(replay_check(Careful, scenario, kwargs={"name": "it"})) == 3
    assert len(followed) == 1


def test_decorated_class_is_checked_as_it_is() -> None:
    assert replay_check(lineage_stash.remote(Careless), [("harmless",)]) == [1]


@pytest.mark.parametrize(
    ("method", "what"),
    [
        ("environment", "its reply differs. First run: 'at first'. Replay: 'at firstx'"),
        ("counter", "its reply differs. First run: 11. Replay: 12"),
        ("order", "its reply differs"),
        ("quietly", "self.last after it differs. First run: 11. Replay: 12"),
        ("now_and_then", "what it read differs. First run: a read of time.time. Replay: a read of os.urandom"),
        ("more_and_more", "what it read differs. First run: the end of the call. Replay: a read of time.time"),
        ("less_and_less", "what it read differs. First run: a read of time.time. Replay: the end of the call"),
    ],
)
def test_difference_is_found_and_the_first_call_that_differed_is_named(method: str, what: str) -> None:
    with pytest.raises(ReplayDiffers) as raised:
        replay_check(Careless, [("harmless",), (method,), ("harmless",)], disturb=change_environment)
    assert str(raised.value).startswith(f"Careless.{method}() (call 2) cannot be replayed: {what}")


def test_nothing_stays_replaced() -> None:
    before = time.time
    replay_check(Careful, [("read",)], args=("it",))
    assert time.time is before


written: list[str] = []


@lineage_stash.effect
def write(text: str, *, key: Any = None) -> str:
    written.append(f"{key}: {text}")
    return written[-1]


@lineage_stash.effect
def write_twice(text: str) -> list[str]:
    return [write(text), write(text)]


class Writer:
    def __init__(self) -> None:
        self.said: list[Any] = []

    def write(self, text: str) -> str:
        lineage_stash.commit()
        self.said.append(write(text))
        return self.said[-1]

    def write_twice(self, text: str) -> list[str]:
        return write_twice(text)


def test_effect_happens_once_and_a_replay_recalls_what_came_of_it() -> None:
    written.clear()
    assert replay_check(Writer, [("write", ("a",)), ("write", ("b",))]) == written
    assert [text.rpartition("!")[2] for text in written] == ["1: a", "2: b"]


def test_effect_within_an_effect_is_an_error_that_names_it() -> None:
    (error,) = replay_check(Writer, [("write_twice", ("a",))])
    assert "write is an effect and was called inside" in str(error)


def test_function_that_acts_after_it_has_returned_cannot_be_an_effect() -> None:
    async def later() -> None: ...

    with pytest.raises(TypeError, match="later cannot be an effect"):
        lineage_stash.effect(later)
