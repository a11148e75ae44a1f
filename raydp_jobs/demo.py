"""The demo: counts the words of a text while an actor and a Spark executor are killed, and proves the result.

    python -m raydp_jobs.demo

The text is the Python sources of the standard library, as it is installed. The truth is counted by one plain loop over
the same files, without Spark and without Ray.
"""

import logging
import re
import sys
import sysconfig
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from raydp_jobs.wordcount import main as count_words

FILES = 150
"""Some megabytes, and some 400,000 words."""

TOKENS = "ray._private.authentication.authentication_token_setup"
WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
KILLS = ("--kill", "executor@1", "--kill", "actor@4")


def texts() -> list[Path]:
    """The text: the largest modules of the standard library that are ASCII, where everybody agrees on words."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.glob("[a-z]*.py"), key=lambda file: (-file.stat().st_size, file.name))
    return [file for file in files if file.read_bytes().isascii()][:FILES]


def truth(files: list[Path]) -> dict[str, int]:
    """What a plain loop counts."""
    counts: Counter[str] = Counter()
    for file in files:
        for line in file.read_text(encoding="ascii").splitlines():
            counts.update(WORD.findall(line.lower()))
    return dict(counts)


def main() -> int:
    """Count, kill, and compare."""
    logging.getLogger(TOKENS).setLevel(logging.ERROR)  # Ray warns that it asks for a token, which is as it should be
    files = texts()
    size = sum(file.stat().st_size for file in files)
    print(f"Counting the words of {len(files)} modules of Python's library, {size / 1e6:.1f} MB, with Spark and actors "
          "on Ray.\nA Spark executor and an actor are killed on the way (kill -9).\n", flush=True)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "counted"
        status = count_words([*map(str, files), "--output", str(output), *KILLS])
        if status:
            return status
        found = pq.read_table(output / "counts").to_pydict()
    counted = dict(zip(found["word"], found["count"], strict=True))
    expected = truth(files)
    if counted != expected:
        print(f"\nWRONG: {len(set(counted.items()) ^ set(expected.items()))} counts differ from those of a plain loop")
        return 1
    print(f"\nProved: all {len(expected):,} words have the counts that a plain loop over the same files has, "
          f"{sum(expected.values()):,} in all.")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
