"""What all commands share: their options, how an answer is printed, and what ends a command without one.

0 is for an answer, 1 for no cluster, no services, nobody of that name, a problem found or something that was not done,
2 for a command line that was not understood. Answers go to the standard output, whatever keeps us from one goes to the
standard error, in one line.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lineage_stash.cli.cluster import Cluster
    from lineage_stash.cli.records import Records
    from lineage_stash.cli.removing import Remains
    from lineage_stash.cli.sources import Source


class Format(StrEnum):
    """For whom to print."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


FormatOption = Annotated[Format, typer.Option("--format", help="A table for people, or JSON or YAML for tools.")]
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
FilesOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--storage",
        metavar="FOLDER",
        help="Read the files that a store has left instead of asking a cluster: a replica's folder, a folder of those, "
        "or the folder of a Ray session; may be repeated.",
        show_default=False,
    ),
]
FilterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="KEY=VALUE",
        help="Only rows whose field has this value, or with KEY!=VALUE another one; may be repeated. Fields are those "
        "of --format json.",
        show_default=False,
    ),
]

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

CONDITION = re.compile(r"(?P<key>\w+)\s*(?P<sign>!?=)\s*(?P<value>.*)")


def parse_duration_s(text: str) -> float:
    """How long `90s`, `30m`, `12h` or `1d` is."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a length of time: write 90s, 30m, 12h or 1d")
    return float(found[1]) * UNITS_S[found[2]]


def fail(line: str) -> NoReturn:
    """End the command: why there is no answer."""
    typer.echo(f"stash: {' '.join(line.split())}", err=True)
    raise typer.Exit(1)


def note(line: str) -> None:
    """Tell something besides the answer."""
    typer.echo(f"stash: {line}", err=True)


# rows

HEADINGS = {"life": "incarnation", "class": "class_name", "when": "noticed_at"}
"""What tables call some fields."""

PEER = "peer"
"""The field that the last part of an id is enough for."""


def chosen(
    rows: Iterable[Any], conditions: list[str] | None, fields: tuple[str, ...], *, tells: bool = True
) -> tuple[Any, ...]:
    """Those of some named tuples that all conditions are true of; says so if there are none of these alone."""
    parsed = [_condition(condition, fields) for condition in conditions or ()]
    all_rows = tuple(rows)
    found = tuple(row for row in all_rows if all(_is_true(row, *condition) for condition in parsed))
    if tells and all_rows and not found:
        typer.echo(f"stash: none of {len(all_rows)} matches {' and '.join(conditions or ())}", err=True)
    return found


def _condition(text: str, fields: tuple[str, ...]) -> tuple[str, str, str]:
    found = CONDITION.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no filter: write KEY=VALUE or KEY!=VALUE")
    key = HEADINGS.get(found["key"], found["key"])
    if key not in fields:
        raise typer.BadParameter(f"there is no field {found['key']!r}: {', '.join(fields)}")
    return key, found["sign"], found["value"]


def _is_true(row: Any, key: str, sign: str, value: str) -> bool:
    found = getattr(row, key)
    text = ("" if found is None else str(found)).casefold()
    wanted = value.casefold()
    is_equal = text == wanted or (key == PEER and text.endswith(f"/{wanted}"))
    return is_equal is (sign == "=")


# printing


def print_answer(output: Format, table: "RenderableType", value: dict[str, Any]) -> None:
    """Print an answer, for people or for tools."""
    from lineage_stash.cli import show

    if output is Format.TABLE:
        show.console().print(table)
    else:
        typer.echo(as_text(output, value))


def as_text(output: Format, value: dict[str, Any], *, in_a_line: bool = False) -> str:
    """An answer for tools."""
    from lineage_stash.cli import show

    if output is Format.YAML:
        return show.as_yaml(value)
    return show.as_json(value, indent=None if in_a_line else 2)


# where to look


@contextmanager
def records_of(address: str | None, otherwise: str = "") -> "Iterator[tuple[Cluster, Records]]":
    """A cluster and what its control plane knows; ends the command where there is nothing to look at.

    `otherwise` is what else can be done where no cluster runs.
    """
    from lineage_stash.cli.cluster import NoCluster, NotJoined, joined
    from lineage_stash.cli.examine import START_SERVICES
    from lineage_stash.cli.records import read
    from lineage_stash.on_ray.control_plane import ControlPlaneAway

    try:
        with joined(address) as cluster:
            found = read(cluster.plane)
            if not found.has_services:
                fail(f"no lineage_stash services run in the cluster at {cluster.address}: {START_SERVICES}")
            yield cluster, found
    except NoCluster as error:
        fail(f"{error}{otherwise}")
    except (NotJoined, ControlPlaneAway) as error:
        fail(str(error))


@contextmanager
def remains_of(address: str | None) -> "Iterator[Remains | None]":
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
        fail(str(error))


@contextmanager
def logs_of(address: str | None, storages: list[Path] | None) -> "Iterator[Source]":
    """Where logs are read from: files if some are named, else a cluster; whatever is not there ends the command."""
    from lineage_stash.cli.sources import ClusterSource, FolderSource, NotFound

    try:
        if storages:
            source = FolderSource(storages)
            for left_out in source.notes:
                note(f"left out: {left_out}")
            try:
                yield source
            finally:
                source.close()
        else:
            with records_of(address, ", or --storage FOLDER for files that are left") as (cluster, records):
                yield ClusterSource(records, cluster.plane, cluster.node, cluster.alive_nodes)
    except NotFound as error:
        fail(str(error))


def refuse_to_guess(address: str | None) -> None:
    """Of several clusters Ray would choose one, which is well enough for looking, and not for changing anything."""
    from lineage_stash.cli.folders import live_sessions

    if address is None and not os.environ.get("RAY_ADDRESS") and len(live_sessions()) > 1:
        fail("several Ray clusters run on this machine: name the one that is meant, with --address host:port")
