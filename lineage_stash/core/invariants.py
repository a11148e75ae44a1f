"""What must be true of one peer between any two events, by itself: cheap enough to ask for in production and in tests.

The simulator asks after every few events; whoever suspects a peer may ask at any time. What takes more than one peer to
see (orphans, exactly once, replay equality) is checked by the simulator, which sees them all.
"""

from collections.abc import Iterator

from lineage_stash.core.counterpart import Counterpart
from lineage_stash.core.entry import size_bytes
from lineage_stash.core.frontier import START
from lineage_stash.core.peer import Peer


class InvariantBroken(AssertionError):
    """A peer contradicts itself: what it is, and which rule."""


def validate(peer: Peer) -> None:
    """Raise if a peer contradicts itself."""
    broken = list(_contradictions(peer))
    if broken:
        raise InvariantBroken(f"{peer.id}@{peer.incarnation}: " + "; ".join(broken))


def _contradictions(peer: Peer) -> Iterator[str]:
    for counterpart in peer.counterparts.values():
        yield from _in_boxes(counterpart)
    yield from _in_lineage(peer)


def _in_boxes(counterpart: Counterpart) -> Iterator[str]:
    inbox, other = counterpart.inbox, counterpart.peer
    finished = inbox.replies.upper
    if not finished <= inbox.started <= finished + 1 or inbox.started > inbox.received:
        yield f"calls from {other}: finished {finished}, started {inbox.started}, received {inbox.received}"
    if len(inbox.queue) != inbox.received - inbox.started:
        yield f"{len(inbox.queue)} calls from {other} are queued for [{inbox.started}, {inbox.received})"
    if inbox.queue_bytes != sum(map(len, inbox.queue)):
        yield f"the queue of {other} is charged {inbox.queue_bytes} bytes"
    for what, backlog in ((f"replies to {other}", inbox.replies), (f"calls to {other}", counterpart.outbox.calls)):
        kept = backlog.kept
        if len(kept) != max(0, backlog.upper - backlog.floor):
            yield f"{len(kept)} {what} are kept for [{backlog.floor}, {backlog.upper})"
        if backlog.bytes != sum(map(len, kept)):
            yield f"{what} are charged {backlog.bytes} bytes"


def _in_lineage(peer: Peer) -> Iterator[str]:
    lineage, stash = peer.lineage, peer.lineage.stash
    held = [entry for piece in lineage.all_ranges() for entry in piece.entries]
    if stash.bytes != sum(map(size_bytes, held)):
        yield f"{len(held)} entries are charged {stash.bytes} bytes"
    for other, upper in lineage.needs.items():
        if upper <= lineage.committed.get(other, START):
            yield f"it needs {other} below {upper}, which is committed"
        if peer.policy.max_failures is None and stash.upper(other) < upper:
            yield f"it needs {other} below {upper} and holds it only below {stash.upper(other)}"
    for other in stash:
        if stash.lower(other) > lineage.committed.get(other, START):
            yield f"it dropped {other} below {stash.lower(other)} before that was committed"
    if peer.durability.flushed > lineage.upper:
        yield f"it flushed {peer.durability.flushed} of {lineage.upper} entries"
