"""The command that kills on purpose."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lineage_stash.cli.options import (
    AddressOption,
    Format,
    FormatOption,
    fail,
    note,
    parse_duration_s,
    print_answer,
    records_of,
    refuse_to_guess,
)

if TYPE_CHECKING:
    from lineage_stash.cli.chaos import Outcome
    from lineage_stash.testing.killer import Kill

WARNING = (
    "this kills processes of running actors with SIGKILL, at random, on this machine. Programs that use lineage_stash "
    "go on where they were; whatever else their processes do, threads and files without @effect for example, is cut off"
)


def chaos(
    output: FormatOption = Format.TABLE,
    address: AddressOption = None,
    seed: Annotated[int, typer.Option(help="What decides who is killed and when.")] = 0,
    duration: Annotated[str, typer.Option("--for", metavar="TIME", help="How long: 90s, 30m, 12h or 1d.")] = "30s",
    kills: Annotated[int, typer.Option(min=1, help="How many to kill at most.")] = 10,
    run: Annotated[
        str | None, typer.Option(metavar="RUN", help="Only actors of this run.", show_default="those of all runs")
    ] = None,
    services: Annotated[
        bool, typer.Option("--services", help="Kill the coordinator and replicas of the store now and then, too.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before it begins.")] = False,
) -> None:
    """Kill processes of running actors on purpose, and see whether all of them are back.

    Ends with exit code 1 if somebody is not. Ctrl-C ends the killing, and waits for those who are not back yet.
    """
    from lineage_stash.cli.chaos import Targets, unleash
    from lineage_stash.cli.cluster import FAILURES
    from lineage_stash.cli.following import interruptible
    from lineage_stash.cli.runs import all_runs

    for_s = parse_duration_s(duration)
    refuse_to_guess(address)
    with records_of(address) as (cluster, records):
        if run is not None and run not in all_runs(records):
            fail(f"there is no run {run} in the cluster at {cluster.address}: see stash runs")
        targets = Targets(cluster, run)
        here, elsewhere = targets.actors(), targets.elsewhere()
        if not here:
            fail(f"no actor that is alive is on this machine{f'; {elsewhere} are on others' if elsewhere else ''}")
        left = f", {elsewhere} on other machines are left alone" if elsewhere else ""
        note(f"warning: {WARNING}")
        note(
            f"cluster {cluster.address}: {len(here)} actors here{left}; up to {kills} kills in {for_s:g} s, seed {seed}"
        )
        if not yes and not typer.confirm("Kill them?", err=True):
            raise typer.Exit(1)
        try:
            with interruptible() as goes_on:
                outcome = unleash(cluster, seed=seed, for_s=for_s, most=kills, run=run, services=services, tell=_tell,
                                  goes_on=goes_on)  # fmt: skip
        except FAILURES as error:
            fail(f"the cluster does not answer any more: {error}")
    print_answer(output, _in_words(outcome), _as_value(outcome, seed))
    if outcome.missing:
        raise typer.Exit(1)


def _tell(kill: "Kill") -> None:
    note(f"killed {kill.name}, pid {kill.pid}")


def _in_words(outcome: "Outcome") -> str:
    back = "all are back" if not outcome.missing else f"not back: {', '.join(outcome.missing)}"
    took = f"{outcome.recoveries} recoveries, the slowest {outcome.slowest_ms:.0f} ms"
    return f"{len(outcome.killed)} killed, {took}; {back}"


def _as_value(outcome: "Outcome", seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "killed": [kill._asdict() for kill in outcome.killed],
        "missing": list(outcome.missing),
        "recoveries": outcome.recoveries,
        "slowest_ms": outcome.slowest_ms,
    }
