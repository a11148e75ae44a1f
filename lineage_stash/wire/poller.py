"""The poller: epoll, and who is told about which descriptor.

Rules:
- What happened is told only to whoever watched before the waiting began, and still watches: the number of a descriptor
  that was closed may belong to another one by now. Whoever came later is told by the next wait.
- A handler is called with the mask of what happened. Where several threads wait it may be called for nothing.
- An exception of a handler leaves `tell` at once. What happened to the others is told again, since epoll repeats what
  nobody has acted upon.
- `wait` may be called from any thread; all else is called by one thread at a time.
"""

import select
import socket
from collections.abc import Callable
from contextlib import suppress
from os import sched_yield
from time import monotonic

MAX_EVENTS = 64
"""Events per turn: the rest comes in the next, and epoll begins with those who have waited longest."""

Handler = Callable[[int], None]


class Watch:
    """Someone who watches a descriptor, from a moment on."""

    __slots__ = ("handler", "is_over", "number")

    def __init__(self, handler: Handler, number: int) -> None:
        self.handler = handler
        self.number = number
        self.is_over = False


Events = list[tuple[Watch, int]]
"""Who is to be told, and what."""


class Poller:
    """The descriptors that are watched."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watches: dict[int, Watch] = {}
        self._number = 0

    def watch(self, fd: int, mask: int, handler: Handler) -> None:
        """Tell this handler about a descriptor that was not watched before."""
        self._epoll.register(fd, mask)
        self._number += 1
        self._watches[fd] = Watch(handler, self._number)

    def change(self, fd: int, mask: int) -> None:
        """Watch a descriptor for something else."""
        self._epoll.modify(fd, mask)

    def hand_over(self, fd: int, handler: Handler) -> None:
        """Tell another handler from now on."""
        self._watches[fd].handler = handler

    def unwatch(self, fd: int) -> None:
        """Say no more about a descriptor, if it is watched."""
        watch = self._watches.pop(fd, None)
        if watch is not None:
            watch.is_over = True
            self._epoll.unregister(fd)

    def discard(self, owned: socket.socket) -> None:
        """Unwatch a socket and close it, even where a forked child still holds it."""
        self.unwatch(owned.fileno())
        with suppress(OSError):  # it may not be connected, or not any more
            owned.shutdown(socket.SHUT_RDWR)
        owned.close()

    def wait(self, timeout_s: float, awake_s: float = 0.0) -> Events:
        """What happens within so long; for the first `awake_s` of it the thread does not sleep."""
        number = self._number
        poll = self._epoll.poll
        events: list[tuple[int, int]] = []
        if awake_s and timeout_s:
            asleep_at = monotonic() + awake_s
            while not (events := poll(0, MAX_EVENTS)) and monotonic() < asleep_at:
                sched_yield()
        if not events:
            events = poll(timeout_s, MAX_EVENTS)
        told: Events = []
        for fd, mask in events:
            watch = self._watches.get(fd)
            if watch is not None and watch.number <= number:
                told.append((watch, mask))
        return told

    def tell(self, events: Events) -> None:
        """Call the handlers."""
        for watch, mask in events:
            if not watch.is_over:
                watch.handler(mask)

    def close(self) -> None:
        """Close the epoll, which a forked child shares with its parent and must not change; tell nobody any more."""
        for watch in self._watches.values():
            watch.is_over = True
        self._watches.clear()
        self._epoll.close()
