"""A replica whose state survives its process and its machine's power: the state machine, and a journal beside it.

What it guarantees: what `commit` has returned for is on this disk; whenever the folder is opened again, the state is
that of some moment at or after the last commit. A body that is read is the one that was written.

Rules:
- What is durable are the requests themselves, with the epochs they were asked in, in the order in which they changed
  the state. Recovery is nothing but handling them again.
- All that is staged shares one write and one sync. Requests that changed nothing are not written: neither reads and
  watches, nor the repeats that arrive when the disk is slow and must not make it slower.
- Bodies are in the files; in memory are only their places.
- An answer that leaves before its commit is a promise. The journal says that there are promises before the first one
  leaves, and that all are kept when the replica is closed; whoever opens a folder in between knows that it `forgot`.
- When more is dead than alive, the live state is written to a new file by another thread. Requests go to a new segment
  meanwhile, and wait for nothing.
- After a failed write or sync the state in memory is ahead of the disk, and what the disk has is unknown: nothing is
  answered from then on. Opening the folder again finds out.
- A body that is damaged is told in place of the answer that needs it. Everything else goes on.

Left to others: several threads (one at a time, please), how requests get here, how many replicas there are. Not
promised: anything about the loss of this disk. Its copies are the other replicas.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from lineage_stash import codec
from lineage_stash.core.ids import Epoch
from lineage_stash.store import compaction
from lineage_stash.store.bodies import Place
from lineage_stash.store.faults import (
    BodyDamaged,
    StoreDamaged,
    StoreEmptied,
    StoreError,
    StoreFailed,
    StoreForeign,
    StoreFormatUnknown,
    StoreInUse,
    disk_errors_told,
)
from lineage_stash.store.files import STATE, OpenFile
from lineage_stash.store.folder import Folder
from lineage_stash.store.groups import Group, Kind, Record
from lineage_stash.store.journal import open_journal, sweep
from lineage_stash.store.replica import FIRST_EPOCH, Replica
from lineage_stash.store.requests import Frame, encode_reply, read_frame, read_record, touched

__all__ = [
    "DiskReplica", "Asked", "Refusal", "StoreError", "StoreDamaged", "StoreEmptied", "StoreFailed", "StoreForeign",
    "StoreFormatUnknown", "StoreInUse", "BodyDamaged",
]  # fmt: skip

DEFAULT_SEGMENT_BYTES = 64 * 1024 * 1024
"""How many dead bytes are worth a compaction, besides as many as are alive."""

LOOK_AGAIN_BYTES = 1024 * 1024
"""How much is written at least until the live bytes are counted again."""

Refusal = codec.FrameError | BodyDamaged


class Asked(NamedTuple):
    """A request, and the epoch that it was asked in."""

    epoch: Epoch
    frame: bytes | memoryview


class DiskReplica:
    """`apply` changes the state, `commit` makes that durable; an answer that leaves in between is a promise."""

    def __init__(
        self, folder: Path, *, segment_bytes: int = DEFAULT_SEGMENT_BYTES, identity: str | None = None,
        expect_existing: bool = False,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.segment_bytes = segment_bytes
        self.replica = Replica()
        self.damaged: list[BodyDamaged] = []
        """What was found damaged since the folder was opened."""
        self.compaction_failure: OSError | None = None
        """Why the last compaction was given up; another one is tried later."""
        self.forgot = False
        """Whether the former process may have promised what is not here."""
        with ExitStack() as undo, disk_errors_told(folder):
            self._folder = Folder(folder, expect_existing=expect_existing)
            undo.callback(self._folder.close)
            self._journal = open_journal(self._folder, identity, self._replay)
            undo.pop_all()
        self._promised = False
        self._staged: list[Record] = []
        self._places: list[Place] = []
        self._compact_above = segment_bytes
        self._worker: compaction.Worker | None = None
        self._then: Callable[[], None] = self._rest
        self._is_open = self._usable = True

    @property
    def live_bytes(self) -> int:
        """About how many bytes the state takes."""
        return compaction.live_bytes(self.replica)

    @property
    def disk_bytes(self) -> int:
        """How many bytes are written, of which all but the live ones are waiting for a compaction."""
        return self._journal.size

    def handle(self, frame: bytes | memoryview) -> bytes:
        """The answer to one request of the first epoch, durable; what cannot be answered raises."""
        (answer,) = self.handle_all((frame,))
        if isinstance(answer, StoreError | codec.FrameError):
            raise answer
        return answer

    def handle_all(self, frames: Sequence[bytes | memoryview]) -> list[bytes | Refusal]:
        """The answers to requests of the first epoch, durable together."""
        answers = self.apply([Asked(FIRST_EPOCH, frame) for frame in frames])
        self.commit()
        return [b"".join(answer) if isinstance(answer, tuple) else answer for answer in answers]

    def apply(self, asked: Sequence[Asked]) -> list[Frame | Refusal]:
        """Carry requests out in memory: the answers in order, or why there is none; what changed is staged."""
        self._enter()
        if not self._staged:
            self._tend()
        answers = [self._answer(epoch, frame) for epoch, frame in asked]
        self._usable = True
        return answers

    def commit(self) -> None:
        """Make all that is staged durable: one write, one sync."""
        if not self._staged:
            return
        self._enter()
        with disk_errors_told(self.folder):
            spots = self._journal.commit(self._staged)
        for place, spot in zip(self._places, spots, strict=True):
            place.where = spot
        self._staged, self._places = [], []
        self._usable = True

    def note_memory_promise(self) -> None:
        """Call this before an answer leaves before its commit; the first time it commits."""
        if not self._promised:
            self._staged.append(Record(Kind.PROMISED))
            self.commit()
            self._promised = True

    def wait_for_compaction(self) -> None:
        """Wait until a compaction that is under way is over."""
        while self._worker is not None and not self._staged:
            self._worker.wait()
            self._enter()
            self._tend()
            self._usable = True

    def close(self) -> None:
        """Keep what was promised, and let go of the folder; a second time does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self._worker is not None:
                self._worker.stop()
            if self._usable:
                if self._promised and not self.forgot:
                    self._staged.append(Record(Kind.KEPT))
                self.commit()
                with disk_errors_told(self.folder):
                    self._journal.rest()
        finally:
            self._usable = False
            self._journal.close()
            self._folder.close()

    def _enter(self) -> None:
        if not self._usable:
            raise StoreFailed(f"the replica in {self.folder} failed or was closed: open it again to learn what it has")
        # Whatever is raised before this is set again leaves the replica unusable: its memory may be ahead of its disk.
        self._usable = False

    # requests

    def _answer(self, epoch: Epoch, frame: bytes | memoryview) -> Frame | Refusal:
        try:
            request, head, places = read_frame(frame)
        except codec.FrameError as refusal:
            return refusal
        before = touched(self.replica, request)
        reply = self.replica.handle(request, epoch)
        if touched(self.replica, request) != before:
            self._staged.append(Record(Kind.REQUEST, epoch, head, [place.add_up() for place in places]))
            self._places += places
        try:
            return encode_reply(reply)
        except BodyDamaged as damage:
            self._note_damage(damage)
            return damage

    def _replay(self, file: OpenFile, group: Group) -> None:
        for record in group.records:
            if record.kind is Kind.REQUEST:
                self.replica.handle(read_record(file, group, record), Epoch(record.epoch))
            elif record.kind is not Kind.CONTINUED:
                self.forgot = record.kind is Kind.PROMISED

    def _note_damage(self, damage: BodyDamaged) -> None:
        if all((damage.path, damage.offset) != (known.path, known.offset) for known in self.damaged):
            self.damaged.append(damage)

    # compaction

    def _tend(self) -> None:
        """Take the next step of a compaction, if it is time for that; the long ones are other threads'."""
        if self._worker is None:
            # Where something is damaged, the files stay as they are for whoever repairs them.
            if self.disk_bytes > self._compact_above and not self.damaged:
                self._begin_if_worth_it()
        elif self._worker.is_done:
            failure, self._worker = self._worker.failure, None
            if failure is not None:
                self._give_up(failure)
            else:
                with disk_errors_told(self.folder):
                    self._then()

    def _begin_if_worth_it(self) -> None:
        worth_it_above = 2 * self.live_bytes + self.segment_bytes
        if self.disk_bytes > worth_it_above:
            self._work(self._journal.prepare(), then=self._write_state)
        else:
            self._compact_above = max(worth_it_above, self.disk_bytes + min(LOOK_AGAIN_BYTES, self.segment_bytes))

    def _work(self, steps: Generator[None, None, None], then: Callable[[], None]) -> None:
        self._worker, self._then = compaction.Worker(steps), then

    def _write_state(self) -> None:
        """Requests go to the next segment from here on, and the state up to here goes into a file."""
        self._journal.go_on()
        number = self._journal.number
        index = compaction.copy_index(self.replica)
        writing = compaction.Compaction(
            index, self._folder.file(STATE, number), number, self._journal.identity,
            promised=self.forgot or self._promised,
        )  # fmt: skip
        self._work(writing.steps(), then=lambda: self._adopt(writing))

    def _adopt(self, writing: compaction.Compaction) -> None:
        assert writing.state is not None, "a compaction ended without saying how"
        self._compact_above = writing.state.size + self.segment_bytes
        self._work(sweep(self._journal.adopt(writing.state)), then=self._rest)

    def _rest(self) -> None:
        self.compaction_failure = None

    def _give_up(self, failure: OSError | BodyDamaged) -> None:
        self._compact_above = self.disk_bytes + self.segment_bytes
        if isinstance(failure, BodyDamaged):
            self._note_damage(failure)
        else:
            self.compaction_failure = failure
