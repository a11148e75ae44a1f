"""The loop: all connections, timers and posted actions of one process, moved on by whoever calls `poll`.

Rules:
- One lock guards the loop. `poll` takes it for all but the waiting, so that several threads may poll at a time; whoever
  calls anything else but `post` and `wake` while others poll holds it. Only `poll` calls back, and under the lock.
- `on_open` is called before any frame of a connection, and `on_lost` after all of them, exactly once for every
  connection that was open or that we began; also when we closed it ourselves. It is not called for those that `close`
  or `forget` of the loop ends.
- A stranger, who connected to us and did not prove in time that it knows the secret, is dropped in silence and counted
  in `strangers_dropped`. At most `max_unproven` are borne with at a time: one more drops the oldest.
- A turn delivers what an exception left over, waits, reads and writes what can be, and runs posted actions and due
  timers. What an action posts runs in the next turn.
- An exception of a callback leaves `poll` at once, and the loop stays sound: the frame or action that raised is not
  repeated, and all that comes after it is left to the next `poll`. `poll` is not to be called from a callback.

How much may be queued for a slow reader, when to connect again, and what frames mean is left to others.
"""

import os
import select
import socket
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from threading import Lock, RLock
from time import monotonic

from lineage_stash.wire import addresses
from lineage_stash.wire.connection import Connection, reason_of
from lineage_stash.wire.frames import MAX_FRAME_BYTES
from lineage_stash.wire.handshake import NONCE_BYTES, Handshake
from lineage_stash.wire.poller import Events, Poller
from lineage_stash.wire.timers import Timer, Timers
from lineage_stash.wire.tls import TlsConnection, TlsContexts

HANDSHAKE_DEADLINE_S = 5.0
"""A handshake is three messages; who needs longer than this is not there."""

MAX_UNPROVEN = 64
"""So a flood of strangers holds this many descriptors, and honest ones, who need milliseconds, get through."""

RETRY_S = 0.005
"""How soon to try again when a listener has more waiting than it bears."""

ACCEPT_PAUSE_S = 0.1
"""How long not to accept when the process has no descriptors left; trying at once would spin."""

MAX_ACCEPTED = 16
"""Connections accepted per turn from one listener, so that a flood of them does not keep the others waiting."""


class Loop:
    """Connections that prove a shared secret, and whoever is told about them."""

    def __init__(
        self,
        secret: bytes,
        introduction: str,
        *,
        on_frame: Callable[[Connection, int, bytes], None],
        on_open: Callable[[Connection], None],
        on_lost: Callable[[Connection, str], None],
        tls: TlsContexts | None = None,
        handshake_deadline_s: float = HANDSHAKE_DEADLINE_S,
        max_unproven: int = MAX_UNPROVEN,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        lock: AbstractContextManager[object] | None = None,
        dead_after_ms: int = addresses.DEAD_AFTER_MS,
    ) -> None:
        self.introduction = introduction
        self.strangers_dropped = 0
        self.on_frame = on_frame
        self.on_open = on_open
        self.on_lost = on_lost
        self.poller = Poller()
        self.undelivered: deque[Connection] = deque()
        self._secret = secret
        self._tls = tls
        self.handshake_deadline_s = handshake_deadline_s
        self._max_unproven = max_unproven
        self._max_frame_bytes = max_frame_bytes
        self._dead_after_ms = dead_after_ms
        self._listeners: list[socket.socket] = []
        self._connections: set[Connection] = set()
        self._unproven: dict[Connection, Timer] = {}
        self._posted: deque[Callable[[], None]] = deque()
        self._timers = Timers()
        self._is_closed = False
        self.lock = lock if lock is not None else RLock()
        self.sleepers = 0
        self._wake_lock = Lock()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.poller.watch(self._wake_fd, select.EPOLLIN, self._on_wake)

    def listen(self, address: str) -> str:
        """Accept connections at an address, and return the actual one: port 0 picks a port."""
        listener = addresses.listening(addresses.parse(address))
        self._listeners.append(listener)
        self.poller.watch(listener.fileno(), select.EPOLLIN, partial(self._on_accept, listener))
        return addresses.actual(listener)

    def connect(self, address: str) -> Connection:
        """Begin a connection, to which frames can be sent at once; if it fails, it is lost."""
        try:
            endpoint = addresses.parse(address)
        except OSError as error:
            connection = self._begin(socket.socket(), address)
            connection.close(f"connect failed: {reason_of(error)}")
            return connection
        connection = self._begin(addresses.unconnected(endpoint, self._dead_after_ms), address)
        connection.connect(endpoint)
        return connection

    def poll(self, timeout_s: float, awake_s: float = 0.0) -> bool:
        """Take one turn, waiting at most so long, the first `awake_s` of it awake; whether anything happened.

        The wait is in whole milliseconds, rounded up.
        """
        happened = False
        with self.lock:
            while self.undelivered:
                happened = True
                self.undelivered.popleft().deliver()
            wait_s = max(0.0, timeout_s)
            if self._timers:
                wait_s = self._until_next_timer(wait_s)
            # Whoever posts looks at this after posting, and we look at what is posted after this: one sees the other.
            self.sleepers += 1
        if self._posted or happened:
            wait_s = 0.0
        events: Events = []
        try:
            events = self.poller.wait(wait_s, awake_s)
        finally:
            with self.lock:
                self.sleepers -= 1
                if not self._is_closed:
                    happened |= self._act(events)
        return happened

    def _act(self, events: Events) -> bool:
        """Do what a turn has to do after the waiting."""
        happened = bool(events)
        if events:
            self.poller.tell(events)
        if self._posted:
            happened = True
            for _ in range(len(self._posted)):
                if self._posted:
                    self._posted.popleft()()
        if self._timers:
            happened |= self._timers.run_due(monotonic())
        return happened

    def post(self, action: Callable[[], None]) -> None:
        """Run this in the next turn; from any thread. A closed loop runs nothing."""
        self._posted.append(action)
        if self.sleepers:
            self.wake()

    def wake(self) -> None:
        """Make `poll` return, this one or the next; from any thread."""
        with self._wake_lock:
            if not self._is_closed:
                os.eventfd_write(self._wake_fd, 1)

    def later(self, delay_s: float, action: Callable[[], None]) -> Timer:
        """Run this once, so much later."""
        return self._timers.add(monotonic() + delay_s, action)

    def add_reader(self, fd: int, action: Callable[[], None]) -> None:
        """Run this in every turn in which a descriptor of the caller's can be read."""
        self.poller.watch(fd, select.EPOLLIN, lambda _: action())

    def remove_reader(self, fd: int) -> None:
        """Undo `add_reader`; before the descriptor is closed."""
        self.poller.unwatch(fd)

    def close(self) -> None:
        """End everything, telling the other sides and nobody here."""
        if self._is_closed:
            return
        for connection in self._connections:
            connection.end()
        for listener in self._listeners:
            path = listener.getsockname() if listener.family == socket.AF_UNIX else None
            self.poller.discard(listener)
            if path is not None and os.path.exists(path):
                os.unlink(path)
        self._drop_all()
        self.poller.close()

    def forget(self) -> None:
        """In a forked child: close every descriptor, and leave the connections to the parent."""
        self._wake_lock = Lock()  # a thread that is not in this process may have held the old one
        if self._is_closed:
            return
        for connection in self._connections:
            connection.forget()
        for listener in self._listeners:
            os.close(listener.detach())
        self._drop_all()
        self.poller.close()

    # What connections say.

    def retry(self, action: Callable[[], None]) -> None:
        """Call this a moment later."""
        self.later(RETRY_S, action)

    def opened(self, connection: Connection) -> None:
        """A connection is open."""
        self._unproven.pop(connection).cancel()
        self.undelivered.append(connection)
        self.on_open(connection)

    def lost(self, connection: Connection, reason: str) -> None:
        """A connection is over."""
        self._connections.remove(connection)
        timer = self._unproven.pop(connection, None)
        if timer is not None:
            timer.cancel()
            if connection.address is None:
                self.strangers_dropped += 1
                return
        self._posted.append(partial(self.on_lost, connection, reason))

    def _begin(self, own: socket.socket, address: str | None) -> Connection:
        handshake = Handshake(
            self._secret, self.introduction, is_client=address is not None, nonce=os.urandom(NONCE_BYTES)
        )
        bound = self._max_frame_bytes
        connection = (
            Connection(self, own, handshake, address=address, max_frame_bytes=bound)
            if self._tls is None or own.family == socket.AF_UNIX
            else TlsConnection(self, own, handshake, address=address, max_frame_bytes=bound, contexts=self._tls)
        )
        self._connections.add(connection)
        deadline_s = self.handshake_deadline_s
        self._unproven[connection] = self.later(deadline_s, partial(connection.give_up, deadline_s))
        return connection

    def _on_accept(self, listener: socket.socket, _: int) -> None:
        for _ in range(MAX_ACCEPTED):
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:
                self._pause(listener)
                return
            self._make_room()
            self._begin(addresses.prepared(accepted, self._dead_after_ms), None).accepted()

    def _make_room(self) -> None:
        """Drop the oldest stranger if there are too many."""
        strangers = [connection for connection in self._unproven if connection.address is None]
        if len(strangers) >= self._max_unproven:
            strangers[0].close("too many strangers")

    def _pause(self, listener: socket.socket) -> None:
        self.poller.change(listener.fileno(), 0)
        self.later(ACCEPT_PAUSE_S, lambda: self.poller.change(listener.fileno(), select.EPOLLIN))

    def _on_wake(self, _: int) -> None:
        with suppress(BlockingIOError):  # another thread that polls was woken too, and came first
            os.eventfd_read(self._wake_fd)

    def _until_next_timer(self, wait_s: float) -> float:
        due_s = self._timers.next_due_s()
        return wait_s if due_s is None else min(wait_s, max(0.0, due_s - monotonic()))

    def _drop_all(self) -> None:
        with self._wake_lock:
            self._is_closed = True
            os.close(self._wake_fd)
        self._connections.clear()
        self._listeners.clear()
        self._unproven.clear()
        self.undelivered.clear()
        self._posted.clear()
        self._timers.clear()
