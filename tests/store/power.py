"""What a folder may look like after the power failed at any moment of a program that writes to it.

`Power` stands between the program and the system. Before every call that changes or syncs a file or a name, it keeps
every image that the disk could be left with, from "all that was asked for is there" to "only what was synced is there";
of a write under way also its first and its second half, every other sector of it, and as much as fits into the length
that was synced. Nothing is really synced, so that many images cost little. The program may work for several purposes in
turns, but in one thread: a moment is one moment.
"""

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

SECTOR_BYTES = 512

Image = dict[str, bytes]


class Outage(NamedTuple):
    """A moment at which the power could fail: what the program was about to do, and what the disk could then hold."""

    step: str
    acknowledged: int
    images: tuple[Image, ...]


class Power:
    """Keeps the outages of everything done in a folder; `acknowledged` is for the program to count up.

    Of what is there at the beginning, all content is synced, and the names that are given.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, synced_names: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.acknowledged = 0
        self.outages: list[Outage] = []
        self._synced_files = {path.stat().st_ino: path.read_bytes() for path in folder.iterdir()}
        self._synced_names = {name: (folder / name).stat().st_ino for name in synced_names}
        for name in ("pwritev", "posix_fallocate", "ftruncate", "fdatasync", "fsync", "rename", "unlink"):
            monkeypatch.setattr(os, name, self._around(name, getattr(os, name)))

    def _around(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: Any) -> object:
            self.note(name, self._torn(*arguments) if name == "pwritev" else ())
            if name in ("fdatasync", "fsync"):
                return self._sync(*arguments)
            if name == "pwritev" and os.fstat(arguments[0]).st_size == 0:
                self._synced_files[os.fstat(arguments[0]).st_ino] = b""
            return call(*arguments)

        return step

    def note(self, step: str, torn: tuple[tuple[int, bytes], ...] = ()) -> None:
        """Keep all the images that are possible now."""
        names_now = {path.name: path.stat().st_ino for path in self.folder.iterdir()}
        files_now = {path.stat().st_ino: path.read_bytes() for path in self.folder.iterdir()}
        files_now = {**self._synced_files, **files_now}
        files = [files_now, {**files_now, **self._synced_files}, *({**files_now, node: half} for node, half in torn)]
        # Names may have come without others having gone, and gone without others having come.
        synced = self._synced_names
        only_gone = {name: node for name, node in synced.items() if name in names_now}
        images = [
            {name: content[node] for name, node in names.items() if node in content}
            for names in (names_now, synced, only_gone, {**names_now, **synced})
            for content in files
        ]
        distinct = {tuple(sorted(image.items())): image for image in images}
        self.outages.append(Outage(step, self.acknowledged, tuple(distinct.values())))

    def _torn(self, descriptor: int, pieces: Sequence[bytes], offset: int) -> tuple[tuple[int, bytes], ...]:
        """The file with only a part of a write."""
        content = b"".join(pieces)
        status = os.fstat(descriptor)
        before = os.pread(descriptor, status.st_size, 0).ljust(offset + len(content), b"\0")
        after = before[:offset] + content + before[offset + len(content) :]
        middle = offset + len(content) // 2
        sectors = range(0, len(before), SECTOR_BYTES)
        mixed = [
            b"".join([(after if at // SECTOR_BYTES % 2 == odd else before)[at : at + SECTOR_BYTES] for at in sectors])
            for odd in (0, 1)
        ]
        halves = (after[:middle] + before[middle:], before[:middle] + after[middle:])
        # What was written may be there without the length that the file has got since its last sync.
        shorter = after[: len(self._synced_files.get(status.st_ino, b""))]
        return tuple((status.st_ino, left) for left in (*halves, *mixed, shorter))

    def _sync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self._synced_names = {path.name: path.stat().st_ino for path in self.folder.iterdir()}
        else:
            self._synced_files[status.st_ino] = os.pread(descriptor, status.st_size, 0)
