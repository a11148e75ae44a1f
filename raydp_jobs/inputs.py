"""What a job reads: files and folders of text, plain or packed, and of Parquet, listed before anything is started.

A missing or unreadable path is told at once, by name. Hidden files and those that begin with an underscore are left
out of folders, and refused by name: Spark reads none of them, and does not say so.
"""

import gzip
import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

CHUNK_BYTES = 1 << 20
HIDDEN = (".", "_")
PARQUET = (".parquet", ".pq")
ZIP = ".zip"


class JobError(Exception):
    """What its user has to know and to repair, in one line."""


class Inputs(NamedTuple):
    """All files that a job reads, in order."""

    texts: tuple[str, ...]
    tables: tuple[str, ...]
    size_bytes: int

    @property
    def files(self) -> tuple[str, ...]:
        """All of them, in the order of their names."""
        return tuple(sorted((*self.texts, *self.tables)))

    @property
    def count(self) -> int:
        """How many files there are."""
        return len(self.texts) + len(self.tables)

    def named(self, name: str) -> tuple[str, ...]:
        """The files of a table that is one of several: `flights.csv` or `flights.csv.zip` of "flights"."""
        found = tuple(file for file in self.files if Path(file).name.partition(".")[0] == name)
        if not found:
            raise JobError(f"no input: there is no {name}.csv or {name}.parquet among {self.count} file(s)")
        return found


def find_inputs(paths: Sequence[str]) -> Inputs:
    """The files at these paths."""
    files = sorted({file for path in paths for file in _files_at(Path(path))})
    if not files:
        raise JobError(f"no input: there is no file in {', '.join(paths)}")
    tables = tuple(str(file) for file in files if file.suffix in PARQUET)
    texts = tuple(str(file) for file in files if file.suffix not in PARQUET)
    return Inputs(texts, tables, sum(file.stat().st_size for file in files))


def _files_at(path: Path) -> Iterator[Path]:
    if not path.exists():
        raise JobError(f"no input: there is no {path}")
    if path.is_file() and path.name.startswith(HIDDEN):
        raise JobError(f"cannot read {path}: Spark reads no file whose name begins with a dot or an underscore")
    if path.is_dir():
        found = [child for child in sorted(path.rglob("*")) if child.is_file() and not _is_hidden(child, path)]
    else:
        found = [path]
    for file in found:
        if not os.access(file, os.R_OK):
            raise JobError(f"cannot read {file}: permission denied")
        yield file.resolve()


def _is_hidden(file: Path, root: Path) -> bool:
    return any(part.startswith(HIDDEN) for part in file.relative_to(root).parts)


def find_unreadable(paths: Sequence[str]) -> str | None:
    """Which file is broken, for those whose Spark says only that one is; none if it was something else."""
    try:
        inputs = find_inputs(paths)
    except JobError as error:
        return str(error)
    for file in (*inputs.texts, *inputs.tables):
        try:
            _read_through(file)
        except (OSError, EOFError, zipfile.BadZipFile, pa.ArrowException) as error:
            return f"cannot read {file}: {str(error).splitlines()[0]}"
    return None


def _read_through(file: str) -> None:
    if file.endswith(PARQUET):
        pq.read_metadata(file)
    elif file.endswith(".gz"):
        with gzip.open(file) as content:
            while content.read(CHUNK_BYTES):
                pass
    elif file.endswith(ZIP):
        with zipfile.ZipFile(file) as packed:
            packed.testzip()
