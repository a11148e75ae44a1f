"""The names and numbers of the protocol, one type per kind, so that a mix-up is a type error.

Every number here only ever grows: a seqno per (caller, callee), an index per log, an incarnation per peer, a round per
system, an epoch per replica set. Ranges of them are half-open, `[lower, upper)`.
"""

from typing import NamedTuple, NewType

PeerId = NewType("PeerId", str)
NodeId = NewType("NodeId", str)
Incarnation = NewType("Incarnation", int)
Index = NewType("Index", int)
Seqno = NewType("Seqno", int)
Round = NewType("Round", int)
Epoch = NewType("Epoch", int)

FIRST_INCARNATION = Incarnation(0)


class CallId(NamedTuple):
    """One submission; the same id when the caller is replayed."""

    caller: PeerId
    callee: PeerId
    seqno: Seqno

    def __str__(self) -> str:
        return f"{self.caller}→{self.callee}#{self.seqno}"


OF_CALL, OF_PARCEL, OF_TASK = range(3)

NOBODY = PeerId("")

CANCELLED = PeerId("cancelled")
"""Whom tasks are assigned to that nobody is to run: it answers every call at once, and all in the same way."""


class Ref(NamedTuple):
    """A peer's claim on a value: the reply to one of its own calls, a parcel from another peer, or a task's result."""

    peer: PeerId
    """Who was called, or who gives; nobody where a task has no runner yet."""
    number: int
    """The seqno of the call, or the number of the parcel or of the task."""
    kind: int = OF_CALL


class Member(NamedTuple):
    """What the registry says of a peer: where it lives, whether it can be run again, and by whom."""

    peer: PeerId
    node: NodeId
    replayable: bool
    begun: Incarnation | None = None
    """Of a peer that only its user starts again: which of its lives was begun last. All others are started for them."""

    @property
    def resumable(self) -> bool:
        """Whether it can be run again, but may be away for as long as its user likes."""
        return self.begun is not None

    @property
    def logged_by_content(self) -> bool:
        """Whether others must not count on it to send again what it has sent: they log that themselves."""
        return not self.replayable or self.begun is not None
