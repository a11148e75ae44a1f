"""Commands that look at what goes on: who is there, what was recovered, what is wrong."""

from typing import TYPE_CHECKING, Annotated

import typer

from lineage_stash.cli.options import (
    AddressOption,
    FilterOption,
    Format,
    FormatOption,
    as_text,
    chosen,
    fail,
    print_answer,
    records_of,
)

if TYPE_CHECKING:
    from lineage_stash.cli.cluster import Cluster
    from lineage_stash.cli.doctor import Check
    from lineage_stash.cli.records import Recovery


def status(
    output: FormatOption = Format.TABLE,
    address: AddressOption = None,
    filters: FilterOption = None,
    living: Annotated[bool, typer.Option("--living", help="Leave out peers that have left for good.")] = False,
) -> None:
    """Show services, runs, every driver and actor, the last recovery, and which failures are survived.

    Of each driver and actor: its life, how far its log is committed, its stash against its cap, how durable its commits
    are. Filters choose among these.
    """
    from lineage_stash.cli import show
    from lineage_stash.cli.figures import ask_figures
    from lineage_stash.cli.holdings import Holdings
    from lineage_stash.cli.runs import RunState, all_runs, describe
    from lineage_stash.cli.status import PeerStatus, collect, without_those_who_left

    with records_of(address) as (cluster, records):
        figures = ask_figures(records, cluster.node)
        found = collect(records, cluster.address, cluster.node, cluster.alive_nodes, figures)
    runs = [describe(run, records, Holdings({}, {})) for run in all_runs(records)]
    if living:
        found = without_those_who_left(found)
        runs = [run for run in runs if run.state in (RunState.RUNNING, RunState.AWAY) or run.actors_alive]
    found = found._replace(peers=chosen(found.peers, filters, PeerStatus._fields))
    last = records.recoveries[-1] if records.recoveries else None
    print_answer(output, show.status_table(found, runs, last), show.status_json(found, runs, last))


def top(
    output: FormatOption = Format.TABLE,
    address: AddressOption = None,
    filters: FilterOption = None,
    every: Annotated[float, typer.Option(min=0.1, help="How often to look, in seconds.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, print the rates between, and end.")] = False,
) -> None:
    """Show status live, with rates: calls and entries a second, commits, lag and stash of every peer that is alive.

    q or Ctrl-C ends it. With --format json or yaml there is one object for each look.
    """
    from lineage_stash.cli.cluster import FAILURES
    from lineage_stash.cli.top import watch

    with records_of(address) as (cluster, _):
        try:
            watch(cluster, output, filters, every, once=once)
        except FAILURES as error:
            fail(f"the cluster does not answer any more: {error}")


def recoveries(
    output: FormatOption = Format.TABLE,
    address: AddressOption = None,
    filters: FilterOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Then print new ones as they come, until Ctrl-C.")
    ] = False,
) -> None:
    """Show what died, how it was noticed and how long each phase of its recovery took, newest last.

    With --follow and --format json there is one object to a line. `stash recovery ID` tells all about one.
    """
    from lineage_stash.cli import show
    from lineage_stash.cli.records import Recovery

    with records_of(address) as (cluster, records):
        found = chosen(records.recoveries, filters, ("id", *Recovery._fields), tells=not follow)
        if follow:
            _follow(output, cluster, records.recoveries, filters)
        else:
            print_answer(output, show.recoveries_view(show.console(), found), show.recoveries_json(found))


def recovery(
    recovery_id: Annotated[
        str, typer.Argument(metavar="ID", help="As `stash recoveries` shows it; `last` is the newest.")
    ],
    output: FormatOption = Format.TABLE,
    address: AddressOption = None,
) -> None:
    """Tell all about one recovery: what died, how it was noticed, each phase, and who was affected.

    Also how much was replayed and restored, and who else was down at the time.
    """
    from lineage_stash.cli import show_recovery
    from lineage_stash.cli.recovery import find_recovery, tell
    from lineage_stash.cli.sources import ClusterSource, NotFound

    with records_of(address) as (cluster, records):
        try:
            found = find_recovery(records, recovery_id)
        except NotFound as error:
            fail(str(error))
        try:
            source = ClusterSource(records, cluster.plane, cluster.node, cluster.alive_nodes)
        except NotFound:
            source = None
        whole = tell(found, records, source)
    print_answer(output, show_recovery.recovery_view(whole), show_recovery.recovery_json(whole))


def doctor(output: FormatOption = Format.TABLE, address: AddressOption = None, filters: FilterOption = None) -> None:
    """Check the installation, the machine and the services, and say what to do about what is wrong.

    Versions, Java and its flags, clock, memory, ports, replicas and their nodes, disks, limits. Ends with exit
    code 1 if something is to be repaired.
    """
    from lineage_stash.cli import show
    from lineage_stash.cli.doctor import Check, has_problem

    checks = _examine(address)
    shown = chosen(checks, filters, Check._fields)
    print_answer(output, show.checks_table(shown), show.checks_json(shown))
    if has_problem(checks):
        raise typer.Exit(1)


def _examine(address: str | None) -> "tuple[Check, ...]":
    from lineage_stash.cli.cluster import NotJoined, joined
    from lineage_stash.cli.doctor import problem
    from lineage_stash.cli.examine import examine_cluster, examine_machine

    checks = examine_machine()
    try:
        with joined(address) as cluster:
            return checks + examine_cluster(cluster)
    except NotJoined as error:
        found, _, advice = str(error).partition(": ")
        return (*checks, problem("cluster", found, advice))


def _follow(output: Format, cluster: "Cluster", known: "tuple[Recovery, ...]", filters: list[str] | None) -> None:
    from lineage_stash.cli import show
    from lineage_stash.cli.cluster import FAILURES
    from lineage_stash.cli.following import follow, until_interrupted
    from lineage_stash.cli.records import Recovery, read_recoveries

    fields = Recovery._fields

    def look() -> "tuple[Recovery, ...]":
        try:
            return read_recoveries(cluster.plane)
        except FAILURES as error:
            fail(f"the cluster does not answer any more: {error}")

    def in_a_line(recovery: "Recovery") -> str:
        is_table = output is Format.TABLE
        if is_table:
            return show.recovery_line(recovery)
        return as_text(output, show.recovery_json(recovery), in_a_line=True) + ("\n" if output is Format.YAML else "")

    def wanted(found: "tuple[Recovery, ...]") -> "tuple[Recovery, ...]":
        return chosen(found, filters, ("id", *fields), tells=False)

    if output is Format.TABLE:
        show.console().print(show.recoveries_view(show.console(), wanted(known)))
    else:
        for recovery in wanted(known):
            typer.echo(in_a_line(recovery))
    with until_interrupted() as pause:
        for recovery in follow(look, known, pause):
            for one in wanted((recovery,)):
                typer.echo(in_a_line(one))
