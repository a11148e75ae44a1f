"""Channels: an ordered link between two incarnations, made out of a network that delays, repeats, reorders and loses.

Rules:
- A message belongs to one pair of incarnations. One addressed to a former life, or sent by one, is refused.
- Messages are numbered and delivered in order and once; an acknowledgement is cumulative and rides on every message.
- What was sent earlier on the same channel has been merged before what comes later, so it is not sent again. Nor is
  what the other side sent itself: it has that. Only what was *acknowledged*, or came from there, counts as held by it.
- A new incarnation on either side means a new channel that starts from nothing.
- At most `window` messages are under way unacknowledged; calls gather meanwhile and then travel together.
"""

from collections import deque
from typing import NamedTuple

from lineage_stash.core.batch import Batch
from lineage_stash.core.frontier import Frontier, clip, join
from lineage_stash.core.ids import Incarnation, Index, Member, PeerId, Round, Seqno
from lineage_stash.core.parcels import Parcel

UNNUMBERED = -1


class Message(NamedTuple):
    """Everything that two peers say to each other: calls, replies, acknowledgements and lineage, all optional."""

    sender: PeerId
    sender_incarnation: Incarnation
    receiver: PeerId
    receiver_incarnation: Incarnation
    round: Round
    number: int
    acknowledged: int
    hello: Member | None
    first_call: Seqno
    calls: tuple[bytes, ...]
    first_reply: Seqno
    replies: tuple[bytes, ...]
    covered: Seqno
    released: Seqno
    batch: Batch
    parcels: tuple[Parcel, ...] = ()
    parcels_covered: int = 0
    spares_payloads: bool = False
    """Whether what the receiver has sent itself does not have to travel back to it. That is the sender's to know."""


class Channel:
    """Numbering, reordering, retransmission, and what the other side was given or is known to hold."""

    def __init__(self, incarnation: Incarnation) -> None:
        self.incarnation = incarnation
        self.next_number = 0
        self.expected = 0
        self.early: dict[int, Message] = {}
        self.unacknowledged: deque[Message] = deque()
        self.owed_acknowledgements = 0
        self.quiet_ticks = 0
        self.sent: Frontier = {}
        self.told: Frontier = {}
        self.told_committed: Frontier = {}
        self.held: Frontier = {}
        self.version = -1

    def record_sent(self, message: Message) -> None:
        """Keep a numbered message until it is acknowledged."""
        self.next_number += 1
        self.unacknowledged.append(message)
        self.owed_acknowledgements = 0

    def acknowledge(self, acknowledged: int) -> None:
        """The other side has delivered everything below `acknowledged`: it holds the lineage that was in it."""
        unacknowledged = self.unacknowledged
        while unacknowledged and unacknowledged[0].number < acknowledged:
            self.note_held(unacknowledged.popleft().batch)
            self.quiet_ticks = 0

    def note_received(self, batch: Batch) -> None:
        """The other side has what it sends, and knows of what it names: neither has to go back there."""
        if batch.ranges:
            uppers = [(piece.peer, piece.upper) for piece in batch.ranges]
            join(self.held, uppers)
            join(self.sent, uppers)
        if batch.needs:
            join(self.told, batch.needs)

    def note_held(self, batch: Batch) -> None:
        """The other side holds the entries of `batch`."""
        join(self.held, ((piece.peer, piece.upper) for piece in batch.ranges))

    def clip(self, peer: PeerId, upper: Index) -> None:
        """Forget having passed on what a settled round declared never to have happened."""
        for frontier in (self.sent, self.told, self.held):
            clip(frontier, peer, upper)

    def stale_messages(self, resend_after_ticks: int) -> tuple[Message, ...]:
        """What to send again, after too many ticks without an acknowledgement."""
        if not self.unacknowledged:
            return ()
        self.quiet_ticks += 1
        if self.quiet_ticks < resend_after_ticks:
            return ()
        self.quiet_ticks = 0
        return tuple(self.unacknowledged)
