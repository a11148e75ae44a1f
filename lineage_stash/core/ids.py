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


class Ref(NamedTuple):
    """The caller's claim on a reply: which callee, which of its own calls to it."""

    callee: PeerId
    seqno: Seqno


class Member(NamedTuple):
    """What the registry says of a peer: where it lives and whether it can be run again."""

    peer: PeerId
    node: NodeId
    replayable: bool
