"""Handles: the actors whose handles are in a payload are named on its outside, so that nobody has to open it to know.

Layout: `HANDLES`, the length of the names, the names with a zero byte between them, the payload. Where parcels are
referred to, their head comes before this one. None of it counts in the digest that a replay is compared by.
"""

from collections.abc import Iterable
from struct import Struct

from lineage_stash.core.ids import PeerId
from lineage_stash.core.rope import behind, put_before

HANDLES = 0xFD
PARCELED = 0xFE
"""What a payload begins with that refers to parcels (`parcels`)."""
PARCELS_HEAD = Struct("<BQI")

_HEAD = Struct("<BI")
_BETWEEN = b"\0"


def name_actors(payload: bytes, actors: Iterable[PeerId]) -> bytes:
    """A payload that says whose handles are in it."""
    names = _BETWEEN.join([actor.encode() for actor in actors])
    return put_before(_HEAD.pack(HANDLES, len(names)) + names, payload) if names else payload


def names_actors(payload: bytes) -> bool:
    """Whether there is something to be read by `actors_in`, or may be, behind the head of parcels."""
    return len(payload) > 0 and (payload[0] == HANDLES or payload[0] == PARCELED)


def actors_in(payload: bytes) -> tuple[PeerId, ...]:
    """The actors whose handles are in a payload."""
    if not names_actors(payload):
        return ()
    start = PARCELS_HEAD.size if payload[0] == PARCELED else 0
    upper = _end_of_names(payload, start)
    if upper == start:
        return ()
    names = bytes(payload[start + _HEAD.size : upper]).split(_BETWEEN)
    return tuple([PeerId(name.decode()) for name in names])


def without_names(payload: bytes) -> bytes:
    """The payload itself; whoever asks has taken off the head of parcels."""
    upper = _end_of_names(payload, 0)
    return behind(payload, upper) if upper else payload


def _end_of_names(payload: bytes, start: int) -> int:
    """Where the payload itself begins; `start` where it has no such head."""
    lower = start + _HEAD.size
    if len(payload) < lower or payload[start] != HANDLES:
        return start
    upper = lower + int(_HEAD.unpack_from(payload, start)[1])
    return upper if upper <= len(payload) else start
