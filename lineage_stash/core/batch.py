"""Batches: what crosses a boundary. A batch is causally closed for its receiver.

For every position that the sender's state depends on, the receiver finds it in one of four places: in `ranges`, in what
came earlier on the same channel, below `committed`, or named in `needs` because enough live nodes hold it. So nothing
that the receiver comes to depend on is unknown to it.
"""

from typing import NamedTuple

from lineage_stash.core.entry import Entry
from lineage_stash.core.frontier import Positions
from lineage_stash.core.ids import Incarnation, Index, PeerId


class Range(NamedTuple):
    """Consecutive entries of one log, `[lower, lower + len(entries))`, all written by one incarnation."""

    peer: PeerId
    incarnation: Incarnation
    lower: Index
    entries: tuple[Entry, ...]

    @property
    def upper(self) -> Index:
        """The index after the last entry."""
        return Index(self.lower + len(self.entries))


class Batch(NamedTuple):
    """Entries, the frontier that they and the sender need, and what the sender knows to be committed."""

    ranges: tuple[Range, ...]
    needs: Positions
    committed: Positions


EMPTY = Batch((), (), ())
