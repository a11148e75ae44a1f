"""Shrinking: the smallest schedule that still breaks the same rule, found by leaving things out one at a time."""

from collections.abc import Iterator
from typing import Any

from lineage_stash.testing.ghosts import Violation
from lineage_stash.testing.programs import Plan
from lineage_stash.testing.schedule import Schedule

MOST_RUNS = 400


def shrink(schedule: Schedule, violation: Violation) -> tuple[Schedule, Violation]:
    """Leave out faults, drivers, steps and network troubles while the same invariant is still broken."""
    from lineage_stash.testing.runner import run_schedule

    runs = 0
    shrunk = True
    while shrunk and runs < MOST_RUNS:
        shrunk = False
        for candidate in _smaller(schedule):
            runs += 1
            _, found = run_schedule(candidate)
            if found is not None and found.invariant == violation.invariant:
                schedule, violation = candidate, found
                shrunk = True
                break
            if runs >= MOST_RUNS:
                break
    return schedule, violation


def _smaller(schedule: Schedule) -> Iterator[Schedule]:
    """Every schedule with one thing less."""
    for position in range(len(schedule.faults)):
        yield schedule._replace(faults=_without(schedule.faults, position))
    if len(schedule.drivers) > 1:
        for position in range(len(schedule.drivers)):
            yield schedule._replace(drivers=_without(schedule.drivers, position))
    for calmer in (schedule._replace(loss=0.0), schedule._replace(repeat=0.0), schedule._replace(slow=0.0)):
        if calmer != schedule:
            yield calmer
    for position, driver in enumerate(schedule.drivers):
        for plan in _smaller_plans(driver.plan):
            drivers = list(schedule.drivers)
            drivers[position] = driver._replace(plan=plan)
            yield schedule._replace(drivers=tuple(drivers))


def _without(items: tuple[Any, ...], position: int) -> tuple[Any, ...]:
    return items[:position] + items[position + 1 :]


def _smaller_plans(plan: Plan) -> Iterator[Plan]:
    """Every plan with one step less, or with a smaller plan inside a step."""
    for position, step in enumerate(plan):
        yield plan[:position] + plan[position + 1 :]
        if step[0] == "call" and step[3]:
            for inner in _smaller_plans(step[3]):
                yield [*plan[:position], [*step[:3], inner], *plan[position + 1 :]]
        if step[0] == "branch":
            for inner in step[1:]:
                yield [*plan[:position], *inner, *plan[position + 1 :]]
        if step[0] == "first":
            calls = [["call", "later", callee, inner] for callee, inner in step[1]]
            yield [*plan[:position], *calls, *plan[position + 1 :]]


def describe(schedule: Schedule) -> str:
    """A schedule in words."""
    lines = [
        f"  seed {schedule.seed}: {schedule.actors} actors on {schedule.nodes} nodes, {schedule.replicas} replicas, "
        f"max_failures {schedule.max_failures}, a checkpoint every {schedule.checkpoint_every} entries, "
        f"loss {schedule.loss}, repeats {schedule.repeat}, slow {schedule.slow}"
    ]
    for driver in schedule.drivers:
        kind = "can be run again" if driver.replayable else "cannot be run again"
        kind = "is run again by its user" if driver.resumable else kind
        lines.append(f"  driver {driver.name} comes at {driver.start_ms} ms, {kind}: {driver.plan}")
    lines.extend(f"  fault {fault}" for fault in schedule.faults)
    return "\n".join(lines)
