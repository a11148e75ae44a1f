"""The demo until there is a cluster to show: the protocol losing processes and going on, told in a few lines."""

from random import Random

from lineage_stash.testing.programs import Plan, draw_plan
from lineage_stash.testing.runner import run_schedule
from lineage_stash.testing.schedule import Driver, Fault, Schedule
from lineage_stash.testing.world import World

FAULTS = (
    Fault(40, "crash", 0, 20, False),
    Fault(70, "node", 1, 40, False),
    Fault(72, "coordinator", 0, 20, True),
)


def demo(seed: int) -> int:
    """Run the same program without and with failures, and tell what happened."""
    plan = draw_plan(Random(seed), 3, -1, 3, 8)
    print("Three actors and a driver on four nodes, three replicas of the store, a network that loses and repeats.")
    for title, faults in (("Nothing fails", ()), ("An actor, then a node, then the coordinator are killed", FAULTS)):
        world, violation = run_schedule(_schedule(seed, plan, faults))
        print(f"\n{title}:")
        for line in world.checker.story.headlines():
            print(f"  {line}")
        print(f"  → {_summary(world)}")
        if violation is not None:
            print(violation, *violation.story, sep="\n")
            return 1
    print(
        "\nBoth times, and checked from outside at every step: every call ran exactly once, every replay did what"
        "\nothers had already seen, and every output left once, after its causes were durable."
        "\nTry other worlds: make simulate SCHEDULES=2000 SEED=1"
    )
    return 0


def _schedule(seed: int, plan: Plan, faults: tuple[Fault, ...]) -> Schedule:
    drivers = (Driver("driver", 0, True, plan),)
    return Schedule(seed, 4, 3, 3, None, 4, 1 << 20, 0.02, 0.02, 0.05, drivers, faults)


def _summary(world: World) -> str:
    calls = sum(len(runs) for runs in world.checker.runs.values())
    return (
        f"{calls} calls ran, {len(world.checker.outputs)} outputs left, {world.crashes} processes were killed, "
        f"{len(world.decisions)} rounds settled, {world.replayed} entries replayed, {world.now_ms} ms of simulated time"
    )
