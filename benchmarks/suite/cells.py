"""Cells: what the quick and the full profile run, each a workload on a system with its parameters and failures."""

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.suite import peers
from benchmarks.suite.records import Cell, name_of
from benchmarks.suite.systems import CLASSES

OURS = tuple(CLASSES)
"""Systems that run the same workload code."""

RIVALS = peers.NAMES

PACED: dict[str, Any] = {"rate": 200}
FLAT_OUT: dict[str, Any] = {"rate": 0}
DELAYS_MS = (0, 1, 5, 100)
KILL = "kill:actor:counter-1@50%"
KILL_BOTH = "kill:actor:counter-0+counter-1@50%"
"""Of systems that say that they survive it."""

BEYOND = "pause:replica:all@20%for5s, kill:node:any*2@60%"
"""Two of the three nodes that the ring is on, while nothing is committed, and only two have what is not."""

SURVIVED = (
    KILL_BOTH,
    "stop:actor:counter-1@50%for2s",
    "kill:replica:any@50%",
    "pause:replica:all@40%for2s",
    "kill:coordinator@40%, kill:actor:counter-1@50%",
    "slow:replica:all:100ms@40%for2s",
    "fill:disk@40%for2s",
    "random:3:actor+replica@20%-80%",
)
"""Failures of stash, beside the kill of one actor, which all systems have."""


def cell(workload: str, system: str, variant: str = "", failure: str = "", seed: int = 0, **parameters: Any) -> Cell:
    """One cell."""
    return Cell(workload=workload, system=system, variant=variant, failure=failure, seed=seed, parameters=parameters)


def quick() -> list[Cell]:
    """Some fifty that tell most."""
    ring = [cell("ring", "stash", store_delay_ms=delay) for delay in DELAYS_MS]
    ring += [cell("ring", "sync-log", store_delay_ms=delay) for delay in (0, 5, 100)]
    return [
        *ring,
        cell("ring", "plain", store_delay_ms=0),
        *_calm((*OURS, *RIVALS), ("stash", "plain", "global-checkpoint", *RIVALS)),
        *_failing(SURVIVED[:4]),
        *_effects(),
        *_costs((1,), (8,), ()),
        *_others((10,), ("stash", "plain")),
    ]


def full() -> list[Cell]:
    """All that is worth a figure, each failure of stash with three seeds."""
    before = [cell("calls", system, calls_before=count) for system in ("stash", "plain") for count in (0, 100_000)]
    seeds = [cell("wordcount", "stash", failure=failure, seed=seed, **PACED) for failure in SURVIVED for seed in (1, 2)]
    cells = [
        *_rings(OURS),
        *_calm((*OURS, *RIVALS), (*OURS, *RIVALS)),
        *_failing(SURVIVED),
        *seeds,
        *_effects(),
        *_costs((1, 2, 4), (8, 16), ("memory", "remote")),
        *before,
        *_others((1, 10, 100), ("stash", "plain", "ray-retry")),
    ]
    return list({name_of(one): one for one in cells}.values())


def _rings(systems: Sequence[str]) -> Iterator[Cell]:
    for system in systems:
        for delay in DELAYS_MS:
            yield cell("ring", system, store_delay_ms=delay)


def _calm(systems: Sequence[str], flat_out: Sequence[str]) -> Iterator[Cell]:
    for system in systems:
        yield cell("wordcount", system, **PACED)
    for system in flat_out:
        yield cell("wordcount", system, **FLAT_OUT)
    yield cell("wordcount", "stash", "counted=1", **PACED)


def _failing(survived: Sequence[str]) -> Iterator[Cell]:
    for system in OURS:
        yield cell("wordcount", system, failure=KILL, **PACED)
    yield cell("wordcount", "global-checkpoint", failure=KILL_BOTH, **PACED)
    for failure in survived:
        yield cell("wordcount", "stash", failure=failure, **PACED)
    yield cell("wordcount", "stash", "nodes=3", "kill:node:any@50%", **PACED)
    yield cell("ring", "stash", "max_failures=1,nodes=4,promised=detected", BEYOND, actors=3)


def _effects() -> Iterator[Cell]:
    yield cell("effects", "stash")
    yield cell("effects", "stash", failure="kill:actor:payer-0@50%")
    yield cell("effects", "global-checkpoint", "output=held")
    yield cell("effects", "pyflink")


def _costs(bounds: Sequence[int], actors: Sequence[int], levels: Sequence[str]) -> Iterator[Cell]:
    for system in ("stash", "plain"):
        for count in (2, *actors):
            yield cell("calls", system, actors=count)
    for bound in (*bounds, "unlimited"):
        yield cell("calls", "stash", f"max_failures={bound}", actors=2)
    for level in levels:
        yield cell("calls", "stash", f"level={level}", actors=2)


def _others(megabytes: Sequence[int], systems: Sequence[str]) -> Iterator[Cell]:
    for system in systems:
        for size in megabytes:
            yield cell("allreduce", system, megabytes=size)
        yield cell("graph", system)
    yield cell("graph", "stash", failure="kill:actor:part-1@50%")
    yield cell("pipeline", "stash")
    yield cell("pipeline", "plain")
    yield cell("pipeline", "stash", failure="kill:spark-executor@40%")
