"""graph: breadth-first search and PageRank by actors that hold the vertices of a random graph, step by step.

In each step every actor gets what the others have for its vertices, and returns what it has for theirs. The latency is
that of one step; both results are compared with those of a program of a few lines that has the whole graph.
"""

import random
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.suite.driving import PATIENCE_S
from benchmarks.suite.measuring import latency_of
from benchmarks.suite.oracle import Judged
from benchmarks.suite.records import Cell
from benchmarks.suite.systems.base import System
from benchmarks.suite.workloads.base import Injection, Measured, Parameter

PARAMETERS = {
    "vertices": Parameter(4000, "of the graph"),
    "degree": Parameter(8, "edges from each vertex"),
    "actors": Parameter(4, "that hold them"),
    "iterations": Parameter(40, "of PageRank"),
    "searches": Parameter(10, "from different vertices"),
}

DAMPING = 0.85
CLOSE = 1e-9

Edges = list[list[int]]


class Part:
    """Holds the vertices whose number leaves this part's number as a remainder."""

    def __init__(self, part: int, parts: int, edges: dict[int, list[int]], vertices: int) -> None:
        self.part, self.parts, self.edges, self.vertices = part, parts, edges, vertices
        self.ranks = dict.fromkeys(edges, 1.0 / vertices)
        self.depths: dict[int, int] = {}

    def reach(self, reached: list[int], depth: int) -> list[list[int]]:
        """Vertices that were reached; those that can be reached from the new ones, by part."""
        if depth == 0:
            self.depths = {}
        further: list[list[int]] = [[] for _ in range(self.parts)]
        for vertex in reached:
            if vertex not in self.depths:
                self.depths[vertex] = depth
                for target in self.edges[vertex]:
                    further[target % self.parts].append(target)
        return further

    def told(self) -> dict[int, int]:
        return self.depths

    def spread(self) -> list[dict[int, float]]:
        """What each vertex gives to its targets, by part."""
        shares: list[dict[int, float]] = [{} for _ in range(self.parts)]
        for vertex, targets in self.edges.items():
            share = self.ranks[vertex] / len(targets)
            for target in targets:
                into = shares[target % self.parts]
                into[target] = into.get(target, 0.0) + share
        return shares

    def gather(self, shares: list[dict[int, float]]) -> list[dict[int, float]]:
        """New ranks out of what all parts gave; and what these give in turn."""
        base = (1 - DAMPING) / self.vertices
        self.ranks = {vertex: base + DAMPING * sum(share.get(vertex, 0.0) for share in shares) for vertex in self.edges}
        return self.spread()

    def told_ranks(self) -> dict[int, float]:
        return self.ranks


def run(system: System, cell: Cell, parameters: Mapping[str, Any]) -> Measured:
    """Searches, then ranks, with the failures of the cell."""
    count = parameters["actors"]
    edges = random_graph(parameters["vertices"], parameters["degree"], cell.seed)
    held = [{vertex: edges[vertex] for vertex in range(number, len(edges), count)} for number in range(count)]
    parts = [
        system.actor(Part, number, count, held[number], len(edges), name=f"part-{number}") for number in range(count)
    ]
    steps = Steps(system, parts, parameters["searches"] + parameters["iterations"])
    with Injection(cell, system, lambda: steps.progress) as injection:
        began_at = time.perf_counter()
        wrong = [root for root in range(parameters["searches"]) if steps.search(root) != depths_of(edges, root)]
        searched_at = time.perf_counter()
        ranks = steps.rank(parameters["iterations"])
    took_s = time.perf_counter() - searched_at
    off = max(abs(ranks[vertex] - rank) for vertex, rank in enumerate(ranks_of(edges, parameters["iterations"])))
    judged = Judged("precise") if not wrong and off < CLOSE else Judged(
        "divergent", f"{len(wrong)} searches are wrong, and ranks by {off:.3g}")  # fmt: skip
    return Measured(
        judged, latency=latency_of(steps.taken_ms), injection=injection,
        figures={"searches_per_s": parameters["searches"] / (searched_at - began_at),
                 "iterations_per_s": parameters["iterations"] / took_s},
    )  # fmt: skip


class Steps:
    """Steps of all parts together, and how long each took."""

    def __init__(self, system: System, parts: list[Any], wanted: int) -> None:
        self._system, self._parts, self._wanted = system, parts, wanted
        self._done = 0
        self.taken_ms: list[float] = []

    @property
    def progress(self) -> float:
        """How many searches and iterations are done, from 0 to 1."""
        return self._done / self._wanted

    def _step(self, calls: list[Any]) -> list[Any]:
        began_at = time.perf_counter()
        replies = self._system.get(calls, PATIENCE_S)
        self.taken_ms.append(1e3 * (time.perf_counter() - began_at))
        return replies

    def search(self, root: int) -> dict[int, int]:
        """The depth of every vertex that can be reached."""
        count, depth = len(self._parts), 0
        reached: list[list[int]] = [[root] if root % count == part else [] for part in range(count)]
        while any(reached):
            told = self._step([part.reach.remote(reached[number], depth) for number, part in enumerate(self._parts)])
            reached = [[vertex for one in told for vertex in one[number]] for number in range(count)]
            depth += 1
        found = self._system.get([part.told.remote() for part in self._parts], PATIENCE_S)
        self._done += 1
        return {vertex: at for one in found for vertex, at in one.items()}

    def rank(self, iterations: int) -> dict[int, float]:
        """The ranks after so many iterations."""
        count = len(self._parts)
        given = self._step([part.spread.remote() for part in self._parts])
        for _ in range(iterations):
            shares = [[one[number] for one in given] for number in range(count)]
            given = self._step([part.gather.remote(shares[number]) for number, part in enumerate(self._parts)])
            self._done += 1
        found = self._system.get([part.told_ranks.remote() for part in self._parts], PATIENCE_S)
        return {vertex: rank for one in found for vertex, rank in one.items()}


# the truth


def random_graph(vertices: int, degree: int, seed: int) -> Edges:
    """Targets of each vertex."""
    draw = random.Random(seed)
    return [[draw.randrange(vertices) for _ in range(degree)] for _ in range(vertices)]


def depths_of(edges: Edges, root: int) -> dict[int, int]:
    """The depth of every vertex that can be reached."""
    depths, frontier = {root: 0}, [root]
    while frontier:
        further = []
        for vertex in frontier:
            for target in edges[vertex]:
                if target not in depths:
                    depths[target] = depths[vertex] + 1
                    further.append(target)
        frontier = further
    return depths


def ranks_of(edges: Edges, iterations: int) -> list[float]:
    """The ranks after so many iterations."""
    ranks = [1.0 / len(edges)] * len(edges)
    for _ in range(iterations):
        got = [0.0] * len(edges)
        for vertex, targets in enumerate(edges):
            for target in targets:
                got[target] += ranks[vertex] / len(targets)
        ranks = [(1 - DAMPING) / len(edges) + DAMPING * each for each in got]
    return ranks
