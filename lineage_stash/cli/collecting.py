"""Collecting: all that is over, of the cluster's runs and on this machine's disks, looked for, listed and removed.

Nothing is removed on suspicion: what cannot be told for certain to be of no use stays, with a reason.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from lineage_stash.cli import folders, partition_folders
from lineage_stash.cli.folders import FolderState, StoreFolder, Surroundings
from lineage_stash.cli.records import Records, read
from lineage_stash.cli.removing import Failed, NotRemoved, Remains, Removed
from lineage_stash.cli.runs import RunStatus, all_runs, describe, strays, who_is_alive

RUN, FOLDER, STRAYS = "run", "folder", "leftovers"
NOBODY_S = "in the store, of no run"
TOO_YOUNG = "it has been over for less than that"
UNKNOWN_AGE = "when it died is not known: counted from the first collection that finds it"


class Overview(NamedTuple):
    """All that `stash runs` tells."""

    cluster: str | None
    """Its address; None where there is none to look at."""
    runs: tuple[RunStatus, ...]
    store: str
    """Why the store does not say what it has; empty if it does."""
    strays: int
    """How many peers are in the store that are of no run."""
    folders: tuple[StoreFolder, ...]


class Kept(NamedTuple):
    """Something that is over, and stays for the time being."""

    kind: str
    name: str
    reason: str
    failed: bool = False
    """Whether it should have been removed, and could not be."""


class Collection(NamedTuple):
    """What a collection did, or would do."""

    removed: tuple[Removed, ...]
    kept: tuple[Kept, ...]

    @property
    def has_failed(self) -> bool:
        """Whether anything could not be removed that should have been."""
        return any(kept.failed for kept in self.kept)


# looking


def look(remains: Remains | None, storages: Iterable[Path]) -> Overview:
    """What there is of runs in a cluster, if we have joined one, and on this machine's disks."""
    found = (*find_folders(remains, storages), *find_partitions(remains, ()))
    if remains is None:
        return Overview(None, (), "", 0, found)
    records, holdings = remains.records, remains.holdings
    silent = holdings.silent if not holdings.items else {}
    return Overview(
        cluster=remains.cluster.address,
        runs=tuple(describe(run, records, holdings) for run in remains.runs),
        store="; ".join(sorted(set(silent.values()))),
        strays=len(strays(records, holdings)),
        folders=found,
    )


def find_folders(remains: Remains | None, storages: Iterable[Path]) -> list[StoreFolder]:
    """The store folders of this machine, as far as they are where they are by default, or where we are told."""
    roots = [*storages, *(_storage_of(remains.records) if remains is not None else ())]
    return folders.find([*folders.roots_in(_sessions(remains)), *roots], surroundings(remains))


def find_partitions(remains: Remains | None, removed: Iterable[str]) -> list[StoreFolder]:
    """The folders of Spark stages on this machine, as if these runs of our own session were not there any more."""
    found = partition_folders.find(_sessions(remains))
    own = "" if remains is None else os.path.realpath(remains.cluster.session)
    gone = frozenset(removed)
    staying = [] if remains is None else [run for run in all_runs(read(remains.cluster.plane)) if run not in gone]
    live = folders.live_sessions()
    return sorted(partition_folders.judge(folder, own, live, staying) for folder in found)


def _sessions(remains: Remains | None) -> list[Path]:
    sessions = folders.session_folders()
    if remains is not None:
        session = Path(remains.cluster.session)
        sessions += [session, *folders.sessions_in(session.parent)]
    return sessions


def surroundings(remains: Remains | None) -> Surroundings:
    """What is up on this machine."""
    if remains is None:
        return Surroundings(None, "", folders.live_sessions())
    session = os.path.realpath(remains.cluster.session)
    return Surroundings(remains.records.store, session, folders.live_sessions() | {session})


def _storage_of(records: Records) -> list[Path]:
    return [] if records.storage is None else [Path(records.storage)]


# removing


def remove_folder(path: Path, remains: Remains | None) -> tuple[Removed, ...]:
    """Remove a folder that a cluster has left, or all of those in it; none of them if one is in use.

    Raises `NotRemoved`, also if it is no folder of a store, and none of the folders in it is.
    """
    if path.is_symlink():
        raise NotRemoved(f"{path} is a link: give the folder itself")
    around = surroundings(remains)
    found = folders.find([path], around) or [folders.examine(str(path), around, frozenset())]
    for folder in found:
        if folder.state is not FolderState.LEFT:
            raise NotRemoved(f"{folder.path} is not left behind: {folder.reason}")
    return tuple(Removed(FOLDER, folder.path, folders.remove(folder.path)) for folder in found)


def collect(remains: Remains | None, storages: Iterable[Path], *, older_than_s: float, now_s: float,
            dry_run: bool) -> Collection:  # fmt: skip
    """Remove every run that is over, and every folder that was left, if it has been so for long enough."""
    removed: list[Removed] = []
    kept: list[Kept] = []

    def take(results: Iterable[Removed | Kept]) -> None:
        for result in results:
            if isinstance(result, Removed):
                removed.append(result)
            else:
                kept.append(result)

    found = find_folders(remains, storages)
    take(_collect_runs(remains, older_than_s, now_s, dry_run) if remains is not None else ())
    found += find_partitions(remains, [result.name for result in removed if result.kind == RUN])
    own = "" if remains is None else os.path.realpath(remains.cluster.session)
    take(_collect_folders(found, own, older_than_s, now_s, dry_run))
    return Collection(tuple(removed), tuple(kept))


def _collect_runs(remains: Remains, older_than_s: float, now_s: float, dry_run: bool) -> Iterator[Removed | Kept]:
    for run in remains.runs:
        if who_is_alive(run, remains.records):
            continue
        over_since = remains.over_since(run)
        if older_than_s and (over_since is None or now_s - over_since < older_than_s):
            if over_since is None and not dry_run:
                remains.note_over(run, now_s)
            yield Kept(RUN, run, UNKNOWN_AGE if over_since is None else TOO_YOUNG)
            continue
        try:
            remains.refuse_unless_over(run)
            yield remains.would_remove(run) if dry_run else remains.remove(run)
        except NotRemoved as error:
            yield Kept(RUN, run, str(error), isinstance(error, Failed))
    yield from _collect_strays(remains, dry_run)


def _collect_strays(remains: Remains, dry_run: bool) -> Iterator[Removed | Kept]:
    found = strays(remains.records, remains.holdings)
    if not found:
        return
    try:
        remains.refuse_without_majority()
        held = remains.holdings.of(found)
        copies = len(remains.holdings.items) if dry_run else remains.forget(found)
        yield Removed(STRAYS, NOBODY_S, held.bytes, held.entries, copies)
    except NotRemoved as error:
        yield Kept(STRAYS, NOBODY_S, str(error), isinstance(error, Failed))


def _collect_folders(found: list[StoreFolder], own_session: str, older_than_s: float, now_s: float,
                     dry_run: bool) -> Iterator[Removed | Kept]:  # fmt: skip
    for folder in found:
        if folder.state is FolderState.IN_USE:
            continue
        if folder.state is FolderState.UNCLEAR:
            yield Kept(FOLDER, folder.path, folder.reason)
        elif now_s - folder.written_at < older_than_s:
            yield Kept(FOLDER, folder.path, TOO_YOUNG)
        else:
            try:
                yield Removed(FOLDER, folder.path, folder.bytes if dry_run else _remove(folder, own_session))
            except NotRemoved as error:
                yield Kept(FOLDER, folder.path, str(error), isinstance(error, Failed))


def _remove(folder: StoreFolder, own_session: str) -> int:
    if partition_folders.is_one(folder.path):
        return partition_folders.remove(folder.path, own_session)
    return folders.remove(folder.path)
