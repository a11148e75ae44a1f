"""The loss of a node: from the moment in which all of its processes are killed, or stopped, to the first right answer.

Beside it, in the same run and struck by the same blow, a plain Ray actor that Ray may restart and whose calls it may
repeat for ever; it has lost its state. Ray's health checks are as they are by default. All nodes are on one machine.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ray as plain
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from rich.console import Console
from rich.table import Table

import lineage_stash as stash
from lineage_stash.on_ray.api import current
from lineage_stash.on_ray.node_agent import agent_name
from lineage_stash.on_ray.registry import Place
from lineage_stash.testing import inject
from lineage_stash.testing.inject_nodes import LocalNodes, local_nodes
from lineage_stash.testing.signals import is_running

PATIENCE_S = 120.0
CALLS = 1000
ATTEMPTS = 20


class Sizes(NamedTuple):
    """How much of everything; small in the test of this file."""

    nodes: int = 4
    rounds: int = 3
    many: int = 6
    plain_patience_s: float = 45.0


class Figure(NamedTuple):
    """One row: what was measured, the figures of every round, the bar, and what plain Ray did meanwhile."""

    what: str
    seconds: list[float]
    bar_s: float | None
    plain_s: list[float]

    @property
    def reached(self) -> bool:
        """Whether the worst round is within the bar."""
        return self.bar_s is None or max(self.seconds) <= self.bar_s


class Counter:
    """The workload."""

    def __init__(self) -> None:
        self.total = 0

    def add(self) -> int:
        self.total += 1
        return self.total

    def node(self) -> str:
        found: str = plain.get_runtime_context().get_node_id()
        return found


def on_node(node: str) -> NodeAffinitySchedulingStrategy:
    """There, as long as there is one."""
    return NodeAffinitySchedulingStrategy(node, soft=True)


def has_agent(node: str) -> bool:
    """Whether a node has an agent that runs."""
    place = current().process.registry.place_of(agent_name(node))
    return place is not None and is_running(place.pid)


def has_spare() -> bool:
    """Whether a spare waits."""
    places = current().process.plane.get_all("places/spare-").values()
    return any(is_running(Place(*json.loads(place)).pid) for place in places)


def plain_counter_on(node: str) -> Any:
    """A plain Ray actor on a node, which may be restarted elsewhere."""
    options = {"scheduling_strategy": on_node(node), "num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
    for _ in range(ATTEMPTS):
        counter: Any = plain.remote(Counter).options(**options).remote()
        if plain.get(counter.node.remote(), timeout=PATIENCE_S) == node:
            return counter
        plain.kill(counter)
    raise TimeoutError(f"Ray places no actor on node {node}")


def strike(nodes: LocalNodes, blow: Callable[[str], None], actors: int, patience_s: float) -> tuple[list[float], float]:
    """Have actors on a node, strike it, and measure when each answers; plain Ray's time, or how long was waited."""
    victim = nodes.others[0]
    inject.wait_until(lambda: all(map(has_agent, nodes.others)) and has_spare(), "agents and a spare")
    # Two nodes lost before the first one's replica is replaced would be more than three replicas survive.
    inject.wait_until(inject.is_store_whole, "a whole store")
    counters = [stash.remote(Counter).options(scheduling_strategy=on_node(victim)).remote() for _ in range(actors)]
    plain_counter = plain_counter_on(victim)
    stash.get([counter.add.remote() for counter in counters for _ in range(CALLS)], timeout=PATIENCE_S)
    plain.get(plain_counter.add.remote(), timeout=PATIENCE_S)
    struck_at = time.monotonic()
    blow(victim)
    answers = {counter.add.remote(): 0.0 for counter in counters}
    plain_answer = plain_counter.add.remote()
    left = list(answers)
    while left:
        come, left = stash.wait(left, timeout=PATIENCE_S)
        for ref in come:
            assert stash.get(ref) == CALLS + 1, "every call counts once"
            answers[ref] = time.monotonic() - struck_at
    plain.wait([plain_answer], timeout=max(0.0, patience_s - (time.monotonic() - struck_at)))
    plain_s = time.monotonic() - struck_at
    for counter in counters:
        stash.kill(counter)
    plain.kill(plain_counter)
    return sorted(answers.values()), plain_s


def measure(sizes: Sizes) -> list[Figure]:
    """All of it."""
    with local_nodes(sizes.nodes, include_dashboard=False) as nodes:
        stash.init(address=nodes.address, log_to_driver=False)
        killed, stopped, many = [], [], []
        try:
            for _ in range(sizes.rounds):
                killed.append(strike(nodes, nodes.kill, 1, sizes.plain_patience_s))
                nodes.add()
            for _ in range(sizes.rounds):
                stopped.append(strike(nodes, nodes.stop, 1, sizes.plain_patience_s))
                nodes.resume(nodes.others[0])
                nodes.kill(nodes.others[0])
                nodes.add()
            many.append(strike(nodes, nodes.kill, sizes.many, 0.0))
        finally:
            stash.shutdown()
    return [
        Figure("node killed: one actor answers, from a spare", [each[0][0] for each in killed], 3.0,
               [each[1] for each in killed]),
        Figure("node stopped: one actor answers, from a spare", [each[0][0] for each in stopped], 5.0,
               [each[1] for each in stopped]),
        Figure(f"node killed: the first of {sizes.many} actors, one spare", [each[0][0] for each in many], 3.0, []),
        Figure(f"node killed: the last of {sizes.many} actors, one spare", [each[0][-1] for each in many], None, []),
    ]  # fmt: skip


def in_words(seconds: list[float], at_least: float = float("inf")) -> str:
    """Figures of several rounds; those that were given up are marked."""
    return ", ".join(f"{'> ' if each >= at_least else ''}{each:.1f}" for each in sorted(seconds))


def main(argv: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks nodes", description=__doc__)
    for name, value in Sizes()._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    sizes = Sizes(**vars(parser.parse_args(list(argv))))
    table = Table("measured", "seconds", "bar", "", "plain Ray", title="The loss of a node, all nodes on one machine")
    for figure in measure(sizes):
        bar = "" if figure.bar_s is None else f"{figure.bar_s:g}"
        verdict = "" if figure.bar_s is None else "ok" if figure.reached else "MISSED"
        table.add_row(figure.what, in_words(figure.seconds), bar, verdict,
                      in_words(figure.plain_s, sizes.plain_patience_s))  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
