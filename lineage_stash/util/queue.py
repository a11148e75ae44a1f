"""A queue that actors and scripts share, as in `ray.util.queue`; it survives like any actor.

Its actor runs one call at a time and never waits inside one: whoever has to wait asks again, after pauses that grow to
`LONGEST_PAUSE_S`. So there is no order among those who wait, and a call that has not been answered takes nothing.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from ray.util.queue import Empty, Full

import lineage_stash

__all__ = ["Empty", "Full", "Queue"]

FIRST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.1
"""How late a waiting consumer may be; each question costs some 30 µs of the queue's time."""


class QueueActor:
    """The items, in order."""

    def __init__(self, maxsize: int) -> None:
        self.maxsize = maxsize
        self.items: deque[Any] = deque()

    def qsize(self) -> int:
        """How many there are."""
        return len(self.items)

    def put(self, items: list[Any]) -> bool:
        """Add all of these or none; whether there was room."""
        if 0 < self.maxsize < len(self.items) + len(items):
            return False
        self.items.extend(items)
        return True

    def get(self, count: int) -> list[Any] | None:
        """Take so many, or none if there are fewer."""
        if len(self.items) < count:
            return None
        return [self.items.popleft() for _ in range(count)]


class Queue:
    """First in, first out; `maxsize` items at most, or any number if it is not above 0."""

    def __init__(self, maxsize: int = 0, actor_options: dict[str, Any] | None = None) -> None:
        self.maxsize = maxsize
        self.actor: Any = lineage_stash.remote(QueueActor).options(**(actor_options or {})).remote(maxsize)

    def __len__(self) -> int:
        return self.size()

    def size(self) -> int:
        """How many items there are."""
        return int(lineage_stash.get(self.actor.qsize.remote()))

    def qsize(self) -> int:
        """How many items there are."""
        return self.size()

    def empty(self) -> bool:
        """Whether there is none."""
        return self.size() == 0

    def full(self) -> bool:
        """Whether there is no room for another."""
        return 0 < self.maxsize <= self.size()

    # putting

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item; where there is no room, wait for it, or raise `Full`."""
        for pause_s in _pauses(block, timeout):
            if self._put([item]):
                return
            time.sleep(pause_s)
        raise Full

    async def put_async(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """The same, in a coroutine of a script."""
        for pause_s in _pauses(block, timeout):
            if self._put([item]):
                return
            await asyncio.sleep(pause_s)
        raise Full

    def put_nowait(self, item: Any) -> None:
        """Add an item, or raise `Full`."""
        self.put(item, block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """Add all items at once, or raise `Full`."""
        if not isinstance(items, Iterable):
            raise TypeError("Argument 'items' must be an Iterable")
        batch = list(items)
        if not self._put(batch):
            raise Full(f"Cannot add {len(batch)} items to a queue of maxsize {self.maxsize}.")

    def _put(self, items: list[Any]) -> bool:
        return bool(lineage_stash.get(self.actor.put.remote(items)))

    # getting

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the first item; where there is none, wait for it, or raise `Empty`."""
        for pause_s in _pauses(block, timeout):
            found = self._get(1)
            if found is not None:
                return found[0]
            time.sleep(pause_s)
        raise Empty

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        """The same, in a coroutine of a script."""
        for pause_s in _pauses(block, timeout):
            found = self._get(1)
            if found is not None:
                return found[0]
            await asyncio.sleep(pause_s)
        raise Empty

    def get_nowait(self) -> Any:
        """Take the first item, or raise `Empty`."""
        return self.get(block=False)

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Take so many items at once, or raise `Empty`."""
        if not isinstance(num_items, int):
            raise TypeError("Argument 'num_items' must be an int")
        if num_items < 0:
            raise ValueError("'num_items' must be nonnegative")
        found = self._get(num_items)
        if found is None:
            raise Empty(f"Cannot get {num_items} items from a queue that has fewer.")
        return found

    def _get(self, count: int) -> list[Any] | None:
        found: list[Any] | None = lineage_stash.get(self.actor.get.remote(count))
        return found

    def shutdown(self, force: bool = False, grace_period_s: float = 5) -> None:
        """End the queue's actor: after the calls that it has got, unless that is forced or takes too long."""
        if self.actor is None:
            return
        ended = [] if force else lineage_stash.wait([self.actor.__ray_terminate__.remote()], timeout=grace_period_s)[0]
        if not ended:
            lineage_stash.kill(self.actor)
        self.actor = None


def _pauses(block: bool, timeout: float | None) -> Iterator[float]:
    """How long to wait after each attempt: longer and longer, until time is up."""
    if not block:
        yield 0.0
        return
    if timeout is not None and timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")
    pause_s = FIRST_PAUSE_S
    until = None if timeout is None else lineage_stash.observe(time.time) + timeout
    while until is None:
        yield pause_s
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    # An actor that waits is told the time that its first run was told, and so asks as often as that did.
    while (left_s := until - lineage_stash.observe(time.time)) > 0:
        yield min(pause_s, left_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    yield 0.0
