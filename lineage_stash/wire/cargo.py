"""Cargo: frames that carry shared memory over a Unix socket.

On the wire, the kind of such a frame has the bit `CARRIES`, which no other one has, and its body begins with a table:
how many parts there are, and for each the place among the bytes behind the table where it belongs, and its length. The
descriptors leave with the first byte of the frame, so that they come before its end, in the order of the frames.

A table that does not fit to what has come is a `NotShared`.
"""

import os
import socket
from array import array
from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import Any

from lineage_stash.core.rope import rope
from lineage_stash.wire.frames import header
from lineage_stash.wire.shared import NotShared, Shared, has_room

CARRIES = 0x80
MOST_PARTS = 200
"""In one frame; the kernel takes 253 descriptors at a time. What is more goes as bytes."""

_COUNT = Struct("<H")
_PART = Struct("<IQ")
_ANCILLARY_BYTES = socket.CMSG_SPACE(MOST_PARTS * array("i").itemsize)


class Carrier(bytes):
    """The first bytes of a frame, with which its descriptors leave."""

    cargo: list[Shared]


def load(kind: int, pieces: Sequence[Any]) -> tuple[bytes, ...]:
    """A frame that carries what is shared among the pieces of its body; its own first piece is a `Carrier`."""
    cargo: list[Shared] = []
    table: list[bytes] = []
    rest: list[Any] = []
    place = 0
    for piece in pieces:
        if type(piece) is Shared and len(cargo) < MOST_PARTS:
            cargo.append(piece)
            table.append(_PART.pack(place, len(piece)))
        else:
            rest.append(piece)
            place += len(piece)
    head = _COUNT.pack(len(cargo)) + b"".join(table)
    carrier = Carrier(header(kind | CARRIES, len(head) + place) + head)
    carrier.cargo = cargo
    return carrier, *rest


def unload(body: bytes, descriptors: "Descriptors") -> bytes:
    """The frame, with what it carried in its place."""
    if len(body) < _COUNT.size:
        raise NotShared("a frame without a table of what it carries")
    (count,) = _COUNT.unpack_from(body)
    start = _COUNT.size + count * _PART.size
    if not count or len(body) < start or len(descriptors) < count:
        raise NotShared(f"a frame that carries {count} descriptors came with {len(descriptors)}")
    parts: list[tuple[int, Any]] = []
    for place, size in _PART.iter_unpack(body[_COUNT.size : start]):
        shared = Shared.received(descriptors.take(), size)
        if not (parts[-1][0] if parts else 0) <= place <= len(body) - start:
            raise NotShared("a frame that carries something outside of itself")
        parts.append((place, shared if has_room() else bytes(shared)))
    return rope(body[start:], parts)


class Descriptors:
    """Descriptors on their way over one Unix socket; those that came and were not taken are closed in the end."""

    def __init__(self, own: socket.socket) -> None:
        self._own = own
        self._came: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._came)

    def __del__(self) -> None:
        while self._came:
            os.close(self._came.popleft())

    def take(self) -> int:
        """The next one; whoever takes it closes it."""
        return self._came.popleft()

    def recv(self, count: int) -> bytes:
        """As `socket.recv`."""
        data, ancillary, flags, _ = self._own.recvmsg(count, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        if ancillary or flags & socket.MSG_CTRUNC:
            self._keep(ancillary, flags)
        return data

    def recv_into(self, space: memoryview) -> int:
        """As `socket.recv_into`."""
        count, ancillary, flags, _ = self._own.recvmsg_into([space], _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        if ancillary or flags & socket.MSG_CTRUNC:
            self._keep(ancillary, flags)
        return count

    def _keep(self, ancillary: Sequence[tuple[int, int, bytes]], flags: int) -> None:
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                came = array("i")
                came.frombytes(data[: len(data) - len(data) % came.itemsize])
                self._came.extend(came)
        if flags & socket.MSG_CTRUNC:
            raise OSError("descriptors were lost on their way: this process can have no more of them")

    def sendmsg(self, pieces: list[Any]) -> int:
        """As `socket.sendmsg`, but for the pieces from a second carrier on, which are taken out of the list."""
        for position, piece in enumerate(pieces):
            if position and type(piece) is Carrier:
                del pieces[position:]
                break
        first = pieces[0]
        if type(first) is not Carrier:
            return self._own.sendmsg(pieces)
        rights = array("i", [shared.descriptor for shared in first.cargo])
        return self._own.sendmsg(pieces, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
