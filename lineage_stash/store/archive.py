"""A replica whose state survives all nodes: the state machine, and a chain of sealed objects wherever a URL leads to.

What it guarantees: what `commit` has returned for is at the URL, and whenever it is opened again, the state is that of
some moment at or after the last commit. A body that is read is the one that was written, whoever can write there.

Rules:
- What is durable are the requests themselves, with the epochs they were asked in, in the order in which they changed
  the state. Recovery is nothing but handling them again.
- All that is staged is one new object, complete or absent. Requests that changed nothing are not written.
- Bodies are in the objects; in memory are only their places, and what was used last.
- Two processes may have the archive open, if one was taken for dead and is not. Only the one that opened it last can
  commit; the other one is told that it was taken over, and nothing that it has confirmed is lost. `archive_chain` has
  the reason.
- Every object is sealed with the key, and the seal is checked before anything in it is parsed. Each body has a keyed
  digest, which is checked whenever it is read.
- When more is dead than alive, the live state is written to new objects by another thread, a manifest makes them count
  at once, and then the old ones are removed. A crash in between leaves something over and loses nothing.
- After a failure the state in memory is ahead of the archive, and what is there is unknown: nothing is answered from
  then on. Opening it again finds out.

Left to others: several threads (one at a time, please), how requests get here, who keeps the key. Not promised:
secrecy, for nothing is encrypted; and to notice that the newest objects were removed, or all put back as they were.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

from lineage_stash import codec
from lineage_stash.core.ids import Epoch
from lineage_stash.store import compaction
from lineage_stash.store.archive_bodies import ArchivedBody, Stored, Vault, recovered_request, with_archived_bodies
from lineage_stash.store.archive_chain import open_chain
from lineage_stash.store.archive_compaction import StateWriting
from lineage_stash.store.archive_faults import ArchiveTakenOver, ArchiveUnreachable, BodyUnreachable
from lineage_stash.store.disk import DEFAULT_SEGMENT_BYTES, LOOK_AGAIN_BYTES, Asked, Refusal
from lineage_stash.store.faults import BodyDamaged, StoreError, StoreFailed
from lineage_stash.store.groups import Kind
from lineage_stash.store.objects import open_objects, without_secrets
from lineage_stash.store.replica import FIRST_EPOCH, Replica
from lineage_stash.store.requests import Frame, encode_reply, read_frame, touched
from lineage_stash.store.sealed import Record, Sealer, Unsealed

__all__ = ["ArchiveReplica", "ArchiveTakenOver", "ArchiveUnreachable"]

OBJECT_BYTES = 64 * 1024
"""What an object costs besides its bytes when the archive is opened: as long as it takes to read this many."""

PLACE_REMEDY = (
    "See that the folder or bucket is there, that this node reaches it, and that it may list, read, write and remove "
    "objects there; then open the archive again."
)


class ArchiveReplica:
    """`apply` changes the state, `commit` makes that durable; an answer that leaves in between is a promise."""

    def __init__(
        self, url: str, *, identity: str, key: bytes, segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        expect_existing: bool = False,
    ) -> None:  # fmt: skip
        self.url = without_secrets(url)
        self.segment_bytes = segment_bytes
        self.replica = Replica()
        self.damaged: list[BodyDamaged] = []
        """What was found damaged since the archive was opened."""
        self.compaction_failure: OSError | BodyUnreachable | None = None
        """Why the last compaction was given up; another one is tried later."""
        self.forgot = False
        """Whether the former process may have promised what is not here."""
        self._vault = Vault(open_objects(url), Sealer(key, identity))
        try:
            self._chain = open_chain(self.url, self._vault, expect_existing=expect_existing, replay=self._replay)
        except OSError as error:
            raise ArchiveUnreachable(self.url, str(error), PLACE_REMEDY) from error
        self._promised = False
        self._staged: list[Record] = []
        self._bodies: list[ArchivedBody] = []
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
        return self._chain.size

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
        with self._entered():
            if not self._staged:
                self._tend()
            return [self._answer(epoch, frame) for epoch, frame in asked]

    def commit(self) -> None:
        """Make all that is staged durable: one object."""
        if not self._staged:
            return
        with self._entered():
            stored, offsets = self._chain.commit(self._staged)
            for body, offset in zip(self._bodies, offsets, strict=True):
                body.where = (stored, offset)
            self._staged, self._bodies = [], []

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
            with self._entered():
                self._tend()

    def close(self) -> None:
        """Keep what was promised; a second time does nothing."""
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
        finally:
            self._usable = False

    @contextmanager
    def _entered(self) -> Iterator[None]:
        if not self._usable:
            raise StoreFailed(f"the archive at {self.url} failed or was closed: open it again to learn what it has")
        # Whatever is raised before this is set again leaves the replica unusable: its memory may be ahead.
        self._usable = False
        try:
            yield
        except OSError as error:
            raise StoreFailed(
                f"the archive at {self.url} cannot go on: {error}. Nothing was answered; what was answered before is "
                f"there. {PLACE_REMEDY}"
            ) from error
        self._usable = True

    # requests

    def _answer(self, epoch: Epoch, frame: bytes | memoryview) -> Frame | Refusal:
        try:
            request, head, places = read_frame(frame)
        except codec.FrameError as refusal:
            return refusal
        request, bodies = with_archived_bodies(request, places, self._vault)
        before = touched(self.replica, request)
        reply = self.replica.handle(request, epoch)
        if touched(self.replica, request) != before:
            self._staged.append(Record(Kind.REQUEST, epoch, head, [body.add_up() for body in bodies]))
            self._bodies += bodies
        try:
            return encode_reply(reply)
        except BodyDamaged as damage:
            self._note_damage(damage)
            return damage

    def _replay(self, stored: Stored, unsealed: Unsealed) -> None:
        for record in unsealed.records:
            if record.kind is Kind.REQUEST:
                self.replica.handle(recovered_request(self._vault, stored, record), Epoch(record.epoch))
            else:
                self.forgot = record.kind is Kind.PROMISED

    def _note_damage(self, damage: BodyDamaged) -> None:
        if isinstance(damage, BodyUnreachable):
            return
        # A successor removes what it has superseded, and that is no damage.
        self._chain.check_owner()
        if all((damage.path, damage.offset) != (known.path, known.offset) for known in self.damaged):
            self.damaged.append(damage)

    # compaction

    def _tend(self) -> None:
        """Take the next step of a compaction, if it is time for that; the long ones are other threads'."""
        if self._worker is None:
            # Where something is damaged, the objects stay as they are for whoever repairs them.
            if self._cost > self._compact_above and not self.damaged:
                self._begin_if_worth_it()
        elif self._worker.is_done:
            failure, self._worker = self._worker.failure, None
            if failure is not None:
                self._give_up(failure)
            else:
                self._then()

    @property
    def _cost(self) -> int:
        return self._chain.size + OBJECT_BYTES * self._chain.objects

    def _begin_if_worth_it(self) -> None:
        worth_it_above = 2 * self.live_bytes + self.segment_bytes
        if self._cost <= worth_it_above:
            self._compact_above = max(worth_it_above, self._cost + min(LOOK_AGAIN_BYTES, self.segment_bytes))
            return
        index = compaction.copy_index(self.replica)
        writing = StateWriting(index, self._chain, promised=self.forgot or self._promised)
        self._work(writing.steps(), then=lambda: self._adopt(writing))

    def _work(self, steps: Generator[None, None, None], then: Callable[[], None]) -> None:
        self._worker, self._then = compaction.Worker(steps), then

    def _adopt(self, writing: StateWriting) -> None:
        if writing.successor is not None:
            raise ArchiveTakenOver(self.url, str(writing.successor))
        assert writing.state is not None, "a compaction ended without saying how"
        self._chain.adopt(writing.state)
        self._work(self._chain.sweep(), then=self._rest)

    def _rest(self) -> None:
        self.compaction_failure = None
        self._compact_above = self._cost + self.segment_bytes

    def _give_up(self, failure: OSError | BodyDamaged) -> None:
        self._compact_above = self._cost + self.segment_bytes
        if isinstance(failure, OSError | BodyUnreachable):
            self.compaction_failure = failure
        else:
            self._note_damage(failure)
