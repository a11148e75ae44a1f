"""The journal: the files that are a replica's state, from the newest state file to the segment that is written to.

What it guarantees: whatever is committed is handed to whoever opens the folder again, in order, or opening raises and
changes nothing.

Rules:
- A segment is there, with nothing in it, before the one before it says `CONTINUED`; and it is written to only after
  that. So a missing segment is missed, and a segment that ends without saying so is the last one.
- A state file gets its name after the segment with its number has got its own. What is older is removed after that.
- Everything is read and checked before anything is changed.
"""

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack

from lineage_stash.store.faults import StoreDamaged, StoreForeign
from lineage_stash.store.files import SEGMENT, STATE, FileHeader, OpenFile, read_file_header
from lineage_stash.store.folder import FIRST_NUMBER, Folder, Layout, Needed
from lineage_stash.store.groups import Group, Kind, Record
from lineage_stash.store.segment import Segment, SegmentReading, state_groups

Replay = Callable[[OpenFile, Group], None]

SWEPT_BYTES = 4 * 1024 * 1024
"""How much of a file is given back to the file system at a time."""


class Journal:
    """The files of an open folder: a state if there is one, segments that are full, and one to write to."""

    def __init__(self, folder: Folder, files: list[OpenFile], current: Segment) -> None:
        self._folder = folder
        self._full = files
        self._current = current
        self._prepared: Segment | None = None

    @property
    def size(self) -> int:
        """Bytes in use, without what was set aside."""
        return self._current.file.size + sum([file.size for file in self._full])

    @property
    def number(self) -> int:
        """The number of the segment that is written to."""
        return self._current.header.number

    @property
    def identity(self) -> str:
        """Whose files these are."""
        return self._current.header.identity

    def commit(self, records: Sequence[Record]) -> list[tuple[OpenFile, int]]:
        """Make records durable together; where their bodies are now."""
        file = self._current.file
        return [(file, offset) for offset in self._current.commit(records)]

    # making place for a new state

    def prepare(self) -> Generator[None, None, None]:
        """Make the next segment; for another thread, while this one is written to."""
        number = self.number + 1
        self._prepared = Segment.create(self._folder.file(SEGMENT, number), number, self.identity)
        yield

    def go_on(self) -> None:
        """Write to the next segment from now on."""
        assert self._prepared is not None, "it was prepared"
        self._current.commit([Record(Kind.CONTINUED)])
        self._full.append(self._current.file)
        self._current, self._prepared = self._prepared, None

    def adopt(self, state: OpenFile) -> list[OpenFile]:
        """Take a state file in place of all that is full; what it replaces, which nobody may read any more."""
        replaced, self._full = self._full, [state]
        return replaced

    def rest(self) -> None:
        """Make durable that everything was: a changed bit in the last group cannot be taken for a torn write then."""
        self._current.file.sync()

    def close(self) -> None:
        """Let go of all files."""
        for file in self._full:
            file.close()
        for segment in (self._current, self._prepared):
            if segment is not None:
                segment.close()


def sweep(files: Sequence[OpenFile]) -> Generator[None, None, None]:
    """Remove files that were replaced; for another thread, because that takes long if they are large."""
    try:
        for file in files:
            os.unlink(file.path)
            # All at once, a large file holds up everyone who waits for a sync of another one.
            for length in range(file.length // SWEPT_BYTES * SWEPT_BYTES, 0, -SWEPT_BYTES):
                os.ftruncate(file.descriptor, length)
                yield
            file.close()
            yield
    finally:
        for file in files:
            file.close()


def open_journal(folder: Folder, identity: str | None, replay: Replay) -> Journal:
    """Hand everything that was committed to `replay`, then make ready for more."""
    with ExitStack() as undo:
        needed = folder.needed()
        if needed is None:
            path = folder.file(SEGMENT, FIRST_NUMBER)
            current = Segment.create(path, FIRST_NUMBER, identity or "")
            undo.callback(current.close)
            needed = Needed(None, (FIRST_NUMBER,))
            full: list[OpenFile] = []
        else:
            opening = _Opening(folder, identity, replay, undo, os.O_RDWR)
            needed, full, current = opening.resume(needed)
        folder.remove(folder.leftovers(needed))
        undo.pop_all()
    return Journal(folder, full, current)


def look_through(folder: Layout, replay: Replay, undo: ExitStack) -> None:
    """Hand everything that was committed to `replay`, and leave the files as they are, open until `undo` is called."""
    needed = folder.needed()
    if needed is not None:
        _Opening(folder, None, replay, undo, os.O_RDONLY).read(needed)


class _Opening:
    """What is read while a folder is opened; all files are closed again if that fails."""

    def __init__(
        self, folder: Layout, identity: str | None, replay: Replay, undo: ExitStack, flags: int
    ) -> None:  # fmt: skip
        self._folder = folder
        self._identity = identity
        self._replay = replay
        self._undo = undo
        self._flags = flags

    def read(self, needed: Needed) -> "tuple[list[OpenFile], list[SegmentReading], SegmentReading | None]":
        """The state file if there is one, the segments, and one that was made ready and not used; changes nothing."""
        full = [] if needed.state is None else [self._read_state(needed.state)]
        readings = [self._read_segment(number) for number in needed.segments]
        unused = _last_if_unused(readings)
        _check_chain(self._folder, readings)
        for reading in readings:
            reading.file.size = reading.upper
        return full, readings, unused

    def resume(self, needed: Needed) -> tuple[Needed, list[OpenFile], Segment]:
        """The files that are needed, those of them that are full, and the segment to go on with."""
        full, readings, unused = self.read(needed)
        last = readings.pop()
        full += [reading.file for reading in readings]
        current = Segment(last.file, last.header, last.upper)
        current.resume(last)
        if unused is not None:
            unused.file.close()
        return needed._replace(segments=tuple(range(needed.segments[0], last.header.number + 1))), full, current

    def _read_state(self, number: int) -> OpenFile:
        file, header = self._open(STATE, number)
        for group in state_groups(file, header):
            self._replay(file, group)
        return file

    def _read_segment(self, number: int) -> SegmentReading:
        reading = SegmentReading(*self._open(SEGMENT, number))
        for group in reading.groups():
            self._replay(reading.file, group)
        return reading

    def _open(self, kind: str, number: int) -> tuple[OpenFile, FileHeader]:
        file = OpenFile(self._folder.file(kind, number), flags=self._flags)
        self._undo.callback(file.close)
        header = read_file_header(file, kind, number)
        if self._identity is None:
            self._identity = header.identity
        if header.identity != self._identity:
            raise StoreForeign(file.path, header.identity, self._identity)
        return file, header


def _last_if_unused(readings: list[SegmentReading]) -> SegmentReading | None:
    """Take away a segment that was made ready and not used."""
    if len(readings) > 1 and readings[-1].last is None and not readings[-2].is_continued:
        return readings.pop()
    return None


def _check_chain(folder: Layout, readings: list[SegmentReading]) -> None:
    for reading in readings[:-1]:
        if not reading.is_continued:
            finding = "it ends here and does not say so, but the next segment was written to"
            raise StoreDamaged(reading.file.path, reading.upper, finding)
    last = readings[-1]
    if last.is_continued:
        raise StoreDamaged(folder.file(SEGMENT, last.header.number + 1), 0, "it is not there")
