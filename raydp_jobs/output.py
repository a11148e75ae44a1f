"""What a job leaves behind: one folder that appears at once and whole, and once.

Rules:
- Everything is written into a folder beside the output, named after it and the run, and renamed when it is complete.
- A folder that is there is never written into. If it is of the same run, that has finished; if not, the job is refused.
- A run that is resumed writes anew what it had written. What a run that never came to its end has left lies beside the
  output under its name.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raydp_jobs.inputs import JobError

SUMMARY = "summary.json"


class Output:
    """The folder of one run."""

    def __init__(self, path: str, run_id: str) -> None:
        self.path = Path(path).absolute()
        self.run_id = run_id
        self._unfinished = self.path.with_name(f"{self.path.name}.unfinished-{run_id}")

    def finished(self) -> dict[str, Any] | None:
        """The summary, if this run has left its output; refuses the output of another one."""
        if not os.path.lexists(self.path):
            return None
        try:
            summary: dict[str, Any] = json.loads((self.path / SUMMARY).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            summary = {}
        if summary.get("run_id") == self.run_id:
            return summary
        raise JobError(f"{self.path} is there already: remove it, or choose another --output")

    def begin(self) -> None:
        """Have an empty folder to write into."""
        with self._told():
            shutil.rmtree(self._unfinished, ignore_errors=True)
            self._unfinished.mkdir(parents=True)

    def write(self, name: str, table: pa.Table) -> None:
        """One Parquet file."""
        self.write_by(name, lambda file: pq.write_table(table, file))

    def write_by(self, name: str, write: Callable[[Path], object]) -> None:
        """One file of any kind, such as a plot, by whoever can write it to a path."""
        with self._told():
            file = self._unfinished / name
            file.parent.mkdir(parents=True, exist_ok=True)
            write(file)

    def publish(self, summary: Mapping[str, Any]) -> None:
        """Make the output appear; one that has appeared meanwhile is left alone."""
        with self._told():
            text = json.dumps({"run_id": self.run_id, **summary}, indent=2)
            (self._unfinished / SUMMARY).write_text(text, encoding="utf-8")
            for file in self._unfinished.rglob("*"):
                _flush(file)
            _flush(self._unfinished)
            self.finished()
            self._unfinished.rename(self.path)
            _flush(self.path.parent)

    def discard(self) -> None:
        """Remove what was written so far."""
        shutil.rmtree(self._unfinished, ignore_errors=True)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What goes wrong with a folder is its user's to repair."""
        try:
            yield
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)  # Arrow's own text is for its developers
            raise OutputError(f"cannot write to {self.path}: {reason}") from error


class OutputError(JobError):
    """Nothing is wrong with the run: once the folder can be written to, it can be resumed."""


def _flush(path: Path) -> None:
    """Have a file or a folder on its disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
