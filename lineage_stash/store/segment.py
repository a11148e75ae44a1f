"""Segment files: groups of frames that become durable together, read back in the order of their writing.

A segment is a header, the state it begins with, an empty group that says that this state is whole, and then one group
per commit. What it guarantees: a group whose commit returned is read back, or reading raises `StoreDamaged`; a group
whose commit did not return is read back whole or not at all.

Rules:
- The next group is written only after the one before it is synced. So at most the last group can be torn, and one that
  is bad while the header of another follows was durable once: that is damage, and never cut off.
- The state at the beginning is synced before the file gets its name. Whatever is wrong there is damage.
- A group's header is checked against the file's number and its own offset: bytes of a group that were copied elsewhere,
  by a disk or in somebody's payload, are no group there.
- Zeros are written ahead of small groups. A commit into them leaves the file's length alone, and so the file system's
  journal (measured in `docs/design/2026-11-16-segment-files.md`).

Left to others: which files there are, and what frames mean. Not promised: if the very last group of a file goes bad on
disk after its commit, that looks like a torn write and is cut off.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zlib import crc32

MAGIC = b"lin-segm"
FORMAT = 1
FILE_HEADER = struct.Struct(">8sIQI")
"""Magic, format, number of the segment, checksum of these three."""

MARK = b"\xf5grp"
GROUP_HEADER = struct.Struct(">4sQII")
"""Mark, length of the payload, its checksum, checksum of the header and of where it is."""
PLACE = struct.Struct(">QQQI")
FRAME_HEADER = struct.Struct(">Q")

ROOM_BYTES = 256 * 1024
"""How many zeros are written ahead: so many that making room is rare, so few that it takes less than a millisecond."""
RESERVED_BYTES = 64 * 1024 * 1024
"""How much space is set aside for large groups at a time; a file shows it as zeros."""
SMALL_GROUP_BYTES = 64 * 1024
"""Above this, writing every byte twice costs more than changing the file's length."""


class StoreDamaged(Exception):
    """What was durable cannot be read back; nothing was changed."""

    def __init__(self, path: Path, offset: int, finding: str) -> None:
        super().__init__(
            f"{path} is damaged at byte {offset}: {finding}. Nothing was changed. Put back a good copy of the file; "
            f"an emptied folder would make this replica forget what it has confirmed."
        )
        self.path = path
        self.offset = offset


class Group(NamedTuple):
    """The frames of one commit, and which bytes of the file they take."""

    lower: int
    upper: int
    frames: tuple[bytes, ...]


class Segment:
    """A segment file that is open for writing at its end."""

    def __init__(self, path: Path, number: int) -> None:
        self.number = number
        self.size = 0
        self._room_upper = 0
        self._reserved = 0
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def begin(self) -> None:
        """Make it a segment with nothing in it, of which nothing is durable yet."""
        header = _pack_file_header(self.number)
        _write_all(self._descriptor, header, 0)
        self.size = len(header)

    def resume(self, last: Group) -> None:
        """Go on after the last good group: cut off what lies behind it, and make durable what lies before."""
        os.ftruncate(self._descriptor, last.upper)
        # Its writer may have died before the sync, or after one that failed; then the kernel counts the pages as clean
        # although the disk never got them, and only writing them again makes the sync below mean something.
        _write_all(self._descriptor, os.pread(self._descriptor, last.upper - last.lower, last.lower), last.lower)
        os.fsync(self._descriptor)
        self.size = last.upper

    def add(self, frames: Sequence[bytes]) -> None:
        """Write one group, which is durable after the next `sync`."""
        group = _pack_group(frames, self.number, self.size)
        if len(group) > SMALL_GROUP_BYTES:
            self._reserve(self.size + len(group))
        _write_all(self._descriptor, group, self.size)
        self.size += len(group)

    def commit(self, frames: Sequence[bytes | memoryview]) -> None:
        """Make one group durable: one write, one sync."""
        upper = self.size + _group_bytes(frames)
        lacks_room = upper > self._room_upper and upper - self.size <= SMALL_GROUP_BYTES
        group = _pack_group(frames, self.number, self.size, room_bytes=ROOM_BYTES if lacks_room else 0)
        if upper - self.size > SMALL_GROUP_BYTES:
            self._reserve(upper)
        _write_all(self._descriptor, group, self.size)
        self.sync()
        self._room_upper = max(self._room_upper, self.size + len(group))
        self.size = upper

    def _reserve(self, upper: int) -> None:
        """Have the file system set space aside in one go: to find it write by write takes it ten times as long."""
        if upper > self._reserved:
            count = max(RESERVED_BYTES, upper - self.size)
            with suppress(OSError):  # without support for it, or without so much space: writing will tell
                os.posix_fallocate(self._descriptor, self.size, count)
            self._reserved = self.size + count

    def sync(self) -> None:
        """Wait until everything written is durable; if this raises, nothing may be concluded from a second try."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Let go of the file; what was not synced may be lost."""
        os.close(self._descriptor)


def read_groups(path: Path, number: int) -> Iterator[Group]:
    """The groups of a segment in order, up to a write that was cut short; damage raises."""
    with path.open("rb") as file:
        if file.read(FILE_HEADER.size) != _pack_file_header(number):
            raise StoreDamaged(path, 0, f"this is not the header of segment {number} in format {FORMAT}")
        state_is_whole = False
        lower = FILE_HEADER.size
        while (group := _read_group(file, number, lower)) is not None:
            yield group
            state_is_whole = state_is_whole or not group.frames
            lower = group.upper
        if not state_is_whole:
            raise StoreDamaged(path, lower, "the state that it begins with ends here")
        follower = _find_header(file, number, lower)
        if follower is not None:
            raise StoreDamaged(path, lower, f"no good group is here, but one was committed after it at byte {follower}")


def _read_group(file: BinaryIO, number: int, lower: int) -> Group | None:
    """The group that begins at an offset, if there is a good one."""
    file.seek(lower)
    sums = _unpack_header(file.read(GROUP_HEADER.size), number, lower)
    if sums is None:
        return None
    length, checksum = sums
    payload = file.read(length)
    if len(payload) < length or crc32(payload) != checksum:
        return None
    return Group(lower, lower + GROUP_HEADER.size + length, tuple(_unpack_frames(payload)))


def _find_header(file: BinaryIO, number: int, lower: int) -> int | None:
    """The offset of the first good group header behind `lower`."""
    file.seek(lower)
    rest = file.read()
    at = rest.find(MARK, 1)
    while at >= 0:
        if _unpack_header(rest[at : at + GROUP_HEADER.size], number, lower + at) is not None:
            return lower + at
        at = rest.find(MARK, at + 1)
    return None


def _unpack_header(header: bytes, number: int, offset: int) -> tuple[int, int] | None:
    """The length and the checksum of a group's payload, if this is a good header and belongs at this offset."""
    if len(header) < GROUP_HEADER.size:
        return None
    mark, length, checksum, place = GROUP_HEADER.unpack(header)
    if mark != MARK or place != crc32(PLACE.pack(number, offset, length, checksum)):
        return None
    return length, checksum


def _unpack_frames(payload: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(payload):
        (length,) = FRAME_HEADER.unpack_from(payload, at)
        at += FRAME_HEADER.size
        yield payload[at : at + length]
        at += length


def _group_bytes(frames: Sequence[bytes | memoryview]) -> int:
    return GROUP_HEADER.size + sum([FRAME_HEADER.size + len(frame) for frame in frames])


def _pack_group(frames: Sequence[bytes | memoryview], number: int, offset: int, *, room_bytes: int = 0) -> bytes:
    """A group, and zeros after it; joined once, because for large groups copying costs as much as the disk."""
    parts = [part for frame in frames for part in (FRAME_HEADER.pack(len(frame)), frame)]
    length, checksum = 0, 0
    for part in parts:
        length, checksum = length + len(part), crc32(part, checksum)
    place = crc32(PLACE.pack(number, offset, length, checksum))
    return b"".join([GROUP_HEADER.pack(MARK, length, checksum, place), *parts, bytes(room_bytes)])


def _pack_file_header(number: int) -> bytes:
    start = FILE_HEADER.pack(MAGIC, FORMAT, number, 0)[:-4]
    return start + crc32(start).to_bytes(4, "big")


def _write_all(descriptor: int, content: bytes, offset: int) -> None:
    """Write at an offset however many calls it takes: the system may take less than it is given."""
    remaining = memoryview(content)
    while remaining:
        written = os.pwrite(descriptor, remaining, offset)
        remaining, offset = remaining[written:], offset + written
