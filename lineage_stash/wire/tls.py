"""TLS: the same connections, encrypted, between processes whose certificates come from one authority.

It goes around the handshake and does not replace it: a certificate says that a process belongs to the deployment, the
secret says that it belongs to this program. Both sides show a certificate. Host names are not checked, since processes
move between hosts.

Rules:
- Before a stranger's certificate is verified, OpenSSL's own bound holds on what it may send (some 100 kB).
- What is queued is encrypted piece by piece as the socket takes it, so `queued_bytes` leaves out at most one piece.
"""

import select
import socket
import ssl
from collections import deque
from typing import NamedTuple

from lineage_stash.wire.connection import CLOSED, RECEIVE_BYTES, Connection, Owner, Phase
from lineage_stash.wire.handshake import Handshake

SEALED_BYTES = 1 << 18
"""Encrypted at a time."""


class TlsContexts(NamedTuple):
    """How we show ourselves to those who connect to us, and to those we connect to."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def contexts_from_files(certificate: str, key: str, authority: str) -> TlsContexts:
    """Contexts that show this certificate and take only those of this authority; all are files in PEM format."""
    return TlsContexts(
        _context(ssl.PROTOCOL_TLS_SERVER, certificate, key, authority),
        _context(ssl.PROTOCOL_TLS_CLIENT, certificate, key, authority),
    )


def _context(protocol: int, certificate: str, key: str, authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority)
    return context


class TlsFailed(Exception):
    """The other side does not speak TLS, or has shown no certificate of ours."""


class TlsChannel:
    """Encryption of one connection: bytes of the socket on one side, plain bytes on the other. No I/O."""

    def __init__(self, context: ssl.SSLContext, *, is_client: bool) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_side=not is_client)
        self.is_established = False
        self.is_ended = False

    def receive(self, sealed: bytes) -> bytes:
        """Take in what the socket had, and return what it says."""
        self._incoming.write(sealed)
        pieces = []
        try:
            if not self.is_established:
                self._session.do_handshake()
                self.is_established = True
            while piece := self._session.read(RECEIVE_BYTES):
                pieces.append(piece)
            self.is_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.is_ended = True
        except ssl.SSLError as error:
            raise TlsFailed(f"TLS failed: {error.reason or error}") from error
        return b"".join(pieces)

    def seal(self, plain: bytes | memoryview) -> None:
        """Encrypt this behind what is to be sent already."""
        rest = memoryview(plain)
        while rest:
            rest = rest[self._session.write(rest) :]

    def outgoing(self) -> bytes:
        """What is to be sent now."""
        return self._outgoing.read()


class TlsConnection(Connection):
    """A connection whose socket sees only what is encrypted."""

    def __init__(
        self,
        owner: Owner,
        connected: socket.socket,
        handshake: Handshake,
        *,
        address: str | None,
        max_frame_bytes: int,
        contexts: TlsContexts,
    ) -> None:
        super().__init__(owner, connected, handshake, address=address, max_frame_bytes=max_frame_bytes)
        is_client = address is not None
        self._channel = TlsChannel(contexts.client if is_client else contexts.server, is_client=is_client)
        self._sealed = memoryview(b"")

    def _begin(self) -> None:
        self._phase = Phase.PROVING
        self._unseal(b"")

    def _begin_frames(self) -> None:
        pass  # every byte goes through the channel, before and after

    def _on_proving(self, mask: int) -> None:
        if mask & select.EPOLLOUT:
            self._flush()
        sealed = self._receive(RECEIVE_BYTES)
        if sealed:
            self._unseal(sealed)
        if self._reader.frames:
            self.deliver()

    def _unseal(self, sealed: bytes) -> None:
        channel = self._channel
        was_established = channel.is_established
        try:
            plain = channel.receive(sealed)
        except TlsFailed as failure:
            self._flush()  # the alert tells the other side why
            self._lose(f"refused: {failure}")
            return
        self._flush()
        if channel.is_established and not was_established:
            self._prove(b"")
        if plain and self._phase is not Phase.LOST:
            take = self._feed if self.is_open else self._prove
            take(plain)
        if channel.is_ended:
            self._lose_contact(CLOSED)

    def _flush(self) -> None:
        while sealed := self._next_sealed():
            try:
                sent = self._socket.send(sealed)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._fail(error)
                return
            self._sealed = sealed[sent:]
            if sent < len(sealed):
                self._wait_to_write(True)
                return
        if self._phase is not Phase.LOST:
            self._wait_to_write(False)

    def _next_sealed(self) -> memoryview:
        """What the socket did not take last time, or else what the channel has to say, or else the queue's next."""
        if not self._sealed:
            self._sealed = memoryview(self._channel.outgoing())
        if not self._sealed and self._queue and self._channel.is_established:
            plain = _taken(self._queue, SEALED_BYTES)
            self.queued_bytes -= len(plain)
            self._channel.seal(plain)
            self._sealed = memoryview(self._channel.outgoing())
        return self._sealed


def _taken(queue: deque[bytes | memoryview], bound: int) -> bytes:
    """Take about so many bytes from the front of a queue."""
    pieces: list[bytes | memoryview] = []
    room = bound
    while queue and room > 0:
        piece = queue.popleft()
        if len(piece) > room:
            queue.appendleft(memoryview(piece)[room:])
            piece = memoryview(piece)[:room]
        pieces.append(piece)
        room -= len(piece)
    return b"".join(pieces)
