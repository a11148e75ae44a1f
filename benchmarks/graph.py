"""One of many dies: requests through a graph of actors at a fixed load, and who notices that one actor was killed.

Layers of actors, each of which hands every request on to one of two actors of the next layer, without waiting for it;
the last layer notes when it came. Requests enter at fixed times, whether or not earlier ones have arrived, and latency
counts from the time at which a request should have been sent. Halfway through, one actor in the middle is killed.
Compared are the requests whose way touches neither that actor nor any that can be reached from it, before and after.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

import lineage_stash as stash
from benchmarks.against_ray import percentile
from lineage_stash.testing import inject

PATIENCE_S = 300.0
AT_ONCE = 10
"""Actors that are waited for at once while the graph comes up."""

BAR = 1.2


class Sizes(NamedTuple):
    """How much of everything; small in the test of this file."""

    layers: int = 10
    columns: int = 20
    rate: float = 30.0
    seconds: float = 40.0
    warm_up_s: float = 10.0


class Cell:
    """One actor of the graph."""

    def __init__(self) -> None:
        self.further: list[Any] = []
        self.arrived: list[tuple[int, float]] = []
        self.handed_on = 0

    def connect(self, further: list[Any]) -> None:
        self.further = further

    def take(self, request: int, layer: int) -> None:
        self.handed_on += 1
        if self.further:
            self.further[turn(request, layer)].take.remote(request, layer + 1)
        else:
            self.arrived.append((request, time.time()))

    def tell(self) -> list[tuple[int, float]]:
        return self.arrived

    def count(self) -> int:
        return self.handed_on


class Outcome(NamedTuple):
    """Latencies in milliseconds of one kind of requests, before and after the kill."""

    before: list[float]
    after: list[float]


def turn(request: int, layer: int) -> int:
    """Which of the two ways a request takes from a layer."""
    return (request * 2654435761 >> (layer + 7)) & 1


def way(request: int, sizes: Sizes) -> list[tuple[int, int]]:
    """The actors that a request goes through, by layer and column."""
    column = request * 7 % sizes.columns
    found = []
    for layer in range(sizes.layers):
        found.append((layer, column))
        column = (column + turn(request, layer)) % sizes.columns
    return found


def reached_from(victim: tuple[int, int], sizes: Sizes) -> set[tuple[int, int]]:
    """An actor, and all that requests can come to from it."""
    layer, column = victim
    below = [(further, right) for further in range(sizes.layers - layer) for right in range(further + 1)]
    return {(layer + further, (column + right) % sizes.columns) for further, right in below}


def raise_graph(sizes: Sizes) -> list[list[Any]]:
    """All actors, connected; says how far it has come, because it takes minutes."""
    cell = stash.remote(Cell).options(num_cpus=0)
    graph: list[list[Any]] = [[] for _ in range(sizes.layers)]
    total, began = sizes.layers * sizes.columns, time.monotonic()
    for first in range(0, total, AT_ONCE):
        batch = [cell.remote() for _ in range(first, min(first + AT_ONCE, total))]
        stash.get([each.count.remote() for each in batch], timeout=PATIENCE_S)
        for number, each in enumerate(batch, first):
            graph[number // sizes.columns].append(each)
        say(f"{first + len(batch)} of {total} actors after {time.monotonic() - began:.0f} s")
    connected = [
        each.connect.remote([graph[layer + 1][column], graph[layer + 1][(column + 1) % sizes.columns]])
        for layer in range(sizes.layers - 1) for column, each in enumerate(graph[layer])
    ]  # fmt: skip
    stash.get(connected, timeout=PATIENCE_S)
    return graph


def say(text: str) -> None:
    """Progress, apart from the figures."""
    load = os.getloadavg()[0]
    print(f"graph: {text}, load {load:.1f}", file=sys.stderr, flush=True)


def send(graph: list[list[Any]], sizes: Sizes, victim: tuple[int, int] | None, first: int, seconds: float) -> float:
    """Send requests at fixed times, and kill somebody halfway; when the first one should have been sent."""
    entrances = graph[0]
    count = int(seconds * sizes.rate)
    pid = None if victim is None else inject.pid_of(graph[victim[0]][victim[1]])
    began, began_at = time.time(), time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began_at + number / sizes.rate - time.monotonic()))
        if pid is not None and number == count // 2:
            os.kill(pid, 9)
        request = first + number
        entrances[way(request, sizes)[0][1]].take.remote(request, 0)
    return began


def arrivals(graph: list[list[Any]], wanted: int) -> dict[int, float]:
    """When each request came to the last layer, once all have."""
    found: dict[int, float] = {}
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < wanted:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{wanted - len(found)} of {wanted} requests never arrived")
        time.sleep(0.5)
        for told in stash.get([each.tell.remote() for each in graph[-1]], timeout=PATIENCE_S):
            for request, at in told:
                assert found.setdefault(request, at) == at, "a request arrived twice"
    return found


def measure(sizes: Sizes) -> tuple[Outcome, Outcome]:
    """Latencies of the requests that have nothing to do with the actor that is killed, and of all others."""
    stash.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        graph = raise_graph(sizes)
        victim = (sizes.layers // 2, sizes.columns // 2)
        warm = int(sizes.warm_up_s * sizes.rate)
        send(graph, sizes, None, 0, sizes.warm_up_s)
        arrivals(graph, warm)
        say("warm")
        began = send(graph, sizes, victim, warm, 2 * sizes.seconds)
        count = int(2 * sizes.seconds * sizes.rate)
        came = arrivals(graph, warm + count)
        assert inject.recoveries_of(graph[victim[0]][victim[1]]) == 1, "one was killed, once"
    finally:
        stash.shutdown()
    affected = reached_from(victim, sizes)
    unaffected_ms, others_ms = Outcome([], []), Outcome([], [])
    for number in range(count):
        latency_ms = 1e3 * (came[warm + number] - began - number / sizes.rate)
        outcome = others_ms if affected.intersection(way(warm + number, sizes)) else unaffected_ms
        (outcome.before if number < count // 2 else outcome.after).append(latency_ms)
    return unaffected_ms, others_ms


def main(argv: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks graph", description=__doc__)
    for name, value in Sizes()._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    sizes = Sizes(**vars(parser.parse_args(list(argv))))
    unaffected, others = measure(sizes)
    title = f"{sizes.layers} layers of {sizes.columns} actors, {sizes.rate:g} requests/s, one actor killed halfway"
    table = Table("requests, latency in ms", "how many", "p50 before", "after", "p99 before", "after", "max before",
                  "after", "p99 ratio", "bar", "", title=title)  # fmt: skip
    for what, outcome, bar in (("unaffected", unaffected, BAR), ("through it, or downstream of it", others, None)):
        ratio = percentile(outcome.after, 0.99) / percentile(outcome.before, 0.99)
        verdict = "" if bar is None else "ok" if ratio <= bar else "MISSED"
        figures = [f"{percentile(each, share):.1f}" for share in (0.5, 0.99, 1.0) for each in outcome]
        table.add_row(what, str(len(outcome.before) + len(outcome.after)), *figures, f"{ratio:.2f} ×",
                      f"≤ {bar:g} ×" if bar else "", verdict)  # fmt: skip
    Console(width=160).print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
