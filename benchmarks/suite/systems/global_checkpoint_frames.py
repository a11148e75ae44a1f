"""Frames of the global-checkpoint system: parcels of calls or of replies, and words about everything else. No I/O.

A parcel says of which generation and epoch its sender was, how many frames of the other side have come there, and
carries items with consecutive numbers. Its body is a head, the lengths of the items, and the items, which may be ropes:
large values then travel as shared memory, as they do in the system that this one is compared with.
"""

import pickle
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

from lineage_stash.core.rope import Rope, cut, pieces_of, weigh

_HEAD = Struct("<IIQQI")
_LENGTH = Struct("<Q")


class Kind(IntEnum):
    """Of a frame."""

    CALLS = 1
    REPLIES = 2
    WORDS = 3


class Parcel(NamedTuple):
    """Calls that follow one another, or replies to such."""

    generation: int
    """How many rollbacks there were: what is of an older one did not happen."""
    epoch: int
    """The last checkpoint whose barrier the sender had passed."""
    acknowledged: int
    """How many frames with calls have come from the receiver over this connection."""
    first: int
    items: list[bytes]


def pack(parcel: Parcel) -> bytes | tuple[bytes, ...]:
    """A parcel as the body of a frame; in pieces where an item is large."""
    generation, epoch, acknowledged, first, items = parcel
    lengths = [weigh(item) for item in items]
    head = _HEAD.pack(generation, epoch, acknowledged, first, len(items)) + Struct(f"<{len(items)}Q").pack(*lengths)
    if any(type(item) is Rope for item in items):
        return (head, *[piece for item in items for piece in pieces_of(item)])
    return b"".join((head, *items))


def unpack(body: bytes) -> Parcel:
    """The parcel in the body of a frame."""
    generation, epoch, acknowledged, first, count = _HEAD.unpack_from(body)
    start = _HEAD.size + count * _LENGTH.size
    if count == 1 and type(body) is bytes:
        return Parcel(generation, epoch, acknowledged, first, [body[start:]])
    lengths = list(Struct(f"<{count}Q").unpack_from(body, _HEAD.size))
    return Parcel(generation, epoch, acknowledged, first, cut(body, start, lengths))


def pack_words(topic: str, **said: Any) -> bytes:
    """What is said seldom: barriers, snapshots that are saved, rollbacks."""
    return pickle.dumps((topic, said), protocol=pickle.HIGHEST_PROTOCOL)


def unpack_words(body: bytes) -> tuple[str, dict[str, Any]]:
    """The topic, and what was said."""
    topic, said = pickle.loads(body)
    return topic, said
