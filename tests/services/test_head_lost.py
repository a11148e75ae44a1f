"""The whole head dies, its raylet and its actors with it, and is started again on the same Redis."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray as plain_ray

import lineage_stash as ray
from lineage_stash.on_ray.api import current
from lineage_stash.testing import inject
from tests.services.machines import Head, Node

pytestmark = [pytest.mark.services, pytest.mark.timeout(420)]

PATIENCE_S = 180.0
CALLS = 100
OTHER_ADDRESSES = ("127.0.0.2", "127.0.0.3")


@ray.remote(scheduling_strategy="SPREAD")
class Ledger:
    """Counts, so that a call that was lost or repeated shows."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count


@pytest.fixture(scope="module")
def cluster(folder: Path, head: Head) -> Iterator[Head]:
    """The head and two other nodes; this process is a driver on one of these."""
    options = [[f"--address={head.address}", f"--node-ip-address={address}"] for address in OTHER_ADDRESSES]
    nodes = [Node(folder, each) for each in options]
    try:
        for node in nodes:
            node.start()
        ray.init(address=head.address, _node_ip_address=OTHER_ADDRESSES[0], log_to_driver=False)
        yield head
        ray.shutdown()
    finally:
        for node in nodes:
            node.kill()


def node_of(ledger: "ray.ActorHandle") -> str:
    """The node that the present life of an actor is on."""
    inject.pid_of(ledger)
    place = current().process.registry.place_of(f"{ledger._peer}@{inject.life_of(ledger)}")
    assert place is not None
    return place.node


def head_node() -> str:
    """The node that is neither of the others."""
    found: str = next(node["NodeID"] for node in plain_ray.nodes() if node["NodeManagerAddress"] not in OTHER_ADDRESSES)
    return found


def create_one_on(node: str) -> list["ray.ActorHandle"]:
    """Actors anywhere, and the last one of them on a node."""
    created = [Ledger.remote()]
    while node_of(created[-1]) != node:
        created.append(Ledger.remote())
    return created


def test_head_lost_and_started_again_on_its_redis_costs_no_call(cluster: Head) -> None:
    ledgers = create_one_on(head_node())
    assert ray.get([ledger.add.remote() for ledger in ledgers], timeout=PATIENCE_S) == [1] * len(ledgers)
    cluster.kill_gcs()  # first, so that no round is opened that nobody can decide
    cluster.kill()
    refs = [[ledger.add.remote() for _ in range(CALLS)] for ledger in ledgers]
    for answered in refs[:-1]:
        assert ray.get(answered, timeout=PATIENCE_S) == list(range(2, CALLS + 2))
    assert ray.wait(refs[-1], timeout=1.0)[0] == []

    cluster.start()
    assert ray.get(refs[-1], timeout=PATIENCE_S) == list(range(2, CALLS + 2))
    for ledger in ledgers:
        inject.kill_process(ledger)
        assert ray.get(ledger.add.remote(), timeout=PATIENCE_S) == CALLS + 2
    assert ray.get(Ledger.remote().add.remote(), timeout=PATIENCE_S) == 1
