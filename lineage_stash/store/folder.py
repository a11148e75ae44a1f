"""A replica's folder: its lock, the names of its files, and which of them are needed.

Segments are numbered as they come. A state file with number n is the whole state at the beginning of segment n, so that
the newest one and the segments from its number on are the store. Whatever is older is left over from a compaction that
was cut short; whatever has another name is somebody else's and is left alone.
"""

import fcntl
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lineage_stash.store.faults import StoreDamaged, StoreEmptied, StoreInUse
from lineage_stash.store.files import SEGMENT, STATE, UNFINISHED, sync_folder

FILE_NAME = re.compile(rf"(\d{{8,}})\.({SEGMENT}|{STATE})")
UNFINISHED_NAME = re.compile(FILE_NAME.pattern + re.escape(UNFINISHED))
FIRST_NUMBER = 1


class Needed(NamedTuple):
    """The files that are the store: the number of the state file, if there is one, and those of the segments."""

    state: int | None
    segments: tuple[int, ...]


class Layout:
    """The names of a folder's files, and which of them are needed; changes nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, kind: str, number: int) -> Path:
        """The path of a file."""
        return self.path / f"{number:08}.{kind}"

    def needed(self) -> Needed | None:
        """The files that are the store, or None if there are none yet; a missing one is damage."""
        states, numbers = self._numbers(STATE), self._numbers(SEGMENT)
        if not states and not numbers:
            return None
        if not states and FIRST_NUMBER not in numbers:
            raise StoreDamaged(self.file(STATE, min(numbers)), 0, "it is not there")
        first = max(states, default=FIRST_NUMBER)
        segments = tuple(range(first, max(first, *numbers, 0) + 1))
        for number in segments:
            if number not in numbers:
                raise StoreDamaged(self.file(SEGMENT, number), 0, "it is not there")
        return Needed(first if states else None, segments)

    def _numbers(self, kind: str) -> list[int]:
        names = [FILE_NAME.fullmatch(name) for name in os.listdir(self.path)]
        return [int(name[1]) for name in names if name is not None and name[2] == kind]


class Folder(Layout):
    """A folder that nobody else uses for as long as it is open."""

    def __init__(self, path: Path, *, expect_existing: bool) -> None:
        super().__init__(path)
        if expect_existing and not any(map(FILE_NAME.fullmatch, os.listdir(path) if path.exists() else ())):
            raise StoreEmptied(path)
        _make(path)
        self._lock = _lock(path)

    def close(self) -> None:
        """Let others in."""
        os.close(self._lock)

    def leftovers(self, needed: Needed) -> list[Path]:
        """What a compaction that was cut short has left."""
        old = [self.file(STATE, number) for number in self._numbers(STATE) if number != needed.state]
        old += [self.file(SEGMENT, number) for number in self._numbers(SEGMENT) if number not in needed.segments]
        return old + [self.path / name for name in os.listdir(self.path) if UNFINISHED_NAME.fullmatch(name)]

    def remove(self, paths: Sequence[Path]) -> None:
        """Remove files that others have replaced."""
        # The names of the others may be in memory only, and until they are durable the old ones are needed.
        sync_folder(self.path)
        for path in paths:
            os.unlink(path)


def _make(path: Path) -> None:
    """Make a folder, and those that it is in, so that they are there for good."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        sync_folder(folder.parent)


def _lock(path: Path) -> int:
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise StoreInUse(path) from error
    return descriptor
