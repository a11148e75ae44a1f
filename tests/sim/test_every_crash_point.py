"""Small worlds, completely: a crash of every process at every step, and every pair of such crashes."""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Any

import pytest

from lineage_stash.testing.programs import Plan
from lineage_stash.testing.runner import run_schedule
from lineage_stash.testing.schedule import Driver, Fault, Schedule

ACTORS = 2
PROCESSES = ACTORS + 1

TWELVE_CALLS: Plan = [
    ["call", "get", 0, [["read"], ["call", "get", 1, [["read"]]], ["emit"]]],
    ["call", "later", 1, [["mix", 1]]],
    ["call", "forget", 0, [["mix", 2]]],
    ["first", [(0, [["call", "later", 1, [["read"]]]]), (1, [["mix", 3]])]],
    ["call", "get", 0, [["branch", [["call", "forget", 1, [["read"]]]], [["call", "get", 1, [["mix", 4]]]]]]],
    ["call", "get", 1, [["call", "forget", 0, [["mix", 5]]]]],
    ["emit"],
]
FOUR_CALLS: Plan = [
    ["call", "get", 0, [["read"], ["call", "get", 1, [["read"]]]]],
    ["call", "get", 1, [["call", "forget", 0, [["mix", 1]]]]],
]


KINDS = ("visitor", "run", "resumed")
"""A driver that nobody can run again, one that is started again, and one that its user starts again."""


def small_world(plan: Plan, *, replicas: int, kind: str, faults: tuple[Fault, ...] = ()) -> Schedule:
    """Two actors and a driver on three nodes, a good network, and exactly these faults."""
    driver = Driver("d0", 0, kind != "visitor", plan, kind == "resumed")
    return Schedule(11, 3, ACTORS, replicas, None, 3, 1 << 20, 0.0, 0.0, 0.0, (driver,), faults)


def crashes(steps: range) -> Iterator[Fault]:
    """A crash of every peer, and of the coordinator, at every step."""
    for step, target in product(steps, range(PROCESSES)):
        yield Fault(step, "crash", target, 20, False)
    for step in steps:
        yield Fault(step, "coordinator", 0, 20, False)


def steps_of(schedule: Schedule) -> int:
    """How long a world lives."""
    world, violation = run_schedule(schedule)
    assert violation is None
    return world.steps


def violation_of(schedule: Schedule) -> str | None:
    """What breaks, if anything, with the faults that broke it."""
    _, violation = run_schedule(schedule)
    return None if violation is None else f"{schedule.faults}: {violation}"


def violations(schedules: list[Schedule]) -> list[str]:
    """Everything that breaks in any of the worlds."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return [found for found in pool.map(violation_of, schedules, chunksize=50) if found is not None]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_every_single_crash_is_survived(kind: str) -> None:
    calm = small_world(TWELVE_CALLS, replicas=3, kind=kind)
    worlds = [calm._replace(faults=(fault,)) for fault in crashes(range(1, steps_of(calm)))]
    assert len(worlds) > 300
    assert violations(worlds) == []


def troubles(steps: range) -> Iterator[Fault]:
    """Whatever can befall a change of the replica set, at every step."""
    coordinators = [("coordinator", 0), ("second coordinator", 0), ("coordinator asleep", 0)]
    for step, (kind, target) in product(steps, [*coordinators, *[("replica", of) for of in range(4)]]):
        yield Fault(step, kind, target, 150, False)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("change", [{"losses": (9,)}, {"moves": (9,)}, {"losses": (9,), "fragile": True}], ids=str)
def test_every_single_trouble_is_survived_while_a_replica_is_replaced(change: dict[str, Any]) -> None:
    calm = small_world(FOUR_CALLS, replicas=3, kind="run")._replace(chunked=True, **change)
    world, violation = run_schedule(calm)
    assert violation is None
    assert len(world.sets) > 1
    worlds = [calm._replace(faults=(fault,)) for fault in troubles(range(1, world.steps, 2))]
    assert len(worlds) > 300
    assert violations(worlds) == []


def pairs(plan: Plan, kind: str, stride: int) -> list[Schedule]:
    """Every pair of crashes, the second up to some time after what would have been the end; or every n-th pair."""
    calm = small_world(plan, replicas=1, kind=kind)
    steps = steps_of(calm)
    firsts, seconds = list(crashes(range(1, steps))), list(crashes(range(1, steps + 30)))
    both = [(a, b) for a, b in product(firsts, seconds) if a.step <= b.step]
    return [calm._replace(faults=pair) for pair in both[::stride]]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_some_pairs_of_crashes_are_survived(kind: str) -> None:
    worlds = pairs(FOUR_CALLS, kind, stride=41)
    assert len(worlds) > 200
    assert violations(worlds) == []


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kind", KINDS[:2])
def test_every_pair_of_crashes_is_survived(kind: str) -> None:
    worlds = pairs(FOUR_CALLS, kind, stride=1)
    assert len(worlds) > 10_000
    assert violations(worlds) == []
