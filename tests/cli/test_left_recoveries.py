"""Recoveries that a cluster leaves beside its store."""

from pathlib import Path

import pytest

from lineage_stash.cli import folders
from lineage_stash.cli.records import left_recoveries, read_recoveries
from lineage_stash.on_ray import recovery_file
from lineage_stash.store.disk import DiskReplica
from tests.cli.planes import MemoryPlane


def record(round_: int) -> dict[str, object]:
    return {"round": round_, "peer": "driver-1/Counter-1", "incarnation": round_, "noticed_at": 100.0 - round_}


@pytest.fixture
def plane(tmp_path: Path) -> MemoryPlane:
    found = MemoryPlane()
    found.put("storage", str(tmp_path).encode())
    return found


def test_recovery_is_on_record_and_in_a_file_that_outlives_it(plane: MemoryPlane, tmp_path: Path) -> None:
    recovery_file.keep(plane, record(1))
    recovery_file.keep(plane, record(2))
    assert left_recoveries(tmp_path) == read_recoveries(plane)
    assert [recovery.round for recovery in left_recoveries(tmp_path)] == [2, 1], "the oldest is first"


def test_recovery_is_on_record_where_no_file_can_be_written(plane: MemoryPlane, tmp_path: Path) -> None:
    plane.put("storage", str(tmp_path / "not there").encode())
    recovery_file.keep(plane, record(1))
    assert len(read_recoveries(plane)) == 1
    assert left_recoveries(tmp_path / "not there") == ()


def test_damaged_line_is_left_out(plane: MemoryPlane, tmp_path: Path) -> None:
    recovery_file.keep(plane, record(1))
    for line in (b"{", b"[]", b'"text"', b"{}", b"\xff"):
        recovery_file.append(tmp_path, line)
    assert [recovery.round for recovery in left_recoveries(tmp_path)] == [1]


def test_file_that_is_long_enough_grows_no_more(
    plane: MemoryPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery_file, "MOST_BYTES", 200)
    for round_ in range(1, 6):
        recovery_file.keep(plane, record(round_))
    assert (tmp_path / recovery_file.FILE).stat().st_size <= 200
    assert len(read_recoveries(plane)) == 5


def test_file_goes_with_the_last_replica(tmp_path: Path) -> None:
    recovery_file.append(tmp_path, b"{}")
    for name in ("replica-0", "replica-1"):
        DiskReplica(tmp_path / name, identity=f"a store/{name}").close()
    folders.remove(str(tmp_path / "replica-0"))
    assert (tmp_path / recovery_file.FILE).exists()
    folders.remove(str(tmp_path / "replica-1"))
    assert list(tmp_path.iterdir()) == []
