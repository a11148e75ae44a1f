"""The benchmark of store engines runs, and every engine keeps what it commits; how fast, no test asserts."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks import disk_replica, store_engines
from lineage_stash.store.files import SEGMENT, OpenFile, read_file_header
from lineage_stash.store.segment import SegmentReading


def test_every_engine_is_measured_with_the_same_commits(tmp_path: Path) -> None:
    figures = store_engines.measure(range_bytes=100, group_size=3, commits=20, folder=tmp_path)
    assert [len(taken) for taken in figures.values()] == [20, 20, 20]
    with closing(OpenFile(tmp_path / "segment")) as file:
        reading = SegmentReading(file, read_file_header(file, SEGMENT, 1))
        committed = [
            (file.read(spot.offset, spot.length),)
            for group in reading.groups() for record in group.records for spot in record.spots
        ]  # fmt: skip
    with closing(sqlite3.connect(tmp_path / "ranges.sqlite")) as connection:
        rows = connection.execute("SELECT content FROM ranges").fetchall()
    assert committed == rows
    assert (tmp_path / "growing").read_bytes() == b"".join(content for (content,) in rows)


def test_benchmark_prints_a_row_for_every_engine_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    store_engines.main(most_commits=20)
    printed = capsys.readouterr().out
    assert [printed.count(engine) for engine in ("segment file", "SQLite", "file that grows")] == [4, 4, 4]


def test_benchmark_of_a_replica_measures_everything_and_compacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = disk_replica.Sizes(flushes=16, entries=(1, 20), large_bodies=3, live_spans=300, live_body_bytes=500)
    figures = disk_replica.main(sizes)
    printed = capsys.readouterr().out
    assert len({figure.measure for figure in figures}) == len(figures) == 11
    assert all(0 < figure.median <= figure.high <= figure.worst for figure in figures)
    assert "beside the compaction of 300 bodies" in printed
