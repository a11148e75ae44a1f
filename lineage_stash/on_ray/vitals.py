"""Vitals: what one peer's process reads off itself for metrics, and what of that people are told at once.

Everything is read from what is there anyway: numbers of the machine and lengths. A tick looks at two of them, the stash
and the committed frontier, so that moments between two looks are not lost; what is shorter than a tick is.
"""

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from lineage_stash.core import effects
from lineage_stash.core.frontier import START
from lineage_stash.core.peer import Peer
from lineage_stash.on_ray.metrics import period_s
from lineage_stash.on_ray.spool import FileSpool
from lineage_stash.on_ray.tally import forwarded_bytes_of
from lineage_stash.on_ray.telling import tell, warn
from lineage_stash.shell import Shell

PRESSED_S = 1.0
"""How long a stash is full before people are told: a store that takes a breath is none of their business."""

RELIEVED_S = 5.0
"""For how long it must have room again before that is over."""


class Pressure:
    """How long the stash was at its cap, told when it begins and when it is over."""

    def __init__(self, peer: Peer) -> None:
        self.total_s = 0.0
        self._peer = peer
        self._looked_at = time.monotonic()
        self._since: float | None = None
        self._last_at = 0.0
        self._was_told = False

    def look(self, now: float) -> None:
        """Some time has passed."""
        passed_s, self._looked_at = now - self._looked_at, now
        if self._peer.program.at_cap:
            self.total_s += passed_s
            self._last_at = now
            if self._since is None:
                self._since = now
            elif not self._was_told and now - self._since > PRESSED_S:
                self._was_told = True
                self._tell_full()
        elif self._since is not None and now - self._last_at > (RELIEVED_S if self._was_told else 0.0):
            if self._was_told:
                tell("back-pressure over", f"back-pressure: calls of {self._peer.id} do not wait for the store any "
                     "more", peer=self._peer.id, lasted_s=self._last_at - self._since)  # fmt: skip
            self._since, self._was_told = None, False

    def _tell_full(self) -> None:
        stash_bytes, cap_bytes = self._peer.lineage.stash.bytes, self._peer.policy.stash_cap_bytes
        warn("back-pressure", f"back-pressure: calls of {self._peer.id} wait for the store: {stash_bytes} bytes of "
             f"lineage are not committed, and {cap_bytes} may be", peer=self._peer.id, stash_bytes=stash_bytes,
             cap_bytes=cap_bytes)  # fmt: skip


class Lag:
    """For how long own entries are not committed, as far as ticks can tell."""

    def __init__(self, peer: Peer) -> None:
        self._lineage = peer.lineage
        self._watched = START
        self._since: float | None = None
        self._longest_s = 0.0

    def look(self, now: float) -> None:
        """Some time has passed: see whether what was there is committed, and watch what is there now."""
        lineage = self._lineage
        committed = lineage.committed.get(lineage.me, START)
        if self._since is not None:
            self._longest_s = max(self._longest_s, now - self._since)
        if self._since is None or committed >= self._watched:
            self._watched = lineage.upper
            self._since = now if lineage.upper > committed else None

    def take(self) -> float:
        """The longest since the last time."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return longest_s


class PeerVitals:
    """What a driver, an actor or a runner says of itself."""

    def __init__(self, peer: Peer, shell: Shell, spool: FileSpool, lock: AbstractContextManager[Any], title: str,
                 id_in_tags: str) -> None:  # fmt: skip
        self.lock = lock
        self.tags = {"peer": id_in_tags, "title": title}
        self.failed_checkpoints = 0
        self._peer = peer
        self._shell = shell
        self._spool = spool
        self._pressure = Pressure(peer)
        self._lag = Lag(peer)
        self._calls_before, self._submitted_before = self._counted()
        self._is_measuring = False
        self._measured_entries = 0
        self._measured_bytes = 0
        if period_s() > 0:
            self._measure_next()

    def on_ticked(self) -> None:
        """Some time has passed."""
        now = time.monotonic()
        self._pressure.look(now)
        self._lag.look(now)

    def note_replayed(self) -> None:
        """All calls so far are those of former lives, and so is the one that is running."""
        calls, self._submitted_before = self._counted()
        self._calls_before = calls + self._peer.program.busy

    def _counted(self) -> tuple[int, int]:
        others = self._peer.counterparts.values()
        calls = sum([other.inbox.replies.upper for other in others])
        return calls, sum([other.outbox.calls.upper for other in others])

    def read(self) -> Mapping[str, float]:
        """All of it."""
        peer, lineage = self._peer, self._peer.lineage
        calls, submitted = self._counted()
        is_replaying = bool(peer.program.script)
        self._measure_next()
        return {
            "stash_calls": 0 if is_replaying else max(0, calls - self._calls_before),
            "stash_submitted_calls": 0 if is_replaying else max(0, submitted - self._submitted_before),
            "stash_waiting_calls": len(peer.program.ready),
            "stash_forwarded_entries": lineage.forwarded_entries,
            "stash_forwarded_bytes": self._forwarded_bytes,
            "stash_flushed_entries": self._shell.flushed_entries,
            "stash_flushed_bytes": self._shell.flushed_bytes,
            "stash_uncommitted_entries": sum(
                [upper - lineage.committed.get(other, START) for other, upper in lineage.needs.items()]
            ),
            "stash_commit_lag_seconds": self._lag.take(),
            "stash_bytes": lineage.stash.bytes,
            "stash_cap_bytes": peer.policy.stash_cap_bytes,
            "stash_backpressure_seconds": self._pressure.total_s,
            "stash_buffer_bytes": sum([other.buffer_bytes for other in peer.counterparts.values()]),
            "stash_spilled_bytes": self._spool.disk_bytes,
            "stash_checkpoints": peer.durability.checkpoints,
            "stash_failed_checkpoints": self.failed_checkpoints,
            "stash_replayed_entries": peer.program.replayed,
            "stash_replaying_entries": len(peer.program.script),
        }

    # bytes of forwarded entries: to measure a message costs as much as to send it, so one per look is

    @property
    def _forwarded_bytes(self) -> int:
        entries = self._peer.lineage.forwarded_entries
        return round(self._measured_bytes * entries / self._measured_entries) if self._measured_entries else 0

    def _measure_next(self) -> None:
        """Take the place of the sender until a message with lineage has passed."""
        if self._is_measuring:
            return
        carriers = self._shell._carriers
        send = carriers[effects.SendMessage]
        self._is_measuring = True

        def measure(effect: effects.SendMessage) -> None:
            ranges = effect.message.batch.ranges
            if ranges:
                carriers[effects.SendMessage] = send
                self._is_measuring = False
                self._measured_entries += sum([len(piece.entries) for piece in ranges])
                self._measured_bytes += forwarded_bytes_of(effect)
            send(effect)

        carriers[effects.SendMessage] = measure
