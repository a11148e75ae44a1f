"""From replies to what a record holds: distributions, slices of the time around a failure, and pauses."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from benchmarks.suite.driving import Reply
from benchmarks.suite.records import Group, Latency, Moment

SLICE_S = 0.1
AROUND_S = 15.0
"""After a failure: a pause that begins later has another cause."""

Groups = dict[Group, list[Reply]]


def latency_of(latencies_ms: Iterable[float]) -> Latency:
    """A distribution."""
    ordered = sorted(latencies_ms)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return Latency(
        count=len(ordered), mean_ms=sum(ordered) / len(ordered), p50_ms=at(0.5), p90_ms=at(0.9), p99_ms=at(0.99),
        p999_ms=at(0.999), max_ms=ordered[-1], quantiles_ms=[round(at(step / 200), 5) for step in range(201)],
    )  # fmt: skip


def grouped(replies: Sequence[Reply], affected: Sequence[str]) -> Groups:
    """Replies of all lanes, and where a failure has affected some, of these and of the others; without failed calls."""
    answered = [reply for reply in replies if reply.error is None]
    groups: Groups = {"all": answered}
    if affected:
        groups["affected"] = [reply for reply in answered if reply.lane in affected]
        groups["others"] = [reply for reply in answered if reply.lane not in affected]
    return groups


def latencies(groups: Groups, lower_s: float, upper_s: float = float("inf")) -> dict[Group, Latency]:
    """The distribution of each group that has any reply among those due in a span of time."""
    found = {
        group: [reply.latency_ms for reply in replies if lower_s <= reply.due_s < upper_s]
        for group, replies in groups.items()
    }
    return {group: latency_of(values) for group, values in found.items() if values}


def timeline(groups: Groups, seconds: float) -> list[Moment]:
    """Slices, each with the replies that were due in it, and how many came in it."""
    count = int(seconds / SLICE_S) + 1
    moments = []
    for group, replies in groups.items():
        due: list[list[float]] = [[] for _ in range(count)]
        done = [0] * count
        for reply in replies:
            due[min(count - 1, int(reply.due_s / SLICE_S))].append(reply.latency_ms)
            done[min(count - 1, int(reply.done_s / SLICE_S))] += 1
        moments += [_moment(group, at, due[at], done[at]) for at in range(count) if due[at] or done[at]]
    return moments


def _moment(group: Group, at: int, latencies_ms: list[float], done: int) -> Moment:
    ordered = sorted(latencies_ms) or [0.0]
    last = len(ordered) - 1
    return Moment(second=round(at * SLICE_S, 3), group=group, count=len(latencies_ms), p50_ms=ordered[last // 2],
                  p99_ms=ordered[int(last * 0.99)], max_ms=ordered[-1], done=done)  # fmt: skip


def pauses_ms(groups: Groups, failed_s: float) -> dict[Group, float]:
    """For each group the longest time without a reply around a failure, less the longest before it."""
    return {
        group: _pause_ms([reply.done_s for reply in replies], failed_s) for group, replies in groups.items() if replies
    }


def _pause_ms(done_s: list[float], failed_s: float) -> float:
    gaps = list(pairwise(sorted(done_s)))
    before = max((after - first for first, after in gaps if after <= failed_s), default=0.0)
    around = max((after - first for first, after in gaps if after > failed_s and first < failed_s + AROUND_S),
                 default=0.0)  # fmt: skip
    return 1e3 * max(0.0, around - before)
