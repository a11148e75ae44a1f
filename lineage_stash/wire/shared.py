"""Shared memory: large bytes that several processes of a machine have without a copy.

A `Shared` is a file in memory that has no name, mapped for reading. It goes to another process as a descriptor over a
Unix socket; both then have the same pages. The kernel counts who has it, so nobody has to say when it is not needed any
more, and the death of one process takes nothing from the others.

Rules:
- It is sealed before anybody gets it: nobody can change, shorten or lengthen it. One that comes from another process is
  looked at before it is used: what is not sealed, or not as long as was said, is refused.
- A forked child, which may have closed the descriptors that it has inherited, closes none of these again.
- Descriptors are scarce, so a process holds at most so many of these; what is more is plain bytes.
"""

import fcntl
import mmap
import os
import resource
from collections.abc import Sequence
from typing import Any, Self

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

SHARE_OF_DESCRIPTORS = 8
"""A process may have one in so many of its descriptors for these; a mapping takes a second one."""

MOST_PIECES = 1024
"""The kernel takes no more in one write."""


class NotShared(ValueError):
    """A descriptor that came is not what was said."""


class Shared(mmap.mmap):
    """Bytes in memory that never change, and the descriptor to give away."""

    descriptor: int
    process: int
    count = 0
    """How many this process holds."""

    @classmethod
    def made_of(cls, pieces: Sequence[Any]) -> Self | None:
        """Pieces, one behind the other; None where the kernel has no memory or no descriptor left for them."""
        try:
            descriptor = os.memfd_create("lineage_stash", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:
            return None
        try:
            size = _write_all(descriptor, pieces)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
            return cls._of(descriptor, size)
        except OSError:
            os.close(descriptor)
            return None

    @classmethod
    def received(cls, descriptor: int, size: int) -> Self:
        """What came from another process, or `NotShared`; either way the descriptor is not the caller's any more."""
        try:
            sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS == SEALS
            if sealed and size > 0 and os.fstat(descriptor).st_size == size:
                return cls._of(descriptor, size)
            raise NotShared(f"a descriptor that is no sealed memory of {size} bytes")
        except OSError as error:
            os.close(descriptor)
            raise NotShared(f"a descriptor that is no shared memory: {error.strerror}") from error
        except NotShared:
            os.close(descriptor)
            raise

    @classmethod
    def _of(cls, descriptor: int, size: int) -> Self:
        made = cls(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
        made.descriptor = descriptor
        made.process = os.getpid()
        Shared.count += 1
        return made

    def __del__(self) -> None:
        if hasattr(self, "descriptor") and self.process == os.getpid():
            os.close(self.descriptor)
            Shared.count -= 1


def has_room() -> bool:
    """Whether this process may hold one more."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Shared.count < soft // SHARE_OF_DESCRIPTORS


def _write_all(descriptor: int, pieces: Sequence[Any]) -> int:
    """Write pieces one behind the other; how many bytes that was."""
    remaining = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    size = 0
    while remaining:
        written = os.writev(descriptor, remaining[:MOST_PIECES])
        size += written
        while remaining and written >= len(remaining[0]):
            written -= len(remaining.pop(0))
        if written:
            remaining[0] = remaining[0][written:]
    return size
