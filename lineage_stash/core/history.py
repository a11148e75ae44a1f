"""History: which incarnation of each peer wrote which part of its log, as decided round by round.

Rules:
- Decisions form a chain. Round n is decided by one put-if-absent, in the knowledge of all rounds below n.
- An entry survives iff every later incarnation of its writer began after it. Knowing only the latest incarnation is not
  enough: an old incarnation's leftovers must be judged against all that came after.
- History never goes back; a decision that is already known is ignored, one that is too new makes us fetch those
  between.
"""

from typing import NamedTuple

from lineage_stash.core.batch import Range
from lineage_stash.core.entry import Entry
from lineage_stash.core.frontier import START
from lineage_stash.core.ids import FIRST_INCARNATION, Incarnation, Index, PeerId, Round

Segments = tuple[tuple[Incarnation, Index], ...]


class Beginning(NamedTuple):
    """A new incarnation of `peer` writes from `lower` on; what older ones wrote from there never happened."""

    peer: PeerId
    incarnation: Incarnation
    lower: Index


class Decision(NamedTuple):
    """What a round settled, published as one value."""

    round: Round
    beginnings: tuple[Beginning, ...]
    gone: tuple[PeerId, ...]
    writer: str


class History:
    """All decisions so far, folded."""

    def __init__(self, decisions: tuple[Decision, ...] = ()) -> None:
        self.decisions: list[Decision] = []
        self.gone: dict[PeerId, Round] = {}
        self._segments: dict[PeerId, list[tuple[Incarnation, Index]]] = {}
        for decision in decisions:
            self.apply(decision)

    @property
    def round(self) -> Round:
        """How many rounds are decided."""
        return Round(len(self.decisions))

    def apply(self, decision: Decision) -> None:
        """Take in the next decision of the chain."""
        assert decision.round == self.round + 1, f"decision {decision.round} after round {self.round}"
        self.decisions.append(decision)
        for beginning in decision.beginnings:
            segments = self._segments.setdefault(beginning.peer, [(FIRST_INCARNATION, START)])
            assert beginning.incarnation > segments[-1][0], f"incarnation went back: {beginning}"
            segments.append((beginning.incarnation, beginning.lower))
        for peer in decision.gone:
            self.gone[peer] = decision.round

    def incarnation(self, peer: PeerId) -> Incarnation:
        """The incarnation that may speak for `peer` now."""
        segments = self._segments.get(peer)
        return segments[-1][0] if segments else FIRST_INCARNATION

    def segments(self, peer: PeerId) -> Segments:
        """Every incarnation of `peer` with the index where it began."""
        return tuple(self._segments.get(peer, ((FIRST_INCARNATION, START),)))

    def limit(self, peer: PeerId, incarnation: Incarnation) -> Index | None:
        """Below which index entries written by `incarnation` survive; None if there is no end yet."""
        segments = self._segments.get(peer)
        return None if segments is None else limit_in(segments, incarnation)

    def surviving(self, piece: Range) -> tuple[Entry, ...]:
        """The entries of a range that no later incarnation has ended."""
        limit = self.limit(piece.peer, piece.incarnation)
        if limit is None or limit >= piece.upper:
            return piece.entries
        return piece.entries[: max(0, limit - piece.lower)]

    def pieces(self, peer: PeerId, lower: Index, upper: Index) -> list[tuple[Incarnation, Index, Index]]:
        """Split `[lower, upper)` of a log by the incarnation that wrote it."""
        if peer not in self._segments:
            return [(FIRST_INCARNATION, lower, upper)] if lower < upper else []
        return pieces_in(self.segments(peer), lower, upper)


def limit_in(segments: Segments | list[tuple[Incarnation, Index]], incarnation: Incarnation) -> Index | None:
    """The lowest index at which a later incarnation began."""
    later = [began for other, began in segments if other > incarnation]
    return min(later) if later else None


def pieces_in(segments: Segments, lower: Index, upper: Index) -> list[tuple[Incarnation, Index, Index]]:
    """Split `[lower, upper)` of a log by the incarnation that wrote it."""
    pieces: list[tuple[Incarnation, Index, Index]] = []
    for incarnation, began in segments:
        limit = limit_in(segments, incarnation)
        start, end = max(began, lower), upper if limit is None else min(limit, upper)
        if start < end:
            pieces.append((incarnation, start, end))
    return pieces
