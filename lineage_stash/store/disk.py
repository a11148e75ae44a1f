"""A replica whose state survives its process and its machine's power: the state machine, and a segment file beside it.

What it guarantees: an answer leaves `handle_all` only after everything that it says is on this disk; whenever the
folder is opened again, the state is that of some moment at or after the last answer.

Rules:
- What is durable are the requests themselves, in the order in which they changed the state. Recovery is nothing but
  handling them again.
- All requests given at once share one write and one sync. Requests that changed nothing are not written: neither reads
  and watches, nor the repeats that arrive when the disk is slow and must not make it slower.
- One segment is the store. It begins with a whole state, so whoever has the newest one needs no other; older ones are
  there only if a compaction was cut short after its result had its name.
- A compaction is given up as soon as it has written half of what it would replace. So a segment is replaced only if it
  is more than twice the live state, and the next try waits until it has doubled.
- After a failed write or sync the state in memory is ahead of the disk, and what the disk has is unknown: nothing is
  answered from then on. Opening the folder again finds out.

Left to others: several threads (one at a time, please), how requests get here, how many replicas there are. Not
promised: anything about the loss of this disk. Its copies are the other replicas.
"""

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, assert_never

from lineage_stash import codec
from lineage_stash.core.batch import Range
from lineage_stash.core.checkpoint import age
from lineage_stash.core.ids import Incarnation, Index
from lineage_stash.store.contract import Append, Fence, GetCheckpoint, PutCheckpoint, Read, Request, Truncate
from lineage_stash.store.replica import Replica
from lineage_stash.store.segment import Group, Segment, StoreDamaged, read_groups

DEFAULT_SEGMENT_BYTES = 64 * 1024 * 1024
"""How large a segment grows before its compaction is tried: read back in a few seconds."""

STATE_ENTRIES_PER_FRAME = 1000
REQUESTS = (Append, Read, Truncate, Fence, PutCheckpoint, GetCheckpoint)
SEGMENT_NAME = re.compile(r"(\d{8,})\.segment")
UNFINISHED = ".unfinished"


class StoreInUse(Exception):
    """Another process, or this one, has the folder open."""


class StoreFailed(Exception):
    """The disk failed, or failed earlier; whether the requests at hand are durable is unknown until it is reopened."""


class DiskReplica:
    """`handle_all(frames)` changes the state, makes the change durable, and returns the answers."""

    def __init__(self, folder: Path, *, segment_bytes: int = DEFAULT_SEGMENT_BYTES) -> None:
        self.folder = folder
        self.segment_bytes = segment_bytes
        self.replica = Replica()
        with ExitStack() as undo, _disk_errors_told(folder):
            self._lock = _lock(folder)
            undo.callback(os.close, self._lock)
            self._segment = self._recover()
            undo.callback(self._segment.close)
            self._remove_all_but(self._segment.number)
            undo.pop_all()
        self._compact_above = max(segment_bytes, self._segment.size)
        self._usable = True

    def handle(self, frame: bytes) -> bytes:
        """The answer to one request, with a sync of its own; what is no request raises a `FrameError`."""
        (answer,) = self.handle_all((frame,))
        if isinstance(answer, codec.FrameError):
            raise answer
        return answer

    def handle_all(self, frames: Sequence[bytes | memoryview]) -> list[bytes | codec.FrameError]:
        """The answers in order, durable together; in place of one, why that frame is no request and was left alone."""
        if not self._usable:
            raise StoreFailed(f"the replica in {self.folder} failed or was closed: open it again to learn what it has")
        # Whatever is raised below leaves the replica unusable: its memory may be ahead of its disk.
        self._usable = False
        with _disk_errors_told(self.folder):
            if self._segment.size > self._compact_above:
                self._compact()
            answers, changes = self._apply(frames)
            if changes:
                self._segment.commit(changes)
        self._usable = True
        return answers

    def close(self) -> None:
        """Let go of the folder; there is nothing left to write."""
        if self._lock >= 0:
            self._segment.close()
            os.close(self._lock)
        self._lock = -1
        self._usable = False

    def _apply(
        self, frames: Sequence[bytes | memoryview]
    ) -> tuple[list[bytes | codec.FrameError], list[bytes | memoryview]]:
        """Carry out the requests in memory: their answers, and the frames of those that changed the state."""
        answers: list[bytes | codec.FrameError] = []
        changes: list[bytes | memoryview] = []
        for frame in frames:
            try:
                request = _decode_request(frame)
            except codec.FrameError as refusal:
                answers.append(refusal)
                continue
            before = _touched(self.replica, request)
            answers.append(codec.encode(self.replica.handle(request)))
            if _touched(self.replica, request) != before:
                changes.append(frame)
        return answers, changes

    def _recover(self) -> Segment:
        """Bring the state back from the newest segment, or begin the first one."""
        newest = max(self._numbers(), default=None)
        if newest is None:
            first = self._write_state(number=1, limit_bytes=None)
            assert first is not None, "only a limit can stop it"
            return first
        path = self._path(newest)
        last: Group | None = None
        for last in read_groups(path, newest):
            self._replay(last, path)
        assert last is not None, "a segment without a group is damaged"
        with ExitStack() as undo:
            segment = Segment(path, newest)
            undo.callback(segment.close)
            segment.resume(last)
            undo.pop_all()
        return segment

    def _remove_all_but(self, newest: int) -> None:
        """Remove what a compaction that was cut short has left."""
        # The newest one's name may be in memory only, and until it is durable the older ones are needed.
        _sync_folder(self.folder)
        for number in self._numbers():
            if number != newest:
                self._path(number).unlink()
        for unfinished in self.folder.glob("*" + UNFINISHED):
            unfinished.unlink()

    def _numbers(self) -> list[int]:
        return [int(name[1]) for path in self.folder.iterdir() if (name := SEGMENT_NAME.fullmatch(path.name))]

    def _replay(self, group: Group, path: Path) -> None:
        for frame in group.frames:
            try:
                self.replica.handle(_decode_request(frame))
            except codec.FrameError as error:
                raise StoreDamaged(path, group.lower, f"a request in it cannot be read: {error}") from error

    def _compact(self) -> None:
        """Replace the segment by one that holds the live state only, if that is less than half of it."""
        old = self._segment
        fresh = self._write_state(number=old.number + 1, limit_bytes=old.size // 2)
        if fresh is None:
            self._compact_above = 2 * old.size
            return
        self._segment = fresh
        self._compact_above = max(self.segment_bytes, 2 * fresh.size)
        old.close()
        self._path(old.number).unlink()

    def _write_state(self, *, number: int, limit_bytes: int | None) -> Segment | None:
        """A new durable segment with the whole state, or None once it has more bytes than the limit."""
        path = self._path(number)
        unfinished = path.with_suffix(UNFINISHED)
        with ExitStack() as undo:
            unfinished.unlink(missing_ok=True)
            segment = Segment(unfinished, number)
            undo.callback(segment.close)
            segment.begin()
            for request in state_requests(self.replica):
                segment.add((codec.encode(request),))
                if limit_bytes is not None and segment.size > limit_bytes:
                    unfinished.unlink()
                    return None
            segment.add(())
            segment.sync()
            unfinished.rename(path)
            _sync_folder(self.folder)
            undo.pop_all()
        return segment

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08}.segment"


def state_requests(replica: Replica) -> Iterator[Request]:
    """Requests that bring a new replica into the state of this one, apart from logs of which it knows nothing."""
    for peer, log in replica.logs.items():
        if log.upper == 0 and len(log.segments) <= 1:
            continue
        yield Append((), ((peer, log.segments),), ((peer, log.base),), (), True)
        written = log.base
        for piece in log.read(peer, log.base):
            assert piece.lower == written, f"{peer}: no writer of [{written}, {piece.lower}) in {log.segments}"
            for at in range(0, len(piece.entries), STATE_ENTRIES_PER_FRAME):
                entries = piece.entries[at : at + STATE_ENTRIES_PER_FRAME]
                part = Range(peer, piece.incarnation, Index(piece.lower + at), entries)
                yield Append((part,), (), (), (), True)
            written = piece.upper
        assert written == log.upper, f"{peer}: no writer of [{written}, {log.upper}) in {log.segments}"
    # Checkpoints go before the fences, which would refuse those of the fenced.
    for kept in replica.checkpoints.values():
        for checkpoint in kept:
            yield PutCheckpoint(checkpoint)
    if replica.fenced:
        yield Fence(tuple((peer, Incarnation(below - 1)) for peer, below in replica.fenced.items()), ())


def _touched(replica: Replica, request: Request) -> tuple[Any, ...]:
    """What tells whether a request changed the state, compared before and after it."""
    match request:
        case Append():
            named = [piece.peer for piece in request.ranges]
            named += [peer for peer, _ in request.segments] + [peer for peer, _ in request.bases]
        case Truncate():
            named = [request.peer]
        case Fence():
            return tuple(replica.fenced.get(peer) for peer, _ in request.dead)
        case PutCheckpoint():
            return tuple(age(checkpoint) for checkpoint in replica.checkpoints.get(request.checkpoint.peer, ()))
        case Read() | GetCheckpoint():
            return ()
        case _:
            assert_never(request)
    logs = [replica.logs.get(peer) for peer in named]
    # Entries are dropped only with new segments or a new base, so equal length then means equal entries.
    return tuple(None if log is None else (log.base, log.upper, log.segments) for log in logs)


def _decode_request(frame: bytes | memoryview) -> Request:
    request: Request = codec.decode(frame)
    if not isinstance(request, REQUESTS):
        raise codec.FrameError(f"a store answers requests, and this is a {type(request).__name__}")
    return request


def _lock(folder: Path) -> int:
    """Make the folder if need be, and keep everyone else out of it for as long as the descriptor is open."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in new:
        _sync_folder(path.parent)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise StoreInUse(f"{folder} is open already: a replica has one process, and a folder of its own") from error
    return descriptor


def _sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _disk_errors_told(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFailed(
            f"the replica in {folder} cannot go on: {error}. Nothing was answered. Repair the disk or free space on "
            f"it, then open the folder again: what was answered before is there."
        ) from error
