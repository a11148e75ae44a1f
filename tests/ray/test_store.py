"""Several nodes, several replicas: nodes, replicas and disks are lost, and nothing that was confirmed is."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import lineage_stash as ray
from lineage_stash.on_ray.api import current
from lineage_stash.on_ray.registry import replica_name
from lineage_stash.on_ray.replica_sets import Residence, lost_replicas, newest_set, residences
from lineage_stash.store.contract import ReplicaSet
from lineage_stash.testing import inject
from lineage_stash.testing.inject_nodes import LocalNodes, local_nodes

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

PATIENCE_S = 120.0
QUICK_DEATHS = {
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 3,
    "health_check_timeout_ms": 1000,
}  # fmt: skip


@ray.remote(num_cpus=0, checkpoint_every=300)
class Tally:
    """Counts its calls."""

    def __init__(self) -> None:
        self.count = 0
        self.ballast = b""

    def add(self, amount: int = 1) -> int:
        self.count += amount
        return self.count

    def grow(self, size: int) -> int:
        self.ballast = os.urandom(size)
        return len(self.ballast)

    def weight(self) -> bytes:
        return self.ballast

    def be_as_durable_as(self, level: str) -> str:
        ray.set_durability(level)
        return ray.durability().level


@pytest.fixture
def nodes() -> Iterator[LocalNodes]:
    with local_nodes(4, _system_config=QUICK_DEATHS) as started:
        ray.init(address=started.address, log_to_driver=False)
        yield started
        ray.shutdown()


def store() -> ReplicaSet:
    found = newest_set(current().process.plane)
    assert found is not None
    return found


def homes() -> dict[int, Residence]:
    everywhere = residences(current().process.plane)
    return {replica: everywhere[replica] for replica in store().replicas}


def kill_and_wait(tally: "ray.ActorHandle") -> None:
    before = inject.recoveries_of(tally)
    inject.kill_process(tally)
    inject.wait_until(lambda: inject.recoveries_of(tally) > before, "a recovery")


def test_lost_node_is_replaced_in_the_store_and_nothing_is_lost(nodes: LocalNodes) -> None:
    assert len({home.node for home in homes().values()}) == 3, "three replicas on three of four nodes"
    tally = Tally.remote()
    refs = [tally.add.remote() for _ in range(2000)]
    ray.get(refs[500], timeout=PATIENCE_S)
    lost, home = next((replica, home) for replica, home in homes().items() if home.node != nodes.head)
    nodes.kill(home.node)
    refs += [tally.add.remote() for _ in range(2000)]
    assert ray.get(refs[-1], timeout=PATIENCE_S) == 4000, "no call waits for the replica"
    inject.wait_until(lambda: lost not in store().replicas, "another replica in its place")
    assert store().epoch == 2
    assert len({home.node for home in homes().values()}) == 3
    kill_and_wait(tally)
    assert ray.get(tally.add.remote(), timeout=PATIENCE_S) == 4001


def test_second_loss_is_survived_by_what_was_copied_after_the_first(nodes: LocalNodes) -> None:
    assert nodes.head
    tally = Tally.remote()
    ray.get(tally.grow.remote(3_000_000), timeout=PATIENCE_S)
    weight = ray.get(tally.weight.remote(), timeout=PATIENCE_S)
    assert ray.get([tally.add.remote() for _ in range(1000)], timeout=PATIENCE_S)[-1] == 1000
    first = set(store().replicas)
    for spoil in (empty, damage):
        doomed = min(first & set(store().replicas))
        spoil(Path(homes()[doomed].folder))
        os.kill(inject.replica_pid(doomed), signal.SIGKILL)
        inject.wait_until(lambda doomed=doomed: doomed not in store().replicas, f"one in place of replica {doomed}")
    assert len(first & set(store().replicas)) == 1, "two of the first three are gone with all they had"
    kill_and_wait(tally)
    assert ray.get(tally.add.remote(), timeout=PATIENCE_S) == 1001
    assert ray.get(tally.weight.remote(), timeout=PATIENCE_S) == weight


def empty(folder: Path) -> None:
    """Delete every file."""
    for path in folder.iterdir():
        path.unlink()


def damage(folder: Path) -> None:
    """Flip a bit in the header of every file."""
    for path in folder.iterdir():
        content = bytearray(path.read_bytes())
        if content:
            content[20] ^= 1
            path.write_bytes(content)


def test_calls_go_on_with_two_of_three_replicas_away_and_everything_is_committed_after_their_return(
    nodes: LocalNodes,
) -> None:
    assert nodes.head
    tally = Tally.remote()
    ray.get(tally.add.remote(), timeout=PATIENCE_S)
    away = store().replicas[:2]
    inject.disturb_store(pause=True, replicas=away)
    assert ray.get([tally.add.remote() for _ in range(3000)], timeout=PATIENCE_S)[-1] == 3001
    inject.disturb_store(replicas=away)
    kill_and_wait(tally)
    assert ray.get(tally.add.remote(), timeout=PATIENCE_S) == 3002


def test_replica_that_promised_in_memory_and_was_killed_is_replaced(nodes: LocalNodes) -> None:
    assert nodes.head
    _, victim, other = store().replicas
    inject.disturb_replica(other, pause=True, delay_ms=0.0)
    tally = Tally.options(durability="memory").remote()
    assert ray.get([tally.add.remote() for _ in range(500)], timeout=PATIENCE_S)[-1] == 500
    ray.commit()  # two of three have promised, and the third one is away
    inject.disturb_replica(other, pause=False, delay_ms=0.0)
    os.kill(inject.replica_pid(victim), signal.SIGKILL)
    inject.wait_until(lambda: victim not in store().replicas, "another replica in its place")
    assert "memory" in lost_replicas(current().process.plane)[victim]
    kill_and_wait(tally)
    assert ray.get(tally.add.remote(), timeout=PATIENCE_S) == 501
    assert ray.get(tally.be_as_durable_as.remote("disk"), timeout=PATIENCE_S) == "disk"


def test_script_does_not_begin_without_a_majority_of_the_store(nodes: LocalNodes) -> None:
    assert nodes.head
    for replica in store().replicas[:2]:
        inject.disturb_store(pause=True, replicas=(replica,))
    from lineage_stash.on_ray.driver import Driver
    from lineage_stash.on_ray.services import StoreUnreachable

    with pytest.raises(StoreUnreachable, match="2 of 3 replicas are needed"):
        Driver.begin()
    inject.disturb_store()
    assert replica_name(store().replicas[0]) == "replica-0"
