"""Groups: records that become durable together, as bytes. No files here: whoever keeps groups brings a way to read.

A group is a header, the heads of its records, and then their bodies, so that all but the bodies is read in one go and
bodies are where the heads say. Every byte has one checksum: each body its own, the heads together one, the header one.

Rules:
- A group belongs to one place. The header's checksum begins with a seed that differs from file to file, and includes
  the offset: bytes of a group that were copied elsewhere, by a disk or in somebody's body, are no group there.
- A header says how long the file was for certain before the group was written. A file that is shorter was cut.
- A group without records says that everything before it is durable.
"""

import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple
from zlib import crc32

MARK = b"\xf5grp"
HEADER = struct.Struct(">4sQQQII")
"""Mark, bytes of heads, bytes of bodies, length of the file before, checksum of the heads, checksum of all this."""
OFFSET = struct.Struct(">Q")
RECORD = struct.Struct(">BQII")
"""Kind, epoch, length of the head, number of bodies."""
BODY = struct.Struct(">QI")
"""Length and checksum of a body."""

Buffer = bytes | memoryview
Read = Callable[[int, int], bytes]
"""The bytes at an offset, as many as asked for; fewer where the file ends."""


class Kind(IntEnum):
    """What a record says."""

    REQUEST = 0
    """A request was handled in an epoch: its frame, without the blobs behind it."""
    PROMISED = 1
    """From here on, answers left before what they say was durable."""
    KEPT = 2
    """All that was promised is durable."""
    CONTINUED = 3
    """What follows is in the next file."""


class Body(NamedTuple):
    """A body to be written, and its checksum."""

    content: Buffer
    checksum: int


class Spot(NamedTuple):
    """Where a body is, and its checksum."""

    offset: int
    length: int
    checksum: int


class Record(NamedTuple):
    """A record to be written."""

    kind: Kind
    epoch: int = 0
    head: Buffer = b""
    bodies: Sequence[Body] = ()


class Recovered(NamedTuple):
    """A record as it was read: its bodies are looked at by whoever needs them."""

    kind: Kind
    epoch: int
    head: bytes
    spots: tuple[Spot, ...]


class Header(NamedTuple):
    """What a group's header says."""

    heads_bytes: int
    bodies_bytes: int
    length: int
    checksum: int

    @property
    def group_bytes(self) -> int:
        """How long the group is."""
        return HEADER.size + self.heads_bytes + self.bodies_bytes


class Group(NamedTuple):
    """A good group, apart from its bodies, at bytes `[lower, upper)`."""

    lower: int
    upper: int
    records: tuple[Recovered, ...]


# Writing.


def group_bytes(records: Sequence[Record]) -> int:
    """How long a group of these records will be."""
    return HEADER.size + sum([
        RECORD.size + len(record.head) + sum([BODY.size + len(body.content) for body in record.bodies])
        for record in records
    ])  # fmt: skip


def pack_group(records: Sequence[Record], seed: int, offset: int, length: int) -> tuple[list[Buffer], list[int]]:
    """A group in pieces, in which bodies are not copied, and where the bodies will be."""
    heads = b"".join([part for record in records for part in _head_parts(record)])
    bodies = [body.content for record in records for body in record.bodies]
    offsets = []
    upper = offset + HEADER.size + len(heads)
    for body in bodies:
        offsets.append(upper)
        upper += len(body)
    bodies_bytes = upper - offset - HEADER.size - len(heads)
    return [_pack_header(heads, bodies_bytes, seed, offset, length), heads, *bodies], offsets


def pack_confirmation(seed: int, offset: int, length: int) -> bytes:
    """A group without records."""
    return _pack_header(b"", 0, seed, offset, length)


def _head_parts(record: Record) -> list[Buffer]:
    bodies = [BODY.pack(len(body.content), body.checksum) for body in record.bodies]
    return [RECORD.pack(record.kind, record.epoch, len(record.head), len(bodies)), *bodies, record.head]


def _pack_header(heads: bytes, bodies_bytes: int, seed: int, offset: int, length: int) -> bytes:
    start = HEADER.pack(MARK, len(heads), bodies_bytes, length, crc32(heads), 0)[:-4]
    return start + crc32(start + OFFSET.pack(offset), seed).to_bytes(4, "big")


# Reading.


def unpack_header(content: Buffer, seed: int, offset: int) -> Header | None:
    """What a header says, if this is a good one and belongs at this offset."""
    if len(content) < HEADER.size or content[:4] != MARK:
        return None
    _, heads_bytes, bodies_bytes, length, heads_checksum, checksum = HEADER.unpack(content[: HEADER.size])
    if checksum != crc32(bytes(content[: HEADER.size - 4]) + OFFSET.pack(offset), seed):
        return None
    return Header(heads_bytes, bodies_bytes, length, heads_checksum)


def read_header(read: Read, seed: int, offset: int) -> Header | None:
    """The header at an offset, if there is a good one."""
    return unpack_header(read(offset, HEADER.size), seed, offset)


def read_group(read: Read, header: Header, lower: int) -> Group | None:
    """The group that a header begins, if its heads are good."""
    heads = read(lower + HEADER.size, header.heads_bytes)
    if len(heads) < header.heads_bytes or crc32(heads) != header.checksum:
        return None
    records = []
    at, offset = 0, lower + HEADER.size + header.heads_bytes
    while at < len(heads):
        kind, epoch, head_bytes, count = RECORD.unpack_from(heads, at)
        at += RECORD.size
        spots = []
        for length, checksum in BODY.iter_unpack(heads[at : at + BODY.size * count]):
            spots.append(Spot(offset, length, checksum))
            offset += length
        at += BODY.size * count
        records.append(Recovered(Kind(kind), epoch, heads[at : at + head_bytes], tuple(spots)))
        at += head_bytes
    return Group(lower, lower + header.group_bytes, tuple(records))


def bodies_are_good(read: Read, group: Group) -> bool:
    """Whether every body of a group is what it was."""
    return all(
        len(content := read(spot.offset, spot.length)) == spot.length and crc32(content) == spot.checksum
        for record in group.records
        for spot in record.spots
    )


def find_header(content: bytes, seed: int, offset: int) -> int | None:
    """The offset of the first good header in content that is at an offset."""
    at = content.find(MARK)
    while at >= 0:
        if unpack_header(content[at : at + HEADER.size], seed, offset + at) is not None:
            return offset + at
        at = content.find(MARK, at + 1)
    return None
