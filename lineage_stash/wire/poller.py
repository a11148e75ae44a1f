"""The poller: epoll, and who is told about which descriptor.

Rules:
- A handler is called with the mask of what happened, and may be called for nothing.
- A socket that is discarded during a turn is closed when the turn is over, so that its number cannot belong to another
  one while what happened to the old one is still being told.
- An exception of a handler leaves the turn at once. What happened to the others is told in the next turn, since epoll
  says again what nobody has acted upon.
"""

import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress

MAX_EVENTS = 64
"""Events per turn: the rest comes in the next, and epoll begins with those who have waited longest."""

Handler = Callable[[int], None]


class Poller:
    """The descriptors that are watched."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._discarded: list[socket.socket] = []
        self._in_turn = False

    def watch(self, fd: int, mask: int, handler: Handler) -> None:
        """Tell this handler about a descriptor that was not watched before."""
        self._epoll.register(fd, mask)
        self._handlers[fd] = handler

    def change(self, fd: int, mask: int) -> None:
        """Watch a descriptor for something else."""
        self._epoll.modify(fd, mask)

    def hand_over(self, fd: int, handler: Handler) -> None:
        """Tell another handler from now on."""
        self._handlers[fd] = handler

    def unwatch(self, fd: int) -> None:
        """Say no more about a descriptor, if it is watched."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def discard(self, owned: socket.socket) -> None:
        """Unwatch a socket and close it, even where a forked child still holds it."""
        self.unwatch(owned.fileno())
        with suppress(OSError):  # it may not be connected, or not any more
            owned.shutdown(socket.SHUT_RDWR)
        self._discarded.append(owned)
        if not self._in_turn:
            self._close_discarded()

    def wait(self, timeout_s: float) -> list[tuple[int, int]]:
        """What happens within so long, as pairs of a descriptor and a mask."""
        return self._epoll.poll(timeout_s, MAX_EVENTS)

    def tell(self, events: list[tuple[int, int]]) -> None:
        """Call the handlers."""
        handlers = self._handlers
        self._in_turn = True
        try:
            for fd, mask in events:
                handler = handlers.get(fd)
                if handler is not None:
                    handler(mask)
        finally:
            self._in_turn = False
            if self._discarded:
                self._close_discarded()

    def close(self) -> None:
        """Close what is ours; sockets are discarded by their owners first."""
        self._handlers.clear()
        self._epoll.close()

    def forget(self) -> None:
        """Close what is ours in a forked child, and change nothing in the epoll that it shares with its parent."""
        for owned in self._discarded:
            os.close(owned.detach())
        self._discarded.clear()
        self.close()

    def _close_discarded(self) -> None:
        for owned in self._discarded:
            owned.close()
        self._discarded.clear()
