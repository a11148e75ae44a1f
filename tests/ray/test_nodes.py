"""Whole nodes are killed and stopped, all processes at once: actors go on elsewhere, and every call counts once."""

import os
import re
import signal
import time
from collections.abc import Iterator

import pytest
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import lineage_stash as ray
from lineage_stash.on_ray.api import current
from lineage_stash.on_ray.node_agent import agent_name
from lineage_stash.on_ray.placing import SHUNNED
from lineage_stash.shell import address_of
from lineage_stash.testing import inject
from lineage_stash.testing.inject_nodes import LocalNodes, local_nodes
from lineage_stash.testing.signals import is_running

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(240)]

PATIENCE_S = 90.0
NODES = 5

STOPPED_S = 35.0
"""In which Ray by itself does not notice that a node stands still; it takes us two seconds."""


@ray.remote(num_cpus=0, checkpoint_every=300)
class Tally:
    """Counts its calls, so that one that was lost or repeated shows."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def add_elsewhere(self, other: "ray.ActorHandle", times: int) -> int:
        self.count += 1
        return len(ray.get([other.add.remote() for _ in range(times)]))

    def hold_the_interpreter(self, length: int) -> float:
        """Keep every thread of this process from running, twice as long with each one more; for how many seconds."""
        return ray.observe(lambda: seconds_to_match(length))


def seconds_to_match(length: int) -> float:
    began = time.monotonic()
    re.match("(a+)+$", "a" * length + "b")
    return time.monotonic() - began


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalNodes]:
    """Five nodes with a replica on each, so that two of them may be lost at once."""
    with local_nodes(NODES, include_dashboard=False) as started:
        ray.init(address=started.address, replicas=NODES, spares=2, log_to_driver=False)
        yield started
        ray.shutdown()


@pytest.fixture(autouse=True)
def all_nodes_are_there(nodes: LocalNodes) -> None:
    """As many nodes as in the beginning, and the agents of all of them."""
    for _ in range(NODES - 1 - len(nodes.others)):
        nodes.add()
    inject.wait_until(lambda: all(map(is_alive, nodes.others)), "an agent on every node")


def is_alive(node: str) -> bool:
    """Whether a node has an agent, and the coordinator has heard it if it had another one before."""
    return agent_pid(node) is not None and node.encode() not in (current().process.plane.get(SHUNNED) or b"")


def agent_pid(node: str) -> int | None:
    """The process of a node's agent, if it runs."""
    place = current().process.registry.place_of(agent_name(node))
    return place.pid if place is not None and is_running(place.pid) else None


def node_of(tally: "ray.ActorHandle") -> str:
    inject.pid_of(tally)
    place = current().process.registry.place_of(address_of(tally._peer, inject.life_of(tally)))
    assert place is not None
    return place.node


def create_on(node: str, count: int = 1) -> list["ray.ActorHandle"]:
    """Actors on a node that may go elsewhere if they must."""
    there = NodeAffinitySchedulingStrategy(node, soft=True)
    created = [Tally.options(scheduling_strategy=there).remote() for _ in range(count)]
    assert {node_of(tally) for tally in created} == {node}
    return created


def test_killed_node_is_left_at_once_and_nothing_is_lost(nodes: LocalNodes) -> None:
    (victim,) = nodes.others[:1]
    tallies = create_on(victim, 2)
    assert ray.get([tally.add.remote() for tally in tallies for _ in range(500)], timeout=PATIENCE_S)[-1] == 500
    nodes.kill(victim)
    refs = [tally.add.remote() for tally in tallies]
    assert ray.get(refs, timeout=PATIENCE_S) == [501, 501]
    assert victim not in {node_of(tally) for tally in tallies}
    created = [Tally.remote() for _ in range(4)]
    assert ray.get([tally.add.remote() for tally in created], timeout=PATIENCE_S) == [1] * 4, "none is lost there"


def test_stopped_node_is_left_and_its_zombies_end_when_it_is_resumed(nodes: LocalNodes) -> None:
    victim = nodes.others[0]
    caller = create_on(nodes.others[1])[0]
    tallies = create_on(victim, 2)
    refs = [caller.add_elsewhere.remote(tally, 300) for tally in tallies for _ in range(4)]
    ray.get(refs[0], timeout=PATIENCE_S)
    zombies = [inject.pid_of(tally) for tally in tallies]
    agent = agent_pid(victim)
    nodes.stop(victim)
    try:
        assert ray.get(refs, timeout=STOPPED_S) == [300] * 8, "though no connection was reset"
        assert ray.get([tally.add.remote() for tally in tallies], timeout=STOPPED_S) == [1201] * 2
        assert all(map(is_running, zombies))
        assert inject.recoveries_of(caller) == 0
    finally:
        nodes.resume(victim)
    inject.wait_until(lambda: not any(map(is_running, zombies)), "the zombies end")
    assert ray.get([tally.add.remote() for tally in tallies], timeout=PATIENCE_S) == [1202] * 2
    assert agent_pid(victim) == agent
    assert ray.get(create_on(victim)[0].add.remote(), timeout=PATIENCE_S) == 1, "the node is one like any other again"


def test_two_of_five_nodes_killed_at_once_while_callers_run(nodes: LocalNodes) -> None:
    victims = nodes.others[:2]
    caller, tally = create_on(victims[0])[0], create_on(victims[1])[0]
    survivor, bystander = create_on(nodes.others[2], 2)
    inject.disturb_store(delay_ms=300)  # so that nothing of the last 300 ms before the blow is committed
    refs = [each.add_elsewhere.remote(tally, 200) for each in (caller, survivor) for _ in range(10)]
    refs += [caller.add_elsewhere.remote(bystander, 200) for _ in range(10)]
    direct = [tally.add.remote() for _ in range(500)]
    ray.wait(refs, num_returns=3, timeout=PATIENCE_S)
    nodes.kill(*victims)
    inject.disturb_store()
    assert ray.get(refs, timeout=PATIENCE_S) == [200] * 30
    counts = ray.get(direct, timeout=PATIENCE_S)
    assert counts == sorted(set(counts)), "each call was applied once, in its caller's order"
    assert ray.get(tally.add.remote(), timeout=PATIENCE_S) == 4501
    assert ray.get(bystander.add.remote(), timeout=PATIENCE_S) == 2001
    assert [inject.recoveries_of(each) for each in (survivor, bystander)] == [0, 0]


def test_actors_leave_a_node_that_is_drained_before_it_goes(nodes: LocalNodes) -> None:
    victim = nodes.others[0]
    tallies = create_on(victim, 2)
    refs = [tally.add.remote() for tally in tallies for _ in range(500)]
    nodes.drain(victim, within_s=600)

    def have_moved() -> bool:
        refs.extend([tally.add.remote() for tally in tallies])
        ray.get(refs[-2:], timeout=PATIENCE_S)
        return all(node_of(tally) != victim for tally in tallies)

    inject.wait_until(have_moved, "both have moved")
    lives = [inject.life_of(tally) for tally in tallies]
    nodes.kill(victim)
    counts = ray.get([tally.add.remote() for tally in tallies], timeout=PATIENCE_S)
    assert sum(counts) == len(refs) + 2
    assert [inject.life_of(tally) for tally in tallies] == lives == [1, 1]


def test_killed_agent_is_started_again_and_nobody_is_recovered(nodes: LocalNodes) -> None:
    node = nodes.others[0]
    tally = create_on(node)[0]
    ray.get(tally.add.remote(), timeout=PATIENCE_S)
    killed = agent_pid(node)
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    inject.wait_until(lambda: agent_pid(node) not in (None, killed), "another agent")
    assert ray.get(tally.add.remote(), timeout=PATIENCE_S) == 2
    assert inject.recoveries_of(tally) == 0


def test_busy_interpreter_is_not_taken_for_dead(nodes: LocalNodes) -> None:
    tally = create_on(nodes.others[0])[0]
    length = 20
    while ray.get(tally.hold_the_interpreter.remote(length), timeout=PATIENCE_S) < 5.0:
        length += 1
    assert inject.recoveries_of(tally) == 0


def test_coordinator_lives_on_the_head(nodes: LocalNodes) -> None:
    registry = current().process.registry
    address = registry.coordinator_address()
    assert address is not None
    place = registry.place_of(address)
    assert place is not None
    assert place.node == nodes.head
