"""Asking over real sockets: an answer, a refusal, silence, and nobody there."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lineage_stash.cli.asking import NoAnswer, Standing, ask, ask_coordinator, ask_replica
from lineage_stash.on_ray.links import Kind
from lineage_stash.wire.connection import Connection
from lineage_stash.wire.loop import Loop

SECRET = b"s" * 32


@contextmanager
def listening(folder: Path, on_frame: Callable[[Connection, int, bytes], None]) -> Iterator[str]:
    """Somebody who listens, in a thread of its own, until the end."""
    ended = threading.Event()
    introductions: list[str | None] = []
    loop = Loop(SECRET, "somebody", on_frame=on_frame, on_open=lambda link: introductions.append(link.introduction),
                on_lost=lambda _link, _reason: None)  # fmt: skip

    def serve() -> None:
        while not ended.is_set():
            loop.poll(1.0)

    address = loop.listen(f"unix:{folder}/socket")
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield address
    finally:
        ended.set()
        loop.wake()
        thread.join()
        loop.close()
    assert not any(introductions), "we have no name, so that nobody keeps a link to us"


def test_coordinator_tells_where_it_stands(tmp_path: Path) -> None:
    def answer(link: Connection, kind: int, body: bytes) -> None:
        assert (kind, json.loads(body)) == (Kind.CONTROL, {"status": 1})
        said = {"links": ["driver-1@0"], "spares": 2, "phase": "IDLE"}
        link.send(Kind.CONTROL, json.dumps({"status": said}).encode())

    with listening(tmp_path, answer) as address:
        standing = ask_coordinator(address, SECRET)
    assert standing == Standing(frozenset(("driver-1@0",)), 2, "IDLE", standing.took_ms)
    assert standing.took_ms > 0


def test_replica_is_timed(tmp_path: Path) -> None:
    def answer(link: Connection, kind: int, body: bytes) -> None:
        assert kind == Kind.ASK
        link.send(Kind.ANSWER, body[:8])

    with listening(tmp_path, answer) as address:
        assert ask_replica(address, SECRET) > 0


def test_silence_is_given_up(tmp_path: Path) -> None:
    with (
        listening(tmp_path, lambda *_: None) as address,
        pytest.raises(NoAnswer, match=r"no answer within 0\.1 s"),
    ):
        ask(address, SECRET, Kind.CONTROL, b"{}", within_s=0.1)


def test_another_secret_is_told(tmp_path: Path) -> None:
    with listening(tmp_path, lambda *_: None) as address, pytest.raises(NoAnswer, match="another secret"):
        ask_replica(address, b"t" * 32)


def test_nobody_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(NoAnswer, match="no such file"):
        ask_replica(f"unix:{tmp_path}/socket", SECRET)
