"""Effects on the outside: after a commit, recalled where a log has them, and under the same key where none has."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import lineage_stash as ray
from lineage_stash.testing import inject

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(180)]

PATIENCE_S = 120.0
SOON_S = 0.5


def lines_of(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []


@ray.effect
def note(path: str, *, key: Any = None, deaths: int = 0) -> str:
    """A sink that takes everything, in which the first few who use a key die before anybody knows that they did."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{key}\n")
    if lines_of(path).count(str(key)) <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return str(key)


@ray.remote(num_cpus=0)
class Writer:
    """Writes, and remembers under which keys."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def write(self, path: str, deaths: int = 0) -> str:
        self.keys.append(note(path, deaths=deaths))
        return self.keys[-1]

    def written(self) -> list[str]:
        return self.keys

    def fail(self, path: str) -> str:
        try:
            return refuse(path)
        except ValueError as error:
            return str(error)

    def committed(self) -> int:
        ray.commit()
        return ray.durability().uncommitted_entries


@ray.effect
def refuse(path: str) -> str:
    with open(path, "a", encoding="utf-8") as file:
        file.write("asked\n")
    raise ValueError("refused")


@ray.remote(num_cpus=0)
def write(path: str, deaths: int = 0) -> str:
    ray.commit()
    return note(path, deaths=deaths)


@pytest.fixture
def writer() -> "ray.ActorHandle":
    created = Writer.remote()
    assert ray.get(created.written.remote(), timeout=PATIENCE_S) == []
    return created


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "written")


@pytest.fixture(autouse=True)
def store_answers_again() -> Iterator[None]:
    yield
    inject.disturb_store()


def test_effects_that_are_in_the_log_are_recalled_after_a_kill(writer: "ray.ActorHandle", path: str) -> None:
    keys = ray.get([writer.write.remote(path) for _ in range(3)], timeout=PATIENCE_S)
    refused = ray.get(writer.fail.remote(path), timeout=PATIENCE_S)
    inject.kill_process(writer)
    assert ray.get(writer.written.remote(), timeout=PATIENCE_S) == keys
    assert inject.recoveries_of(writer) == 1
    last = ray.get(writer.write.remote(path), timeout=PATIENCE_S)
    assert refused.endswith("ValueError: refused")
    assert lines_of(path) == [*keys, "asked", last]
    assert len({*keys, last}) == 4


def test_effect_of_an_actor_that_dies_before_its_end_is_logged_has_the_same_key_again(
    writer: "ray.ActorHandle", path: str
) -> None:
    first = ray.get(writer.write.remote(path, deaths=2), timeout=PATIENCE_S)
    second = ray.get(writer.write.remote(path), timeout=PATIENCE_S)
    assert lines_of(path) == [first, first, first, second]


def test_effect_of_a_task_that_dies_before_its_end_is_logged_has_the_same_key_again(path: str) -> None:
    first = ray.get(write.remote(path, deaths=1), timeout=PATIENCE_S)
    second = ray.get(write.remote(path), timeout=PATIENCE_S)
    assert lines_of(path) == [first, first, second]


def test_script_has_effects_too_and_nothing_is_uncommitted_after_a_commit(writer: "ray.ActorHandle", path: str) -> None:
    assert ray.get(writer.committed.remote(), timeout=PATIENCE_S) == 0
    ray.commit()
    assert ray.durability().uncommitted_entries == 0
    keys = [note(path), note(path)]
    assert lines_of(path) == keys
    assert len(set(keys)) == 2


def test_commit_waits_for_the_store_and_calls_go_on(writer: "ray.ActorHandle", path: str) -> None:
    other = Writer.remote()
    ray.get(other.written.remote(), timeout=PATIENCE_S)
    inject.disturb_store(pause=True)
    assert ray.get([other.written.remote() for _ in range(1000)], timeout=PATIENCE_S)[-1] == []
    waiting = writer.write.remote(path)
    with ThreadPoolExecutor(1) as pool:
        in_script = pool.submit(ray.commit)
        assert ray.wait([waiting], timeout=SOON_S)[0] == []
        assert ray.get(other.written.remote(), timeout=PATIENCE_S) == []
        assert not in_script.done()
        assert lines_of(path) == [], "it acts when the past is committed, not before"
        inject.disturb_store()
        in_script.result(timeout=PATIENCE_S)
    key = ray.get(waiting, timeout=PATIENCE_S)
    assert lines_of(path) == [key]
