"""Answers to those who only look: how far a peer is, what it keeps, and the calls and replies that it still has.

What is asked here changes nothing, and costs a call nothing: nothing is counted or kept for it. Answers are of the
moment they are given. Calls and replies are given as the machine has them, a page at a time.
"""

from base64 import b64encode
from collections.abc import Iterable
from typing import Any, NamedTuple

from lineage_stash.core.backlog import Backlog
from lineage_stash.core.frontier import START
from lineage_stash.core.ids import PeerId, Seqno
from lineage_stash.core.peer import Peer
from lineage_stash.core.rope import whole
from lineage_stash.store.contract import Level

LOOK = "show"
"""The word that a question begins with; the coordinator, which looks for handles, says another one."""

FIGURES, FLOWS, CALLS, REPLIES, PARCELS = "figures", "flows", "calls", "replies", "parcels"

PAGE_BYTES = 4 * 1024 * 1024
"""About how much of payloads one answer brings; the rest is asked for again."""


class Figures(NamedTuple):
    """How far a peer is, and how much it keeps."""

    incarnation: int
    upper: int
    """How long its log is; 0 for a script without a run id, which has none."""
    committed: int
    """Below which index its log is committed."""
    checkpointed: int
    """Which prefix of its log its last durable checkpoint, or its own restore, covers."""
    calls: int
    """That it has executed, the constructor's included, those of former lives too."""
    entries_needed: int
    """Of all logs that it depends on, how much is not known to be committed."""
    stash_bytes: int
    stash_cap_bytes: int
    buffer_bytes: int
    buffer_cap_bytes: int
    is_replaying: bool
    is_held_back: bool
    """Whether it feels back-pressure: it waits for commits before it appends."""
    level: str

    @property
    def lag(self) -> int:
        """How many entries of its log are not committed."""
        return max(0, self.upper - self.committed)


def answer(peer: Peer, level: Level, asked: dict[str, Any]) -> dict[str, Any]:
    """What a peer says to somebody who looks."""
    what = asked[LOOK]
    if what == FIGURES:
        return {FIGURES: figures_of(peer, level)}
    if what == FLOWS:
        return {FIGURES: figures_of(peer, level), FLOWS: flows_of(peer)}
    other = peer.counterparts.get(PeerId(asked["peer"]))
    if other is None:
        return {what: []}
    if what == PARCELS:
        values = {number: parcel.value for number, parcel in other.outgoing.filled.items()}
        return {PARCELS: _page(values, asked["lower"], asked["upper"])}
    kept = other.outbox.calls if what == CALLS else other.inbox.replies
    return {what: _page(kept, asked["lower"], asked["upper"])}


def figures_of(peer: Peer, level: Level) -> Figures:
    """The figures of this moment."""
    lineage, program, policy = peer.lineage, peer.program, peer.policy
    needed = [upper - max(lineage.committed.get(whose, START), lineage.stash.lower(whose))
              for whose, upper in lineage.needs.items()]  # fmt: skip
    return Figures(
        incarnation=peer.incarnation,
        upper=lineage.upper,
        committed=lineage.committed.get(peer.id, START),
        checkpointed=peer.durability.checkpointed,
        calls=sum([other.inbox.replies.upper for other in peer.counterparts.values()]),
        entries_needed=sum([max(0, count) for count in needed]),
        stash_bytes=lineage.stash.bytes,
        stash_cap_bytes=policy.stash_cap_bytes,
        buffer_bytes=sum([other.buffer_bytes for other in peer.counterparts.values()]),
        buffer_cap_bytes=policy.buffer_cap_bytes,
        is_replaying=program.is_replaying,
        is_held_back=program.held_back is not None,
        level=level.name.lower(),
    )


def flows_of(peer: Peer) -> tuple[list[tuple[PeerId, int]], list[tuple[PeerId, int]]]:
    """Whom a peer has called, and by whom it was called, and how often, former lives included."""
    others = peer.counterparts.values()
    called = [(other.peer, int(other.outbox.calls.upper)) for other in others]
    callers = [(other.peer, int(other.inbox.received)) for other in others]
    return [flow for flow in called if flow[1]], [flow for flow in callers if flow[1]]


def _page(kept: dict[int, bytes] | Backlog, lower: int, upper: int) -> list[tuple[int, str]]:
    """The payloads of a range that are kept, up to a page of them."""
    page: list[tuple[int, str]] = []
    size = 0
    for number in _numbers(kept, lower, upper):
        if size > PAGE_BYTES:
            break
        payload = whole(kept[Seqno(number)])
        size += len(payload)
        page.append((number, b64encode(payload).decode()))
    return page


def _numbers(kept: dict[int, bytes] | Backlog, lower: int, upper: int) -> Iterable[int]:
    if isinstance(kept, Backlog):
        return range(max(lower, kept.floor), min(upper, kept.upper))
    return sorted(number for number in kept if lower <= number < upper)
