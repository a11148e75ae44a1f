"""Frames: what a stream of bytes is cut into. No I/O.

A frame is the length of its body (four bytes, the lowest first), one byte of kind, and the body. However the stream is
cut into chunks, the same frames come out, in order.

Rules:
- At most one unfinished frame is held: less than a header, or one body of the length that its header announced.
- Copying is linear in the bytes, however many chunks a body comes in; a caller who receives straight into `space`
  copies nothing. The memory of an announced body is touched only as far as bytes have arrived.
- A length above the bound is refused when its header is complete. The frames before it stay in `frames`, and from then
  on the reader refuses everything.

What kinds mean, and whether a body is sound, is left to others. Frames whose kind is 128 or more carry shared memory.
"""

from collections import deque
from io import BytesIO
from struct import Struct

MAX_FRAME_BYTES = 1 << 30
"""The largest body, 1 GiB: a length above it is a mistake or an attack, and not something to wait for."""

_HEADER = Struct("<IB")
HEADER_BYTES = _HEADER.size
pack_header = _HEADER.pack
"""Length and kind to bytes, for lengths that are known to be small."""
_unpack_from = _HEADER.unpack_from


class FrameTooLarge(ValueError):
    """A body longer than the bound."""


def header(kind: int, length: int) -> bytes:
    """What goes before a body of this kind and length."""
    if length > MAX_FRAME_BYTES:
        raise FrameTooLarge(f"a body of {length} bytes, and {MAX_FRAME_BYTES} is the most")
    return pack_header(length, kind)


class FrameReader:
    """Takes chunks of a stream in and puts (kind, body) pairs into `frames`."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.frames: deque[tuple[int, bytes]] = deque()
        self.missing = 0
        """How many bytes the unfinished body still lacks; zero if there is none."""
        self._max_frame_bytes = max_frame_bytes
        self._start = b""
        self._kind = 0
        self._body = BytesIO()
        self._view = memoryview(b"")

    @property
    def buffered_bytes(self) -> int:
        """How many bytes of an unfinished frame have arrived."""
        return len(self._start) + len(self._view) - self.missing

    def feed(self, chunk: bytes) -> None:
        """Take in the next bytes of the stream."""
        if self.missing:
            taken = min(self.missing, len(chunk))
            self.space()[:taken] = memoryview(chunk)[:taken]
            self.filled(taken)
            chunk = chunk[taken:]
        if self._start:
            chunk = self._start + chunk
            self._start = b""
        frames = self.frames
        size = len(chunk)
        upper = 0
        while size - upper >= HEADER_BYTES:
            length, kind = _unpack_from(chunk, upper)
            if length > self._max_frame_bytes:
                self._start = chunk[upper : upper + HEADER_BYTES]
                raise FrameTooLarge(f"a body of {length} bytes, and {self._max_frame_bytes} is the most")
            lower = upper + HEADER_BYTES
            upper = lower + length
            if upper > size:
                self._begin(kind, length, memoryview(chunk)[lower:])
                return
            frames.append((kind, chunk[lower:upper]))
        if upper < size:
            self._start = chunk[upper:]

    def space(self) -> memoryview:
        """Where the rest of the unfinished body goes; say `filled` before asking again."""
        return self._view[-self.missing :]

    def filled(self, count: int) -> None:
        """Note that so many bytes have been put into `space`."""
        self.missing -= count
        if not self.missing:
            self._view.release()
            self._view = memoryview(b"")
            self.frames.append((self._kind, self._body.getvalue()))
            self._body = BytesIO()

    def _begin(self, kind: int, length: int, first: memoryview) -> None:
        # A BytesIO hands out its bytes without a copy when it is filled through its buffer and is never resized; and
        # zeroed bytes of this size are not backed by memory until they are written.
        self._kind = kind
        self._body = BytesIO(bytes(length))
        self._view = self._body.getbuffer()
        self._view[: len(first)] = first
        self.missing = length - len(first)
