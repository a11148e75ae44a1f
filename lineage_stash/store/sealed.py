"""Sealed objects: what an archive writes, as bytes, which nobody can change or make up without the key.

An object is a prefix, a head, a seal, and then bodies. The prefix says how long the rest is; the head has a label and
the heads of the records; the seal is an HMAC of both. Each body has a keyed digest in the head, so that the seal covers
all of the object, and a body can be read by itself, any time later, and still be checked.

Rules:
- Before the seal is checked, nothing is looked at but the prefix, which stays as it is in all formats.
- The label has the object's name: a sealed object under another name is not taken.
- The prefix tells keys apart, so that a wrong key is not taken for damage.
"""

import hmac
import json
import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32

from lineage_stash import __version__
from lineage_stash.store.archive_faults import ArchiveDamaged, ArchiveForeign, ArchiveFormatUnknown, ArchiveKeyWrong
from lineage_stash.store.groups import RECORD, Buffer, Kind, Read

MAGIC = b"lin-arch"
FORMAT = 1
PREFIX = struct.Struct(">8sI16sQQI")
"""Magic, format, which key, length of the head, length of the bodies, checksum of all this."""
TEXT = struct.Struct(">I")
"""Length of the label."""
DIGEST_BYTES = 16
BODY = struct.Struct(f">Q{DIGEST_BYTES}s")
"""Length and digest of a body."""
SEAL_BYTES = 32

SHORTEST_KEY_BYTES = 16
READ_AHEAD_BYTES = 64 * 1024
"""Read at first: all of a small object, and the head of most others."""


class Body(NamedTuple):
    """A body to be written, and its digest."""

    content: Buffer
    digest: bytes


class Spot(NamedTuple):
    """Where in its object a body is, and its digest."""

    offset: int
    length: int
    digest: bytes


class Record(NamedTuple):
    """A record to be written."""

    kind: Kind
    epoch: int = 0
    head: Buffer = b""
    bodies: Sequence[Body] = ()


class Recovered(NamedTuple):
    """A record as it was read; its bodies are looked at by whoever needs them."""

    kind: Kind
    epoch: int
    head: bytes
    spots: tuple[Spot, ...]


class Label(NamedTuple):
    """What an object says about itself."""

    name: str
    identity: str
    previous: str = ""
    """The group before a group, or the last group that is in a state."""
    parts: int = 0
    """Of a manifest: how many objects the state is in."""
    newest: int = 0
    """Of an owner's claim: the number of the newest group that there was."""
    writer: str = __version__


class Unsealed(NamedTuple):
    """An object whose seal is good."""

    label: Label
    records: tuple[Recovered, ...]
    size: int


class Sealer:
    """Seals and opens the objects of one archive."""

    def __init__(self, key: bytes, identity: str) -> None:
        if len(key) < SHORTEST_KEY_BYTES:
            raise ValueError(
                f"a key of {len(key)} bytes can be guessed: give at least {SHORTEST_KEY_BYTES} random bytes, such as "
                f"secrets.token_bytes(32), and keep them elsewhere than the archive"
            )
        self.identity = identity
        # One key for each purpose, so that no value of one kind can pass for one of another.
        self._which_key, self._seal_key, self._body_key = (
            hmac.digest(key, b"lineage_stash archive: " + purpose, "sha256")
            for purpose in (b"which key", b"seals", b"bodies")
        )

    def digest(self, body: Buffer) -> bytes:
        """The keyed digest of a body."""
        return blake2b(body, digest_size=DIGEST_BYTES, key=self._body_key).digest()

    def seal(self, label: Label, records: Sequence[Record]) -> tuple[list[Buffer], list[int]]:
        """An object in pieces, in which bodies are not copied, and where the bodies will be."""
        text = json.dumps(label._asdict()).encode()
        head = b"".join([TEXT.pack(len(text)), text, *[part for record in records for part in _head_parts(record)]])
        bodies = [body.content for record in records for body in record.bodies]
        upper = PREFIX.size + len(head) + SEAL_BYTES
        offsets = []
        for body in bodies:
            offsets.append(upper)
            upper += len(body)
        prefix = self._prefix(len(head), upper - PREFIX.size - len(head) - SEAL_BYTES)
        return [prefix, head, self._seal(prefix + head), *bodies], offsets

    def unseal(self, name: str, size: int, read: Read) -> Unsealed:
        """The object with this name and size, if it is what was written."""
        start = read(0, min(size, READ_AHEAD_BYTES))
        head_bytes = self._check_prefix(name, size, start)
        upper = PREFIX.size + head_bytes + SEAL_BYTES
        if upper > len(start):
            start += read(len(start), upper - len(start))
        sealed = start[: upper - SEAL_BYTES]
        if not hmac.compare_digest(start[upper - SEAL_BYTES : upper], self._seal(sealed)):
            raise ArchiveDamaged(name, "its seal does not match, so that it is not what was written")
        head = sealed[PREFIX.size :]
        (text_bytes,) = TEXT.unpack_from(head)
        label = Label(**json.loads(head[TEXT.size : TEXT.size + text_bytes]))
        if label.name != name:
            raise ArchiveDamaged(name, f"it is {label.name}, under another name")
        if label.identity != self.identity:
            raise ArchiveForeign(name, label.identity, self.identity)
        return Unsealed(label, tuple(_records(head, TEXT.size + text_bytes, upper)), size)

    def _prefix(self, head_bytes: int, bodies_bytes: int) -> bytes:
        which_key = self._which_key[:16]
        start = PREFIX.pack(MAGIC, FORMAT, which_key, head_bytes, bodies_bytes, 0)[:-4]
        return start + crc32(start).to_bytes(4, "big")

    def _check_prefix(self, name: str, size: int, start: bytes) -> int:
        """How long the head is, if the prefix is that of an object of this size and with this key."""
        if len(start) < PREFIX.size or start[: len(MAGIC)] != MAGIC:
            raise ArchiveDamaged(name, "it does not begin as an archive's objects do")
        _, format_number, which_key, head_bytes, bodies_bytes, checksum = PREFIX.unpack_from(start)
        if crc32(start[: PREFIX.size - 4]) != checksum:
            raise ArchiveDamaged(name, "its first bytes are not what was written")
        if format_number != FORMAT:
            raise ArchiveFormatUnknown(name, format_number, FORMAT, __version__)
        if which_key != self._which_key[:16]:
            raise ArchiveKeyWrong(name)
        if size != (written := PREFIX.size + head_bytes + SEAL_BYTES + bodies_bytes):
            raise ArchiveDamaged(name, f"it has {size} bytes, and {written} were written")
        return int(head_bytes)

    def _seal(self, content: bytes) -> bytes:
        return hmac.digest(self._seal_key, content, "sha256")


def _head_parts(record: Record) -> list[Buffer]:
    bodies = [BODY.pack(len(body.content), body.digest) for body in record.bodies]
    return [RECORD.pack(record.kind, record.epoch, len(record.head), len(bodies)), *bodies, record.head]


def _records(head: bytes, at: int, offset: int) -> list[Recovered]:
    """The records in a head from a position on; their bodies begin at an offset of the object."""
    records = []
    while at < len(head):
        kind, epoch, head_bytes, count = RECORD.unpack_from(head, at)
        at += RECORD.size
        spots = []
        for length, digest in BODY.iter_unpack(head[at : at + BODY.size * count]):
            spots.append(Spot(offset, length, digest))
            offset += length
        at += BODY.size * count
        records.append(Recovered(Kind(kind), epoch, head[at : at + head_bytes], tuple(spots)))
        at += head_bytes
    return records
