"""A replica's folder as it lies there, for whoever only looks: after its cluster is gone, or on a copy of it.

What it guarantees: nothing is locked, made, repaired or removed. What was committed is found, or what is wrong with the
files is raised. Bodies stay in them until somebody reads one.

Not promised: anything of a folder that a replica writes to meanwhile but that what is found was there at some moment.
"""

import os
from contextlib import ExitStack
from pathlib import Path

from lineage_stash.core.ids import Epoch
from lineage_stash.store.faults import StoreDamaged, disk_errors_told
from lineage_stash.store.files import OpenFile
from lineage_stash.store.folder import FILE_NAME, Layout
from lineage_stash.store.groups import Group, Kind
from lineage_stash.store.journal import look_through
from lineage_stash.store.replica import Replica
from lineage_stash.store.requests import read_record


class FolderView:
    """The state of a replica, read from its files; to be closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.replica = Replica()
        with ExitStack() as undo, disk_errors_told(path):
            if not is_one(path):
                raise StoreDamaged(path, 0, "there is no file of a replica in this folder")
            look_through(Layout(path), self._replay, undo)
            self._files = undo.pop_all()

    def close(self) -> None:
        """Let go of the files."""
        self._files.close()

    def _replay(self, file: OpenFile, group: Group) -> None:
        for record in group.records:
            if record.kind is Kind.REQUEST:
                self.replica.handle(read_record(file, group, record), Epoch(record.epoch))


def is_one(path: Path) -> bool:
    """Whether a folder has files of a replica in it."""
    return path.is_dir() and any(map(FILE_NAME.fullmatch, os.listdir(path)))
