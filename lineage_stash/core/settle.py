"""Settling: the greatest causally closed cut of all that is still known. Pure, one function per question.

The evidence is every range that a fenced majority of replicas or a live peer handed over. Of a dead peer's log only
what the evidence holds without a gap survives, and of that only what depends on nothing that is lost. The cut is found
by lowering upper ends until nothing changes; there is no graph to walk, because every entry says by how much its needs
grew.
"""

from collections.abc import Iterable
from typing import NamedTuple

from lineage_stash.core.batch import Range
from lineage_stash.core.entry import Entry
from lineage_stash.core.frontier import START, Frontier, Positions
from lineage_stash.core.history import History
from lineage_stash.core.ids import Index, PeerId


class Stretch(NamedTuple):
    """A gapless piece of one log, put together from evidence."""

    lower: Index
    entries: tuple[Entry, ...]

    @property
    def upper(self) -> Index:
        """The index after the last entry."""
        return Index(self.lower + len(self.entries))


class Cut(NamedTuple):
    """Where each dead log ends, which live peers depend on what is lost, and whom to ask once more."""

    ends: Frontier
    orphans: tuple[PeerId, ...]
    short: tuple[PeerId, ...]


def assemble(ranges: Iterable[Range], committed: Frontier, history: History) -> dict[PeerId, Stretch]:
    """Join overlapping ranges per log, from its committed index on, dropping what earlier rounds have ended."""
    by_peer: dict[PeerId, list[tuple[Index, tuple[Entry, ...]]]] = {}
    for piece in ranges:
        kept = history.surviving(piece)
        if kept:
            by_peer.setdefault(piece.peer, []).append((piece.lower, kept))
    stretches: dict[PeerId, Stretch] = {}
    for peer, pieces in by_peer.items():
        lower = upper = committed.get(peer, START)
        entries: list[Entry] = []
        for start, kept in sorted(pieces, key=lambda piece: piece[0]):
            if start <= upper < start + len(kept):
                entries.extend(kept[upper - start :])
                upper = Index(lower + len(entries))
        stretches[peer] = Stretch(lower, tuple(entries))
    return stretches


def find_cut(stretches: dict[PeerId, Stretch], committed: Frontier, dead: Iterable[PeerId],
             live_needs: dict[PeerId, Positions]) -> Cut:  # fmt: skip
    """Lower the ends of dead logs until they are closed, then see which live peers are left without a cause."""
    known = dict(committed)
    for peer, stretch in stretches.items():
        known[peer] = stretch.upper
    ends = {peer: known.get(peer, START) for peer in dead}
    changed = True
    while changed:
        changed = False
        for peer in ends:
            end = _closed_end(peer, ends, stretches)
            changed |= end < ends[peer]
            ends[peer] = end
    orphans = tuple(
        peer for peer, needs in live_needs.items()
        if any(needed in ends and upper > ends[needed] for needed, upper in needs)
    )  # fmt: skip
    needed_of_live = (
        (needed, upper)
        for peer, end in ends.items() if peer in stretches
        for entry in stretches[peer].entries[: end - stretches[peer].lower]
        for needed, upper in entry.needs if needed in live_needs
    )  # fmt: skip
    short = {needed: None for needed, upper in needed_of_live if upper > known.get(needed, START)}
    return Cut(ends, orphans, tuple(short))


def _closed_end(peer: PeerId, ends: Frontier, stretches: dict[PeerId, Stretch]) -> Index:
    """The first index of a log whose entry needs something beyond the ends, or its end as it is."""
    stretch = stretches.get(peer)
    if stretch is None:
        return ends[peer]
    for index in range(stretch.lower, ends[peer]):
        for needed, upper in stretch.entries[index - stretch.lower].needs:
            if needed in ends and upper > ends[needed]:
                return Index(index)
    return ends[peer]
