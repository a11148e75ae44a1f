"""Restoring: begin an incarnation of a peer from its last checkpoint, its chunks, and the log from there on.

Rules:
- The newest checkpoint and the log are what a majority says; logs come in pages.
- A chunk may come from any replica, because its digest says whether it is the right one. A replica that lacks one, or
  has a damaged one, is passed over.
- Less than what was decided to have survived is not begun with: that is reported, not guessed.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto

from lineage_stash import codec
from lineage_stash.core.backlog import Spool
from lineage_stash.core.checkpoint import Checkpoint, age
from lineage_stash.core.frontier import START
from lineage_stash.core.history import History
from lineage_stash.core.ids import Incarnation, Index, Member, PeerId
from lineage_stash.core.peer import Peer
from lineage_stash.core.policy import Policy
from lineage_stash.core.settle import Stretch, assemble
from lineage_stash.ports import Dead
from lineage_stash.store.chunks import digest_of
from lineage_stash.store.contract import (
    Chunks,
    Found,
    GetCheckpoint,
    GetChunks,
    Loaded,
    PutCheckpoint,
    Read,
    Reply,
    Span,
)
from lineage_stash.store.quorum import Quorum
from lineage_stash.store.states import digests_in

MOST_FRUITLESS = 60
"""Replicas that may answer without a chunk, one after the other, before it is given up; some seconds."""

DIGESTS_PER_REQUEST = 4096


class NoLife(Enum):
    """Why a process that was started for an incarnation has nothing to do."""

    RETIRED = auto()
    """The peer has left its record, at a majority by now: note it in the registry."""
    SUPERSEDED = auto()
    """A later incarnation lives, or has lived."""


class LineageLost(Exception):
    """The store does not have what it had confirmed: a majority of its replicas lost data."""


class Restoration:
    """The way from the store to a peer that can go on; `then` gets the peer, or why there is none."""

    def __init__(self, member: Member, incarnation: Incarnation, history: History, policy: Policy, store: Quorum,
                 ignored: Dead, then: Callable[[Peer | NoLife], None],
                 creator: PeerId | None = None, spool: Spool | None = None) -> None:  # fmt: skip
        self.spool = spool
        self.member = member
        self.incarnation = incarnation
        self.history = history
        self.policy = policy
        self.store = store
        self.ignored = ignored
        self.then = then
        self.creator = creator
        self.checkpoint: Checkpoint | None = None
        self.chunks: dict[bytes, bytes | memoryview] = {}
        self._spans: list[Span] = []
        self._lower = START
        self._missing: list[bytes] = []
        self._fruitless = 0
        self._given_up: list[Checkpoint] = []

    def begin(self) -> None:
        """Ask for the checkpoint first."""
        if self.history.incarnation(self.member.peer) != self.incarnation:
            self.then(NoLife.SUPERSEDED)
            return
        self.store.request(GetCheckpoint(self.member.peer), self._on_loaded)

    def _on_loaded(self, replies: tuple[Reply, ...]) -> None:
        found = [reply.checkpoint for reply in replies if isinstance(reply, Loaded) and reply.checkpoint is not None]
        checkpoint = self.checkpoint = max(found, key=age, default=None)
        if checkpoint is not None and checkpoint.incarnation > self.incarnation:
            self.then(NoLife.SUPERSEDED)
        elif checkpoint is not None and checkpoint.final:
            record = checkpoint._replace(incarnation=self.incarnation)
            self.store.request(PutCheckpoint(record), lambda _: self.then(NoLife.RETIRED))
        else:
            self._lower = checkpoint.upper if checkpoint else START
            self._read_from(self._lower)

    # the log

    def _read_from(self, lower: Index) -> None:
        self.store.request(Read(self.member.peer, lower), self._on_page)

    def _on_page(self, replies: tuple[Reply, ...]) -> None:
        pages = [reply for reply in replies if isinstance(reply, Found)]
        if any(base > self._lower for page in pages for _, base in page.bases):
            self.then(NoLife.SUPERSEDED)
            return
        self._spans.extend([span for page in pages for span in page.spans])
        ends = [page.spans[-1].upper for page in pages if page.more]
        if ends:
            self._read_from(min(ends))
        else:
            self._missing = list(dict.fromkeys(digests_in(self.checkpoint))) if self.checkpoint else []
            self._fetch()

    # the chunks

    def _fetch(self) -> None:
        if self._missing:
            wanted = tuple(self._missing[:DIGESTS_PER_REQUEST])
            self.store.ask_one(GetChunks(self.member.peer, wanted), self._on_chunks)
        else:
            self.store.chunks = self.chunks
            self._conclude()

    def _on_chunks(self, reply: Reply) -> None:
        brought = reply.chunks if isinstance(reply, Chunks) else ()
        good = {chunk.digest: chunk.body for chunk in brought if digest_of(chunk.body) == chunk.digest}
        self._fruitless = 0 if good else self._fruitless + 1
        self.chunks |= good
        self._missing = [digest for digest in self._missing if digest not in good]
        if self._fruitless > MOST_FRUITLESS:
            self._look_again()
        else:
            self._fetch()

    def _look_again(self) -> None:
        """A checkpoint that no majority had may be gone with its replica, or deleted since a later life took newer."""
        assert self.checkpoint is not None, "chunks are missing of no checkpoint"
        if self.checkpoint in self._given_up:
            missing = self._missing[0].hex()
            raise LineageLost(f"chunk {missing} of the checkpoint of {self.member.peer} is at no replica that answers")
        self._given_up.append(self.checkpoint)
        self._fruitless = 0
        self._spans.clear()
        self.begin()

    def _conclude(self) -> None:
        peer, lower = self.member.peer, self._lower
        began = self.history.segments(peer)[-1][1]
        with _without_collecting():
            ranges = codec.unpack_spans(self._spans)
        stretch = assemble(ranges, {peer: lower}, self.history).get(peer, Stretch(lower, ()))
        if stretch.upper < began:
            raise LineageLost(f"{peer} must be replayed to {began}, but the store has it to {stretch.upper}")
        entries = stretch.entries[: began - lower]
        self.then(Peer(self.member, self.incarnation, self.history, self.policy, checkpoint=self.checkpoint,
                       entries=entries, ignored=self.ignored, creator=self.creator, spool=self.spool))  # fmt: skip


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Have no garbage looked for while millions of objects are made, of which none is garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def restore(member: Member, incarnation: Incarnation, history: History, policy: Policy, store: Quorum, ignored: Dead,
            then: Callable[[Peer | NoLife], None], creator: PeerId | None = None,
            spool: Spool | None = None) -> None:  # fmt: skip
    """Begin an incarnation of a peer."""
    Restoration(member, incarnation, history, policy, store, ignored, then, creator, spool).begin()
