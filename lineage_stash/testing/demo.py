"""The demo until there is a cluster to show: the protocol losing processes and going on, told line by line."""

from lineage_stash.testing.programs import draw_plan
from lineage_stash.testing.runner import run_schedule
from lineage_stash.testing.schedule import Driver, Fault, Schedule


def demo(seed: int) -> int:
    """Run the same program without and with failures, and compare what it did."""
    from random import Random

    plan = draw_plan(Random(seed), 3, -1, 3, 6)
    calm = _schedule(seed, plan, ())
    faults = (Fault(30, "crash", 0, 20, False), Fault(60, "node", 1, 40, False), Fault(62, "coordinator", 0, 20, True))
    world, violation = run_schedule(calm)
    if violation is None:
        print(f"Without failures: {_summary(world)}")
        world, violation = run_schedule(_schedule(seed, plan, faults))
    if violation is not None:
        print(violation, *violation.story, sep="\n")
        return 1
    print("With an actor killed, then a whole node, then the coordinator in the middle of the recovery:")
    print(
        "\n".join(line for line in world.checker.story.about(()) if "AskGather" not in line and "Announce" not in line)
    )
    print(f"With failures:    {_summary(world)}")
    print("Every call ran exactly once, every replay was equal to what others had seen, every output left once.")
    return 0


def _schedule(seed: int, plan: list[list[object]], faults: tuple[Fault, ...]) -> Schedule:
    drivers = (Driver("d0", 0, False, plan),)
    return Schedule(seed, 4, 3, 3, None, 4, 1 << 20, 0.02, 0.02, 0.05, drivers, faults)


def _summary(world: object) -> str:
    calls = sum(len(runs) for runs in world.checker.runs.values())  # type: ignore[attr-defined]
    return (
        f"{calls} calls ran, {len(world.checker.outputs)} outputs left, {world.crashes} processes were killed, "  # type: ignore[attr-defined]
        f"{len(world.decisions)} rounds, {world.replayed} entries replayed"  # type: ignore[attr-defined]
    )
