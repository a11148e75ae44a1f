"""The stash: the entries of every peer that this peer holds and that may not be durable yet.

Per log it holds one gapless range `[lower, upper)`, where everything below `lower` is committed. So merging takes the
longer range, committing drops a prefix, and rolling back drops a suffix; there is no status per entry.
"""

from collections.abc import Iterator

from lineage_stash.core.batch import Range
from lineage_stash.core.entry import Entry, size_bytes
from lineage_stash.core.frontier import START
from lineage_stash.core.history import History
from lineage_stash.core.ids import Index, PeerId


class Stash:
    """Gapless uncommitted ranges, one per log, and the bytes they take."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lower: dict[PeerId, Index] = {}
        self._entries: dict[PeerId, list[Entry]] = {}

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._entries)

    def lower(self, peer: PeerId) -> Index:
        """Everything below is committed."""
        return self._lower.get(peer, START)

    def upper(self, peer: PeerId) -> Index:
        """The index after the last entry held."""
        return Index(self._lower.get(peer, START) + len(self._entries.get(peer, ())))

    def append(self, peer: PeerId, entry: Entry) -> None:
        """Add the next entry of `peer`'s log."""
        entries = self._entries.get(peer)
        if entries is None:
            entries = self._entries[peer] = []
        entries.append(entry)
        self.bytes += size_bytes(entry)

    def merge(self, peer: PeerId, lower: Index, entries: tuple[Entry, ...]) -> None:
        """Take what of `entries` reaches beyond the range already held."""
        upper = self.upper(peer)
        assert lower <= upper, f"a gap in {peer}'s log: held up to {upper}, given from {lower}"
        for entry in entries[upper - lower :]:
            self.append(peer, entry)

    def commit(self, peer: PeerId, upper: Index) -> None:
        """Drop what is below a committed index."""
        lower = self._lower.get(peer, START)
        if upper <= lower:
            return
        self._lower[peer] = upper
        entries = self._entries.get(peer)
        if entries is None:
            return
        dropped = upper - lower
        self.bytes -= sum(map(size_bytes, entries[:dropped]))
        if dropped >= len(entries):
            del self._entries[peer]
        else:
            del entries[:dropped]

    def clip(self, peer: PeerId, upper: Index) -> None:
        """Drop what a settled round declared never to have happened."""
        entries = self._entries.get(peer)
        if entries is None:
            return
        kept = max(0, upper - self._lower.get(peer, START))
        self.bytes -= sum(map(size_bytes, entries[kept:]))
        del entries[kept:]
        if not entries:
            del self._entries[peer]

    def ranges(self, peer: PeerId, lower: Index, history: History) -> list[Range]:
        """The entries of one log from `lower` on, split by the incarnation that wrote them."""
        entries = self._entries.get(peer)
        if entries is None:
            return []
        base = self._lower.get(peer, START)
        pieces = history.pieces(peer, max(lower, base), Index(base + len(entries)))
        return [Range(peer, writer, start, tuple(entries[start - base : end - base])) for writer, start, end in pieces]
