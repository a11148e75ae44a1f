"""The spool of a process: payloads that are kept and hardly ever asked for, in files without a name.

They end with the process, and may: a peer that lives again makes its payloads again. Files are filled one after the
other, and one is given back as soon as nothing in it is wanted; so what is on disk is what is kept, and little more.
"""

import os
import tempfile
from typing import IO, NamedTuple

from lineage_stash.core.backlog import Spool
from lineage_stash.core.rope import pieces_of, weigh

FILE_BYTES = 64 * 1024 * 1024


class Extent(NamedTuple):
    """Where a payload is."""

    file: int
    offset: int
    length: int


class _File:
    """One file: how far it is filled, and how much in it is still wanted."""

    def __init__(self) -> None:
        self.handle: IO[bytes] = tempfile.TemporaryFile(prefix="lineage_stash-spool-")  # noqa: SIM115 - until dropped
        self.size = 0
        self.wanted = 0


class FileSpool:
    """Keeps payloads on disk."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._extents: dict[int, Extent] = {}
        self._current = 0
        self._places = 0

    @property
    def verbs(self) -> Spool:
        """What a peer needs of it."""
        return Spool(self.put, self.get, self.drop)

    @property
    def disk_bytes(self) -> int:
        """How much disk it takes."""
        return sum(file.size for file in self._files.values())

    def put(self, payload: bytes) -> int:
        """Write a payload behind the others; its place."""
        file = self._files.get(self._current)
        if file is None or file.size >= FILE_BYTES:
            self._current += 1
            file = self._files[self._current] = _File()
        self._places += 1
        self._extents[self._places] = Extent(self._current, file.size, weigh(payload))
        for piece in pieces_of(payload):
            remaining = memoryview(piece)
            while remaining:
                written = os.pwrite(file.handle.fileno(), remaining, file.size)
                remaining = remaining[written:]
                file.size += written
        file.wanted += 1
        return self._places

    def get(self, place: int) -> bytes:
        """Read a payload back."""
        extent = self._extents[place]
        payload = os.pread(self._files[extent.file].handle.fileno(), extent.length, extent.offset)
        if len(payload) < extent.length:
            raise OSError(f"the spool of this process has lost {extent.length - len(payload)} bytes")
        return payload

    def drop(self, place: int) -> None:
        """It will not be asked for again."""
        extent = self._extents.pop(place)
        file = self._files[extent.file]
        file.wanted -= 1
        if not file.wanted:
            file.handle.close()
            del self._files[extent.file]
