"""A connection: a socket, a handshake, and then frames both ways. Never blocks.

Rules:
- A connection goes through connecting, proving, open and lost, in this order, and may skip to lost from any of them.
- Nothing is a frame before the other side has proved itself; what is sent before that waits.
- Sending tries the socket at once when nothing is queued. What the socket does not take is queued without a bound, and
  counted in `queued_bytes` for callers who want one.
- Neither `send` nor `close` calls back: whoever is told of a loss is told by the loop, in its next turn at the latest.
- When the socket refuses to be written to, complete frames that had arrived are still delivered before the loss.
- Shared memory in a frame goes over a Unix socket as a descriptor, in order, and comes out as a part of the rope that
  the frame then is; over any other socket it is bytes like all others.
- A frame is taken out of the queue before it is delivered. If delivering raises, that frame is not delivered again, and
  those behind it are delivered in the loop's next turn.
"""

import errno
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from itertools import islice
from typing import Any, Protocol

from lineage_stash.wire.addresses import Endpoint
from lineage_stash.wire.cargo import CARRIES, Descriptors, load, unload
from lineage_stash.wire.frames import FrameReader, FrameTooLarge, header, pack_header
from lineage_stash.wire.handshake import Handshake, HandshakeRefused
from lineage_stash.wire.poller import Poller
from lineage_stash.wire.shared import NotShared, Shared

RECEIVE_BYTES = 1 << 16
"""Asked for at a time: more than this makes the allocator ask the kernel for memory on every call."""

RECEIVE_IN_PLACE_BYTES = 1 << 15
"""A body that lacks at least this much is received straight into its place."""

PROVING_BYTES = 1 << 10
"""Asked for at a time from someone who has not proved anything: a handshake is shorter."""

JOINED_BYTES = 1 << 14
"""Up to this length a frame is joined to one piece: copying it costs less than a second piece does."""

MAX_PIECES = 256
"""Pieces per system call; the kernel takes 1024."""

CLOSED = "closed by the other side"
_REASONS = {errno.ECONNRESET: "connection reset", errno.EPIPE: CLOSED, errno.ETIMEDOUT: "connection timed out"}


class Phase(Enum):
    """How far a connection has come."""

    CONNECTING = "connecting"
    PROVING = "proving"
    OPEN = "open"
    LOST = "lost"


class Owner(Protocol):
    """What a connection needs of its loop."""

    poller: Poller
    on_frame: "Callable[[Connection, int, bytes], None]"
    undelivered: "deque[Connection]"

    def retry(self, action: Callable[[], None]) -> None:
        """Call this a moment later."""

    def opened(self, connection: "Connection") -> None:
        """The other side has proved itself."""

    def lost(self, connection: "Connection", reason: str) -> None:
        """The connection is over; told once."""


def reason_of(error: OSError) -> str:
    """An error in the words of a loss."""
    return _REASONS.get(error.errno or 0) or (error.strerror or str(error)).lower()


class Connection:
    """One connection over a plain socket, ours or accepted."""

    def __init__(
        self, owner: Owner, connected: socket.socket, handshake: Handshake, *, address: str | None, max_frame_bytes: int
    ) -> None:
        self.introduction: str | None = None
        self.address = address
        self.is_open = False
        self.queued_bytes = 0
        self._owner = owner
        self._socket = connected
        self._fd = connected.fileno()
        self._handshake = handshake
        self._reader = FrameReader(max_frame_bytes)
        self._descriptors = Descriptors(connected) if connected.family == socket.AF_UNIX else None
        carrying = connected if self._descriptors is None else self._descriptors
        self._recv = carrying.recv
        self._recv_into = carrying.recv_into
        self._sendmsg = carrying.sendmsg
        self._early: list[bytes] = []
        self._queue: deque[bytes | memoryview] = deque()
        self._phase = Phase.CONNECTING
        self._write_failure: str | None = None
        self._sends_at_once = False
        self._waits_to_write = False

    def __repr__(self) -> str:
        return f"<Connection {self.address or 'accepted'} {self._phase.value} {self.introduction!r}>"

    def send(self, kind: int, body: bytes | tuple[bytes, ...]) -> None:
        """Send a frame, whose body may be in pieces; a lost connection sends nothing."""
        if self._sends_at_once and type(body) is bytes and len(body) <= JOINED_BYTES:
            frame = pack_header(len(body), kind) + body
            try:
                sent = self._socket.send(frame)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._fail(error)
                return
            if sent < len(frame):
                self._enqueue((memoryview(frame)[sent:],))
                self._wait_to_write(True)
        elif self._phase is not Phase.LOST and self._write_failure is None:
            self._send_pieces(kind, body if isinstance(body, tuple) else (body,))

    def close(self, reason: str) -> None:
        """End the connection; what is queued and what is undelivered is dropped."""
        self._reader.frames.clear()
        self._lose(reason)

    # What the loop calls.

    def connect(self, endpoint: Endpoint) -> None:
        """Begin to connect."""
        if self._phase is Phase.LOST:
            return
        try:
            code = self._socket.connect_ex(endpoint.target)
        except OSError as error:
            self._lose(f"connect failed: {reason_of(error)}")
            return
        if code == 0:
            self.accepted()
        elif code == errno.EINPROGRESS:
            self._owner.poller.watch(self._fd, select.EPOLLOUT, self._on_connecting)
        elif code == errno.EAGAIN:
            # A unix socket says so when too many wait to be accepted.
            self._owner.retry(partial(self.connect, endpoint))
        else:
            self._lose(f"connect failed: {os.strerror(code).lower()}")

    def accepted(self) -> None:
        """Begin to listen to whoever is on the other side."""
        self._owner.poller.watch(self._fd, select.EPOLLIN, self._on_proving)
        self._begin()

    def deliver(self) -> None:
        """Hand over the frames that have arrived."""
        frames = self._reader.frames
        on_frame = self._owner.on_frame
        try:
            while frames:
                kind, body = frames.popleft()
                if kind & CARRIES:
                    self._deliver_cargo(kind ^ CARRIES, body)
                else:
                    on_frame(self, kind, body)
        finally:
            if frames:
                self._owner.undelivered.append(self)

    def give_up(self, waited_s: float) -> None:
        """Lose a connection that is not open in time."""
        failure = "connect failed: no answer" if self._phase is Phase.CONNECTING else "refused: no handshake"
        self._lose(f"{failure} within {waited_s:g} s")

    def end(self) -> None:
        """Close the socket, without a word to anyone."""
        self._reader.frames.clear()
        self._drop_all()
        self._owner.poller.discard(self._socket)

    def forget(self) -> None:
        """Close our copy of the descriptor, so that the connection lives on in the process that we were forked from."""
        self._reader.frames.clear()
        self._drop_all()
        os.close(self._socket.detach())

    # Before it is open.

    def _on_connecting(self, _: int) -> None:
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._lose(f"connect failed: {os.strerror(code).lower()}")
            return
        self._owner.poller.change(self._fd, select.EPOLLIN)
        self._owner.poller.hand_over(self._fd, self._on_proving)
        self._begin()

    def _begin(self) -> None:
        """Say what there is to say first."""
        self._phase = Phase.PROVING
        self._prove(b"")

    def _on_proving(self, mask: int) -> None:
        if mask & select.EPOLLOUT:
            self._flush()
        data = self._receive(PROVING_BYTES)
        if data:
            self._prove(data)

    def _prove(self, data: bytes) -> None:
        handshake = self._handshake
        try:
            answer = handshake.receive(data)
        except HandshakeRefused as refusal:
            self._lose(f"refused: {refusal}")
            return
        if answer:
            self._enqueue((answer,))
            self._flush()
        if handshake.done and self._phase is not Phase.LOST:
            self._open()

    def _open(self) -> None:
        handshake = self._handshake
        self._phase = Phase.OPEN
        self.is_open = True
        self.introduction = handshake.peer_introduction
        self._begin_frames()
        if self._early:
            self._queue.extend(self._early)
            self._early.clear()
            self._flush()
        self._feed(handshake.leftover)
        if self.is_open:
            self._owner.opened(self)

    def _begin_frames(self) -> None:
        self._sends_at_once = not self._queue
        self._owner.poller.hand_over(self._fd, self._on_ready)

    def _receive(self, count: int) -> bytes:
        """What the socket has, up to so many bytes; empty if there is nothing, and the end is a loss."""
        try:
            data = self._recv(count)
        except BlockingIOError:
            return b""
        except OSError as error:
            self._lose_contact(reason_of(error))
            return b""
        if not data:
            self._lose_contact(CLOSED)
        return data

    # While it is open.

    def _on_ready(self, mask: int) -> None:
        if mask != select.EPOLLOUT:
            self._read()
        if mask & select.EPOLLOUT:
            self._flush()

    def _read(self) -> None:
        reader = self._reader
        if reader.missing >= RECEIVE_IN_PLACE_BYTES:
            self._read_in_place()
        else:
            data = self._receive(RECEIVE_BYTES)
            if data:
                self._feed(data)
        if reader.frames:
            self.deliver()

    def _read_in_place(self) -> None:
        try:
            count = self._recv_into(self._reader.space())
        except BlockingIOError:
            return
        except OSError as error:
            self._lose_contact(reason_of(error))
            return
        if count:
            self._reader.filled(count)
        else:
            self._lose_contact(CLOSED)

    def _feed(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
        except FrameTooLarge as error:
            self._lose(f"refused: {error}")

    def _deliver_cargo(self, kind: int, body: bytes) -> None:
        """Hand over a frame that carries shared memory; one that does not carry what it says is the end."""
        try:
            if self._descriptors is None:
                raise NotShared("descriptors over a socket that carries none")
            frame = unload(body, self._descriptors)
        except NotShared as error:
            self.close(f"refused: {error}")
            return
        self._owner.on_frame(self, kind, frame)

    # Writing.

    def _send_pieces(self, kind: int, pieces: tuple[Any, ...]) -> None:
        if self._descriptors is not None and any(type(piece) is Shared for piece in pieces):
            frame = load(kind, pieces)
        else:
            length = sum(map(len, pieces))
            frame = (header(kind, length), *pieces)
            if length <= JOINED_BYTES:
                frame = (b"".join(frame),)
        if not self.is_open:
            self._early.extend(frame)
            self.queued_bytes += sum(map(len, frame))
            return
        is_first = not self._queue
        self._enqueue(frame)
        if is_first:
            self._flush()

    def _enqueue(self, pieces: tuple[bytes | memoryview, ...]) -> None:
        """Queue pieces; to be followed by an attempt to write them."""
        self._queue.extend(pieces)
        self.queued_bytes += sum(map(len, pieces))
        self._sends_at_once = False

    def _wait_to_write(self, waits: bool) -> None:
        if waits != self._waits_to_write:
            self._waits_to_write = waits
            self._owner.poller.change(self._fd, select.EPOLLIN | select.EPOLLOUT if waits else select.EPOLLIN)

    def _flush(self) -> None:
        """Write what is queued, as much as the socket takes."""
        queue = self._queue
        has_room = True
        while queue and has_room:
            pieces = list(islice(queue, MAX_PIECES))
            try:
                sent = self._sendmsg(pieces)
            except BlockingIOError:
                break
            except OSError as error:
                self._fail(error)
                return
            self.queued_bytes -= sent
            has_room = self._took(sent, pieces)
        if self._phase is not Phase.LOST:
            self._wait_to_write(bool(queue))
            self._sends_at_once = self.is_open and not queue

    def _took(self, sent: int, pieces: list[bytes | memoryview]) -> bool:
        """Drop what was written from the queue, and say whether that was all of these pieces."""
        queue = self._queue
        for piece in pieces:
            if sent < len(piece):
                queue[0] = memoryview(piece)[sent:]
                return False
            sent -= len(piece)
            queue.popleft()
        return True

    # The end.

    def _fail(self, error: OSError) -> None:
        """Write no more, and be lost when everything that has arrived is read."""
        self._write_failure = reason_of(error)
        self._drop_queue()
        self._wait_to_write(False)
        with suppress(OSError):  # it may be over already, and reading will say so
            self._socket.shutdown(socket.SHUT_RDWR)

    def _lose_contact(self, reason: str) -> None:
        """Lose a connection because of the other side, in whose words a handshake that breaks off is a refusal."""
        reason = self._write_failure or reason
        self._lose(f"refused: {reason}" if self._phase is Phase.PROVING else reason)

    def _lose(self, reason: str) -> None:
        if self._phase is not Phase.LOST:
            self._drop_all()
            self._owner.poller.discard(self._socket)
            self._owner.lost(self, reason)

    def _drop_all(self) -> None:
        self._phase = Phase.LOST
        self.is_open = False
        self._drop_queue()

    def _drop_queue(self) -> None:
        self._sends_at_once = False
        self._early.clear()
        self._queue.clear()
        self.queued_bytes = 0
