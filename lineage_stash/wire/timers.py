"""Timers: what is to be done when. No clock of its own."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

MIN_CANCELLED = 64
"""Cancelled timers stay in the heap until they are due, or until there are so many and they are more than half."""


class Timer:
    """Something to be done once, unless it is cancelled before."""

    def __init__(self, timers: "Timers", action: Callable[[], None]) -> None:
        self._timers = timers
        self._action: Callable[[], None] | None = action

    @property
    def is_cancelled(self) -> bool:
        """Whether there is nothing left to do."""
        return self._action is None

    def cancel(self) -> None:
        """Do nothing when it is due; cancelling again, or too late, is harmless."""
        if self._action is not None:
            self._action = None
            self._timers.note_cancelled()

    def run(self) -> None:
        """Do it now, if it was not done or cancelled before."""
        action, self._action = self._action, None
        if action is not None:
            action()


class Timers:
    """Timers in order of when they are due; equal ones in order of making."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._number = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due_s: float, action: Callable[[], None]) -> Timer:
        """Note what is to be done at that time."""
        self._number += 1
        timer = Timer(self, action)
        heappush(self._heap, (due_s, self._number, timer))
        return timer

    def next_due_s(self) -> float | None:
        """When the next one is due; `None` if there is none."""
        heap = self._heap
        while heap and heap[0][2].is_cancelled:
            heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else None

    def run_due(self, now_s: float) -> bool:
        """Do what was due by now and was noted before this call; whether that was anything."""
        newest = self._number
        ran = False
        while (due_s := self.next_due_s()) is not None and due_s <= now_s and self._heap[0][1] <= newest:
            ran = True
            heappop(self._heap)[2].run()
        return ran

    def clear(self) -> None:
        """Forget all."""
        self._heap.clear()
        self._cancelled = 0

    def note_cancelled(self) -> None:
        """Count a timer that was cancelled, and throw such timers out when they are too many."""
        self._cancelled += 1
        if self._cancelled >= MIN_CANCELLED and 2 * self._cancelled > len(self._heap):
            self._heap = [item for item in self._heap if not item[2].is_cancelled]
            heapify(self._heap)
            self._cancelled = 0
