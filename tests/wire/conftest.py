"""Loops that are closed when a test ends."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.wire.sides import SECRET, Side

SideMaker = Callable[..., Side]


@pytest.fixture
def make_side() -> Iterator[SideMaker]:
    made: list[Side] = []

    def make(name: str, secret: bytes = SECRET, **options: Any) -> Side:
        made.append(Side(name, secret, **options))
        return made[-1]

    yield make
    for side in made:
        side.loop.close()


@pytest.fixture(params=["unix", "tcp"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address to listen at, of either kind."""
    return {"unix": f"unix:{tmp_path}/socket", "tcp": "tcp:127.0.0.1:0"}[request.param]


@pytest.fixture
def keep() -> Iterator[Callable[[socket.socket], socket.socket]]:
    """Notes a plain socket, to be closed when the test ends."""
    kept: list[socket.socket] = []

    def note(plain: socket.socket) -> socket.socket:
        kept.append(plain)
        return plain

    yield note
    for plain in kept:
        plain.close()
