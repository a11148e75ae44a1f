"""A GCS that is really killed, with Redis behind it: calls go on, and nothing is lost or doubled when it is back."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import lineage_stash as ray
from lineage_stash.on_ray.api import current
from lineage_stash.on_ray.control_plane import ControlPlane
from lineage_stash.testing import inject
from tests.services.machines import Head, Redis

pytestmark = [pytest.mark.services, pytest.mark.timeout(240)]

PATIENCE_S = 120.0
CALLS = 1000


@ray.remote(num_cpus=0)
class Ledger:
    """Counts, so that a call that was lost or repeated shows."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def add_to(self, other: "ray.ActorHandle") -> int:
        return ray.get(other.add.remote())


@pytest.fixture(scope="module")
def cluster(head: Head) -> Iterator[Head]:
    """The head, with this process as its driver."""
    ray.init(address=head.address, log_to_driver=False)
    yield head
    ray.shutdown()


@pytest.fixture(autouse=True)
def plane(cluster: Head, redis: Redis) -> Iterator[ControlPlane]:
    """The control plane; whatever a test has left dead is started again."""
    plane = current().process.plane
    yield plane
    redis.start()
    cluster.start_gcs()
    assert plane.get("secret") is not None


@pytest.fixture
def ledger(plane: ControlPlane) -> "ray.ActorHandle":
    assert plane.get("secret") is not None
    created = Ledger.remote()
    assert ray.get(created.add.remote(), timeout=PATIENCE_S) == 1
    return created


def count_after(ledger: "ray.ActorHandle", calls: int) -> int:
    """What a ledger says after so many calls, all of them answered in order."""
    counts = ray.get([ledger.add.remote() for _ in range(calls)], timeout=PATIENCE_S)
    assert counts == list(range(counts[0], counts[0] + calls))
    return counts[-1]


def test_calls_go_on_while_the_gcs_is_away_and_each_is_applied_once(cluster: Head, ledger: "ray.ActorHandle") -> None:
    other = Ledger.remote()
    assert ray.get(other.add_to.remote(ledger), timeout=PATIENCE_S) == 2
    refs = [ledger.add.remote() for _ in range(CALLS)]
    cluster.kill_gcs()
    refs += [ledger.add.remote() for _ in range(CALLS)]
    assert ray.get(refs, timeout=PATIENCE_S) == list(range(3, 2 * CALLS + 3))
    assert ray.get(other.add_to.remote(ledger), timeout=PATIENCE_S) == 2 * CALLS + 3
    assert cluster.gcs() is None

    cluster.start_gcs()
    inject.kill_process(ledger)
    assert count_after(ledger, CALLS) == 3 * CALLS + 3
    assert inject.recoveries_of(ledger) == 1
    assert count_after(Ledger.remote(), CALLS) == CALLS


def test_actor_killed_while_the_gcs_is_away_is_recovered_when_it_is_back(
    cluster: Head, ledger: "ray.ActorHandle"
) -> None:
    assert count_after(ledger, CALLS) == CALLS + 1
    pid = inject.pid_of(ledger)
    cluster.kill_gcs()
    os.kill(pid, signal.SIGKILL)
    refs = [ledger.add.remote() for _ in range(CALLS)]
    assert ray.wait(refs, timeout=1.0)[0] == []
    cluster.start_gcs()
    assert ray.get(refs, timeout=PATIENCE_S) == list(range(CALLS + 2, 2 * CALLS + 2))
    assert inject.recoveries_of(ledger) == 1


def test_recovery_that_the_gcs_dies_in_is_finished_when_it_is_back(
    cluster: Head, ledger: "ray.ActorHandle", plane: ControlPlane
) -> None:
    assert count_after(ledger, CALLS) == CALLS + 1
    inject.disturb_store(pause=True)
    replicas = current().process.registry.present_set().replicas
    notes = len(plane.keys("notes/"))
    inject.kill_process(ledger)
    inject.wait_until(lambda: len(plane.keys("notes/")) > notes, "a round is open")
    cluster.kill_gcs()
    inject.disturb_store(replicas=replicas)
    refs = [ledger.add.remote() for _ in range(CALLS)]
    assert ray.wait(refs, timeout=1.0)[0] == []
    cluster.start_gcs()
    assert ray.get(refs, timeout=PATIENCE_S) == list(range(CALLS + 2, 2 * CALLS + 2))


def test_coordinator_and_replica_killed_while_the_gcs_is_away_are_back_with_it(
    cluster: Head, ledger: "ray.ActorHandle"
) -> None:
    coordinator, replica = inject.coordinator_pid(), inject.replica_pid()
    cluster.kill_gcs()
    os.kill(coordinator, signal.SIGKILL)
    os.kill(replica, signal.SIGKILL)
    assert count_after(ledger, CALLS) == CALLS + 1
    cluster.start_gcs()
    inject.wait_until(lambda: inject.coordinator_pid() != coordinator, "another coordinator")
    inject.wait_until(lambda: inject.replica_pid() != replica, "the replica's next process")
    inject.kill_process(ledger)
    assert count_after(ledger, CALLS) == 2 * CALLS + 1


def test_actor_created_while_the_gcs_is_away_begins_when_it_is_back(cluster: Head) -> None:
    cluster.kill_gcs()
    with ThreadPoolExecutor(1) as pool:
        creating = pool.submit(Ledger.remote)
        cluster.start_gcs()
        assert count_after(creating.result(PATIENCE_S), CALLS) == CALLS


def test_all_facts_are_there_after_the_gcs_was_killed(
    cluster: Head, ledger: "ray.ActorHandle", plane: ControlPlane
) -> None:
    before = plane.get_all("")
    assert f"actors/{ledger._peer}" in before
    cluster.kill_gcs()
    cluster.start_gcs()
    after = plane.get_all("")
    assert {key: value for key, value in before.items() if after.get(key) != value} == {}


def test_gcs_that_hangs_holds_up_no_call(cluster: Head, ledger: "ray.ActorHandle") -> None:
    gcs = cluster.gcs()
    assert gcs is not None
    os.kill(gcs, signal.SIGSTOP)
    try:
        assert count_after(ledger, CALLS) == CALLS + 1
    finally:
        os.kill(gcs, signal.SIGCONT)
    inject.kill_process(ledger)
    assert count_after(ledger, CALLS) == 2 * CALLS + 1


def test_redis_killed_takes_the_gcs_with_it_and_both_come_back_with_their_facts(
    cluster: Head, redis: Redis, ledger: "ray.ActorHandle", plane: ControlPlane
) -> None:
    before = plane.get_all("")
    redis.kill()
    inject.wait_until(lambda: cluster.gcs() is None, "the GCS ends without its Redis")
    assert count_after(ledger, CALLS) == CALLS + 1
    redis.start()
    cluster.start_gcs()
    after = plane.get_all("")
    assert {key: value for key, value in before.items() if after.get(key) != value} == {}
    inject.kill_process(ledger)
    assert count_after(ledger, CALLS) == 2 * CALLS + 1
