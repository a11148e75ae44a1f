"""Durability "remote": what is committed is in the archive too, and nobody's call waits for that."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lineage_stash as ray
from lineage_stash.on_ray.api import current
from lineage_stash.testing import inject

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("archived_cluster"), pytest.mark.timeout(180)]

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("archive")


@pytest.fixture(scope="module")
def archived_cluster(archive: Path) -> Iterator[None]:
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, durability="remote",
             archive=archive.as_uri())  # fmt: skip
    yield
    ray.shutdown()


@ray.remote(num_cpus=0, checkpoint_every=50)
class Counter:
    """Counts, and says how much of its log is not committed."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def uncommitted(self) -> int:
        return ray.durability().uncommitted_entries


def is_committed(counter: "ray.ActorHandle") -> bool:
    """Whether all of an actor's log is committed but the question; asked so seldom that answers can be committed."""
    time.sleep(0.5)
    uncommitted: int = ray.get(counter.uncommitted.remote(), timeout=PATIENCE_S)
    return uncommitted <= 2


def test_commits_are_in_the_archive_and_a_recovery_goes_on_from_there(archive: Path) -> None:
    counter = Counter.remote()
    assert ray.get([counter.add.remote() for _ in range(300)], timeout=PATIENCE_S)[-1] == 300
    inject.wait_until(lambda: is_committed(counter), "all is committed")
    assert sum(path.stat().st_size for path in archive.rglob("*") if path.is_file()) > 300
    inject.kill_process(counter)
    assert ray.get(counter.add.remote(), timeout=PATIENCE_S) == 301


def test_without_its_archive_an_actor_runs_on_and_commits_nothing_unless_it_asks_for_less() -> None:
    strict, relaxed = Counter.remote(), Counter.options(durability="disk").remote()
    ray.get([strict.add.remote(), relaxed.add.remote()], timeout=PATIENCE_S)
    store = current().process.store
    assert store is not None
    assert store.set.archive is not None
    inject.disturb_store(pause=True, replicas=(store.set.archive,))
    before = ray.get(strict.uncommitted.remote(), timeout=PATIENCE_S)
    assert ray.get([strict.add.remote() for _ in range(100)], timeout=PATIENCE_S)[-1] == 101
    assert ray.get([relaxed.add.remote() for _ in range(100)], timeout=PATIENCE_S)[-1] == 101
    inject.wait_until(lambda: is_committed(relaxed), "the disk is enough for one of them")
    assert ray.get(strict.uncommitted.remote(), timeout=PATIENCE_S) >= before + 100
    inject.disturb_store(replicas=(store.set.archive,))
    inject.wait_until(lambda: is_committed(strict), "the archive is back")
