"""Tallies: how much lineage one process has forwarded with its messages and flushed to the store.

Only where the environment variable `LINEAGE_STASH_TALLY` is set when a process starts: without it nothing is counted
and nothing is paid. Entries are counted all. Bytes are measured of one message, or flush, in some, and taken to be
alike in the others. A process that is killed takes its tally with it.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from lineage_stash import codec
from lineage_stash.core import effects
from lineage_stash.core.batch import EMPTY, Range
from lineage_stash.core.peer import Peer
from lineage_stash.shell import Shell

VARIABLE = "LINEAGE_STASH_TALLY"

MEASURED_EVERY = 16
"""To measure one costs about as much as to send it."""


class Tallied(NamedTuple):
    """What was written down so far."""

    is_counted: bool = False
    """Whether all but the calls was counted at all."""
    calls: int = 0
    """That were executed, the constructor's included; those of former lives too, as far as a replay or a checkpoint has
    brought them back."""
    forwarded_entries: int = 0
    forwarded_bytes: int = 0
    flushed_entries: int = 0
    flushed_bytes: int = 0
    """Of one copy; every replica gets one."""

    def __add__(self, other: object) -> "Tallied":
        """Of several processes."""
        if not isinstance(other, Tallied):
            return NotImplemented
        sums = [mine + theirs for mine, theirs in zip(self[1:], other[1:], strict=True)]
        return Tallied(self.is_counted or other.is_counted, *sums)


class Sampled:
    """Entries that were all counted, and bytes that were measured of some."""

    def __init__(self, measure: Callable[[Any], int]) -> None:
        self.entries = 0
        self._measure = measure
        self._times = 0
        self._measured_entries = 0
        self._measured_bytes = 0

    def count(self, ranges: tuple[Range, ...], measured: Any) -> None:
        """One more message or flush, with these entries."""
        entries = sum([len(piece.entries) for piece in ranges])
        self.entries += entries
        if self._times % MEASURED_EVERY == 0:
            self._measured_entries += entries
            self._measured_bytes += self._measure(measured)
        self._times += 1

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return round(self._measured_bytes * self.entries / self._measured_entries) if self._measured_entries else 0


class Tally:
    """Counts what leaves one peer."""

    def __init__(self, peer: Peer, shell: Shell) -> None:
        self._peer = peer
        self._forwarded = Sampled(forwarded_bytes_of)
        self._flushed = Sampled(flushed_bytes_of)
        self.is_counted = VARIABLE in os.environ
        if self.is_counted:
            self._send, self._append = shell._carriers[effects.SendMessage], shell._carriers[effects.AppendToStore]
            shell._carriers |= {effects.SendMessage: self._on_sent, effects.AppendToStore: self._on_appended}

    def _on_sent(self, effect: effects.SendMessage) -> None:
        ranges = effect.message.batch.ranges
        if ranges:
            self._forwarded.count(ranges, effect)
        self._send(effect)

    def _on_appended(self, effect: effects.AppendToStore) -> None:
        if effect.ranges:
            self._flushed.count(effect.ranges, effect)
        self._append(effect)

    def now(self) -> Tallied:
        """What it is by now."""
        calls = sum(other.inbox.replies.upper for other in self._peer.counterparts.values())
        forwarded, flushed = self._forwarded, self._flushed
        return Tallied(self.is_counted, calls, forwarded.entries, forwarded.bytes, flushed.entries, flushed.bytes)


def forwarded_bytes_of(effect: effects.SendMessage) -> int:
    """By how much a message is longer for the lineage in it."""
    message = effect.message
    return len(codec.encode(message)) - len(codec.encode(message._replace(batch=EMPTY)))


def flushed_bytes_of(effect: effects.AppendToStore) -> int:
    """How much a replica keeps of a flush."""
    return sum(codec.pack_span(piece).body_bytes for piece in effect.ranges)
