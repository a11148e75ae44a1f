"""Ghosts: the checker's own account of what happened, kept from outside and trusted over any machine's claims.

For each log the entries that really happened and all they depend on, for each call where it ran and what it answered,
for each output when it was made. What a round ends is forgotten here too, because it never happened.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from lineage_stash import codec
from lineage_stash.core.checkpoint import Checkpoint, age
from lineage_stash.core.entry import Entry, Ran
from lineage_stash.core.frontier import START, Frontier
from lineage_stash.core.history import Decision
from lineage_stash.core.ids import CallId, Incarnation, Index, PeerId, Seqno
from lineage_stash.core.peer import Peer
from lineage_stash.store.chunks import digest_of
from lineage_stash.store.contract import ReplicaSet
from lineage_stash.store.replica import Log, Replica
from lineage_stash.store.states import digests_in
from lineage_stash.testing.stories import Story

if TYPE_CHECKING:
    from lineage_stash.testing.world import World


class Violation(Exception):
    """A rule was broken; `invariant` says which."""

    def __init__(self, invariant: str, text: str, story: list[str]) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
        self.text = text
        self.story = story


class StrayNoticed(Exception):
    """A program that does not repeat itself was noticed, as it should be; there is nothing left to check."""


class GhostEntry(NamedTuple):
    """An entry that really happened, who wrote it, and all it depends on."""

    incarnation: Incarnation
    entry: Entry
    needs: Frontier


class Ghosts:
    """What really happened in one world."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.story = Story(world)
        self.logs: dict[PeerId, list[GhostEntry]] = {}
        self.runs: dict[PeerId, dict[Index, tuple[CallId, int]]] = {}
        self.replies: dict[CallId, tuple[tuple[Index, bytes, int], Frontier, Index]] = {}
        """Where a call began, what it answered and what state it left; all it depended on; where it ended."""
        self.calls: dict[CallId, tuple[Incarnation, Frontier]] = {}
        self.outputs: dict[tuple[PeerId, int], bytes] = {}
        self.emitted: dict[tuple[PeerId, int], tuple[Frontier, bytes, Index]] = {}
        self.acted: dict[tuple[PeerId, int], tuple[Frontier, bytes]] = {}
        """Effects by their key: all that whoever had them depended on, and what they did."""
        self.committed: Frontier = {}

    def fail(self, invariant: str, text: str, *about: str) -> None:
        """Raise, with the story of those involved; where programs stray, that they differ is no news."""
        if self.world.schedule.strays and invariant in ("3 replay equality", "4 exactly once"):
            return
        raise Violation(invariant, text, self.story.about(about))

    def decided(self, peer: PeerId) -> Incarnation:
        return max(
            (b.incarnation for d in self.world.decisions for b in d.beginnings if b.peer == peer),
            default=Incarnation(0),
        )

    def is_current(self, peer: Peer) -> bool:
        return peer.incarnation == self.decided(peer.id)

    def truly_durable(self, peer: PeerId, upper: Index) -> bool:
        """Whether a majority of replicas really holds a surviving log below `upper`."""
        ghosts = self.logs.get(peer, [])
        if upper == 0 or upper <= self.committed.get(peer, START):
            return True
        return upper <= len(ghosts) and self.is_held(peer, upper, self.world.sets[-1])

    def replicas_of(self, replica_set: ReplicaSet) -> list[Replica]:
        return [self.world.replicas[number] for number in replica_set.replicas]

    def is_held(self, peer: PeerId, upper: Index, replica_set: ReplicaSet) -> bool:
        """Whether a majority of a replica set holds what really happened."""
        holders = [of for of in self.replicas_of(replica_set) if self._holds_entry(of, peer, Index(upper - 1))]
        return len(holders) >= replica_set.majority

    def _holds_entry(self, replica: Replica, peer: PeerId, index: Index) -> bool:
        log = replica.logs.get(peer)
        if log is None or log.upper <= index:
            return False
        return log.base > index or entry_at(log, index) == self.logs[peer][index].entry

    def held_below(self, peer: PeerId, replica_set: ReplicaSet) -> Index:
        """Below which index a majority of a replica set holds what really happened, known to anyone or not."""
        upper = len(self.logs.get(peer, ()))
        while upper and not self.is_held(peer, Index(upper), replica_set):
            upper -= 1
        return Index(upper)

    def fenced_below(self, peer: PeerId, replica_set: ReplicaSet) -> Incarnation:
        """Below which incarnation a majority of a replica set refuses a peer."""
        fences = [replica.fenced.get(peer, Incarnation(0)) for replica in self.replicas_of(replica_set)]
        return sorted(fences, reverse=True)[replica_set.majority - 1]

    def newest_durable(self, peer: PeerId, replica_set: ReplicaSet | None = None) -> Checkpoint | None:
        """The newest checkpoint such that a majority of replicas has it, or a newer one, with all its chunks."""
        replica_set = replica_set or self.world.sets[-1]
        newest: list[Checkpoint] = []
        for replica in self.replicas_of(replica_set):
            whole = [kept for kept in replica.checkpoints.get(peer, ()) if is_whole(kept, replica)]
            newest.extend(whole[-1:])
        newest.sort(key=age, reverse=True)
        return newest[replica_set.majority - 1] if len(newest) >= replica_set.majority else None

    def covered(self, callee: PeerId, caller: PeerId, *, by_content: bool) -> Seqno:
        kept = self.newest_durable(callee)
        covered = next((calls.finished for peer, calls in kept.calls_from if peer == caller), Seqno(0)) if kept else 0
        if by_content:
            for index, ghost in enumerate(self.logs.get(callee, ())):
                entry = ghost.entry
                if isinstance(entry, Ran) and entry.caller == caller and entry.payload is not None:
                    if not self.truly_durable(callee, Index(index + 1)):
                        break
                    covered = max(covered, entry.seqno + 1)
        return Seqno(covered)

    def was_current(self, peer: Peer, decision: Decision) -> bool:
        earlier = [
            b.incarnation for d in self.world.decisions if d.round < decision.round
            for b in d.beginnings if b.peer == peer.id
        ]  # fmt: skip
        return peer.incarnation == max(earlier, default=0)

    def has_gone(self, peer: PeerId) -> bool:
        return any(peer in decision.gone for decision in self.world.decisions)

    def forget(self, peer: PeerId, index: Index) -> None:
        del self.logs.setdefault(peer, [])[index:]
        runs = self.runs.get(peer, {})
        for position in [position for position in runs if position >= index]:
            del runs[position]
        for call, (_, needs, position) in list(self.replies.items()):
            if (call.callee == peer and position > index) or needs.get(peer, START) > index:
                del self.replies[call]
        for key, (needs, _, position) in list(self.emitted.items()):
            if (key[0] == peer and position > index) or needs.get(peer, START) > index:
                if key in self.outputs:
                    self.fail("17 gate", f"output {key[1]} of {key[0]} left and then never happened", peer, key[0])
                del self.emitted[key]
        for key, (needs, _) in self.acted.items():
            if needs.get(peer, START) > index:
                self.fail("17 gate", f"effect {key[1]} of {key[0]} happened and then never did", peer, key[0])
        for call in [call for call, (_, needs) in self.calls.items() if needs.get(peer, START) > index]:
            del self.calls[call]


@lru_cache(maxsize=4096)
def entries_in(body: bytes) -> tuple[Entry, ...]:
    """What a span's body holds."""
    return codec.unpack_body(body)


def entry_at(log: Log, index: Index) -> Entry:
    """An entry that a replica holds."""
    span = next(span for span in log.spans if span.lower <= index < span.upper)
    return entries_in(span.body)[index - span.first]


def is_whole(checkpoint: Checkpoint, replica: Replica) -> bool:
    """Whether a replica has all chunks of a checkpoint, as they were."""
    chunks = replica.chunks.get(checkpoint.peer, {})
    return all(
        digest in chunks and digest_of(chunks[digest].body) == digest for digest in digests_in(checkpoint)
    )  # fmt: skip


def hash_of(payload: bytes) -> int:
    """A checksum for comparing."""
    return crc32(payload)
