"""Checkpoints: everything a peer needs to go on from one moment, taken by itself and between two calls.

Rules:
- Of one moment: state, seqnos, outbox payloads, results, reply cache, unaccepted outputs and log index belong together.
- A checkpoint is an output: it becomes visible only when all it depends on, its own entries included, is committed. So
  no checkpoint is ever an orphan, and recovery needs nothing of the log below its upper end.
- The final checkpoint of a peer that retires is its *record*: whoever needs its payloads later reads them there.
"""

from typing import NamedTuple

from lineage_stash.core.ids import Incarnation, Index, PeerId, Seqno


class CallsTo(NamedTuple):
    """What is remembered about calls to one callee."""

    floor: Seqno
    next_seqno: Seqno
    payloads: tuple[bytes, ...]
    answered: Seqno
    results: tuple[tuple[Seqno, bytes], ...]
    unwanted: tuple[Seqno, ...]


class CallsFrom(NamedTuple):
    """What is remembered about calls from one caller."""

    finished: Seqno
    released: Seqno
    replies: tuple[bytes, ...]
    digests: tuple[int, ...]


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
