"""Checkpoints: everything a peer needs to go on from one moment, taken by itself and between two calls.

Rules:
- Of one moment: state, seqnos, outbox payloads, results, reply cache, unaccepted outputs and log index belong together.
- A checkpoint is an output: it becomes visible only when all it depends on, its own entries included, is committed. So
  no checkpoint is ever an orphan, and recovery needs nothing of the log below its upper end.
- The final checkpoint of a peer that retires is its *record*: whoever needs its payloads later reads them there.
"""

from typing import NamedTuple

from lineage_stash.core.ids import Incarnation, Index, PeerId, Ref, Seqno
from lineage_stash.core.parcels import ParcelsFrom, ParcelsTo


class CallsTo(NamedTuple):
    """What is remembered about calls to one callee."""

    floor: Seqno
    next_seqno: Seqno
    payloads: tuple[bytes, ...]
    answered: Seqno
    results: tuple[tuple[Seqno, bytes], ...]
    unwanted: tuple[Seqno, ...]
    held: tuple[tuple[Seqno, tuple[int, ...]], ...] = ()


class CallsFrom(NamedTuple):
    """What is remembered about calls from one caller."""

    finished: Seqno
    released: Seqno
    replies: tuple[bytes, ...]
    digests: tuple[int, ...]


class Task(NamedTuple):
    """A task that has no runner yet: its payload, and the parcels that its peer has put aside for it."""

    payload: bytes
    first: int
    passed: int
    awaited: int
    wanted: bool


class Tasks(NamedTuple):
    """What is remembered about tasks: how many there were, which wait, and which calls the others have become."""

    submitted: int = 0
    waiting: tuple[tuple[int, Task], ...] = ()
    placed: tuple[tuple[int, Ref], ...] = ()


def age(checkpoint: "Checkpoint") -> tuple[Index, bool, Incarnation]:
    """Which of two checkpoints of a peer is newer."""
    return checkpoint.upper, checkpoint.final, checkpoint.incarnation


class Checkpoint(NamedTuple):
    """One moment of one peer."""

    peer: PeerId
    incarnation: Incarnation
    upper: Index
    state: bytes
    digest: int
    calls_to: tuple[tuple[PeerId, CallsTo], ...]
    calls_from: tuple[tuple[PeerId, CallsFrom], ...]
    outputs: tuple[tuple[int, bytes], ...]
    next_output: int
    final: bool
    parcels_to: tuple[tuple[PeerId, ParcelsTo], ...] = ()
    parcels_from: tuple[tuple[PeerId, ParcelsFrom], ...] = ()
    tasks: Tasks = Tasks()
