"""Pickling of states: by value, apart from the actor's own class, and so that a small change stays small.

A pickler puts its output into frames of some 64 KB and begins each with its length. Readers do without, and a state
that grew by a byte would differ in every frame that follows: so they are left out, and equal parts of two states are
equal bytes again (measured in `docs/design/2026-11-16-checkpoint-chunks.md`).
"""

import io
import pickle
from typing import Any

import cloudpickle

THE_CLASS = "the actor's class"

PROTOCOL, PROTOCOL_BYTES = b"\x80", 2
FRAME, FRAME_HEADER_BYTES = b"\x95", 9
UNFRAMED_BYTES = 64 * 1024
"""Objects of this size are written by themselves, right after an opcode and their length."""


class WithoutFrames(io.BytesIO):
    """Takes what a pickler of protocol 4 or 5 writes, without the headers of frames."""

    def __init__(self) -> None:
        super().__init__()
        self._tail = b""

    def write(self, written: Any) -> int:
        """Write a frame without its header, and anything else as it is."""
        content = memoryview(written).cast("B")
        at = PROTOCOL_BYTES if content[:1] == PROTOCOL else 0
        if self._is_frame(content[at:]) and not self._is_announced(len(content)):
            super().write(content[:at])
            content = content[at + FRAME_HEADER_BYTES :]
        self._tail = bytes(content[-8:])
        return super().write(content)

    def _is_frame(self, content: memoryview) -> bool:
        length = int.from_bytes(content[1:FRAME_HEADER_BYTES], "little")
        return content[:1] == FRAME and length == len(content) - FRAME_HEADER_BYTES

    def _is_announced(self, length: int) -> bool:
        """Whether this may be an object by itself, whose bytes only look like a frame; if in doubt, yes."""
        announced = (int.from_bytes(self._tail[-4:], "little"), int.from_bytes(self._tail, "little"))
        return length >= UNFRAMED_BYTES and length in announced


class StatePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles by value like cloudpickle, but names the actor's own class instead of copying it."""

    def __init__(self, file: io.BytesIO, cls: type) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.cls = cls

    def persistent_id(self, obj: object) -> str | None:
        """What is named and not copied."""
        return THE_CLASS if obj is self.cls else None


class StateUnpickler(pickle.Unpickler):
    """The other side of `StatePickler`."""

    def __init__(self, file: io.BufferedReader, cls: type) -> None:
        super().__init__(file)
        self.cls = cls

    def persistent_load(self, name: str) -> type:
        """The class by its name."""
        if name != THE_CLASS:
            raise pickle.UnpicklingError(f"unknown name in a checkpoint: {name}")
        return self.cls


def pickle_state(state: object, cls: type) -> bytes:
    """A state as bytes."""
    file = WithoutFrames()
    StatePickler(file, cls).dump(state)
    return file.getvalue()


def unpickle_state(content: bytes, cls: type) -> Any:
    """The state; without frames, reading ahead is the reader's to do."""
    return StateUnpickler(io.BufferedReader(io.BytesIO(content)), cls).load()
