"""Metrics: what every process says of itself to Ray, and so to Prometheus; `docs/metrics.md` has the table in words.

Rules:
- Nothing is counted for this on the way of a call: sources are asked every few seconds, by a thread that does nothing
  else, under the lock that guards what they read; what they say is handed to Ray after the lock was given back.
- A counter is what a source has counted since it began; Ray is told by how much that is more than the last time.
- Metrics never break a program: if one fails, or Ray refuses it, that is said once, and there are no more.
- `LINEAGE_STASH_METRICS=0` in the environment of a process turns them off there; another number is the seconds between
  two looks.
"""

import os
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from lineage_stash.on_ray.telling import warn

VARIABLE = "LINEAGE_STASH_METRICS"
EVERY_S = 5.0
"""As often as Ray passes them on, or twice as often: a look costs some 100 µs of a thread that nobody waits for."""

COUNTER = "counter"
GAUGE = "gauge"
HISTOGRAM = "histogram"

PEER = ("peer", "title")
"""Who it is, and what: the class of an actor, `driver`, or `tasks`, which stands for all runners of a process."""
ONE = ()
REPLICA = ("replica",)
PHASE = ("phase",)

PHASE_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""A process that is ready takes some 10 ms to come back, one that must be started some 1 s, a lost node some 2 s."""


class Metric(NamedTuple):
    """One row of the table."""

    name: str
    """As Ray is told; Prometheus has it after `ray_`, and a counter's before `_total`."""
    kind: str
    tags: tuple[str, ...]
    words: str

    @property
    def in_prometheus(self) -> str:
        """The name that queries have to use."""
        return f"ray_{self.name}{'_total' if self.kind == COUNTER else ''}"


METRICS = (
    Metric("stash_calls", COUNTER, PEER, "Calls executed for the first time."),
    Metric("stash_submitted_calls", COUNTER, PEER, "Calls submitted to actors and runners for the first time."),
    Metric("stash_waiting_calls", GAUGE, PEER, "Calls that have come and not begun."),
    Metric("stash_forwarded_entries", COUNTER, PEER, "Entries attached to messages."),
    Metric("stash_forwarded_bytes", COUNTER, PEER, "Their bytes, estimated: one message per look is measured."),
    Metric("stash_flushed_entries", COUNTER, PEER, "Entries sent to the store."),
    Metric("stash_flushed_bytes", COUNTER, PEER, "Their bytes, of one copy: every replica gets one."),
    Metric("stash_uncommitted_entries", GAUGE, PEER, "Entries that the peer depends on and that are not committed."),
    Metric(
        "stash_commit_lag_seconds", GAUGE, PEER, "For how long an own entry was not committed, at most since last time."
    ),
    Metric("stash_bytes", GAUGE, PEER, "Uncommitted lineage in the stash."),
    Metric("stash_cap_bytes", GAUGE, PEER, "How large the stash may grow before new calls wait."),
    Metric("stash_backpressure_seconds", COUNTER, PEER, "How long the stash was at its cap."),
    Metric("stash_buffer_bytes", GAUGE, PEER, "Calls and replies kept in memory for whoever may ask again."),
    Metric("stash_spilled_bytes", GAUGE, PEER, "Calls and replies put on disk because there were too many."),
    Metric("stash_checkpoints", COUNTER, PEER, "Checkpoints that a majority of the store has."),
    Metric("stash_failed_checkpoints", COUNTER, PEER, "States that could not be copied."),
    Metric("stash_replayed_entries", COUNTER, PEER, "Entries replayed; its rate is the rate of replay."),
    Metric("stash_replaying_entries", GAUGE, PEER, "Entries that a recovery has still to replay."),
    Metric("stash_recoveries", COUNTER, ONE, "Lives that were recovered."),
    Metric("stash_recovery_seconds", HISTOGRAM, PHASE, "How long recoveries took, by phase, and `total`."),
    Metric("stash_replay_rate", GAUGE, ONE, "Entries a second in the replay of the last recovery."),
    Metric("stash_rounds", COUNTER, ONE, "Rounds decided."),
    Metric("stash_orphans", COUNTER, ONE, "Peers rolled back because more nodes failed at once than max_failures."),
    Metric("stash_peers_up", GAUGE, ONE, "Drivers, actors and runners that the coordinator has a link to."),
    Metric("stash_peers_down", GAUGE, ONE, "Peers that are dead or not back yet."),
    Metric("stash_spares", GAUGE, ONE, "Processes that wait, started and empty, to take over."),
    Metric("stash_nodes_up", GAUGE, ONE, "Nodes that are known to be alive."),
    Metric("stash_nodes_lost", GAUGE, ONE, "Nodes that are silent while Ray has them for alive."),
    Metric("stash_replicas", GAUGE, ONE, "Replicas that the store should have."),
    Metric("stash_replicas_up", GAUGE, ONE, "Replicas that the coordinator has a link to."),
    Metric("stash_store_up", GAUGE, ONE, "1 if the store answers, 0 if it has not for some seconds."),
    Metric("stash_store_epoch", GAUGE, ONE, "Which replica set the store has: one more for each replacement."),
    Metric("stash_store_requests", COUNTER, REPLICA, "Requests that a replica has answered."),
    Metric("stash_store_commits", COUNTER, REPLICA, "Times that it has made requests durable together."),
    Metric("stash_store_commit_seconds", COUNTER, REPLICA, "How long these took: divided by them, the disk's latency."),
    Metric("stash_store_bytes", GAUGE, REPLICA, "What its files take on disk."),
)

BY_NAME = {metric.name: metric for metric in METRICS}


class Source(Protocol):
    """A process, as far as metrics are concerned."""

    @property
    def tags(self) -> dict[str, str]:
        """Whose metrics these are."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """What guards it."""

    def read(self) -> Mapping[str, float]:
        """By name: what a gauge is now, and what a counter has come to."""


def period_s() -> float:
    """Seconds between two looks; 0 if there are to be none."""
    try:
        return float(os.environ.get(VARIABLE, EVERY_S))
    except ValueError:
        return EVERY_S


class Publisher:
    """Asks the sources of this process, and tells Ray; its thread lives as long as there are any."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        """One tells Ray at a time, and nobody of a source that has left."""
        self._last: dict[Source, dict[str, float]] = {}
        self._instruments: dict[str, Any] = {}
        self._has_failed = False
        self._over: threading.Event | None = None

    def add(self, source: Source) -> None:
        """Ask this one too."""
        every_s = period_s()
        if every_s <= 0 or self._has_failed:
            return
        with self._turn:
            self._last[source] = {}
            if self._over is None:
                self._over = threading.Event()
                self._instruments.clear()  # those of a session that has ended say nothing any more
                threading.Thread(
                    target=self._run, args=(self._over, every_s), name="stash metrics", daemon=True
                ).start()

    def remove(self, source: Source) -> None:
        """Ask it a last time, and not again."""
        self._publish(source)
        with self._turn:
            self._last.pop(source, None)
            if not self._last and self._over is not None:
                self._over.set()
                self._over = None

    def observe(self, name: str, value: float, **tags: str) -> None:
        """One more of what a histogram counts."""
        if period_s() > 0 and not self._has_failed:
            with self._turn:
                self._record({name: value}, {}, tags)

    def _run(self, over: threading.Event, every_s: float) -> None:
        while not over.wait(every_s):
            for source in list(self._last):
                self._publish(source)

    def _publish(self, source: Source) -> None:
        """Never asks while it has the turn: who leaves may hold the lock of its process."""
        if source not in self._last:
            return
        try:
            with source.lock:
                readings = source.read()
        except Exception as error:  # noqa: BLE001 - whatever it was, the program goes on
            self._give_up(error)
            return
        with self._turn:
            if source in self._last:
                self._record(readings, self._last[source], source.tags)

    def _record(self, readings: Mapping[str, float], last: dict[str, float], tags: dict[str, str]) -> None:
        if self._has_failed:
            return
        try:
            for name, value in readings.items():
                self._record_one(BY_NAME[name], value, last, tags)
        except Exception as error:  # noqa: BLE001 - whatever Ray has against it, the program goes on
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            warn("no metrics", f"metrics: there are no more of this process: {error!r}")

    def _record_one(self, metric: Metric, value: float, last: dict[str, float], tags: dict[str, str]) -> None:
        instrument = self._instruments.get(metric.name)
        if instrument is None:
            instrument = self._instruments[metric.name] = make_instrument(metric)
        if metric.kind == GAUGE:
            instrument.set(value, tags=tags)
        elif metric.kind == HISTOGRAM:
            instrument.observe(value, tags=tags)
        else:
            more = value - last.get(metric.name, 0.0)
            if more > 0:
                last[metric.name] = value
                instrument.inc(more, tags=tags)


def make_instrument(metric: Metric) -> Any:
    """What Ray has for a metric."""
    from ray.util import metrics

    if metric.kind == HISTOGRAM:
        return metrics.Histogram(metric.name, metric.words, boundaries=list(PHASE_S), tag_keys=metric.tags)
    kind = metrics.Gauge if metric.kind == GAUGE else metrics.Counter
    return kind(metric.name, metric.words, tag_keys=metric.tags)


publisher = Publisher()
"""The one of this process."""
