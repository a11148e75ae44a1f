"""wordcount: a keyed stream. Records of ten words come at a fixed rate; each word has a counter; counters are actors.

Each record becomes one call to each counter that has words of it, with all of these. A reply is the sum of the counts
of the call's words, and so tells of every earlier call. At rate 0 records come as fast as they are taken.
"""

from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.suite import oracle
from benchmarks.suite.driving import PATIENCE_S, Pacer, Reply, Send, in_chunks
from benchmarks.suite.peers.stream import Stream
from benchmarks.suite.records import Cell
from benchmarks.suite.systems.base import System
from benchmarks.suite.workloads.base import Injection, Measured, Parameter

PARAMETERS = {
    "rate": Parameter(200, "records per second; 0 looks for the most that is sustained"),
    "seconds": Parameter(8.0, "how long, without the warm-up"),
    "warm_up_s": Parameter(2.0, "what is not measured at the beginning"),
    "words": Parameter(10, "of each record"),
    "vocabulary": Parameter(1000, "different words"),
    "counters": Parameter(2, "actors that count"),
}

CHUNK = 1000
"""Records under way at rate 0, twice."""


class Counter:
    """Counts its words."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, words: list[str]) -> int:
        counts = self.counts
        for word in words:
            counts[word] = counts.get(word, 0) + 1
        return sum([counts[word] for word in words])

    def tell(self) -> dict[str, int]:
        return self.counts


def lane_of(counter: int) -> str:
    """The name of a counter."""
    return f"counter-{counter}"


def stream_of(parameters: Mapping[str, Any], seed: int) -> Stream:
    """The records, the same for every system."""
    return Stream(**{name: parameters[name] for name in PARAMETERS}, seed=seed)


def expected_of(stream: Stream, records: int) -> dict[tuple[int, str], int]:
    """The reply of every call."""
    counts: Tally[str] = Tally()
    replies = {}
    for number in range(records):
        for counter, words in stream.messages(number):
            counts.update(words)
            replies[number, lane_of(counter)] = sum(counts[word] for word in words)
    return replies


def run(system: System, cell: Cell, parameters: Mapping[str, Any]) -> Measured:
    """At a rate, with the failures of the cell; or as fast as it goes."""
    stream = stream_of(parameters, cell.seed)
    counters = {lane_of(number): system.actor(Counter, name=lane_of(number)) for number in range(stream.counters)}

    def send(number: int) -> Iterator[tuple[str, Any]]:
        for counter, words in stream.messages(number):
            lane = lane_of(counter)
            yield lane, counters[lane].add.remote(words)

    if stream.records is None:
        return sustain(system, stream, counters, send)
    pacer = Pacer(system, stream.rate, stream.records)
    with Injection(cell, system, lambda: pacer.progress) as injection:
        replies = pacer.run(send)
    state = counted(system, counters, replies)
    expected, truth = expected_of(stream, stream.records), stream.truth(stream.records)
    hit = [each.target for each in injection.injected if each.target in counters]
    return Measured(
        oracle.judge(replies, expected, state, truth, system.detections), replies, warm_up_s=stream.warm_up_s,
        injection=injection, affected=hit, throughput_per_s=stream.rate,
    )  # fmt: skip


def counted(system: System, counters: Mapping[str, Any], replies: list[Reply]) -> dict[str, int]:
    """The counts of all counters; one that is gone has none."""
    last = {reply.lane: reply for reply in replies}
    gone = [lane for lane, reply in last.items() if reply.error is not None]
    asked = [counter.tell.remote() for lane, counter in counters.items() if lane not in gone]
    return {word: count for counts in system.get(asked, PATIENCE_S) for word, count in counts.items()}


def sustain(system: System, stream: Stream, counters: Mapping[str, Any], send: Send) -> Measured:
    """The most words per second; what was counted in all must be what was sent."""
    sent, answered, took_s = in_chunks(system, send, CHUNK, stream.seconds, stream.warm_up_s)
    judged = oracle.judge_state(counted(system, counters, []), stream.truth(sent))
    rate = answered / took_s
    return Measured(judged, throughput_per_s=rate, figures={"words_per_s": rate * stream.words})
