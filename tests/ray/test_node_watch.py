"""Who is taken for silent, and where processes may be started: without Ray's processes."""

from typing import Any

import pytest
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from lineage_stash.on_ray.node_agent import BEAT_S, agent_name, node_of
from lineage_stash.on_ray.node_watch import SILENCE_S, Listening
from lineage_stash.on_ray.placing import Node, nodes_for
from lineage_stash.on_ray.process import TICK_S

HERE, THERE = "a" * 56, "b" * 56


def listen(listening: Listening, since: float, seconds: float) -> list[str]:
    """Turn after turn for so long; whoever was silent for too long."""
    turns = round(seconds / TICK_S)
    return [node for turn in range(1, turns + 1) for node in listening.turn(since + turn * TICK_S)]


def test_silent_agent_is_told_of_once_and_another_one_that_speaks_is_not() -> None:
    listening = Listening(0.0)
    listening.hear("silent", "1")
    now = 0.0
    silent = []
    for _ in range(round(2 * SILENCE_S / BEAT_S)):
        listening.hear("alive", "2")
        silent += listen(listening, now, BEAT_S)
        now += BEAT_S
    assert silent == ["silent"]
    assert listening.nodes == ["alive"]


def test_time_in_which_the_listener_was_away_is_not_silence() -> None:
    listening = Listening(0.0)
    listening.hear("node", "1")
    assert listen(listening, 0.0, SILENCE_S / 2) == []
    assert listening.turn(1000.0) == [], "stopped, or kept from running, for a quarter of an hour"
    assert listen(listening, 1000.0, SILENCE_S / 4) == []
    assert listen(listening, 1000.0 + SILENCE_S / 4, SILENCE_S) == ["node"]


def test_stopped_agent_that_speaks_again_is_news() -> None:
    listening = Listening(0.0)
    assert listening.hear("node", "1")
    assert not listening.hear("node", "1")
    assert listen(listening, 0.0, 2 * SILENCE_S) == ["node"]
    assert listening.hear("node", "1")


def test_link_of_a_former_agent_says_nothing_of_the_present_one() -> None:
    listening = Listening(0.0)
    listening.hear("node", "1")
    listening.hear("node", "2")
    assert not listening.end("node", "1")
    assert listening.nodes == ["node"]
    assert listening.end("node", "2")
    assert listening.nodes == []


def test_address_of_an_agent_names_its_node() -> None:
    assert node_of(f"{agent_name(HERE)}-1234") == HERE
    assert node_of("driver-1234@0") is None


@pytest.mark.parametrize(
    ("wishes", "fitting"),
    [
        ({}, [HERE]),
        ({"num_cpus": 4}, [HERE]),
        ({"num_cpus": 5}, []),
        ({"num_cpus": 1, "resources": {"disk": 1}}, []),
        ({"scheduling_strategy": "SPREAD"}, [HERE]),
        ({"scheduling_strategy": NodeAffinitySchedulingStrategy(HERE, soft=False)}, [HERE]),
        ({"scheduling_strategy": NodeAffinitySchedulingStrategy("c" * 56, soft=True)}, [HERE]),
        ({"scheduling_strategy": NodeAffinitySchedulingStrategy("c" * 56, soft=False)}, []),
        ({"scheduling_strategy": object()}, []),
    ],
)
def test_host_goes_where_its_wishes_allow(wishes: dict[str, Any], fitting: list[str]) -> None:
    living = {
        HERE: Node(alive=True, resources={"CPU": 4.0, "disk": 0.5}),
        THERE: Node(alive=True, resources={"disk": 2.0}),
    }
    assert nodes_for(wishes, living) == fitting
