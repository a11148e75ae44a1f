"""The commands: what can be asked, in which form, and with which exit code it ends.

0 is for an answer, 1 for no cluster, no services or a problem found, 2 for a command line that was not understood.
Answers go to the standard output, whatever keeps us from one goes to the standard error.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lineage_stash.cli.cluster import Cluster
    from lineage_stash.cli.doctor import Check
    from lineage_stash.cli.records import Records, Recovery


class Format(StrEnum):
    """For whom to print."""

    TABLE = "table"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="A table for people, or JSON for tools.")]
AddressOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="The Ray cluster, as `ray start` prints it. Default: RAY_ADDRESS, else the one on this machine.",
        show_default=False,
    ),
]

app = typer.Typer(
    name="stash",
    help="Look at the programs of a Ray cluster that survive kill -9: who runs, what was recovered, what is wrong. "
    "Run it on a node of the cluster; it changes nothing there.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def status(
    output: FormatOption = Format.TABLE,
    address: AddressOption = None,
    living: Annotated[bool, typer.Option("--living", help="Leave out peers that have left for good.")] = False,
) -> None:
    """Show the services, the spares, every driver and actor, and which failures are survived."""
    from lineage_stash.cli import show
    from lineage_stash.cli.status import collect, without_those_who_left

    with _records(address) as (cluster, records):
        found = collect(records, cluster.address, cluster.node)
    if living:
        found = without_those_who_left(found)
    _print(output, show.status_table(found), show.status_json(found))


@app.command()
def recoveries(
    output: FormatOption = Format.TABLE,
    address: AddressOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Then print new ones as they come, until Ctrl-C.")
    ] = False,
) -> None:
    """Show what died, how it was noticed and how long each phase of its recovery took, newest last.

    With --follow and --format json there is one object to a line.
    """
    from lineage_stash.cli import show

    with _records(address) as (cluster, records):
        if follow:
            _follow(output, cluster, records.recoveries)
        else:
            found = records.recoveries
            _print(output, show.recoveries_view(show.console(), found), show.recoveries_json(found))


@app.command()
def doctor(output: FormatOption = Format.TABLE, address: AddressOption = None) -> None:
    """Check versions, services, storage and limits, and say what to do about what is wrong.

    Ends with exit code 1 if something is to be repaired.
    """
    from lineage_stash.cli import show
    from lineage_stash.cli.doctor import has_problem

    checks = _examine(address)
    _print(output, show.checks_table(checks), show.checks_json(checks))
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


def _follow(output: Format, cluster: "Cluster", known: "tuple[Recovery, ...]") -> None:
    from lineage_stash.cli import show
    from lineage_stash.cli.cluster import FAILURES
    from lineage_stash.cli.following import follow
    from lineage_stash.cli.records import read_recoveries

    def look() -> "tuple[Recovery, ...]":
        try:
            return read_recoveries(cluster.plane)
        except FAILURES as error:
            _fail(f"the cluster does not answer any more: {error}")

    def in_a_line(recovery: "Recovery") -> str:
        is_table = output is Format.TABLE
        return show.recovery_line(recovery) if is_table else show.as_json(recovery._asdict(), indent=None)

    if output is Format.TABLE:
        show.console().print(show.recoveries_view(show.console(), known))
    else:
        for recovery in known:
            typer.echo(in_a_line(recovery))
    try:
        for recovery in follow(look, known):
            typer.echo(in_a_line(recovery))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


@contextmanager
def _records(address: str | None) -> "Iterator[tuple[Cluster, Records]]":
    """A cluster and what its control plane knows; ends the command where there is nothing to look at."""
    from lineage_stash.cli.cluster import NotJoined, joined
    from lineage_stash.cli.examine import START_SERVICES
    from lineage_stash.cli.records import read

    try:
        with joined(address) as cluster:
            found = read(cluster.plane)
            if not found.has_services:
                _fail(f"no lineage_stash services run in the cluster at {cluster.address}: {START_SERVICES}")
            yield cluster, found
    except NotJoined as error:
        _fail(str(error))


def _print(output: Format, table: "RenderableType", value: dict[str, Any]) -> None:
    from lineage_stash.cli import show

    if output is Format.TABLE:
        show.console().print(table)
    else:
        typer.echo(show.as_json(value))


def _fail(line: str) -> NoReturn:
    typer.echo(f"stash: {line}", err=True)
    raise typer.Exit(1)
