"""Asking over real sockets: an answer, a refusal, silence, and nobody there."""

import json
from pathlib import Path

import pytest

from lineage_stash.cli.asking import (
    NoAnswer,
    Standing,
    ask,
    ask_coordinator,
    forget_at,
    list_replica,
    read_log,
    time_replica,
)
from lineage_stash.core.ids import Epoch, Index, PeerId
from lineage_stash.on_ray.links import Kind
from lineage_stash.store import replica as store_replica
from lineage_stash.store.replica import FIRST_EPOCH, Replica
from lineage_stash.wire.connection import Connection
from tests.cli.listeners import SECRET, Store, listening, serving
from tests.cli.planes import MemoryPlane


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    """One that has the logs of three peers."""
    store = Store(tmp_path, MemoryPlane(), 1)
    for peer in ("driver-1/A-1", "driver-1/A-2", "driver-2/A-1"):
        store.write(peer, "driver-1", "driver-1")
    return store.replicas[0]


def test_coordinator_tells_where_it_stands(tmp_path: Path) -> None:
    def answer(link: Connection, kind: int, body: bytes) -> None:
        assert (kind, json.loads(body)) == (Kind.CONTROL, {"status": 1})
        said = {"links": ["driver-1@0"], "spares": 2, "phase": "IDLE"}
        link.send(Kind.CONTROL, json.dumps({"status": said}).encode())

    with listening(tmp_path, answer) as address:
        standing = ask_coordinator(address, SECRET)
    assert standing == Standing(frozenset(("driver-1@0",)), 2, "IDLE", standing.took_ms)
    assert standing.took_ms > 0


def test_replica_is_timed_and_left_as_it_is(tmp_path: Path) -> None:
    replica = Replica()
    with serving(tmp_path, replica) as address:
        assert time_replica(address, SECRET) > 0
    assert (replica.epoch, replica.peers) == (0, [])


def test_all_pages_of_a_list_are_asked_for(tmp_path: Path, replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_replica, "ITEMS_PER_PAGE", 2)
    with serving(tmp_path, replica) as address:
        found = list(list_replica(address, SECRET))
    assert [(item.peer, item.upper) for item in found] == [
        ("driver-1/A-1", 2),
        ("driver-1/A-2", 2),
        ("driver-2/A-1", 2),
    ]


def test_all_pages_of_a_log_are_asked_for(tmp_path: Path, replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_replica, "PAGE_BYTES", 1)
    log = replica.logs[PeerId("driver-1/A-1")]
    log.spans[:] = [log.spans[0]._replace(upper=Index(1)), log.spans[0]._replace(lower=Index(1))]
    with serving(tmp_path, replica) as address:
        found = list(read_log(address, SECRET, PeerId("driver-1/A-1"), Index(0)))
    assert [(span.lower, span.upper) for span in found] == [(0, 1), (1, 2)]


def test_log_that_was_truncated_meanwhile_is_told(tmp_path: Path, replica: Replica) -> None:
    replica.logs[PeerId("driver-1/A-1")].truncate(Index(1))
    with serving(tmp_path, replica) as address:
        assert [span.lower for span in read_log(address, SECRET, PeerId("driver-1/A-1"), Index(1))] == [1]
        with pytest.raises(NoAnswer, match="truncated meanwhile"):
            list(read_log(address, SECRET, PeerId("driver-1/A-1"), Index(0)))


def test_replica_forgets_in_its_epoch_and_refuses_in_a_former_one(tmp_path: Path, replica: Replica) -> None:
    with serving(tmp_path, replica) as address:
        forget_at(address, SECRET, (PeerId("driver-1/A-1"),), FIRST_EPOCH)
        assert replica.peers == ["driver-1/A-2", "driver-2/A-1"]
        replica.epoch = Epoch(3)
        with pytest.raises(NoAnswer, match="gone on to epoch 3"):
            forget_at(address, SECRET, (PeerId("driver-2/A-1"),), FIRST_EPOCH)
    assert replica.peers == ["driver-1/A-2", "driver-2/A-1"]


def test_answer_in_another_format_is_told(tmp_path: Path) -> None:
    def answer(link: Connection, _: int, body: bytes) -> None:
        link.send(Kind.ANSWER, body[:8] + b"from a later version")

    with listening(tmp_path, answer) as address, pytest.raises(NoAnswer, match="cannot be read"):
        time_replica(address, SECRET)


def test_silence_is_given_up(tmp_path: Path) -> None:
    with (
        listening(tmp_path, lambda *_: None) as address,
        pytest.raises(NoAnswer, match=r"no answer within 0\.1 s"),
    ):
        ask(address, SECRET, Kind.CONTROL, b"{}", within_s=0.1)


def test_another_secret_is_told(tmp_path: Path) -> None:
    with listening(tmp_path, lambda *_: None) as address, pytest.raises(NoAnswer, match="another secret"):
        time_replica(address, b"t" * 32)


def test_nobody_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(NoAnswer, match="no such file"):
        time_replica(f"unix:{tmp_path}/socket", SECRET)
