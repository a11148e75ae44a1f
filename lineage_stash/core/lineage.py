"""Lineage: what this peer's state depends on, what of it is committed, and what a receiver must be given.

Rules:
- `needs` is the dependency frontier of this peer's state, own log included, without what is known to be committed. It
  grows when a batch is merged: a peer depends on everything it has taken in, whether or not it has acted on it yet.
  (That is more than the strict truth, never less, and it makes one number per peer enough.)
- A batch is judged against history before it is merged: entries that a settled round ended are dropped.
- A frontier is committed when all of it is durable at a quorum, at one moment. `needs` is causally closed at every
  moment, so a snapshot of it that has become durable everywhere is committed as a whole. No entry is walked.
- When the own log is committed is for the own flushes to say: others may ask less of the store.
- A range is not forwarded where it is committed, or came earlier on the same channel, or is held on `max_failures + 1`
  live nodes; then its upper end is still told, so that what did not travel is still known about.
"""

from collections import deque
from collections.abc import Iterable

from lineage_stash.core.batch import EMPTY, Batch, Range
from lineage_stash.core.channel import Channel
from lineage_stash.core.entry import Entry, content_bytes
from lineage_stash.core.frontier import START, Frontier, Positions, clip, covers, join
from lineage_stash.core.history import Beginning, History
from lineage_stash.core.ids import Incarnation, Index, NodeId, PeerId
from lineage_stash.core.stash import Stash

MOST_SNAPSHOTS = 4

Holdings = tuple[tuple[PeerId, Incarnation, Index], ...]
"""What one replica says it holds: per log, the incarnation of its last entry and the index after it."""


class Lineage:
    """One peer's own log, its copy of others' logs, and the frontiers between them."""

    def __init__(self, me: PeerId, history: History, upper: Index = START) -> None:
        self.me = me
        self.history = history
        self.stash = Stash()
        self.upper = upper
        self.content_bytes = 0
        self.needs: Frontier = {}
        self.unlogged: Frontier = {}
        self.committed: Frontier = {}
        self.durable: Frontier = {}
        self.version = 0
        self.forwarded_entries = 0
        """How many have left in messages, for whoever watches."""
        self._snapshots: deque[Frontier] = deque()
        if upper:
            self.commit(((me, upper),))

    # append

    def take_unlogged(self) -> Positions:
        """By how much the needs grew since the last own entry."""
        if not self.unlogged:
            return ()
        needs = tuple(self.unlogged.items())
        self.unlogged.clear()
        return needs

    def append(self, entry: Entry) -> None:
        """Write the next entry of the own log: a list append."""
        self.stash.append(self.me, entry)
        self.content_bytes += content_bytes(entry)
        self.upper = upper = Index(self.upper + 1)
        self.needs[self.me] = upper
        self.version += 1

    # merge

    def merge(self, batch: Batch) -> None:
        """Take in a batch that was judged: afterwards this peer depends on all that it names."""
        if batch.committed:
            self.commit([(peer, upper) for peer, upper in batch.committed if peer != self.me])
        for piece in batch.ranges:
            entries = self.history.surviving(piece)
            if entries:
                self.stash.merge(piece.peer, piece.lower, entries)
                self._need(piece.peer, Index(piece.lower + len(entries)))
        for peer, upper in batch.needs:
            self._need(peer, upper)

    def _need(self, peer: PeerId, upper: Index) -> None:
        if peer == self.me or upper <= self.committed.get(peer, START):
            return
        if upper > self.needs.get(peer, START):
            self.needs[peer] = upper
            self.unlogged[peer] = upper
            self.version += 1

    # forward

    def batch_for(self, channel: Channel, receiver: PeerId, enough: "dict[PeerId, Index] | None") -> Batch:
        """What the receiver lacks; `enough` says, where forwarding is bounded, what has enough holders already."""
        if channel.version == self.version:
            return EMPTY
        channel.version = self.version
        committed = self._news_of_commits(channel)
        ranges: list[Range] = []
        needs: list[tuple[PeerId, Index]] = []
        for peer, upper in self.needs.items():
            if peer == receiver or upper <= channel.sent.get(peer, START):
                continue
            if enough is None or enough.get(peer, START) < self.stash.upper(peer):
                ranges.extend(self._forward(channel, peer, committed))
            if upper > max(channel.sent.get(peer, START), channel.told.get(peer, START)):
                channel.told[peer] = upper
                needs.append((peer, upper))
        return Batch(tuple(ranges), tuple(needs), tuple(committed.items()))

    def _news_of_commits(self, channel: Channel) -> Frontier:
        """Commits that matter to the receiver: of logs that it was told about on this channel."""
        news: Frontier = {}
        for frontier in (channel.sent, channel.told):
            for peer, upper in list(frontier.items()):
                committed = self.committed.get(peer, START)
                if committed > channel.told_committed.get(peer, START):
                    channel.told_committed[peer] = committed
                    news[peer] = committed
                if committed >= upper:
                    del frontier[peer]
        return news

    def _forward(self, channel: Channel, peer: PeerId, committed: Frontier) -> list[Range]:
        lower = channel.sent.get(peer, START)
        base = self.stash.lower(peer)
        if base > lower and base > channel.told_committed.get(peer, START):
            channel.told_committed[peer] = base
            committed[peer] = base
        channel.sent[peer] = self.stash.upper(peer)
        pieces = self.stash.ranges(peer, lower, self.history)
        for piece in pieces:
            self.forwarded_entries += len(piece.entries)
        return pieces

    def well_held(self, holders: Iterable[tuple[NodeId, Frontier]], writers: dict[PeerId, NodeId], node: NodeId,
                  max_failures: int) -> dict[PeerId, Index]:  # fmt: skip
        """Per log, up to where `max_failures + 1` distinct live nodes are known to hold it."""
        enough: dict[PeerId, Index] = {}
        holders = list(holders)
        for peer, needed in self.needs.items():
            by_node: dict[NodeId, Index] = {node: self.stash.upper(peer)}
            if peer in writers:
                by_node[writers[peer]] = needed
            for holder_node, held in holders:
                by_node[holder_node] = max(by_node.get(holder_node, START), held.get(peer, START))
            uppers = sorted(by_node.values(), reverse=True)
            if len(uppers) > max_failures:
                enough[peer] = uppers[max_failures]
        return enough

    # flush and commit

    def snapshot(self) -> None:
        """Remember the needs of this moment: once all of it is durable, all of it is committed."""
        if not self.needs:
            return
        if len(self._snapshots) >= MOST_SNAPSHOTS:
            self._snapshots.pop()
        self._snapshots.append(dict(self.needs))

    @property
    def watch(self) -> tuple[PeerId, ...]:
        """Whose durability the oldest snapshot still waits for."""
        if not self._snapshots:
            return ()
        return tuple(
            peer for peer, upper in self._snapshots[0].items() if upper > self.durable.get(peer, START)
        )  # fmt: skip

    def note_durable(self, holdings: Iterable[Holdings], quorum: int) -> None:
        """Take in what each replica holds; commit the snapshots that a quorum completes."""
        by_peer: dict[PeerId, list[Index]] = {}
        for replica in holdings:
            for peer, incarnation, upper in replica:
                if incarnation <= self.history.incarnation(peer):
                    limit = self.history.limit(peer, incarnation)
                    by_peer.setdefault(peer, []).append(upper if limit is None else min(upper, limit))
        for peer, uppers in by_peer.items():
            if len(uppers) >= quorum:
                join(self.durable, ((peer, sorted(uppers, reverse=True)[quorum - 1]),))
        while self._snapshots and covers(self.durable, self._snapshots[0].items()):
            self.commit(self._snapshots.popleft().items())

    def commit(self, positions: Iterable[tuple[PeerId, Index]]) -> None:
        """All of `positions` is committed: it needs no holder any more."""
        for peer, upper in positions:
            if upper <= self.committed.get(peer, START):
                continue
            self.committed[peer] = upper
            self.version += 1
            join(self.durable, ((peer, upper),))
            self.stash.commit(peer, upper)
            if self.needs.get(peer, START) <= upper:
                self.needs.pop(peer, None)
            if self.unlogged.get(peer, START) <= upper:
                self.unlogged.pop(peer, None)

    # settle

    def settle(self, beginning: Beginning) -> bool:
        """Take in where a log ends; False if this peer depends on what never happened, and so never happened itself."""
        peer, _, lower = beginning
        orphaned = self.needs.get(peer, START) > lower
        self.stash.clip(peer, lower)
        for frontier in (self.needs, self.unlogged, self.durable, *self._snapshots):
            clip(frontier, peer, lower)
        self.commit(((peer, lower),))
        self.version += 1
        return not orphaned

    def all_ranges(self) -> tuple[Range, ...]:
        """The whole stash, as handed over in a round."""
        return tuple(piece for peer in self.stash for piece in self.stash.ranges(peer, START, self.history))
