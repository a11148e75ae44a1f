"""The stream that every competitor counts, its command line, and the form of what it measured.

The same parameters give the same stream: record `i` is `words` words of a vocabulary whose frequencies fall as one over
the rank, and it is due at `i / rate` seconds from the first. The stream repeats itself after `POOL` records, so that
making it costs a competitor nothing while it runs. A record reaches the counters as one message for each counter that
has any of its words, and each message is done when the sink has seen the counts that it changed.

A run takes `warm_up_s + seconds`, and its warm-up is in its result too. With rate 0 all records are there from the
start, the system takes as many as it can until the time is up, and the result has no times of messages: there are
millions of them, and none is ever late.

Nothing but the standard library is imported here: the environments of the competitors have nothing else in common.
"""

import argparse
import json
import random
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

POOL = 10_000
"""After so many records the stream repeats itself."""

CHECKPOINT_INTERVAL_S = 1.0
"""How often each competitor makes its state durable, where it does that by time."""

Message = tuple[int, list[str]]
"""The counter, and those words of one record that are its own."""

Row = tuple[int, int, float]
"""The number of the record, the counter, and when it was done, in seconds since the first record was due."""


@dataclass(frozen=True)
class Stream:
    """What is to be counted; every method depends on the parameters alone."""

    rate: float = 100.0
    seconds: float = 10.0
    warm_up_s: float = 0.0
    words: int = 10
    vocabulary: int = 1000
    seed: int = 0
    counters: int = 2

    @property
    def duration_s(self) -> float:
        """How long records keep coming."""
        return self.warm_up_s + self.seconds

    @property
    def records(self) -> int | None:
        """How many records there are; None where the time is the limit."""
        return round(self.rate * self.duration_s) if self.rate else None

    @cached_property
    def pool(self) -> list[list[str]]:
        """The records up to where they repeat, in their order."""
        source = random.Random(self.seed)
        vocabulary = [f"w{rank}" for rank in range(self.vocabulary)]
        weights = [1 / (rank + 1) for rank in range(self.vocabulary)]
        pooled = min(POOL, self.records or POOL)
        return [source.choices(vocabulary, weights, k=self.words) for _ in range(pooled)]

    @cached_property
    def pool_messages(self) -> list[list[Message]]:
        """Of each record of the pool: its messages, by rising counter."""
        return [self._grouped(record) for record in self.pool]

    def _grouped(self, record: list[str]) -> list[Message]:
        by_counter: dict[int, list[str]] = {}
        for word in record:
            by_counter.setdefault(self.counter_of(word), []).append(word)
        return sorted(by_counter.items())

    def counter_of(self, word: str) -> int:
        """Whose word it is."""
        return zlib.crc32(word.encode()) % self.counters

    def messages(self, number: int) -> list[Message]:
        """What record `number` sends to the counters."""
        return self.pool_messages[number % len(self.pool)]

    def due_s(self, number: int) -> float:
        """When record `number` is due, in seconds after the first."""
        return number / self.rate if self.rate else 0.0

    def due_by(self, second: float) -> int:
        """How many records are due at `second`; without a rate, all that can be taken."""
        if self.records is None:
            return sys.maxsize if second < self.duration_s else 0
        return min(self.records, int(second * self.rate) + 1)

    def truth(self, records: int) -> dict[str, int]:
        """The counts after the first `records` records."""
        rounds, rest = divmod(records, len(self.pool))
        counts: Counter[str] = Counter()
        for number, record in enumerate(self.pool):
            times = rounds + (number < rest)
            for word in record if times else ():
                counts[word] += times
        return dict(counts)


@dataclass(frozen=True)
class Promise:
    """What a competitor says of itself."""

    guarantee: str
    promised: str
    versions: dict[str, str]


def result(stream: Stream, rows: Iterable[Row], counts: dict[str, int], promise: Promise) -> dict[str, Any]:
    """What one run has measured, in the order in which messages were due."""
    ordered = sorted(rows)
    if not ordered:
        raise RuntimeError("nothing was counted before the time was up: it needs more seconds")
    timed = ordered if stream.rate else []
    return {
        "due_s": [round(stream.due_s(number), 6) for number, _, _ in timed],
        "done_s": [round(done_s, 6) for _, _, done_s in timed],
        "counter": [counter for _, counter, _ in timed],
        "counts": dict(sorted(counts.items())),
        "records": len({number for number, _, _ in ordered}),
        "words_per_s": round(words_per_s(stream, ordered), 1),
        "warm_up_s": stream.warm_up_s,
        "guarantee": promise.guarantee,
        "promised": promise.promised,
        "versions": promise.versions,
    }


def words_per_s(stream: Stream, rows: Sequence[Row]) -> float:
    """Words done per second after the warm-up: from the first sign of life to the last, so that batches count whole."""
    done = Counter[float]()
    for number, counter, done_s in rows:
        if stream.warm_up_s <= done_s <= stream.duration_s:
            done[done_s] += len(dict(stream.messages(number))[counter])
    if len(done) < 2:
        return sum(done.values()) / stream.seconds
    first, last = min(done), max(done)
    return (sum(done.values()) - done[first]) / (last - first)


def main(run: Callable[[Stream, bool], dict[str, Any]], *, has_effects: bool = False) -> None:
    """Run a competitor as the command line says, and write down what it measured, whole or not at all."""
    arguments = _arguments(has_effects)
    out, effects = arguments.pop("out"), arguments.pop("effects", False)
    try:
        measured = run(Stream(**arguments), effects)
    except Exception as failure:  # noqa: BLE001 a process has no one else to tell, and its exit code says it
        sys.exit(f"{type(failure).__name__}: {_cause(str(failure))}")
    partial = out.with_suffix(".partial")
    partial.write_text(json.dumps(measured), encoding="utf-8")
    partial.replace(out)


def _cause(text: str) -> str:
    """One line of an error: its first, or the innermost cause where Java has printed its causes."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    return (causes[-1:] or lines[:1] or [""])[0]


def _arguments(has_effects: bool) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=Stream.rate, help="records per second; 0: all that it can take")
    parser.add_argument("--seconds", type=float, default=Stream.seconds, help="measured time")
    parser.add_argument("--warm-up-s", type=float, default=Stream.warm_up_s, help="time before that")
    parser.add_argument("--words", type=int, default=Stream.words, help="words per record")
    parser.add_argument("--vocabulary", type=int, default=Stream.vocabulary, help="different words")
    parser.add_argument("--seed", type=int, default=Stream.seed)
    parser.add_argument("--counters", type=int, default=Stream.counters, help="keyed partitions")
    parser.add_argument("--out", type=Path, required=True, help="where the result goes")
    if has_effects:
        parser.add_argument("--effects", action="store_true", help="done is what is visible in a committed output")
    return vars(parser.parse_args())
