"""Failures that a script causes to a real program: they have happened, and its answer is right."""

from collections.abc import Iterator

import pytest

import lineage_stash as ray
from lineage_stash.cli import records, tallies
from lineage_stash.on_ray import tally
from lineage_stash.on_ray.api import current
from lineage_stash.testing import failures, inject
from lineage_stash.testing.failures import NotCaused
from lineage_stash.testing.inject_program import Program

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("counted", "cluster")]

PATIENCE_S = 60.0
ROUNDS = 300


@pytest.fixture(scope="module")
def counted() -> Iterator[None]:
    """Before there is a cluster: its processes inherit it."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setenv(tally.VARIABLE, "1")
        yield


@ray.remote(num_cpus=0)
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def add_to(self, other: "ray.ActorHandle", times: int) -> int:
        return ray.get([other.add.remote() for _ in range(times)])[-1]


def test_all_that_was_planned_has_happened_and_each_call_was_applied_once() -> None:
    counters = [Counter.options(name=f"counter-{number}").remote() for number in range(2)]
    ray.get([counter.add.remote() for counter in counters], timeout=PATIENCE_S)
    done = 0
    script = (
        "kill:actor:counter-0@20%, stop:actor:counter-1@40%for500ms, pause:replica:any@50%for300ms,"
        "slow:replica:all:20ms@70%for200ms, kill:coordinator@75%, fill:disk@80%for100ms, kill:replica:0@90%"
    )
    answers: list[list[int]] = []
    with failures.inject(script, progress=lambda: done / ROUNDS) as injector:
        for done in range(1, ROUNDS + 1):  # noqa: B007 - the injector reads it
            answers.append(ray.get([counter.add.remote() for counter in counters], timeout=PATIENCE_S))
        inject.wait_until(lambda: len(injector.injected) == 7, "all of it has happened")
    assert answers == [[number + 2] * 2 for number in range(ROUNDS)]
    happened = {(caused.what, caused.target) for caused in injector.injected}
    assert happened == {
        ("kill:actor", "counter-0"), ("stop:actor", "counter-1"), ("pause:replica", "0"), ("slow:replica", "0"),
        ("kill:coordinator", "coordinator"), ("fill:disk", "0"), ("kill:replica", "0"),
    }  # fmt: skip
    assert inject.recoveries_of(counters[0]) == 1


def test_actors_are_named_by_handles_too_and_one_that_is_not_there_is_reported() -> None:
    counter = Counter.remote()
    assert ray.get(counter.add.remote(), timeout=PATIENCE_S) == 1
    targets = Program(actors={"mine": counter})
    injector = failures.inject("kill:actor:mine@0s,kill:actor:nobody@0s,kill:gcs@0s", targets=targets)
    injector.__enter__()
    inject.wait_until(lambda: bool(injector.injected), "the kill")
    assert ray.get(counter.add.remote(), timeout=PATIENCE_S) == 2
    with pytest.raises(NotCaused, match="'nobody'") as raised:
        injector.__exit__(None, None, None)
    assert [caused.target for caused in injector.injected] == ["mine"]
    assert "no GCS of this cluster runs" in str(raised.value)


def test_lineage_that_was_forwarded_and_flushed_is_counted_in_every_process() -> None:
    caller, callee = Counter.remote(), Counter.remote()
    assert ray.get([caller.add_to.remote(callee, 10) for _ in range(50)], timeout=PATIENCE_S)[-1] == 500
    process = current().process

    def tallied() -> dict[str, tally.Tallied]:
        return tallies.read_tallies(records.read(process.plane), process.node)

    inject.wait_until(lambda: tallied()[callee._peer].flushed_entries >= 500, "all of it is flushed")
    found = tallied()
    assert found[callee._peer].calls == 1 + 500
    assert found[caller._peer].calls == 1 + 50
    assert found[caller._peer].flushed_entries >= 50
    assert found[callee._peer].flushed_bytes >= 500
    assert found[callee._peer].forwarded_entries > 0
    assert found[callee._peer].forwarded_bytes > 0
    assert current().id in found
    total = tallies.total_of(found)
    assert total.is_counted
    assert total.calls >= 550
