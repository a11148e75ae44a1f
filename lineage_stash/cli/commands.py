"""The commands: what can be asked, in which form, and with which exit code it ends.

0 is for an answer, 1 for no cluster, no services, a problem found or something that was not removed, 2 for a command
line that was not understood.
Answers go to the standard output, whatever keeps us from one goes to the standard error.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lineage_stash.cli.cluster import Cluster
    from lineage_stash.cli.doctor import Check
    from lineage_stash.cli.records import Records, Recovery
    from lineage_stash.cli.removing import Remains, Removed


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

StorageOption = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FOLDER",
        help="A folder of this machine that was given as init(storage=...); may be repeated. Ray's session folders are "
        "always looked into.",
        show_default=False,
    ),
]

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration_s(text: str) -> float:
    """How long `90s`, `30m`, `12h` or `1d` is."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a length of time: write 90s, 30m, 12h or 1d")
    return float(found[1]) * UNITS_S[found[2]]


app = typer.Typer(
    name="stash",
    help="Look at the programs of a Ray cluster that survive kill -9: who runs, what was recovered, what is wrong, and "
    "what is over and can be removed. Run it on a node of the cluster; only rm and gc change anything.",
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
        found = collect(records, cluster.address, cluster.node, cluster.alive_nodes)
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


@app.command()
def runs(output: FormatOption = Format.TABLE, address: AddressOption = None, storage: StorageOption = None) -> None:
    """Show the runs of the cluster, what the store has of each, and the store folders on this machine's disks.

    A run is a driver with its actors. Without a cluster, only folders are shown.
    """
    from lineage_stash.cli import show, show_runs
    from lineage_stash.cli.collecting import look

    with _remains(address) as remains:
        found = look(remains, storage or ())
    _print(output, show_runs.runs_view(show.console(), found, time.time()), show_runs.runs_json(found))


@app.command()
def abandon(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run that is away, as `stash runs` names it.")],
    address: AddressOption = None,
) -> None:
    """Finish a run that is away and is not to be resumed: its actors end, and it can be removed.

    Refuses a run whose script is alive.
    """
    from lineage_stash.cli.cluster import FAILURES, NotJoined, joined
    from lineage_stash.on_ray.driver import DRIVERS
    from lineage_stash.on_ray.resumable import ResumableDriver

    _refuse_to_guess(address)
    try:
        with joined(address):
            ResumableDriver.abandon(run.removeprefix(DRIVERS))
    except (NotJoined, ValueError, *FAILURES) as error:
        _fail(str(error))
    typer.echo(f"abandoned {run}: its actors end")


@app.command()
def rm(
    what: Annotated[
        str, typer.Argument(metavar="RUN|FOLDER", help="A run, as `stash runs` names it, or a folder that is left.")
    ],
    output: FormatOption = Format.TABLE,
    address: AddressOption = None,
) -> None:
    """Remove what the store and the control plane keep of a run that is over, or a folder that a cluster has left.

    Refuses whatever is not over, and says what is still alive.
    """
    from lineage_stash.cli import show_runs
    from lineage_stash.cli.collecting import remove_folder
    from lineage_stash.cli.removing import NotRemoved

    is_folder = what.startswith((".", "/", "~")) or Path(what).is_dir()
    _refuse_to_guess(address)
    with _remains(address) as remains:
        try:
            removed = remove_folder(Path(what).expanduser(), remains) if is_folder else (_remove_run(what, remains),)
        except NotRemoved as error:
            _fail(str(error))
    _print(output, show_runs.removed_lines(removed), show_runs.removed_json(removed))


@app.command()
def gc(
    output: FormatOption = Format.TABLE,
    address: AddressOption = None,
    storage: StorageOption = None,
    older_than: Annotated[
        str, typer.Option(metavar="TIME", help="Only what has been over for so long: 90s, 30m, 12h or 1d.")
    ] = "0s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
) -> None:
    """Remove every run that is over, and every store folder on this machine whose cluster is gone.

    Ends with exit code 1 if something could not be removed that should have been.
    """
    from lineage_stash.cli import show, show_runs
    from lineage_stash.cli.collecting import collect

    older_than_s = parse_duration_s(older_than)
    _refuse_to_guess(address)
    with _remains(address) as remains:
        done = collect(remains, storage or (), older_than_s=older_than_s, now_s=time.time(), dry_run=dry_run)
    view = show_runs.collection_view(show.console(), done, dry_run=dry_run)
    _print(output, view, show_runs.collection_json(done, dry_run=dry_run))
    if done.has_failed:
        raise typer.Exit(1)


def _remove_run(name: str, remains: "Remains | None") -> "Removed":
    from lineage_stash.cli.removing import NotRemoved
    from lineage_stash.core.ids import PeerId

    run, _, rest = name.partition("/")
    if rest:
        raise NotRemoved(f"{name}: this is an actor, which is removed with its run, {run}")
    if remains is None:
        raise NotRemoved("no Ray cluster runs on this machine: give --address host:port, or the folder that is left")
    try:
        remains.refuse_unless_over(PeerId(run))
        return remains.remove(PeerId(run))
    except NotRemoved as error:
        raise NotRemoved(f"{run}: {error}") from error


def _refuse_to_guess(address: str | None) -> None:
    """Of several clusters Ray would choose one, which is well enough for looking, and not for removing."""
    from lineage_stash.cli.folders import live_sessions

    if address is None and not os.environ.get("RAY_ADDRESS") and len(live_sessions()) > 1:
        _fail("several Ray clusters run on this machine: name the one that is meant, with --address host:port")


@contextmanager
def _remains(address: str | None) -> "Iterator[Remains | None]":
    """What is kept of runs in a cluster; None if none was named and none runs here, where folders may be left."""
    from lineage_stash.cli.cluster import NoCluster, NotJoined, joined
    from lineage_stash.cli.removing import Remains
    from lineage_stash.on_ray.control_plane import ControlPlaneAway

    try:
        with joined(address) as cluster:
            yield Remains(cluster)
    except NoCluster:
        yield None
    except (NotJoined, ControlPlaneAway) as error:
        _fail(str(error))


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
    from lineage_stash.cli.following import follow, until_interrupted
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
    with until_interrupted() as pause:
        for recovery in follow(look, known, pause):
            typer.echo(in_a_line(recovery))


@contextmanager
def _records(address: str | None) -> "Iterator[tuple[Cluster, Records]]":
    """A cluster and what its control plane knows; ends the command where there is nothing to look at."""
    from lineage_stash.cli.cluster import NotJoined, joined
    from lineage_stash.cli.examine import START_SERVICES
    from lineage_stash.cli.records import read
    from lineage_stash.on_ray.control_plane import ControlPlaneAway

    try:
        with joined(address) as cluster:
            found = read(cluster.plane)
            if not found.has_services:
                _fail(f"no lineage_stash services run in the cluster at {cluster.address}: {START_SERVICES}")
            yield cluster, found
    except (NotJoined, ControlPlaneAway) as error:
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
