"""Commands about runs: which there are, finishing one, and removing what is over."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lineage_stash.cli.options import (
    AddressOption,
    FilterOption,
    Format,
    FormatOption,
    StorageOption,
    chosen,
    fail,
    parse_duration_s,
    print_answer,
    refuse_to_guess,
    remains_of,
)

if TYPE_CHECKING:
    from lineage_stash.cli.removing import Remains, Removed


def runs(
    output: FormatOption = Format.TABLE,
    address: AddressOption = None,
    filters: FilterOption = None,
    storage: StorageOption = None,
) -> None:
    """Show the runs of the cluster, what the store has of each, and the store folders on this machine's disks.

    A run is a driver with its actors. Without a cluster, only folders are shown. Filters choose among the runs.
    """
    from lineage_stash.cli import show, show_runs
    from lineage_stash.cli.collecting import look
    from lineage_stash.cli.runs import RunStatus

    for folder in storage or ():
        if not folder.is_dir():
            fail(f"there is no folder {folder}")
    with remains_of(address) as remains:
        found = look(remains, storage or ())
    found = found._replace(runs=chosen(found.runs, filters, RunStatus._fields))
    print_answer(output, show_runs.runs_view(show.console(), found, time.time()), show_runs.runs_json(found))


def abandon(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run that is away, as `stash runs` names it.")],
    output: FormatOption = Format.TABLE,
    address: AddressOption = None,
) -> None:
    """Finish a run that is away and is not to be resumed: its actors end, and it can be removed.

    Refuses a run whose script is alive.
    """
    from lineage_stash.cli.cluster import FAILURES, NotJoined, joined
    from lineage_stash.on_ray.driver import DRIVERS
    from lineage_stash.on_ray.resumable import ResumableDriver

    refuse_to_guess(address)
    try:
        with joined(address):
            ResumableDriver.abandon(run.removeprefix(DRIVERS))
    except (NotJoined, ValueError, *FAILURES) as error:
        fail(str(error))
    print_answer(output, f"abandoned {run}: its actors end", {"abandoned": run})


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
    refuse_to_guess(address)
    with remains_of(address) as remains:
        try:
            removed = remove_folder(Path(what).expanduser(), remains) if is_folder else (_remove_run(what, remains),)
        except NotRemoved as error:
            fail(str(error))
    print_answer(output, show_runs.removed_lines(removed), show_runs.removed_json(removed))


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
    refuse_to_guess(address)
    with remains_of(address) as remains:
        done = collect(remains, storage or (), older_than_s=older_than_s, now_s=time.time(), dry_run=dry_run)
    view = show_runs.collection_view(show.console(), done, dry_run=dry_run)
    print_answer(output, view, show_runs.collection_json(done, dry_run=dry_run))
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
