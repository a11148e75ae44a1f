"""The store's contract: four verbs on logs, and checkpoints beside them.

- *append* ranges of logs. Idempotent by (peer, incarnation, index); refuses gaps; refuses incarnations that are fenced,
  as writers and as askers: one that is out must not learn from the store what it could act upon.
  The answer says what the replica holds now, so that a range is known durable only where a quorum says so.
- *read* a log from an index on.
- *truncate* a log below an index that a durable checkpoint covers.
- *fence* incarnations: from the answer on they can append no more; the answer is what was held at that very moment.
- A checkpoint is stored whole, by (peer, index); the newest is loaded; fenced incarnations can store none.

Every answer is true of the moment it was given and stays true as a lower bound, except after a fence or a beginning,
which are told by history. "Did not happen" is an answer; "don't know" is its absence, and the request may be repeated.
"""

from typing import NamedTuple

from lineage_stash.core.batch import Range
from lineage_stash.core.checkpoint import Checkpoint
from lineage_stash.core.frontier import Positions
from lineage_stash.core.history import Segments
from lineage_stash.core.ids import Incarnation, Index, PeerId
from lineage_stash.core.lineage import Holdings


class Append(NamedTuple):
    """Make `ranges` durable; `segments` say which incarnation began where, `bases` below where logs are truncated."""

    ranges: tuple[Range, ...]
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
    """What a replica holds of some logs, and below where it has truncated them."""

    ranges: tuple[Range, ...]
    bases: Positions


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


class Stored(NamedTuple):
    """Whether it was stored; False means that its incarnation is fenced."""

    stored: bool


class GetCheckpoint(NamedTuple):
    """Load the newest checkpoint of a peer."""

    peer: PeerId


class Loaded(NamedTuple):
    """The newest checkpoint that this replica has."""

    checkpoint: Checkpoint | None


Request = Append | Read | Truncate | Fence | PutCheckpoint | GetCheckpoint
Reply = Held | Found | Stored | Loaded
