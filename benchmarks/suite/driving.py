"""Driving: sends records at fixed times and notes when each was answered, whatever the system makes of it.

Rules:
- A record is due at its time, whether or not earlier ones are answered and whether or not sending them took long: a
  latency counts from there, so that a pause shows on every record that fell into it.
- Replies of one lane (an actor) come in the order of its calls; so only the oldest call of each lane is waited for.
- A call that fails is a reply too, with its error.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.suite.systems.base import System

PATIENCE_S = 60.0
"""For the last replies, when all is sent."""

Send = Callable[[int], Iterable[tuple[str, Any]]]
"""Sends one record: the lanes that its calls go to, and their refs."""


class Reply(NamedTuple):
    """One call of one record, answered."""

    number: int
    lane: str
    due_s: float
    """Since the first record was due, as `done_s`."""
    done_s: float
    value: Any = None
    error: BaseException | None = None

    @property
    def latency_ms(self) -> float:
        """From when it was due."""
        return 1e3 * (self.done_s - self.due_s)


class Unanswered(Exception):
    """Calls that nobody has answered."""


class Pacer:
    """Sends records at a rate, and collects replies in between."""

    def __init__(self, system: System, rate: float, count: int, *, clock: Callable[[], float] = time.monotonic,
                 sleep: Callable[[float], None] = time.sleep) -> None:  # fmt: skip
        self._system = system
        self._rate = rate
        self._count = count
        self._clock = clock
        self._sleep = sleep
        self._began_at = 0.0
        self._lanes: dict[str, deque[tuple[int, Any]]] = {}
        self.sent = 0
        self.replies: list[Reply] = []

    @property
    def progress(self) -> float:
        """How much is sent, from 0 to 1."""
        return self.sent / self._count

    @property
    def elapsed_s(self) -> float:
        """Since the first record was due."""
        return self._clock() - self._began_at

    def run(self, send: Send) -> list[Reply]:
        """All replies, in the order in which they came."""
        self._began_at = self._clock()
        while self.sent < self._count:
            for number in range(self.sent, self._due_by(self.elapsed_s)):
                for lane, ref in send(number):
                    self._lanes.setdefault(lane, deque()).append((number, ref))
                self.sent = number + 1
            if self.sent < self._count:
                self._collect(max(0.0, self.sent / self._rate - self.elapsed_s))
        deadline = self._clock() + PATIENCE_S
        while any(self._lanes.values()):
            if self._clock() > deadline:
                waiting = {lane: len(calls) for lane, calls in self._lanes.items() if calls}
                raise Unanswered(f"calls without an answer after {PATIENCE_S:g} s: {waiting}")
            self._collect(1.0)
        return self.replies

    def _due_by(self, elapsed_s: float) -> int:
        return min(self._count, int(elapsed_s * self._rate) + 1)

    def _collect(self, timeout_s: float) -> None:
        """Take what is there, or wait for the first to come."""
        heads = {calls[0][1]: lane for lane, calls in self._lanes.items() if calls}
        if not heads:
            self._sleep(timeout_s)
            return
        ready = self._system.wait(list(heads), timeout_s)
        done_s = self.elapsed_s
        for ref in ready:
            lane = heads[ref]
            number, _ = self._lanes[lane].popleft()
            value, error = outcome_of(self._system, ref)
            self.replies.append(Reply(number, lane, number / self._rate, done_s, value, error))


def outcome_of(system: System, ref: Any) -> tuple[Any, BaseException | None]:
    """What a call that is answered has returned or raised."""
    try:
        return system.get([ref], PATIENCE_S)[0], None
    except Exception as error:  # noqa: BLE001 - whatever a system raises, the oracle judges it
        return None, error


def in_chunks(system: System, send: Send, chunk: int, seconds: float, warm_up_s: float) -> tuple[int, int, float]:
    """As fast as it goes, two chunks under way: records sent, and those answered after the warm-up, in which time."""
    number, answered, began_at = 0, 0, 0.0
    deadline = time.monotonic() + warm_up_s + seconds
    warm_at = time.monotonic() + warm_up_s
    under_way: deque[Sequence[Any]] = deque()
    while time.monotonic() < deadline:
        under_way.append([ref for one in range(number, number + chunk) for _, ref in send(one)])
        number += chunk
        if len(under_way) > 1:
            system.get(under_way.popleft(), PATIENCE_S)
            if began_at:
                answered += chunk
            elif time.monotonic() > warm_at:
                began_at = time.monotonic()
    took_s = time.monotonic() - began_at
    for refs in under_way:
        system.get(refs, PATIENCE_S)
    return number, answered, took_s
