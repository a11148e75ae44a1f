"""What users say about the store, and what they are told when it cannot be."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray as plain_ray

import lineage_stash as ray
from lineage_stash.codec import encode
from lineage_stash.on_ray.api import current
from lineage_stash.on_ray.replica_sets import newest_set
from lineage_stash.on_ray.services import StoreUnreachable
from lineage_stash.store.contract import Level, Seal, Ticket
from lineage_stash.store.replica import NO_EPOCH
from lineage_stash.testing import inject

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]

PATIENCE_S = 60.0
FORGED_NUMBER = 1 << 50


@ray.remote(num_cpus=0)
class Counter:
    """Counts."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def level(self) -> str:
        return ray.durability().level

    def relax(self, level: str) -> str:
        ray.set_durability(level)
        return ray.durability().level


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    plain_ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
    plain_ray.shutdown()


@pytest.mark.usefixtures("local_ray")
class TestOneCluster:
    """In this order: what cannot be, then what can."""

    def test_folder_that_cannot_be_written_is_told_and_another_one_may_be_tried(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.touch()
        with pytest.raises(StoreUnreachable, match="Not a directory"):
            ray.init(storage=file / "store")
        assert not ray.is_initialized()

    def test_level_remote_without_an_archive_is_refused(self) -> None:
        with pytest.raises(ValueError, match="durability='most' is not known: it is one of 'memory', 'disk', 'remote'"):
            ray.init(durability="most")
        with pytest.raises(ValueError, match="needs an archive"):
            ray.init(durability="remote")
        with pytest.raises(ValueError, match="at least one is needed"):
            ray.init(replicas=0)

    def test_three_replicas_on_one_node_serve_and_say_what_they_promise(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ray.init(storage=tmp_path / "store", replicas=3)
        assert "3 replicas on 1 node: any number of processes may die, but no node be lost" in capsys.readouterr().err
        counter = Counter.remote()
        assert ray.get([counter.add.remote() for _ in range(100)], timeout=PATIENCE_S)[-1] == 100
        assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["replica-0", "replica-1", "replica-2"]

    def test_each_actor_may_have_its_own_level_and_change_it(self) -> None:
        fleeting = Counter.options(durability="memory").remote()
        assert ray.get(fleeting.level.remote(), timeout=PATIENCE_S) == "memory"
        assert ray.get(fleeting.relax.remote("disk"), timeout=PATIENCE_S) == "disk"
        assert ray.get(Counter.remote().level.remote(), timeout=PATIENCE_S) == "disk"
        assert ray.durability().level == "disk"
        with pytest.raises(ValueError, match="needs an archive"):
            Counter.options(durability="remote").remote()
        with pytest.raises(ValueError, match="is not known"):
            Counter.options(durability="paper")

    def test_store_that_somebody_sealed_and_left_is_opened_again(self) -> None:
        process = current().process
        assert process.store is not None
        before = process.store.set
        counter = Counter.remote()
        ray.get(counter.add.remote(), timeout=PATIENCE_S)
        with process.lock:
            for replica in before.replicas:
                ticket = Ticket(FORGED_NUMBER, NO_EPOCH, Level.DISK)
                process.links.ask_replica(replica, ticket, encode(Seal(before.epoch)))
        inject.wait_until(lambda: newest_set(process.plane) != before, "the next epoch")
        assert newest_set(process.plane) == before._replace(epoch=before.epoch + 1)
        assert ray.get([counter.add.remote() for _ in range(100)], timeout=PATIENCE_S)[-1] == 101
        inject.kill_process(counter)
        assert ray.get(counter.add.remote(), timeout=PATIENCE_S) == 102

    def test_everything_is_committed_after_a_while_and_the_gauge_says_so(self) -> None:
        counter = Counter.remote()
        ray.get([counter.add.remote() for _ in range(500)], timeout=PATIENCE_S)
        gauge = ray.durability()
        assert gauge.uncommitted_entries >= 0
        assert gauge.cap_bytes > gauge.stash_bytes >= 0
