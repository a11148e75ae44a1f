"""A bound on how many nodes may fail at once: within it all is survived, beyond it that is noticed, and said."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import lineage_stash as ray
from lineage_stash.on_ray.present import current
from lineage_stash.on_ray.recoveries import ORPHANED
from lineage_stash.testing import inject
from lineage_stash.testing.inject_nodes import LocalNodes, local_nodes

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(240)]

PATIENCE_S = 90.0
RELAYED = 2000
"""So many that the nodes are lost in the middle."""


@ray.remote(num_cpus=0)
class Link:
    """Hands calls on to the next, and counts what comes to the end."""

    def __init__(self, mark: str, further: "ray.ActorHandle | None" = None) -> None:
        self.mark = mark
        self.further = further
        self.count = 0

    def take(self, sent_at: float) -> int:
        self.count += 1
        if self.further is not None:
            return ray.get(self.further.take.remote(sent_at))
        ray.observe(leave_mark, self.mark)
        return self.count

    def send(self, times: int) -> int:
        """Every reading of the clock is an entry, which the last link depends on, and which only the first two have."""
        return [ray.get(self.further.take.remote(time.time())) for _ in range(times)][-1]

    def told(self) -> int:
        return self.count


def leave_mark(path: str) -> None:
    """Let the test know of a call, without having the script depend on it."""
    with open(path, "ab") as file:
        file.write(b".")


@pytest.fixture
def nodes() -> Iterator[LocalNodes]:
    with local_nodes(4, include_dashboard=False) as started:
        ray.init(address=started.address, replicas=1, max_failures=1, spares=3, log_to_driver=False)
        yield started
        ray.shutdown()


def chain_on(*nodes: str, mark: str) -> list["ray.ActorHandle"]:
    """One actor on each node, the first of which calls the second, and so on."""
    chain: list[ray.ActorHandle] = []
    for node in reversed(nodes):
        there = NodeAffinitySchedulingStrategy(node, soft=True)
        chain.insert(0, Link.options(scheduling_strategy=there, lifetime="detached").remote(mark, *chain[:1]))
    ray.get([link.told.remote() for link in chain], timeout=PATIENCE_S)
    return chain


def reasons() -> dict[str, str]:
    """Why actors were recovered."""
    found = current().process.plane.get_all("recoveries/").values()
    return {record["peer"]: record["reason"] for record in map(json.loads, found)}


def test_bound_is_a_number_of_nodes_and_the_same_for_all(nodes: LocalNodes) -> None:
    assert nodes.others
    policy = current().peer.policy
    assert policy.max_failures == 1
    ray.shutdown()
    with pytest.raises(ValueError, match="would survive nothing"):
        ray.init(address=nodes.address, max_failures=0)
    with pytest.raises(ValueError, match="has other limits already"):
        ray.init(address=nodes.address, max_failures=2)
    ray.init(address=nodes.address, log_to_driver=False)
    assert current().peer.policy.max_failures == 1


def lose_two_nodes(nodes: LocalNodes, mark: Path, *, ask_the_end: bool) -> tuple["ray.ObjectRef", "ray.ActorHandle"]:
    """Calls through a chain, of whose first two links nothing is committed when both are lost."""
    first, second, third = nodes.others
    sender, _relay, end = chain_on(first, second, third, mark=str(mark))
    ray.commit()
    inject.disturb_store(pause=True)
    sent = sender.send.remote(RELAYED)
    inject.wait_until(lambda: mark.exists() and mark.stat().st_size > RELAYED // 50, "some calls came through")
    if ask_the_end:
        assert ray.get(end.told.remote(), timeout=PATIENCE_S) > RELAYED // 50
    nodes.kill(first, second)
    inject.disturb_store()
    return sent, end


def test_actor_that_depends_on_what_more_failures_than_the_bound_have_destroyed_is_rolled_back(
    nodes: LocalNodes, tmp_path: Path
) -> None:
    sent, end = lose_two_nodes(nodes, tmp_path / "mark", ask_the_end=False)
    with suppress(ray.LineageLost):  # the script depends on it too if one of the two happened to say a word to it
        assert ray.get(sent, timeout=PATIENCE_S) == RELAYED
        assert ray.get(end.told.remote(), timeout=PATIENCE_S) == RELAYED, "each call was applied once"
    inject.wait_until(lambda: reasons().get(end._peer) == ORPHANED, "the last link was rolled back", PATIENCE_S)


def test_script_that_depends_on_what_more_failures_than_the_bound_have_destroyed_is_told_so(
    nodes: LocalNodes, tmp_path: Path
) -> None:
    sent, _end = lose_two_nodes(nodes, tmp_path / "mark", ask_the_end=True)
    with pytest.raises(ray.LineageLost, match="more nodes failed at once than max_failures allows"):
        ray.get(sent, timeout=PATIENCE_S)
