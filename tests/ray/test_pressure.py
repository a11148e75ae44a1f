"""A store that is away, and callers who do not stop: memory stays bounded, calls wait, and nothing is lost."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lineage_stash as ray
from lineage_stash.on_ray.api import current
from lineage_stash.testing import inject

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("small_cluster"), pytest.mark.timeout(240)]

PATIENCE_S = 120.0
STASH_CAP_BYTES = 200_000
BUFFER_CAP_BYTES = 4_000_000
SENT_BYTES = 20_000_000
PLAIN_BYTES = 100_000
SHARED_BYTES = 400_000
"""What is large lies in shared memory until it is put on disk."""


@pytest.fixture(scope="module")
def small_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    storage: Path = tmp_path_factory.mktemp("store")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, storage=storage,
             stash_cap_bytes=STASH_CAP_BYTES, buffer_cap_bytes=BUFFER_CAP_BYTES)  # fmt: skip
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def store_answers_again() -> Iterator[None]:
    yield
    inject.disturb_store()


@ray.remote(num_cpus=0)
class Sink:
    """Takes whatever comes, and can be copied by nobody."""

    def __init__(self) -> None:
        self.count = 0
        self.uncopyable = open(os.devnull)  # noqa: SIM115 - that is the point

    def take(self, payload: bytes) -> int:
        assert payload == payload[:1] * len(payload)
        self.count += 1
        return self.count


@ray.remote(num_cpus=0, checkpoint_every=None)
class Source:
    """Sends more than it can keep in memory."""

    def send(self, sink: "ray.ActorHandle", count: int, size: int) -> list[int]:
        return ray.get([sink.take.remote(bytes([number % 256]) * size) for number in range(count)])

    def buffers(self) -> dict[str, int]:
        runtime = current()
        with runtime.process.lock:
            kept = sum(counterpart.outbox.calls.bytes for counterpart in runtime.peer.counterparts.values())
            in_memory = sum(counterpart.buffer_bytes for counterpart in runtime.peer.counterparts.values())
        return {"kept": kept, "in_memory": in_memory, "on_disk": runtime.spool.disk_bytes}


@ray.remote(num_cpus=0)
class Counter:
    """Counts, and tells how much lineage it holds."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count


def test_calls_wait_at_the_cap_while_the_store_is_away_and_all_are_done_after_its_return() -> None:
    counter = Counter.remote()
    assert ray.get(counter.add.remote(), timeout=PATIENCE_S) == 1
    inject.disturb_store(pause=True)
    refs: list[ray.ObjectRef] = []
    enough = threading.Event()

    def call_on() -> None:
        while not enough.is_set():
            refs.append(counter.add.remote())

    caller = threading.Thread(target=call_on)
    caller.start()
    inject.wait_until(lambda: ray.durability().stash_bytes >= STASH_CAP_BYTES, "a full stash")
    inject.wait_until(lambda: is_stalled(refs), "whoever goes on calling waits")
    assert ray.durability().stash_bytes < 2 * STASH_CAP_BYTES
    inject.disturb_store()
    stalled_at = len(refs)
    inject.wait_until(lambda: len(refs) > stalled_at, "calls go on")
    enough.set()
    caller.join(PATIENCE_S)
    count = len(refs)
    assert ray.get(refs, timeout=PATIENCE_S) == list(range(2, count + 2))
    inject.wait_until(lambda: ray.durability().stash_bytes < STASH_CAP_BYTES, "the stash is flushed")
    inject.kill_process(counter)
    assert ray.get(counter.add.remote(), timeout=PATIENCE_S) == count + 2


def is_stalled(refs: list["ray.ObjectRef"]) -> bool:
    """Whether no call was submitted for half a second."""
    before = len(refs)
    time.sleep(0.5)
    return len(refs) == before


@pytest.mark.parametrize("size", [PLAIN_BYTES, SHARED_BYTES])
def test_payloads_that_nobody_covers_are_put_on_disk_and_a_recovery_takes_them_from_there(size: int) -> None:
    source, sink = Source.remote(), Sink.remote()
    count = SENT_BYTES // size
    assert ray.get(source.send.remote(sink, count, size), timeout=PATIENCE_S)[-1] == count
    inject.wait_until(lambda: ray.get(source.buffers.remote())["on_disk"] > 0, "payloads on disk")
    buffers = ray.get(source.buffers.remote())
    assert buffers["kept"] >= SENT_BYTES, "the callee never checkpoints: all is kept"
    assert buffers["in_memory"] <= BUFFER_CAP_BYTES
    inject.kill_process(sink)
    assert ray.get(source.send.remote(sink, 10, size), timeout=PATIENCE_S)[-1] == count + 10
