"""A counterpart: all that one peer keeps about another: the channel to it, calls to it, calls from it.

The channel belongs to a pair of incarnations and is renewed with them; outbox and inbox belong to the two peers and
stay.
"""

from lineage_stash.core.backlog import Spool
from lineage_stash.core.batch import Batch
from lineage_stash.core.channel import UNNUMBERED, Channel, Message
from lineage_stash.core.checkpoint import CallsFrom, CallsTo, Checkpoint
from lineage_stash.core.entry import Entry, Ran
from lineage_stash.core.ids import Incarnation, Member, PeerId, Round, Seqno
from lineage_stash.core.inbox import Inbox
from lineage_stash.core.outbox import Outbox
from lineage_stash.core.parcels import IncomingParcels, OutgoingParcels, Parcel, ParcelsFrom, ParcelsTo
from lineage_stash.core.tuples import maker

_ran = maker(Ran)


class Counterpart:
    """Channel, outbox and inbox towards one peer."""

    def __init__(self, peer: PeerId, incarnation: Incarnation) -> None:
        self.peer = peer
        self.channel = Channel(incarnation)
        self.outbox = Outbox()
        self.inbox = Inbox()
        self.outgoing = OutgoingParcels()
        self.incoming = IncomingParcels()
        self.member: Member | None = None
        self.logged_by_content = False
        self.keeps_payloads = False
        """Whether it has all that it has sent and was not told to forget: one that replays has not."""
        self.gone = False
        self.dropped = False
        """Whether it is a runner that gets no further task."""

    def greet(self, member: Member) -> None:
        """Learn who this is; the payloads of a caller that may never be back must be in the callee's log."""
        self.member = member
        self.logged_by_content = member.logged_by_content
        self.keeps_payloads = not member.replayable

    def fill_in(self, batch: Batch, me: PeerId) -> Batch:
        """Put back the payloads that this peer sent and the other side, logging them, did not send back."""
        return batch._replace(ranges=tuple([
            piece._replace(entries=tuple([self._filled(entry, me) for entry in piece.entries]))
            if piece.peer == self.peer else piece for piece in batch.ranges
        ]))  # fmt: skip

    def _filled(self, entry: Entry, me: PeerId) -> Entry:
        if isinstance(entry, Ran) and entry.payload is None and entry.caller == me:
            filled: Ran = _ran((me, entry.seqno, self.outbox.calls[entry.seqno], entry.digest, entry.needs))
            return filled
        return entry

    def release_held(self) -> None:
        """Let go of calls whose arguments are here by now, or whose effect the callee has already."""
        held = self.outbox.held
        while held and (
            held[0][0] < self.outbox.calls.floor or all(self.outgoing.is_filled(number) for number in held[0][1])
        ):
            held.popleft()

    @property
    def wants_to_send(self) -> bool:
        """Whether calls for which the callee has room, replies or parcels wait."""
        return self.inbox.replies.has_unsent or self.outbox.has_unsent or bool(self.outgoing.unsent)

    @property
    def buffer_bytes(self) -> int:
        """What is kept in memory of calls to and replies for the other side."""
        calls, replies = self.outbox.calls, self.inbox.replies
        return calls.bytes - calls.spilled_bytes + replies.bytes - replies.spilled_bytes

    def spill(self, spool: Spool, at_least_bytes: int) -> int:
        """Move calls and replies out of memory, the oldest first; how many bytes that was."""
        moved = self.outbox.calls.spill(spool, at_least_bytes)
        return moved + self.inbox.replies.spill(spool, at_least_bytes - moved)

    @property
    def needs_nothing(self) -> bool:
        """Whether the other side has all that it may ever want of this one, and was told what it may free."""
        return (
            self.outbox.calls.floor >= self.outbox.calls.upper
            and self.outbox.released <= self.outbox.told_released
            and not self.outgoing.filled
            and not self.outgoing.sources
        )

    @property
    def owes_answers(self) -> bool:
        """Whether the other side has not answered all calls that it got from here."""
        return self.outbox.answered < self.outbox.calls.upper

    @property
    def may_be_forgotten(self) -> bool:
        """Whether nothing of a runner that has left will be asked for; one that has called this peer is remembered."""
        return (
            self.gone and self.dropped and not self.inbox.received and not self.incoming.kept
            and not self.outbox.results and not self.owes_answers
        )  # fmt: skip

    @property
    def has_news(self) -> bool:
        """Whether the other side may free something and has not been told."""
        return (
            self.inbox.covered > self.inbox.told_covered
            or self.outbox.released > self.outbox.told_released
            or self.incoming.covered > self.incoming.told_covered
        )

    @property
    def is_quiet(self) -> bool:
        """Whether neither side owes the other anything, be it a word."""
        channel = self.channel
        return self.gone or not (
            channel.unacknowledged or channel.owed_acknowledgements or channel.early or self.dropped
            or self.owes_answers or self.has_news or self.wants_to_send
        )  # fmt: skip

    def renew(self, incarnation: Incarnation) -> None:
        """Begin a channel to a new incarnation, wherever it lives, and send again whatever it may have lost."""
        self.channel = Channel(incarnation)
        self.member = None
        self.outbox.resend_all()
        self.inbox.replies.resend_all()
        self.outgoing.resend_all()
        self.inbox.told_covered = self.outbox.told_released = Seqno(0)
        self.incoming.told_covered = 0

    def compose(self, me: Member, incarnation: Incarnation, round_: Round, batch: Batch, most: int,
                most_bytes: int) -> Message:  # fmt: skip
        """The next numbered message, with everything that waits."""
        channel, outbox, inbox = self.channel, self.outbox, self.inbox
        first_call, calls = outbox.take_unsent(most, most_bytes)
        parcels = self.outgoing.take_unsent(most, most_bytes)
        # A reply says that its stream has ended: no item may come after it.
        first_reply, replies = (Seqno(0), ()) if self.outgoing.unsent else inbox.replies.take_unsent(most, most_bytes)
        inbox.told_covered = inbox.covered
        outbox.told_released = outbox.released
        self.incoming.told_covered = self.incoming.covered
        message = Message(
            me.peer, incarnation, self.peer, channel.incarnation, round_, channel.next_number, channel.expected,
            me if channel.next_number == 0 else None, first_call, calls, first_reply, replies,
            inbox.covered, outbox.released, batch, parcels, self.incoming.covered, self.keeps_payloads,
        )  # fmt: skip
        channel.record_sent(message)
        return message

    def bare_acknowledgement(self, me: Member, incarnation: Incarnation, round_: Round) -> Message:
        """A message that says only how far the other side's messages have come; it is not acknowledged itself."""
        channel = self.channel
        channel.owed_acknowledgements = 0
        return Message(
            me.peer, incarnation, self.peer, channel.incarnation, round_, UNNUMBERED, channel.expected, None,
            Seqno(0), (), Seqno(0), (), Seqno(0), Seqno(0), Batch((), (), ()),
        )  # fmt: skip


def calls_to(outbox: Outbox) -> CallsTo:
    """What a checkpoint remembers about calls to one callee."""
    calls, results = outbox.calls, tuple(outbox.results.items())
    return CallsTo(
        calls.floor, calls.upper, calls.kept, outbox.answered, results, tuple(outbox.unwanted), tuple(outbox.held)
    )  # fmt: skip


def calls_from(inbox: Inbox) -> CallsFrom:
    """What a checkpoint remembers about calls from one caller."""
    replies = inbox.replies
    return CallsFrom(replies.upper, replies.floor, replies.kept, tuple(inbox.digests))


def capture(
    counterparts: dict[PeerId, Counterpart],
) -> tuple[tuple[tuple[PeerId, CallsTo], ...], tuple[tuple[PeerId, CallsFrom], ...]]:
    """What a checkpoint remembers about all counterparts, of this moment."""
    others = counterparts.items()
    return (
        tuple((peer, calls_to(other.outbox)) for peer, other in others if other.outbox.calls.upper),
        tuple((peer, calls_from(other.inbox)) for peer, other in others if other.inbox.replies.upper),
    )


def capture_parcels(
    counterparts: dict[PeerId, Counterpart],
) -> tuple[tuple[tuple[PeerId, ParcelsTo], ...], tuple[tuple[PeerId, ParcelsFrom], ...]]:
    """What a checkpoint remembers about parcels, of this moment."""
    others = counterparts.items()
    return (
        tuple((peer, other.outgoing.capture()) for peer, other in others if other.outgoing.upper),
        tuple((peer, other.incoming.capture()) for peer, other in others if other.incoming.is_used),
    )


def restore_outbox(outbox: Outbox, calls: CallsTo) -> None:
    """Go on calling from the moment of a checkpoint."""
    outbox.calls.restore(calls.floor, calls.next_seqno, calls.payloads)
    outbox.answered = calls.answered
    outbox.results = dict(calls.results)
    outbox.unwanted = dict.fromkeys(calls.unwanted)
    outbox.held.extend(calls.held)


def restore_inbox(inbox: Inbox, calls: CallsFrom) -> None:
    """Go on answering from the moment of a checkpoint."""
    inbox.received = inbox.started = calls.finished
    inbox.replies.restore(calls.released, calls.finished, calls.replies)
    inbox.digests.extend(calls.digests)


def calls_in_record(record: Checkpoint, callee: PeerId) -> tuple[Seqno, tuple[bytes, ...]]:
    """The payloads for `callee` that a retired peer left in its record."""
    for peer, calls in record.calls_to:
        if peer == callee:
            return calls.floor, calls.payloads
    return Seqno(0), ()


def parcels_in_record(record: Checkpoint, receiver: PeerId) -> tuple[Parcel, ...]:
    """The parcels for `receiver` that a retired peer left in its record."""
    for peer, parcels in record.parcels_to:
        if peer == receiver:
            return parcels.filled
    return ()


def replies_in_record(record: Checkpoint, caller: PeerId) -> tuple[Seqno, tuple[bytes, ...]]:
    """The replies for `caller` that a retired peer left in its record."""
    for peer, calls in record.calls_from:
        if peer == caller:
            return calls.released, calls.replies
    return Seqno(0), ()
