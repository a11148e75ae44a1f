"""How far a job is: a bar where somebody looks, a line now and then where it goes to a log."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

LINE_EVERY_S = 5.0


class Bar:
    """So many steps of one thing."""

    def __init__(self, what: str, total: int, *, quiet: bool) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._quiet = quiet
        self._said_at = 0.0
        self._task: TaskID | None = None
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, console=Console(stderr=True))
            self._task = self._progress.add_task(self._what, total=self._total)
            self._progress.start()
        return self

    def advance(self) -> None:
        """One step is done."""
        self._done += 1
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self._done)
        elif not self._quiet and self._is_time():
            print(f"{self._what}: {self._done} of {self._total}", file=sys.stderr, flush=True)

    def _is_time(self) -> bool:
        now = time.monotonic()
        if self._done < self._total and now - self._said_at < LINE_EVERY_S:
            return False
        self._said_at = now
        return True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        if self._progress is not None:
            self._progress.stop()
