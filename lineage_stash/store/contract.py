"""The store's contract: four verbs on logs, checkpoints and their chunks beside them, and epochs of replica sets.

- *append* spans of logs. Idempotent by (peer, incarnation, index); refuses gaps; refuses incarnations that are fenced,
  as writers and as askers: one that is out must not learn from the store what it could act upon.
  The answer says what the replica holds now, so that a span is known durable only where a quorum says so.
- *read* a log from an index on, a page at a time.
- *truncate* a log below an index that a durable checkpoint covers.
- *fence* incarnations: from the answer on they can append no more; the answer is what was held at that very moment.
- A checkpoint is stored by (peer, index); the newest is loaded; fenced incarnations can store none. A large state is in
  chunks by their digests: a checkpoint is taken only by a replica that has all its chunks, and says which it lacks.
- *seal* an epoch: from the answer on the replica takes part in it no more. What it holds can still be listed and read,
  by whoever makes the next replica set.
- *forget* peers of whom nobody can ask again.

Every answer is true of the moment it was given and stays true as a lower bound, except after a fence or a beginning,
which are told by history. "Did not happen" is an answer; "don't know" is its absence, and the request may be repeated.

The store never looks into a body: it keeps what the writer packed, whole, and says which part of it counts.
"""

from enum import IntEnum
from typing import Any, NamedTuple

from lineage_stash.core.checkpoint import Checkpoint
from lineage_stash.core.frontier import Positions
from lineage_stash.core.history import Segments
from lineage_stash.core.ids import Epoch, Incarnation, Index, PeerId
from lineage_stash.core.lineage import Holdings

ReplicaId = int
"""Replicas are numbered as they come, and a number is never given again: one that lost its disk is another one."""

PAGE_BYTES = 8 * 1024 * 1024
"""About how much one answer brings; the rest is asked for again."""


class Level(IntEnum):
    """How durable a commit is."""

    MEMORY = 0
    """In the memories of a majority: survives what does not take a majority of the replicas' processes."""
    DISK = 1
    """Synced to the disks of a majority: survives every process, and the nodes of a minority for good."""
    REMOTE = 2
    """That, and in the archive: survives all nodes."""


class ReplicaSet(NamedTuple):
    """Who the store is in an epoch; a majority of `replicas` decides, the archive is beside them."""

    epoch: Epoch
    replicas: tuple[ReplicaId, ...]
    archive: ReplicaId | None = None

    @property
    def majority(self) -> int:
        """How many make a quorum."""
        return len(self.replicas) // 2 + 1

    @property
    def everyone(self) -> tuple[ReplicaId, ...]:
        """All that requests go to."""
        return self.replicas if self.archive is None else (*self.replicas, self.archive)


class Ticket(NamedTuple):
    """What travels with a request: its number, which comes back, and what it is asked for."""

    number: int
    epoch: Epoch
    level: Level


class Span(NamedTuple):
    """Consecutive entries `[lower, upper)` of one log, written by one incarnation, in a body that begins at `first`."""

    peer: PeerId
    incarnation: Incarnation
    lower: Index
    upper: Index
    first: Index
    body: Any
    """Bytes, or several pieces of bytes on their way out, or where a replica has put them."""
    body_bytes: int


class Append(NamedTuple):
    """Make `spans` durable; `segments` say which incarnation began where, `bases` below where logs are truncated."""

    spans: tuple[Span, ...]
    segments: tuple[tuple[PeerId, Segments], ...]
    bases: Positions
    watch: tuple[PeerId, ...]
    settling: bool
    asker: tuple[PeerId, Incarnation] | None = None


class Held(NamedTuple):
    """What a replica holds of the logs written and watched; where it has a gap; whom it refused."""

    holdings: Holdings
    gaps: Positions
    refused: tuple[PeerId, ...]


class Read(NamedTuple):
    """Read a log from `lower` on."""

    peer: PeerId
    lower: Index


class Found(NamedTuple):
    """What a replica holds of some logs, and below where it has truncated them; `more` if this is a page of several."""

    spans: tuple[Span, ...]
    bases: Positions
    more: bool = False


class Truncate(NamedTuple):
    """Delete a log below an index that a durable checkpoint covers."""

    peer: PeerId
    segments: Segments
    below: Index


class Fence(NamedTuple):
    """Refuse the dead from now on, and read their logs from `lowers` on."""

    dead: tuple[tuple[PeerId, Incarnation], ...]
    lowers: Positions


class PutCheckpoint(NamedTuple):
    """Store a checkpoint."""

    checkpoint: Checkpoint
    copied: bool = False
    """Whether another replica has stored it: then its incarnation may have been fenced since."""


class Stored(NamedTuple):
    """Whether it was stored; if not, its incarnation is fenced, or some of its chunks are missing."""

    stored: bool
    missing: tuple[bytes, ...] = ()


class GetCheckpoint(NamedTuple):
    """Load the newest checkpoint of a peer."""

    peer: PeerId


class Loaded(NamedTuple):
    """The newest checkpoint that this replica has."""

    checkpoint: Checkpoint | None


class Chunk(NamedTuple):
    """A part of a state, by the digest of its content."""

    digest: bytes
    body: Any
    body_bytes: int


class PutChunks(NamedTuple):
    """Keep chunks for a checkpoint that is to come."""

    peer: PeerId
    chunks: tuple[Chunk, ...]


class GetChunks(NamedTuple):
    """Load chunks; those that do not fit into a page are left out."""

    peer: PeerId
    digests: tuple[bytes, ...]


class Chunks(NamedTuple):
    """Those of the chunks asked for that this replica has."""

    chunks: tuple[Chunk, ...]


class Forget(NamedTuple):
    """Delete all that is known of peers, for ever."""

    peers: tuple[PeerId, ...]


class Seal(NamedTuple):
    """Take part in an epoch no more, nor in any before it."""

    epoch: Epoch


class List(NamedTuple):
    """Say what there is, from a peer on in the order of their names."""

    after: PeerId


class Item(NamedTuple):
    """What a replica has of one peer."""

    peer: PeerId
    base: Index
    upper: Index
    last_writer: Incarnation
    segments: Segments
    fenced: Incarnation
    checkpoints: tuple[Checkpoint, ...]
    body_bytes: int


class Inventory(NamedTuple):
    """What a replica has, a page of it; `more` if there are peers after the last one."""

    epoch: Epoch
    items: tuple[Item, ...]
    more: bool


class Elsewhere(NamedTuple):
    """The replica does not serve the epoch of the request; `epoch` is the one it has come to, perhaps sealed."""

    epoch: Epoch
    sealed: bool


Request = (
    Append | Read | Truncate | Fence | PutCheckpoint | GetCheckpoint | PutChunks | GetChunks | Forget | Seal | List
)
Reply = Held | Found | Stored | Loaded | Chunks | Inventory | Elsewhere
