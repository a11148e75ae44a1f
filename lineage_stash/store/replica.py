"""One replica of the store, as a state machine: the same in the simulator, in memory and on disk.

Rules:
- A log is gapless above its base, and its last entries may be an old incarnation's until history says where a later one
  began; then what the old one wrote from there on is dropped.
- A fenced incarnation is refused unless history shows where it ended: what lies below that end is settled and true.
- Two lives of a peer may checkpoint at the same index. The later life's is the newer: others have freed what it covers.
- A checkpoint is taken only when all its chunks are here; a chunk is dropped when a newer checkpoint was taken and none
  that is kept refers to it.
- A request belongs to an epoch. One of a later epoch than this replica's brings it there: the set was published, and
  this replica is in it. One of an earlier epoch, or of one that is sealed, is refused; whoever copies is in none.
- An answer leaves only after what it says is durable.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any

from lineage_stash.core.checkpoint import Checkpoint, age
from lineage_stash.core.frontier import START
from lineage_stash.core.history import Segments, limit_in, pieces_in
from lineage_stash.core.ids import FIRST_INCARNATION, Epoch, Incarnation, Index, PeerId
from lineage_stash.store.contract import (
    PAGE_BYTES,
    Append,
    Chunk,
    Chunks,
    Elsewhere,
    Fence,
    Forget,
    Found,
    GetCheckpoint,
    GetChunks,
    Held,
    Inventory,
    Item,
    List,
    Loaded,
    PutCheckpoint,
    PutChunks,
    Read,
    Reply,
    Request,
    Seal,
    Span,
    Stored,
    Truncate,
)
from lineage_stash.store.states import digests_in

CHECKPOINTS_KEPT = 2
ITEMS_PER_PAGE = 256

NO_EPOCH = Epoch(0)
"""In which requests of whoever copies from one set to the next are made; sets are published from epoch 1 on."""

FIRST_EPOCH = Epoch(1)
IN_NO_EPOCH = (Seal, List, Read, GetChunks)


class Log:
    """One peer's entries `[base, upper)`, and which incarnation began where as far as this replica was told."""

    def __init__(self) -> None:
        self.base = START
        self.spans: list[Span] = []
        self.segments: Segments = ((FIRST_INCARNATION, START),)

    @property
    def upper(self) -> Index:
        """The index after the last entry."""
        return self.spans[-1].upper if self.spans else self.base

    @property
    def last_writer(self) -> Incarnation:
        """Who wrote the last entry."""
        if self.spans:
            return self.spans[-1].incarnation
        pieces = pieces_in(self.segments, START, self.base)
        return pieces[-1][0] if pieces else FIRST_INCARNATION

    def learn(self, segments: Segments) -> None:
        """Take in which incarnation began where, and drop what thereby never happened."""
        if len(segments) <= 1 or segments[-1][0] <= self.segments[-1][0]:
            return
        self.segments = segments
        for position, span in enumerate(self.spans):
            limit = limit_in(segments, span.incarnation)
            if limit is not None and limit < span.upper:
                kept = [span._replace(upper=limit)] if limit > span.lower else []
                self.spans[position:] = kept
                return

    def append(self, span: Span) -> bool:
        """Take what is new of a span; False if there is a gap before it."""
        limit = limit_in(self.segments, span.incarnation)
        end = span.upper if limit is None else min(span.upper, limit)
        upper = self.upper
        if end <= upper:
            return True
        if span.lower > upper:
            return False
        self.spans.append(span._replace(lower=upper, upper=end))
        return True

    def truncate(self, below: Index) -> None:
        """Forget everything below a checkpoint, even what never came here."""
        if below <= self.base:
            return
        self.base = below
        gone = 0
        for span in self.spans:
            if span.upper > below:
                break
            gone += 1
        del self.spans[:gone]
        if self.spans and self.spans[0].lower < below:
            self.spans[0] = self.spans[0]._replace(lower=below)

    def read(self, lower: Index) -> list[Span]:
        """The entries from `lower` on."""
        position = len(self.spans)
        while position and self.spans[position - 1].upper > lower:
            position -= 1
        found = self.spans[position:]
        if found and found[0].lower < lower:
            found[0] = found[0]._replace(lower=lower)
        return found


class Replica:
    """`handle(request)` changes the state and returns the answer."""

    def __init__(self) -> None:
        self.epoch = NO_EPOCH
        self.sealed = False
        self.logs: dict[PeerId, Log] = {}
        self.fenced: dict[PeerId, Incarnation] = {}
        self.checkpoints: dict[PeerId, list[Checkpoint]] = {}
        self.chunks: dict[PeerId, dict[bytes, Chunk]] = {}
        self._handlers: dict[type, Callable[[Any], Reply]] = {
            Append: self._append,
            Read: self._read,
            Truncate: self._truncate,
            Fence: self._fence,
            PutCheckpoint: self._put_checkpoint,
            GetCheckpoint: self._get_checkpoint,
            PutChunks: self._put_chunks,
            GetChunks: self._get_chunks,
            Forget: self._forget,
            Seal: self._seal,
            List: self._list,
        }

    def handle(self, request: Request, epoch: Epoch = FIRST_EPOCH) -> Reply:
        """Carry out one request; the answer may leave once the state is durable."""
        if not self._serves(epoch, request):
            return Elsewhere(self.epoch, self.sealed)
        return self._handlers[type(request)](request)

    def _serves(self, epoch: Epoch, request: Request) -> bool:
        if epoch == NO_EPOCH:
            return isinstance(request, IN_NO_EPOCH)
        if epoch > self.epoch:
            self.epoch = epoch
            self.sealed = False
        return epoch == self.epoch and not self.sealed

    def _log(self, peer: PeerId) -> Log:
        log = self.logs.get(peer)
        if log is None:
            log = self.logs[peer] = Log()
        return log

    # append, read, truncate, fence

    def _append(self, request: Append) -> Held:
        gaps: list[tuple[PeerId, Index]] = []
        refused: dict[PeerId, None] = {}
        if request.asker is not None and request.asker[1] < self.fenced.get(request.asker[0], FIRST_INCARNATION):
            refused[request.asker[0]] = None
        for peer, segments in request.segments:
            self._log(peer).learn(segments)
        for peer, base in request.bases:
            self._log(peer).truncate(base)
        for span in request.spans:
            log = self._log(span.peer)
            if self._is_fenced(span, log) and not request.settling:
                refused[span.peer] = None
            elif not log.append(span):
                gaps.append((span.peer, log.upper))
        peers = dict.fromkeys([span.peer for span in request.spans] + list(request.watch))
        return Held(tuple([self._holding(peer) for peer in peers]), tuple(gaps), tuple(refused))

    def _holding(self, peer: PeerId) -> tuple[PeerId, Incarnation, Index]:
        log = self.logs.get(peer)
        return (peer, FIRST_INCARNATION, START) if log is None else (peer, log.last_writer, log.upper)

    def _is_fenced(self, span: Span, log: Log) -> bool:
        fenced = self.fenced.get(span.peer, FIRST_INCARNATION)
        return span.incarnation < fenced and limit_in(log.segments, span.incarnation) is None

    def _read(self, request: Read) -> Found:
        log = self.logs.get(request.peer)
        if log is None:
            return Found((), ((request.peer, START),))
        page: list[Span] = []
        page_bytes = 0
        for span in log.read(request.lower):
            if page_bytes >= PAGE_BYTES:
                return Found(tuple(page), ((request.peer, log.base),), True)
            page.append(span)
            page_bytes += span.body_bytes
        return Found(tuple(page), ((request.peer, log.base),))

    def _truncate(self, request: Truncate) -> Stored:
        log = self._log(request.peer)
        log.learn(request.segments)
        log.truncate(request.below)
        return Stored(True)

    def _fence(self, request: Fence) -> Found:
        for peer, incarnation in request.dead:
            self.fenced[peer] = max(self.fenced.get(peer, FIRST_INCARNATION), Incarnation(incarnation + 1))
        logs = [(peer, self.logs.get(peer), lower) for peer, lower in request.lowers]
        spans = [span for _, log, lower in logs if log is not None for span in log.read(lower)]
        return Found(tuple(spans), tuple([(peer, START if log is None else log.base) for peer, log, _ in logs]))

    # checkpoints

    def _put_checkpoint(self, request: PutCheckpoint) -> Stored:
        checkpoint = request.checkpoint
        peer = checkpoint.peer
        if checkpoint.incarnation < self.fenced.get(peer, FIRST_INCARNATION) and not request.copied:
            return Stored(False)
        kept = self.checkpoints.get(peer, [])
        if any(age(checkpoint) == age(other) for other in kept):
            return Stored(True)
        chunks = self.chunks.get(peer, {})
        missing = tuple([digest for digest in digests_in(checkpoint) if digest not in chunks])
        if missing:
            return Stored(False, missing)
        self.checkpoints[peer] = sorted([*kept, checkpoint], key=age)[-CHECKPOINTS_KEPT:]
        self._drop_chunks(peer)
        return Stored(True)

    def _drop_chunks(self, peer: PeerId) -> None:
        chunks = self.chunks.get(peer)
        if chunks is not None:
            needed = dict.fromkeys(
                [digest for checkpoint in self.checkpoints[peer] for digest in digests_in(checkpoint)]
            )
            self.chunks[peer] = {digest: chunk for digest, chunk in chunks.items() if digest in needed}

    def _get_checkpoint(self, request: GetCheckpoint) -> Loaded:
        kept = self.checkpoints.get(request.peer)
        return Loaded(kept[-1] if kept else None)

    def _put_chunks(self, request: PutChunks) -> Stored:
        kept = self.chunks.setdefault(request.peer, {})
        for chunk in request.chunks:
            kept.setdefault(chunk.digest, chunk)
        return Stored(True)

    def _get_chunks(self, request: GetChunks) -> Chunks:
        kept = self.chunks.get(request.peer, {})
        page: list[Chunk] = []
        page_bytes = 0
        for digest in request.digests:
            chunk = kept.get(digest)
            if chunk is not None and page_bytes < PAGE_BYTES:
                page.append(chunk)
                page_bytes += chunk.body_bytes
        return Chunks(tuple(page))

    def _forget(self, request: Forget) -> Stored:
        for peer in request.peers:
            self.logs.pop(peer, None)
            self.fenced.pop(peer, None)
            self.checkpoints.pop(peer, None)
            self.chunks.pop(peer, None)
        return Stored(True)

    # epochs

    def _seal(self, request: Seal) -> Inventory:
        if request.epoch >= self.epoch:
            self.epoch = request.epoch
            self.sealed = True
        return Inventory(self.epoch, (), bool(self.peers))

    @property
    def peers(self) -> list[PeerId]:
        """Everyone of whom there is something, in the order of their names."""
        return sorted({**self.logs, **self.fenced, **self.checkpoints})

    def _list(self, request: List) -> Inventory:
        after = [peer for peer in self.peers if peer > request.after]
        page: list[Item] = []
        page_bytes = 0
        for peer in islice(after, ITEMS_PER_PAGE):
            if page_bytes >= PAGE_BYTES:
                break
            page.append(self._item(peer))
            page_bytes += sum([size_of(checkpoint) for checkpoint in page[-1].checkpoints])
        return Inventory(self.epoch, tuple(page), len(after) > len(page))

    def _item(self, peer: PeerId) -> Item:
        log = self.logs.get(peer)
        if log is None:
            log = Log()
        body_bytes = sum([span.body_bytes for span in log.spans])
        body_bytes += sum([chunk.body_bytes for chunk in self.chunks.get(peer, {}).values()])
        checkpoints = tuple(self.checkpoints.get(peer, ()))
        fenced = self.fenced.get(peer, FIRST_INCARNATION)
        return Item(peer, log.base, log.upper, log.last_writer, log.segments, fenced, checkpoints, body_bytes)


def size_of(checkpoint: Checkpoint) -> int:
    """About how many bytes a checkpoint takes in a list, which has it whole but without chunks."""
    kept = [checkpoint.state, *[value for _, value in checkpoint.outputs]]
    for _, calls_to in checkpoint.calls_to:
        kept += [*calls_to.payloads, *[result for _, result in calls_to.results]]
    for _, calls_from in checkpoint.calls_from:
        kept += calls_from.replies
    return sum(map(len, kept))
