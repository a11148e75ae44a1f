"""Ghosts: the checker's own account of what happened, kept from outside and trusted over any machine's claims.

For each log the entries that really happened and all they depend on, for each call where it ran and what it answered,
for each output when it was made. What a round ends is forgotten here too, because it never happened.
"""

from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from lineage_stash.core.checkpoint import Checkpoint, age
from lineage_stash.core.entry import Entry, Ran
from lineage_stash.core.frontier import START, Frontier
from lineage_stash.core.history import Decision
from lineage_stash.core.ids import CallId, Incarnation, Index, PeerId, Seqno
from lineage_stash.core.peer import Peer
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
        self.replies: dict[CallId, tuple[tuple[Index, bytes, int], Frontier]] = {}
        self.calls: dict[CallId, tuple[Incarnation, Frontier]] = {}
        self.outputs: dict[tuple[PeerId, int], bytes] = {}
        self.emitted: dict[tuple[PeerId, int], tuple[Frontier, bytes, Index]] = {}
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
        if upper > len(ghosts):
            return False
        holders = 0
        for replica in self.world.replicas:
            log = replica.logs.get(peer)
            if log is None or log.upper < upper:
                continue
            if log.base >= upper or log.entries[upper - 1 - log.base] == ghosts[upper - 1].entry:
                holders += 1
        return holders > len(self.world.replicas) // 2

    def newest_durable(self, peer: PeerId) -> Checkpoint | None:
        """The newest checkpoint that a majority of replicas has."""
        majority = len(self.world.replicas) // 2 + 1
        counts: dict[tuple[Index, bool, Incarnation], list[Checkpoint]] = {}
        for replica in self.world.replicas:
            for checkpoint in replica.checkpoints.get(peer, ()):
                counts.setdefault(age(checkpoint), []).append(checkpoint)
        durable = [found[0] for found in counts.values() if len(found) >= majority]
        return max(durable, key=age, default=None)

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
        for call, ((position, _, _), needs) in list(self.replies.items()):
            if (call.callee == peer and position > index) or needs.get(peer, START) > index:
                del self.replies[call]
        for key, (needs, _, position) in list(self.emitted.items()):
            if (key[0] == peer and position > index) or needs.get(peer, START) > index:
                if key in self.outputs:
                    self.fail("17 gate", f"output {key[1]} of {key[0]} left and then never happened", peer, key[0])
                del self.emitted[key]
        for call in [call for call, (_, needs) in self.calls.items() if needs.get(peer, START) > index]:
            del self.calls[call]


def hash_of(payload: bytes) -> int:
    """A checksum for comparing."""
    return crc32(payload)
