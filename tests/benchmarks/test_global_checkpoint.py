"""The global-checkpoint system with real processes, one of them killed in the middle of a stream."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.suite.systems.global_checkpoint import GlobalCheckpoint
from lineage_stash.testing.inject import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow]

RECORDS = 600


class Counter:
    """Counts words; those of others are passed on."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.other: Any = None

    def meet(self, other: Any) -> None:
        self.other = other

    def add(self, word: str, hops: int = 0) -> int:
        self.counts[word] = self.counts.get(word, 0) + 1
        if hops:
            self.other.add.remote(word, hops - 1)
        return self.counts[word]

    def all(self) -> dict[str, int]:
        return self.counts

    def ask(self, word: str) -> int:
        return int(self.other.add.remote(word).get(10.0))


@pytest.fixture(params=["interval_s=0.2", "interval_s=0.2,output=held"])
def system(request: pytest.FixtureRequest) -> Iterator[GlobalCheckpoint]:
    started = GlobalCheckpoint(request.param)
    started.start()
    yield started
    started.stop()


def stream(system: GlobalCheckpoint, handles: list[Any], victim: str, hops: int) -> list[int]:
    """Records to each actor in turn, a process killed in the middle and after a checkpoint; the replies."""
    completed = system.driver.completed
    refs = []
    for number in range(RECORDS):
        refs.append(handles[number % len(handles)].add.remote(f"word-{number % 5}", hops))
        if number == RECORDS // 2:
            wait_until(lambda: system.driver.completed > completed, "a checkpoint in the middle", 20.0)
        if number == RECORDS * 3 // 4:
            os.kill(system.pid_of(victim), signal.SIGKILL)
    return system.get(refs, 30.0)


def test_every_word_counts_once_when_an_actor_is_killed(system: GlobalCheckpoint) -> None:
    since = time.time()
    handles = [system.actor(Counter, name=name) for name in ("left", "right")]
    replies = stream(system, handles, "right", 0)
    expected = [number // 10 + 1 for number in range(RECORDS)]
    assert replies == expected
    for handle in handles:
        (counts,) = system.get([handle.all.remote()], 10.0)
        assert counts == {f"word-{number}": RECORDS // 10 for number in range(5)}
    wait_until(lambda: len(system.recoveries(since)) == 1, "the end of the rollback", 10.0)
    (recovery,) = system.recoveries(since)
    assert recovery.peer == "right"
    assert 0 < recovery.replayed <= RECORDS

    # the same where actors call one another in a cycle, so that the source has to be quiet for a checkpoint
    system.get([handles[0].meet.remote(handles[1]), handles[1].meet.remote(handles[0])], 10.0)
    assert system.get([handles[0].ask.remote("asked")], 10.0) == [1]
    stream(system, handles, "left", 1)
    wait_until(lambda: total(system, handles) == 3 * RECORDS + 1, "the calls between the actors", 20.0)


def total(system: GlobalCheckpoint, handles: list[Any]) -> int:
    return sum(sum(counts.values()) for counts in system.get([handle.all.remote() for handle in handles], 10.0))
