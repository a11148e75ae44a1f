"""Open files of a replica, and how each of them begins.

Every file begins with a header that says what it is: which format, which kind of file, its number, whose it is, and who
wrote it. The first twenty bytes and the text after them stay as they are in all formats, so that a version can say of
any file which version wrote it.
"""

import errno
import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from lineage_stash import __version__
from lineage_stash.store.faults import StoreDamaged, StoreFormatUnknown
from lineage_stash.store.groups import Buffer

MAGIC = b"lin-segm"
FORMAT = 2
FORMAT_WITH_TEXT = 2
"""From this one on, files begin as described above."""
PREFIX = struct.Struct(">8sIII")
"""Magic, format, length of the text, checksum of the three and of the text."""
LONGEST_TEXT_BYTES = 64 * 1024

SEGMENT = "segment"
STATE = "state"
UNFINISHED = ".unfinished"

PIECES_PER_WRITE = 512
"""Fewer than any system takes at once."""
WINDOW_BYTES = 64 * 1024


class FileHeader(NamedTuple):
    """What a file says about itself."""

    kind: str
    number: int
    identity: str
    length: int
    """How long the file was for certain when it got its name."""
    content: bytes
    """The header as it is in the file."""

    @classmethod
    def new(cls, kind: str, number: int, identity: str, length: int) -> "FileHeader":
        """The header of a file that is to be written by this version."""
        said = {"kind": kind, "number": number, "identity": identity, "length": length, "writer": __version__}
        text = json.dumps(said).encode()
        start = PREFIX.pack(MAGIC, FORMAT, len(text), 0)[:-4]
        return cls(kind, number, identity, length, start + crc32(start + text).to_bytes(4, "big") + text)

    @property
    def size(self) -> int:
        """How long the header is."""
        return len(self.content)

    @property
    def seed(self) -> int:
        """What tells groups of this file from those of any other."""
        return crc32(self.content)


class OpenFile:
    """A file of a replica; what is in it is at `[0, size)`, whatever was set aside behind that."""

    def __init__(self, path: Path, *, flags: int = os.O_RDWR) -> None:
        self.path = path
        self.size = 0
        self.descriptor = os.open(path, os.O_CLOEXEC | flags, 0o644)

    @classmethod
    def begin(cls, path: Path) -> "OpenFile":
        """A new file, which gets this name when it is finished."""
        return cls(path.with_name(path.name + UNFINISHED), flags=os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    @property
    def length(self) -> int:
        """How long the file is, with what was set aside."""
        return os.fstat(self.descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        """The bytes at an offset; fewer where the file ends."""
        content = os.pread(self.descriptor, length, offset)
        while len(content) < length and (more := os.pread(self.descriptor, length - len(content),
                                                          offset + len(content))):  # fmt: skip
            content += more
        return content

    def next_data(self, offset: int) -> int:
        """The first offset from this one on at which there may be anything but zeros that nobody wrote."""
        try:
            return os.lseek(self.descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return self.length
            raise

    def write(self, pieces: Sequence[Buffer], offset: int) -> None:
        """Write at an offset however many calls it takes: the system may take less than it is given."""
        remaining = list(pieces)
        while remaining:
            taken = os.pwritev(self.descriptor, remaining[:PIECES_PER_WRITE], offset)
            offset += taken
            remaining = _rest(remaining, taken)

    def sync(self) -> None:
        """Wait until everything written is durable; if this raises, nothing may be concluded from a second try."""
        os.fdatasync(self.descriptor)

    def close(self) -> None:
        """Let go of the file; a second time does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1

    def finish(self, path: Path) -> None:
        """Make all of the file durable, and then its name."""
        os.fsync(self.descriptor)
        os.rename(self.path, path)
        self.path = path
        sync_folder(path.parent)


def _rest(pieces: list[Buffer], taken: int) -> list[Buffer]:
    """What is left of pieces when so many bytes are gone."""
    for position, piece in enumerate(pieces):
        if taken < len(piece):
            return [memoryview(piece)[taken:], *pieces[position + 1 :]]
        taken -= len(piece)
    return []


class Window:
    """Reads a file from its beginning to its end in large steps, for many small pieces that lie close together."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self._lower = 0
        self._content = b""

    def read(self, offset: int, length: int) -> bytes:
        """The bytes at an offset; fewer where the file ends."""
        at = offset - self._lower
        if at < 0 or at + length > len(self._content):
            self._lower, at = offset, 0
            self._content = self._file.read(offset, max(length, WINDOW_BYTES))
        return self._content[at : at + length]


def read_file_header(file: OpenFile, kind: str, number: int) -> FileHeader:
    """What a file says about itself, if it is the file that it should be."""
    start = file.read(0, PREFIX.size)
    if len(start) < PREFIX.size or start[: len(MAGIC)] != MAGIC:
        raise StoreDamaged(file.path, 0, "it does not begin as a replica's files do")
    _, format_number, text_bytes, checksum = PREFIX.unpack(start)
    if format_number < FORMAT_WITH_TEXT:
        raise StoreFormatUnknown(_foreign_format(file.path, format_number, "an older version"))
    text = file.read(PREFIX.size, min(text_bytes, LONGEST_TEXT_BYTES))
    if crc32(start[:-4] + text) != checksum:
        raise StoreDamaged(file.path, 0, "the header is not what it was")
    said: Any = json.loads(text)
    if format_number != FORMAT:
        raise StoreFormatUnknown(_foreign_format(file.path, format_number, f"lineage_stash {said['writer']}"))
    header = FileHeader(said["kind"], said["number"], said["identity"], said["length"], start + text)
    if (header.kind, header.number) != (kind, number):
        raise StoreDamaged(file.path, 0, f"this is {header.kind} {header.number} and not {kind} {number}")
    return header


def _foreign_format(path: Path, format_number: int, writer: str) -> str:
    return (
        f"{path} was written by {writer} in format {format_number}, and this is lineage_stash {__version__}, which "
        f"reads format {FORMAT}. Nothing was changed. Open it with a version that reads format {format_number}."
    )


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
