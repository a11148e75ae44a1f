"""Showing runs, folders, and what was removed of them: tables for people, JSON for tools."""

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from lineage_stash.cli.collecting import FOLDER, Collection, Overview
from lineage_stash.cli.folders import FolderState, StoreFolder
from lineage_stash.cli.removing import Removed
from lineage_stash.cli.runs import RunState, RunStatus
from lineage_stash.cli.show import first_sentence, fitted, in_units, table_of, when

LENGTHS_S = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0}

ATTENTION = "yellow"
FAILURE = "bold red"
STYLES = {
    RunState.RUNNING: "green",
    RunState.AWAY: "yellow",
    RunState.ENDED: "dim",
    RunState.DIED: "yellow",
    FolderState.IN_USE: "green",
    FolderState.UNCLEAR: "yellow",
    FolderState.LEFT: "dim",
}


def runs_view(console: Console, overview: Overview, now_s: float) -> RenderableType:
    """Runs and folders, for people."""
    notes = []
    if overview.store:
        notes.append(Text(f"the store does not say what it has: {first_sentence(overview.store)}", FAILURE))
    if overview.strays:
        notes.append(Text(f"in the store, of no run: {overview.strays} peers; `stash gc` removes them"))
    return Group(
        Text(f"cluster: {overview.cluster or 'none runs on this machine'}"),
        _runs(console, overview.runs) if overview.runs else Text("no runs"),
        *notes,
        _folders(console, overview.folders, now_s) if overview.folders else Text("no store folders on this machine"),
    )


def _runs(console: Console, runs: tuple[RunStatus, ...]) -> RenderableType:
    columns = ("run", "state", "started", "ended", "actors", "entries", "held", "entrypoint")
    table = table_of(columns, right=("entries", "held"))
    for run in runs:
        table.add_row(*_run_row(run))
    return fitted(console, table, map(_run_line, runs))


def _folders(console: Console, folders: tuple[StoreFolder, ...], now_s: float) -> RenderableType:
    table = table_of(("folder on this machine", "state", "size", "last written", ""), right=("size",))
    for folder in folders:
        table.add_row(*_folder_row(folder, now_s))
    lines = (
        f"{folder.path}: {folder.state.value}, {in_units(folder.bytes)}, written {ago(now_s - folder.written_at)}"
        for folder in folders
    )
    return fitted(console, table, lines)


def runs_json(overview: Overview) -> dict[str, Any]:
    """Runs and folders, for tools."""
    return {
        **overview._asdict(),
        "runs": [run._asdict() for run in overview.runs],
        "folders": [folder._asdict() for folder in overview.folders],
    }


def _run_row(run: RunStatus) -> tuple[RenderableType, ...]:
    return (
        run.run,
        Text(run.state.value, STYLES[run.state]),
        _moment(run.started_at),
        _moment(run.ended_at),
        _actors(run),
        "" if run.entries is None else str(run.entries),
        "" if run.bytes is None else in_units(run.bytes),
        Text(run.entrypoint),
    )


def _run_line(run: RunStatus) -> str:
    held = "" if run.bytes is None else f"{run.entries} entries, {in_units(run.bytes)}"
    since = f"{run.state.value} {_moment(run.ended_at)}".strip()
    actors = f"actors: {_actors(run)}" if _actors(run) else "no actors"
    return "; ".join(part for part in (f"{run.run}: {run.entrypoint}", since, actors, held) if part)


def _actors(run: RunStatus) -> str:
    counts = ((run.actors_alive, "alive"), (run.actors_ended, "ended"))
    return ", ".join(f"{count} {word}" for count, word in counts if count)


def _moment(at_s: float | None) -> str:
    return "" if at_s is None else when(at_s)


def _folder_row(folder: StoreFolder, now_s: float) -> tuple[RenderableType, ...]:
    state = Text(folder.state.value, STYLES[folder.state])
    return Text(folder.path), state, in_units(folder.bytes), ago(now_s - folder.written_at), Text(folder.reason)


def removed_lines(removed: tuple[Removed, ...]) -> RenderableType:
    """What was removed, for people."""
    return Group(*(Text(f"removed {one.kind} {one.name}: {_freed(one)}") for one in removed))


def removed_json(removed: tuple[Removed, ...]) -> dict[str, Any]:
    """What was removed, for tools."""
    return {"freed_bytes": sum(one.freed_bytes for one in removed), "removed": [one._asdict() for one in removed]}


def collection_view(console: Console, collection: Collection, *, dry_run: bool) -> RenderableType:
    """What a collection did, for people."""
    if not collection.removed and not collection.kept:
        return Text("nothing is over that could be removed")
    verb = "would remove" if dry_run else "removed"
    table = table_of(("", "what", "name", "frees" if dry_run else "freed", ""))
    lines = []
    for one in collection.removed:
        table.add_row(verb, one.kind, Text(one.name), _freed(one), "")
        lines.append(f"{verb} {one.kind} {one.name}: {_freed(one)}")
    for kept in collection.kept:
        table.add_row(
            Text("kept", FAILURE if kept.failed else ATTENTION), kept.kind, Text(kept.name), "", Text(kept.reason)
        )
        lines.append(f"kept {kept.kind} {kept.name}: {kept.reason}")
    total = in_units(sum(one.freed_bytes for one in collection.removed))
    return Group(fitted(console, table, lines), Text(f"{'would free' if dry_run else 'freed'} {total}"))


def collection_json(collection: Collection, *, dry_run: bool) -> dict[str, Any]:
    """What a collection did, for tools."""
    kept = [kept._asdict() for kept in collection.kept]
    return {"dry_run": dry_run, **removed_json(collection.removed), "kept": kept}


def _freed(one: Removed) -> str:
    if one.kind == FOLDER:
        return in_units(one.bytes)
    copies = f" on each of {one.copies} replicas" if one.copies > 1 else ""
    return f"{one.entries} entries, {in_units(one.bytes)}{copies}"


def ago(seconds: float) -> str:
    """How long ago, in whole units."""
    for unit, length_s in LENGTHS_S.items():
        if seconds >= length_s:
            return f"{seconds // length_s:.0f} {unit} ago"
    return "just now"
