"""Jobs in processes of their own, texts for them to read, and the truth about these, computed by hand."""

import gzip
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lineage_stash.on_spark import processes

ROOT = Path(__file__).parents[2]
WITHIN_S = 280.0
"""How long a job may take on a machine that has other work to do."""
LAST_WORDS_S = 10.0
WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def write_texts(folder: Path, lines: int = 4000) -> Path:
    """Texts of every kind, with three bad rows among them."""
    folder.mkdir()
    rows = [
        f"Line {number} of many: the Grüße of {number % 97}, and it’s {number % 13} again." for number in range(lines)
    ]
    (folder / "plain.txt").write_text("\n".join(rows), encoding="utf-8")
    with gzip.open(folder / "packed.txt.gz", "wt", encoding="utf-8") as packed:
        packed.write("\n".join(rows[: lines // 4]))
    (folder / "inner").mkdir()
    (folder / "inner" / "bad.txt").write_bytes(b"good row\nbro\xffken row\n" + b"long " * 1000 + b"\n")
    (folder / "_left_out.txt").write_text("nobody reads this")
    pq.write_table(pa.table({"number": [1, 2, 3], "text": ["From a table", None, "a TABLE"]}), folder / "rows.parquet")
    return folder


def truth(lines: int = 4000) -> dict[str, int]:
    """The words in these texts, and how often each is there."""
    counts: Counter[str] = Counter()
    for number in range(lines):
        row = f"line {number} of many: the grüße of {number % 97}, and it's {number % 13} again."
        counts.update(
            {word: times * (2 if number < lines // 4 else 1) for word, times in Counter(WORD.findall(row)).items()}
        )
    counts.update(["good", "row", "from", "a", "table", "a", "table"])
    return dict(counts)


def counts_in(output: Path) -> dict[str, int]:
    """What a job has counted."""
    found = pq.read_table(output / "counts").to_pydict()
    assert len(set(found["word"])) == len(found["word"]), "every word is there once"
    return dict(zip(found["word"], found["count"], strict=True))


class RunningJob:
    """A job that was started by itself."""

    def __init__(self, address: str, *arguments: str, job: str = "wordcount") -> None:
        environment = {**os.environ, "RAY_ADDRESS": address}  # and whether there is a token, as Ray has put it there
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"raydp_jobs.{job}", *arguments], cwd=ROOT, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.printed = ""

    def read_until(self, words: str) -> None:
        """Read what it prints up to a line with these words; one that goes on without saying them is killed."""
        assert self.process.stdout is not None
        killer = threading.Timer(WITHIN_S, self.process.kill)
        killer.start()
        try:
            for line in self.process.stdout:
                self.printed += line
                if words in line:
                    return
        finally:
            killer.cancel()
        raise AssertionError(f"it ended, or was killed after {WITHIN_S:g} s, before it said {words!r}:\n{self.printed}")

    def end(self) -> int:
        """Wait for its end; its exit status."""
        self.printed += printed_by(self.process, "the job")
        return self.process.returncode

    @property
    def spark_is_gone(self) -> bool:
        """Whether none of its Spark's processes is there."""
        return not processes.find_processes(script_pid=self.process.pid)


@contextmanager
def started(address: str, *arguments: str, job: str = "wordcount") -> Iterator[RunningJob]:
    """A job, which does not outlive its test."""
    running = RunningJob(address, *arguments, job=job)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()
        assert running.process.stdout is not None
        running.process.stdout.close()  # and not read to its end, which some child may hold open
        wait_for(lambda: running.spark_is_gone, "the end of the job's Spark")


def run(address: str, *arguments: str, job: str = "wordcount") -> tuple[int, str]:
    """Run a job to its end; its exit status, and what it printed."""
    with started(address, *arguments, job=job) as running:
        return running.end(), running.printed


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Wait on a condition."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.1)


def printed_by(process: "subprocess.Popen[str]", what: str, timeout_s: float = WITHIN_S) -> str:
    """All that a process prints up to its end; if it does not end, it is killed and what it printed is told."""
    try:
        return process.communicate(timeout=timeout_s)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        printed = process.communicate(timeout=LAST_WORDS_S)[0]
        raise AssertionError(f"{what} did not end within {timeout_s:g} s; it printed:\n{printed}") from None
