"""Two or more real loops in one thread, what each of them was told, and strangers who speak to them by hand."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

from hypothesis import settings

from lineage_stash.wire import addresses
from lineage_stash.wire.connection import Connection
from lineage_stash.wire.frames import header
from lineage_stash.wire.handshake import NONCE_BYTES, Handshake
from lineage_stash.wire.loop import Loop

SECRET = b"a secret that both sides know"
OTHER_SECRET = b"a secret that nobody here knows"
DEADLINE_S = 20.0

# The same examples in every run: a check that fails must fail again, and one that passes must not depend on luck.
quick = settings(deadline=None, max_examples=150, derandomize=True)


class Side:
    """A loop that writes down what it is told."""

    def __init__(self, name: str, secret: bytes = SECRET, **options: Any) -> None:
        self.frames: list[tuple[int, bytes]] = []
        self.opened: list[Connection] = []
        self.lost: list[tuple[Connection, str]] = []
        self.on_frame: Callable[[Connection, int, bytes], None] = lambda *_: None
        self.loop = Loop(
            secret, name, on_frame=self._on_frame, on_open=self.opened.append, on_lost=self._on_lost, **options
        )

    def _on_frame(self, connection: Connection, kind: int, body: bytes) -> None:
        self.frames.append((kind, body))
        self.on_frame(connection, kind, body)

    def _on_lost(self, connection: Connection, reason: str) -> None:
        self.lost.append((connection, reason))

    @property
    def reasons(self) -> list[str]:
        return [reason for _, reason in self.lost]

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.frames]


def until(condition: Callable[[], object], *sides: Side) -> None:
    """Let the loops turn until the condition holds; a condition that never holds is a failure."""
    deadline = monotonic() + DEADLINE_S
    while not condition():
        assert monotonic() < deadline, [(side.loop.introduction, side.frames[-3:], side.lost) for side in sides]
        happened = [side.loop.poll(0) for side in sides]
        if not any(happened):
            sides[0].loop.poll(0.001)


def opened(server: Side, client: Side, address: str) -> tuple[Connection, Connection]:
    """An open connection from client to server, as (the server's end, the client's end)."""
    known = len(server.opened)
    ours = client.loop.connect(address)
    until(lambda: ours.is_open and len(server.opened) > known, server, client)
    return server.opened[-1], ours


def dialled(address: str) -> socket.socket:
    """A plain blocking socket that is connected there."""
    endpoint = addresses.parse(address)
    stranger = socket.socket(endpoint.family, socket.SOCK_STREAM)
    stranger.settimeout(DEADLINE_S)
    stranger.connect(endpoint.target)
    return stranger


def proved(server: Side, address: str, introduction: str = "by hand") -> socket.socket:
    """A plain socket that has gone through the handshake with the server."""
    known = len(server.opened)
    plain = dialled(address)
    handshake = Handshake(SECRET, introduction, is_client=True, nonce=os.urandom(NONCE_BYTES))
    plain.sendall(handshake.receive(b""))
    plain.setblocking(False)

    def is_done() -> bool:
        with suppress(BlockingIOError):
            plain.sendall(handshake.receive(plain.recv(4096)))
        return handshake.done

    until(is_done, server)
    plain.settimeout(DEADLINE_S)
    until(lambda: len(server.opened) > known, server)
    return plain


def frame(kind: int, body: bytes) -> bytes:
    return header(kind, len(body)) + body
