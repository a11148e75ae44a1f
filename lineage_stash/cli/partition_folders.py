"""Folders of partitions: what Spark stages have left on this machine's disks, which of them nobody needs, and removing.

A folder is somebody's as long as
- its Ray session is up, and it is not that of the cluster that we have joined: whose it is only that cluster knows;
- or it is, and a run is on record there that may have written it. A run is on record before it writes, and stays so
  while anybody may ask for what it left. So folders are listed first, and the records are read after that.

Whatever is left then can be removed, with the files that have the names of partitions. What has another name stays.
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lineage_stash.cli import folders
from lineage_stash.cli.folders import FolderState, StoreFolder
from lineage_stash.cli.removing import Failed, NotRemoved
from lineage_stash.core.ids import PeerId
from lineage_stash.on_ray.far_files import PARTITIONS, folder_name, remove_elsewhere

FILE_NAME = re.compile(r"\d+\.arrow(\.\d+)?")
"""A partition, and one that was being written."""


class PartitionFolder(NamedTuple):
    """The folder of one stage, as it was found."""

    path: str
    session: str
    bytes: int
    written_at: float


def find(sessions: Iterable[Path]) -> list[PartitionFolder]:
    """The folders of all stages in these sessions, each of them once."""
    roots = {os.path.realpath(session) for session in sessions}
    paths = [(path, root) for root in sorted(roots) for path in folders.folders_in(Path(root, PARTITIONS), "")]
    found = []
    for path, root in paths:
        with suppress(OSError):
            sizes = [file.stat() for file in _partitions_in(path)]
            taken = sum(size.st_blocks * folders.BLOCK_BYTES for size in sizes)
            written_at = max([path.stat().st_mtime, *(size.st_mtime for size in sizes)])
            found.append(PartitionFolder(str(path), root, taken, written_at))
    return found


def _partitions_in(path: Path) -> list[Path]:
    with os.scandir(path) as entries:
        return sorted(Path(each) for each in entries
                      if FILE_NAME.fullmatch(each.name) and each.is_file(follow_symlinks=False))  # fmt: skip


def judge(folder: PartitionFolder, own_session: str, live_sessions: frozenset[str],
          runs: Iterable[PeerId]) -> StoreFolder:  # fmt: skip
    """Whose a folder is; the runs are those of our own session that stay."""
    state, reason = FolderState.LEFT, ""
    if folder.session == own_session:
        owners = [run for run in runs if os.path.basename(folder.path).startswith(f"{folder_name(run)}-")]
        if owners:
            state, reason = FolderState.IN_USE, f"partitions of {owners[0]}, which is on record"
    elif folder.session in live_sessions or folders.is_up(folder.session):
        state, reason = FolderState.IN_USE, "its Ray session is up"
    return StoreFolder(folder.path, state, reason, folder.bytes, folder.written_at, "")


def is_one(path: str) -> bool:
    """Whether a folder is one of a stage's, by where it lies."""
    return os.path.basename(os.path.dirname(path)) == PARTITIONS and bool(folders.session_of(path))


def remove(path: str, own_session: str) -> int:
    """Remove the partitions of a stage, in our own session on every machine; how many bytes were freed on this one."""
    if os.path.islink(path):
        raise NotRemoved(f"{path} is a link: give the folder itself")
    freed = 0
    try:
        for file in _partitions_in(Path(path)):
            freed += file.stat().st_blocks * folders.BLOCK_BYTES
            file.unlink(missing_ok=True)
    except OSError as error:
        raise Failed(f"{path} could not be emptied: {error.strerror}") from error
    with suppress(OSError):  # what has another name is in it
        os.rmdir(path)
    if own_session and folders.session_of(path) == own_session:
        remove_elsewhere(Path(path))
    return freed
