"""The benchmark of store engines runs, and every engine keeps what it commits; how fast, no test asserts."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks import store_engines
from lineage_stash.store.segment import read_groups


def test_every_engine_is_measured_with_the_same_commits(tmp_path: Path) -> None:
    figures = store_engines.measure(range_bytes=100, group_size=3, commits=20, folder=tmp_path)
    assert [len(taken) for taken in figures.values()] == [20, 20, 20]
    committed = [group for group in read_groups(tmp_path / "segment", 1) if group.frames]
    with closing(sqlite3.connect(tmp_path / "ranges.sqlite")) as connection:
        rows = connection.execute("SELECT content FROM ranges").fetchall()
    assert [(frame,) for group in committed for frame in group.frames] == rows
    assert (tmp_path / "growing").read_bytes() == b"".join(content for (content,) in rows)


def test_benchmark_prints_a_row_for_every_engine_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    store_engines.main(most_commits=20)
    printed = capsys.readouterr().out
    assert [printed.count(engine) for engine in ("segment file", "SQLite", "file that grows")] == [4, 4, 4]
