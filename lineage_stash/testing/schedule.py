"""Schedules: all that happens to a world, drawn from one seed. Data only, so that it can be shrunk and printed."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from lineage_stash.testing.programs import Plan, draw_plan, with_effects, with_refs, without_emits


class Fault(NamedTuple):
    """Something bad, at a step of the run or once a round is open from that step on."""

    step: int
    kind: str
    target: int
    length_ms: int
    in_recovery: bool

    def __str__(self) -> str:
        when = f"from step {self.step}, while a round is open" if self.in_recovery else f"at step {self.step}"
        return f"{when}: {self.kind} {self.target} ({self.length_ms} ms)"


class Driver(NamedTuple):
    """A driver that comes at a time, does its plan, and goes."""

    name: str
    start_ms: int
    replayable: bool
    plan: Plan
    resumable: bool = False
    """Nobody but its user starts it again, who takes his time."""


class Schedule(NamedTuple):
    """One world: its size, its programs, its network, and its faults."""

    seed: int
    nodes: int
    actors: int
    replicas: int
    max_failures: int | None
    checkpoint_every: int | None
    stash_cap_bytes: int
    loss: float
    repeat: float
    slow: float
    drivers: tuple[Driver, ...]
    faults: tuple[Fault, ...]
    store_away: bool = False
    """The store is away until all programs have had time to finish, and nothing else fails."""
    lost_replica: bool = False
    """One of three replicas never comes back."""
    calls_per_message: int = 1024
    strays: bool = False
    """Programs do not repeat themselves exactly; that must be noticed."""
    chunked: bool = False
    """Checkpoints are large enough to be in chunks."""
    buffer_cap_bytes: int = 1 << 20
    under_way_bytes: int = 1 << 20
    """So little in some worlds that payloads are spilled and calls wait for room."""
    losses: tuple[int, ...] = ()
    """At which steps a replica loses its disk for good, so that another one must take its place."""
    moves: tuple[int, ...] = ()
    """At which steps somebody wants another replica set although nobody was lost: one replaced, or three for one."""
    fragile: bool = False
    """The first replica that is brought up loses its disk while it joins, or soon after."""
    retires: bool = False
    """Runners that have answered are asked to retire, whatever they are doing by then: replaying, for instance."""


FAULT_KINDS = (
    *["crash"] * 4,
    *["crash mid-send", "node", "pause", "suspect", "replica", "second coordinator"] * 2,
    *["coordinator", "coordinators", "coordinator asleep", "store", "registry"],
)


STORE_SALT = 0x5707E
REFS_SALT = 0x2EF5
EFFECTS_SALT = 0xEFFEC7
RESUME_SALT = 0xA6A1
MOST_REPLICAS = 3
RETIRING_SHARE = 0.3
"""Of the worlds with tasks: in the others runners are there to the end, so that they can be looked at."""


def draw_schedule(seed: int) -> Schedule:
    """The schedule of a seed; in half of them programs pass refs on and have tasks run, in a quarter they commit."""
    schedule = _with_resumable_drivers(_draw_schedule(seed))
    apart = Random(seed ^ REFS_SALT)
    if apart.random() >= 0.5:
        schedule = _with_plans(schedule, lambda plan: with_refs(apart, plan, schedule.actors, -1))
        schedule = schedule._replace(retires=apart.random() < RETIRING_SHARE)
    effects = Random(seed ^ EFFECTS_SALT)
    if effects.random() < 0.25 and not schedule.store_away:
        schedule = _with_plans(schedule, lambda plan: with_effects(effects, plan))
    return schedule


def _with_plans(schedule: Schedule, change: Callable[[Plan], Plan]) -> Schedule:
    return schedule._replace(drivers=tuple(each._replace(plan=change(each.plan)) for each in schedule.drivers))


def _draw_schedule(seed: int) -> Schedule:
    draw = Random(seed)
    nodes = draw.randrange(3, 6)
    actors = draw.randrange(2, 5)
    drivers = tuple(_draw_driver(draw, number, actors) for number in range(draw.choice((1, 2, 2, 3))))
    burst = draw.randrange(5, 160)
    faults = tuple(sorted(_draw_fault(draw, burst) for _ in range(draw.choice((0, 1, 1, 2, 2, 3, 3, 4, 5, 6)))))
    schedule = Schedule(
        seed=seed,
        nodes=nodes,
        actors=actors,
        replicas=draw.choice((1, 3, 3, 3)),
        max_failures=draw.choice((None, None, 1, 1, 2)),
        checkpoint_every=draw.choice((None, 2, 4, 8)),
        stash_cap_bytes=draw.choice((1 << 20, 1 << 20, 1 << 20, 322)),
        loss=draw.choice((0.0, 0.0, 0.02, 0.1)),
        repeat=draw.choice((0.0, 0.0, 0.05)),
        slow=draw.choice((0.0, 0.05, 0.2)),
        drivers=drivers,
        faults=faults,
    )
    special = draw.random()
    if special < 0.03:
        drivers = tuple(driver._replace(plan=without_emits(driver.plan)) for driver in drivers)
        return schedule._replace(store_away=True, loss=0.0, faults=(), stash_cap_bytes=1 << 20, drivers=drivers)
    schedule = schedule._replace(calls_per_message=draw.choice((1024, 1024, 1024, 1, 2)))
    lost_replica = schedule.replicas == 3 and special > 0.85
    # Drawn apart, so that the seeds of before keep their worlds.
    apart = Random(seed ^ STORE_SALT)
    may_lose = schedule.replicas == MOST_REPLICAS and not lost_replica
    losses = apart.choice(((), (), (), (1,), (1, 1))) if may_lose else ()
    schedule = schedule._replace(
        strays=special > 0.97,
        lost_replica=lost_replica,
        chunked=apart.random() < 0.3,
        buffer_cap_bytes=apart.choice((1 << 20, 1 << 20, 20)),
        under_way_bytes=apart.choice((1 << 20, 1 << 20, 1)),
        losses=tuple(sorted(apart.randrange(5, 160) for _ in losses)),
    )
    moves = (apart.randrange(5, 160),) if apart.random() < 0.15 and not lost_replica else ()
    return schedule._replace(moves=moves, fragile=apart.random() < 0.3 and bool(schedule.losses or moves))


def _with_resumable_drivers(schedule: Schedule) -> Schedule:
    """Of the drivers that can be run again, half have a user who does it; the others are started like actors."""
    apart = Random(schedule.seed ^ RESUME_SALT)
    drivers = tuple(
        driver._replace(resumable=driver.replayable and apart.random() < 0.5) for driver in schedule.drivers
    )
    return schedule._replace(drivers=drivers)


def _draw_driver(draw: Random, number: int, actors: int) -> Driver:
    plan = draw_plan(draw, actors, -1, 3, draw.randrange(1, 4))
    return Driver(f"d{number}", draw.choice((0, 0, 5, 40, 80, 120)), draw.random() < 0.4, plan)


def _draw_fault(draw: Random, burst: int) -> Fault:
    """Half of all faults come close together, as they do in life."""
    kind = draw.choice(FAULT_KINDS)
    step = burst + draw.randrange(12) if draw.random() < 0.5 else draw.randrange(5, 160)
    return Fault(step, kind, draw.randrange(1000), draw.choice((20, 60, 150)), draw.random() < 0.35)
