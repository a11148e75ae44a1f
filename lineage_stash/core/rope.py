"""Ropes: bytes of which some parts lie elsewhere in memory, so that nobody has to copy them.

A rope is, as bytes, what is here: a payload's head, the body of a frame. Its `parts` are buffers, each with the place
among these bytes where it belongs. So whoever looks at the beginning of a payload need not know that it is a rope; who
counts, cuts, joins or keeps payloads does it with the functions here.

Rules:
- What a part holds never changes, and no part is empty. Whoever makes a rope sees to that.
- Bytes without parts are plain: a rope has one part at least.
- Ropes are compared, hashed and printed by what is here. A pickled one is whole, and plain.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, TypeVar

Part = tuple[int, Any]
"""Where among the bytes that are here a buffer belongs, and the buffer."""

Class = TypeVar("Class")


def interpreted(cls: Class) -> Class:
    """Leaves a class as it is; the compiler does so too with whatever is decorated, and compiles no kind of bytes."""
    return cls


@interpreted
class Rope(bytes):
    """Bytes, and the parts of them that lie elsewhere, in order."""

    parts: tuple[Part, ...]

    def __reduce__(self) -> Any:
        return bytes, (whole(self),)


def rope(here: bytes, parts: Iterable[Part]) -> bytes:
    """Bytes with parts elsewhere; plain ones if there is no part."""
    found = tuple(parts)
    if not found:
        return here
    made = Rope(here)
    made.parts = found
    return made


def parts_of(payload: bytes) -> tuple[Part, ...]:
    """What of a payload lies elsewhere."""
    return payload.parts if isinstance(payload, Rope) else ()


def weigh(payload: bytes) -> int:
    """How many bytes a payload is in all."""
    if type(payload) is bytes:
        return len(payload)
    return len(payload) + sum([len(part) for _, part in parts_of(payload)])


def pieces_of(payload: bytes) -> list[Any]:
    """A payload as buffers that belong together; the parts are not copied."""
    parts = parts_of(payload)
    if not parts:
        return [payload]
    cuts = [0, *[at for at, _ in parts], len(payload)]
    here = [payload[lower:upper] for lower, upper in pairwise(cuts)]
    pieces: list[Any] = [here[0]]
    for (_, part), following in zip(parts, here[1:], strict=True):
        pieces += (part, following)
    return [piece for piece in pieces if len(piece)]


def whole(payload: bytes) -> bytes:
    """A payload in one piece."""
    return payload if type(payload) is bytes else b"".join(pieces_of(payload))


def behind(payload: bytes, count: int) -> bytes:
    """A payload without its first bytes, all of which are here."""
    return rope(payload[count:], [(at - count, part) for at, part in parts_of(payload)])


def put_before(head: bytes, payload: bytes) -> bytes:
    """A payload with bytes put before it."""
    return rope(head + payload, [(at + len(head), part) for at, part in parts_of(payload)])


def cut(frame: bytes, start: int, lengths: list[int]) -> list[bytes]:
    """What follows `start` in a frame, in lengths; raises `ValueError` if that is not all of it, or a part is cut."""
    parts = parts_of(frame)
    taken = 0
    found: list[bytes] = []
    lower = start
    for length in lengths:
        own: list[Part] = []
        elsewhere = 0
        while taken < len(parts) and parts[taken][0] - lower + elsewhere < length:
            place, part = parts[taken]
            own.append((place - lower, part))
            elsewhere += len(part)
            taken += 1
        upper = lower + length - elsewhere
        if upper > len(frame) or (own and upper - lower < own[-1][0]):
            raise ValueError("a frame whose parts are longer than it says")
        found.append(rope(frame[lower:upper], own))
        lower = upper
    if taken < len(parts) or lower != len(frame):
        raise ValueError("a frame with more in it than it says")
    return found
