"""Segment files: groups in the order of their commits, written at the end and read back from the beginning.

What it guarantees: a group whose commit returned is read back, or reading raises `StoreDamaged`; a group whose commit
did not return is read back whole or not at all.

Rules:
- The next group is written only after the one before it is synced. So at most the last group can be torn, and one that
  is bad while a good header follows was durable once: that is damage, and never cut off.
- After every sync a group without records is written behind the last one, where the next one will be: it says that the
  last one was durable, and so makes a changed bit in it damage. It is not synced itself.
- The file is made longer, and the length synced, before groups are written into what it is longer by. Every group says
  how long the file was. So a file that was cut short is told from a torn write.
- Zeros are written behind small groups, so that the next commits change no metadata (measured in
  `docs/design/2026-11-16-segment-files.md`).
- A segment that ends with `CONTINUED` is never written again, and the next one must be there.

Left to others: which files there are, what requests mean, and whether bodies other than those of the last group are
good. Not promised: if the power fails, and the last group goes bad on the disk besides, that looks like a torn write.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from lineage_stash.store.faults import StoreDamaged
from lineage_stash.store.files import SEGMENT, FileHeader, OpenFile, Window
from lineage_stash.store.groups import (
    HEADER,
    Group,
    Header,
    Kind,
    Record,
    bodies_are_good,
    find_header,
    group_bytes,
    pack_confirmation,
    pack_group,
    read_group,
    read_header,
)

ROOM_BYTES = 256 * 1024
"""How many zeros are written ahead: so many that making room is rare, so few that it takes less than a millisecond."""
SMALL_GROUP_BYTES = 64 * 1024
"""Above this, writing every byte twice costs more than changing the file's metadata."""
RESERVED_BYTES = 64 * 1024 * 1024
"""How much the file is made longer by at most; before that, by as much as is in it."""
SCANNED_BYTES = 1024 * 1024
ZEROS = bytes(SCANNED_BYTES + HEADER.size)
FILE_HEADER_BYTES = 4096
"""More than a file's header has, and the first group's."""


class Segment:
    """A segment file that is open for writing at its end."""

    def __init__(self, file: OpenFile, header: FileHeader, upper: int) -> None:
        self.file = file
        self.header = header
        file.size = upper
        self._seed = header.seed
        self._length = file.length
        self._zeroed = upper

    @classmethod
    def create(cls, path: Path, number: int, identity: str) -> "Segment":
        """A new segment with nothing in it, durable."""
        file = OpenFile.begin(path)
        try:
            header = FileHeader.new(SEGMENT, number, identity, FILE_HEADER_BYTES + ROOM_BYTES)
            assert header.size + HEADER.size <= FILE_HEADER_BYTES, "an identity is short"
            file.write([header.content.ljust(header.length, b"\0")], 0)
            file.finish(path)
        except OSError:
            file.close()
            raise
        segment = cls(file, header, header.size)
        segment._zeroed = header.length
        return segment

    def commit(self, records: Sequence[Record]) -> list[int]:
        """Make one group durable with one write and one sync; where its bodies are now."""
        lower = self.file.size
        upper = lower + group_bytes(records)
        if upper + HEADER.size > self._length:
            self._make_longer(upper + HEADER.size)
        pieces, offsets = pack_group(records, self._seed, lower, self._length)
        if upper - lower <= SMALL_GROUP_BYTES and upper + HEADER.size > self._zeroed:
            self._zeroed = min(upper + ROOM_BYTES, self._length)
            pieces.append(bytes(self._zeroed - upper))
        self.file.write(pieces, lower)
        self.file.sync()
        self.file.size = upper
        self._confirm()
        return offsets

    def close(self) -> None:
        """Let go of the file."""
        self.file.close()

    def resume(self, reading: "SegmentReading") -> None:
        """Go on where the last good group ends: clear what lies behind it, and make durable what lies before."""
        last = reading.last
        if last is not None and not reading.is_confirmed:
            # Its writer may have died before the sync, or after one that failed; then the kernel counts the pages as
            # clean although the disk never got them, and only writing them again makes the sync below mean something.
            self.file.write([self.file.read(last.lower, last.upper - last.lower)], last.lower)
        lower, upper = reading.litter
        for at in range(lower, upper, SCANNED_BYTES):
            self.file.write([bytes(min(SCANNED_BYTES, upper - at))], at)
        os.fsync(self.file.descriptor)
        self._confirm()

    def _make_longer(self, needed: int) -> None:
        """Have the file system set space aside in one go: to find it write by write takes it ten times as long."""
        length = max(needed, self._length + min(RESERVED_BYTES, self._length))
        try:
            os.posix_fallocate(self.file.descriptor, self._length, length - self._length)
        except OSError:
            # It does not know how, or has not so much space: writing will tell. What it has set aside is kept.
            length = max(needed, self.file.length)
            with suppress(OSError):
                os.posix_fallocate(self.file.descriptor, self._length, needed - self._length)
            os.ftruncate(self.file.descriptor, length)
        self.file.sync()
        self._length = length

    def _confirm(self) -> None:
        self.file.write([pack_confirmation(self._seed, self.file.size, self._length)], self.file.size)


class SegmentReading:
    """One pass over a segment; what it found is known when `groups` has ended."""

    def __init__(self, file: OpenFile, header: FileHeader) -> None:
        self.file = file
        self.header = header
        self.upper = header.size
        self.last: Group | None = None
        self.is_confirmed = True
        """Whether what was read was durable for certain."""
        self.is_continued = False
        self.litter = (0, 0)
        """Bytes behind the end, and behind the header that is due there, up to the last one that is not zero."""
        self._seed = header.seed
        self._read = Window(file).read
        self._length = file.length

    def groups(self) -> Iterator[Group]:
        """The groups in order, up to a write that was cut short; damage raises."""
        if self._length < self.header.length:
            raise self._cut_short(self.header.length)
        while (header := self._header(self.upper)) is not None and header.heads_bytes:
            group = read_group(self._read, header, self.upper)
            if group is None:
                break
            follows = self._header(group.upper) is not None
            if not follows and not bodies_are_good(self._read, group):
                break
            self.last, self.upper, self.is_confirmed = group, group.upper, follows
            self.is_continued = group.records[-1].kind is Kind.CONTINUED
            yield group
        if not self.is_continued:
            self._look_behind()

    def _header(self, offset: int) -> Header | None:
        header = read_header(self._read, self._seed, offset)
        if header is not None and self._length < header.length:
            raise self._cut_short(header.length)
        return header

    def _cut_short(self, length: int) -> StoreDamaged:
        return StoreDamaged(self.file.path, self._length, f"it was cut short here: it had {length} bytes")

    def _look_behind(self) -> None:
        """Tell a write that was cut short from damage: nothing was begun behind it."""
        # Where the next header should be, there is a torn one or a confirmation; this is overwritten in any case.
        at = self.upper + 1
        lower = last = self.upper + HEADER.size
        while (at := self.file.next_data(at)) < self._length:
            # Pieces overlap by a header, which may lie across two of them.
            content = self.file.read(at, SCANNED_BYTES + HEADER.size)
            if content != ZEROS[: len(content)]:
                follower = find_header(content, self._seed, at)
                if follower is not None:
                    finding = f"no good group is here, but one was committed before byte {follower}"
                    raise StoreDamaged(self.file.path, self.upper, finding)
                last = max(last, at + len(content.rstrip(b"\0")))
            at += SCANNED_BYTES
        self.litter = (lower, last)


def state_groups(file: OpenFile, header: FileHeader) -> Iterator[Group]:
    """The groups of a file that was synced before it got its name: whatever is wrong there is damage."""
    read, seed = Window(file).read, header.seed
    lower = header.size
    while (found := read_header(read, seed, lower)) is not None and found.heads_bytes:
        group = read_group(read, found, lower)
        if group is None:
            raise StoreDamaged(file.path, lower, "the group that begins here is not what it was")
        yield group
        lower = group.upper
    if found is None:
        raise StoreDamaged(file.path, lower, "a group should begin here")
    file.size = lower + HEADER.size
    if file.size != file.length:
        raise StoreDamaged(file.path, file.size, "the file should end here")
