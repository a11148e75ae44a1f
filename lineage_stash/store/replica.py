"""One replica of the store, as a state machine: the same in the simulator, in memory and on disk.

Rules:
- A log is gapless above its base, and its last entries may be an old incarnation's until history says where a later one
  began; then what the old one wrote from there on is dropped.
- A fenced incarnation is refused unless history shows where it ended: what lies below that end is settled and true.
- Two lives of a peer may checkpoint at the same index. The later life's is the newer: others have freed what it covers.
- An answer leaves only after what it says is durable.
"""

from lineage_stash.core.batch import Range
from lineage_stash.core.checkpoint import Checkpoint, age
from lineage_stash.core.entry import Entry
from lineage_stash.core.frontier import START
from lineage_stash.core.history import Segments, limit_in, pieces_in
from lineage_stash.core.ids import FIRST_INCARNATION, Incarnation, Index, PeerId
from lineage_stash.store.contract import (
    Append,
    Fence,
    Found,
    GetCheckpoint,
    Held,
    Loaded,
    PutCheckpoint,
    Read,
    Reply,
    Request,
    Stored,
    Truncate,
)  # fmt: skip

CHECKPOINTS_KEPT = 2


class Log:
    """One peer's entries `[base, upper)`, and which incarnation began where as far as this replica was told."""

    def __init__(self) -> None:
        self.base = START
        self.entries: list[Entry] = []
        self.segments: Segments = ((FIRST_INCARNATION, START),)

    @property
    def upper(self) -> Index:
        """The index after the last entry."""
        return Index(self.base + len(self.entries))

    @property
    def last_writer(self) -> Incarnation:
        """Who wrote the last entry."""
        pieces = pieces_in(self.segments, START, self.upper)
        return pieces[-1][0] if pieces else FIRST_INCARNATION

    def learn(self, segments: Segments) -> None:
        """Take in which incarnation began where, and drop what thereby never happened."""
        if len(segments) <= 1 or segments[-1][0] <= self.segments[-1][0]:
            return
        for incarnation, _, end in pieces_in(self.segments, START, self.upper):
            limit = limit_in(segments, incarnation)
            if limit is not None and limit < end:
                del self.entries[max(0, limit - self.base) :]
                break
        self.segments = segments

    def append(self, piece: Range) -> bool:
        """Take what is new of a range; False if there is a gap before it."""
        limit = limit_in(self.segments, piece.incarnation)
        end = piece.upper if limit is None else min(piece.upper, limit)
        upper = self.upper
        if end <= upper:
            return True
        if piece.lower > upper:
            return False
        self.entries.extend(piece.entries[upper - piece.lower : end - piece.lower])
        return True

    def truncate(self, below: Index) -> None:
        """Forget everything below a checkpoint, even what never came here."""
        if below > self.base:
            del self.entries[: below - self.base]
            self.base = below

    def read(self, peer: PeerId, lower: Index) -> list[Range]:
        """The entries from `lower` on, split by writer."""
        return [
            Range(peer, writer, start, tuple(self.entries[start - self.base : end - self.base]))
            for writer, start, end in pieces_in(self.segments, max(lower, self.base), self.upper)
        ]


class Replica:
    """`handle(request)` changes the state and returns the answer."""

    def __init__(self) -> None:
        self.logs: dict[PeerId, Log] = {}
        self.fenced: dict[PeerId, Incarnation] = {}
        self.checkpoints: dict[PeerId, list[Checkpoint]] = {}
        self._handlers = {
            Append: self._append,
            Read: self._read,
            Truncate: self._truncate,
            Fence: self._fence,
            PutCheckpoint: self._put_checkpoint,
            GetCheckpoint: self._get_checkpoint,
        }

    def handle(self, request: Request) -> Reply:
        """Carry out one request; the answer may leave once the state is durable."""
        return self._handlers[type(request)](request)  # type: ignore[operator,no-any-return]

    def _log(self, peer: PeerId) -> Log:
        log = self.logs.get(peer)
        if log is None:
            log = self.logs[peer] = Log()
        return log

    def _append(self, request: Append) -> Held:
        gaps: list[tuple[PeerId, Index]] = []
        refused: dict[PeerId, None] = {}
        if request.asker is not None and request.asker[1] < self.fenced.get(request.asker[0], FIRST_INCARNATION):
            refused[request.asker[0]] = None
        for peer, segments in request.segments:
            self._log(peer).learn(segments)
        for peer, base in request.bases:
            self._log(peer).truncate(base)
        for piece in request.ranges:
            log = self._log(piece.peer)
            if self._is_fenced(piece, log) and not request.settling:
                refused[piece.peer] = None
            elif not log.append(piece):
                gaps.append((piece.peer, log.upper))
        peers = dict.fromkeys([piece.peer for piece in request.ranges] + list(request.watch))
        holdings = tuple((peer, log.last_writer, log.upper) for peer, log in ((p, self._log(p)) for p in peers))
        return Held(holdings, tuple(gaps), tuple(refused))

    def _is_fenced(self, piece: Range, log: Log) -> bool:
        fenced = self.fenced.get(piece.peer, FIRST_INCARNATION)
        return piece.incarnation < fenced and limit_in(log.segments, piece.incarnation) is None

    def _read(self, request: Read) -> Found:
        log = self._log(request.peer)
        return Found(tuple(log.read(request.peer, request.lower)), ((request.peer, log.base),))

    def _truncate(self, request: Truncate) -> Stored:
        log = self._log(request.peer)
        log.learn(request.segments)
        log.truncate(request.below)
        return Stored(True)

    def _fence(self, request: Fence) -> Found:
        for peer, incarnation in request.dead:
            self.fenced[peer] = max(self.fenced.get(peer, FIRST_INCARNATION), Incarnation(incarnation + 1))
        ranges = [piece for peer, lower in request.lowers for piece in self._log(peer).read(peer, lower)]
        return Found(tuple(ranges), tuple((peer, self._log(peer).base) for peer, _ in request.lowers))

    def _put_checkpoint(self, request: PutCheckpoint) -> Stored:
        checkpoint = request.checkpoint
        if checkpoint.incarnation < self.fenced.get(checkpoint.peer, FIRST_INCARNATION):
            return Stored(False)
        kept = self.checkpoints.setdefault(checkpoint.peer, [])
        if all(age(checkpoint) != age(other) for other in kept):
            kept.append(checkpoint)
            kept.sort(key=age)
            del kept[:-CHECKPOINTS_KEPT]
        return Stored(True)

    def _get_checkpoint(self, request: GetCheckpoint) -> Loaded:
        kept = self.checkpoints.get(request.peer)
        return Loaded(kept[-1] if kept else None)
