"""Bars: what the suite must show, each computed from records as met, missed or not measured.

A bar that has no record says what to run. A verdict always comes with the figures it was made of, and runs that are
compared have the same workload, parameters and failure. Where several pairs of runs tell, the worst one decides.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from benchmarks.suite.oracle import keeps
from benchmarks.suite.records import Latency, Record, Semantics
from benchmarks.suite.report.drawing import DELAY, delay_of, listed, milliseconds, ratio
from benchmarks.suite.report.looks import plain_number
from benchmarks.suite.report.runs import STASH, Runs, label_of, setting_of

Outcome = Literal["met", "missed", "not measured"]

SLOW_STORE_MS = 100.0
LEVEL_WITHIN = 0.05
GROWS_BY = 0.5
"""A system that waits for the store at least once per hop must show at least half of the delay added."""
P50_OF_PLAIN, P99_OF_PLAIN = 0.25, 0.5
FASTER_THAN_PLAIN = 10.0
OUTPUT_P99_MS = 50.0
UNDISTURBED = 1.5
PAUSE_SHARE = 0.5
ENOUGH_FOR_P99 = 300
"""With fewer latencies the p99 is one of the three longest, which says little: such a verdict is marked."""

SUSTAINED = "words_per_s"
RATE = "rate"


class Verdict(NamedTuple):
    """One bar, what was measured, and whether that meets it."""

    workload: str
    bar: str
    measured: str
    outcome: Outcome
    to_run: str = ""
    """What to run where nothing was measured."""


class Bar(NamedTuple):
    """Something that must be shown, and the function that looks."""

    workload: str
    words: str
    judge: Callable[[Runs], tuple[Outcome, str]]
    to_run: str


def verdicts(runs: Runs) -> list[Verdict]:
    """Every bar beside what the records say."""
    found = []
    for bar in BARS:
        outcome, measured = bar.judge(runs)
        found.append(
            Verdict(bar.workload, bar.words, measured, outcome, bar.to_run if outcome == "not measured" else "")
        )
    return found


def nothing(what: str = "") -> tuple[Outcome, str]:
    """The verdict where there is no record to judge by."""
    return "not measured", what or "there is no such run"


def _judged(is_met: bool, words: str) -> tuple[Outcome, str]:
    return ("met" if is_met else "missed"), words


def default_stash(runs: Runs) -> Runs:
    """Runs of this project with its defaults that ended well."""
    return runs.ok.of(system=STASH, variant="")


# the ring


def _ring_by_delay(runs: Runs, system: str) -> dict[float, Record]:
    ring = runs.ok.of(workload="ring", system=system, variant="", is_failing=False)
    ring = ring.where(lambda record: "all" in record.latency).commonest(without=(DELAY,))
    return {delay_of(record): record for record in ring}


def ring_is_level(runs: Runs) -> tuple[Outcome, str]:
    """Whether the median of the ring is the same with a slow store."""
    ring = _ring_by_delay(runs, STASH)
    if 0.0 not in ring or SLOW_STORE_MS not in ring:
        return nothing()
    quick, slow = (ring[delay].latency["all"].p50_ms for delay in (0.0, SLOW_STORE_MS))
    words = (
        f"p50 {milliseconds(quick)} at +0 ms and {milliseconds(slow)} at +{SLOW_STORE_MS:g} ms: {ratio(slow / quick)}"
    )
    return _judged(abs(slow / quick - 1) <= LEVEL_WITHIN, words)


def sync_log_grows(runs: Runs) -> tuple[Outcome, str]:
    """Whether a log that is written first shows the store's delay."""
    ring = _ring_by_delay(runs, "sync-log")
    if 0.0 not in ring or len(ring) < 2:
        return nothing()
    longest = max(ring)
    medians = [ring[delay].latency["all"].p50_ms for delay in sorted(ring)]
    words = ", ".join(
        f"{milliseconds(value)} at +{delay:g} ms" for delay, value in zip(sorted(ring), medians, strict=True)
    )
    return _judged(medians == sorted(medians) and medians[-1] - medians[0] >= GROWS_BY * longest, f"p50 {words}")


# wordcount


def _calm(runs: Runs, system: str) -> Runs:
    calm = runs.ok.of(workload="wordcount", system=system, variant="", is_failing=False)
    return calm.where(lambda record: "all" in record.latency and is_paced(record))


def is_paced(record: Record) -> bool:
    """Whether records came at a fixed rate; without one a run looks for the most that a system sustains."""
    return bool(record.cell.parameters.get(RATE))


def _pairs(runs: Runs, other: str) -> Iterator[tuple[Record, Record]]:
    """Runs of this project and of another system at the same rate."""
    for mine in _calm(runs, STASH):
        for theirs in _calm(runs, other):
            if mine.cell.parameters == theirs.cell.parameters:
                yield mine, theirs


def _compared(runs: Runs, other: str, which: str, most: float) -> tuple[Outcome, str]:
    pairs = [(getattr(mine.latency["all"], which), getattr(theirs.latency["all"], which), mine) for mine, theirs in
             _pairs(runs, other)]  # fmt: skip
    if not pairs:
        return nothing(f"there are no runs of {STASH} and {other} with the same parameters")
    mine, theirs, record = max(pairs, key=lambda pair: pair[0] / pair[1])
    words = (
        f"{which.removesuffix('_ms')} {milliseconds(mine)} against {milliseconds(theirs)} of {other}: "
        f"{ratio(mine / theirs)} ({setting_of(record.cell)})"
    )
    words += _doubt(record.latency["all"]) if which == "p99_ms" else ""
    return _judged(mine <= most * theirs, words)


def _doubt(latency: Latency) -> str:
    return f"; of {latency.count} latencies only" if latency.count < ENOUGH_FOR_P99 else ""


def below_pyflink(runs: Runs) -> tuple[Outcome, str]:
    """Whether both the median and the p99 are below those of PyFlink."""
    middle, tail = (_compared(runs, "pyflink", which, 1.0) for which in ("p50_ms", "p99_ms"))
    if middle[0] == "not measured":
        return middle
    return _judged(middle[0] == tail[0] == "met", f"{middle[1]}; {tail[1]}")


def sustained_of(runs: Runs, system: str) -> float | None:
    """The most words per second that a system has sustained; None if nobody looked."""
    found = runs.ok.of(workload="wordcount", system=system, variant="", is_failing=False)
    found = found.where(lambda record: not is_paced(record))
    return max((record.figures[SUSTAINED] for record in found if SUSTAINED in record.figures), default=None)


def _faster(runs: Runs, other: str, least: float) -> tuple[Outcome, str]:
    mine, theirs = sustained_of(runs, STASH), sustained_of(runs, other)
    if mine is None or not theirs:
        return nothing(f"the most that {STASH if mine is None else other} sustains was not measured")
    words = f"{plain_number(mine)} words/s against {plain_number(theirs)} of {other}: {ratio(mine / theirs)}"
    return _judged(mine >= least * theirs, words)


def output_is_quick(runs: Runs) -> tuple[Outcome, str]:
    """Whether an effect that is released by the gate leaves soon."""
    effects = runs.ok.of(workload="effects", is_failing=False).where(lambda record: "all" in record.latency)
    found = default_stash(effects).records
    if not found:
        return nothing()
    worst = max(found, key=lambda record: record.latency["all"].p99_ms)
    latency = worst.latency["all"]
    words = f"p99 {milliseconds(latency.p99_ms)}, p50 {milliseconds(latency.p50_ms)}{_doubt(latency)}"
    for record in effects.of(system="pyflink"):
        words += f"; pyflink p99 {milliseconds(record.latency['all'].p99_ms)}"
    return _judged(latency.p99_ms < OUTPUT_P99_MS, words)


# failures


def _actor_kills(runs: Runs, system: str) -> list[Record]:
    killed = runs.ok.of(workload="wordcount", system=system, variant="", is_failing=True)
    return [record for record in killed if record.cell.failure.startswith("kill:actor") and record.injected]


def others_see_no_pause(runs: Runs) -> tuple[Outcome, str]:
    """Whether keys on other actors are as quick after the kill as before."""
    killed = [record for record in _actor_kills(runs, STASH) if "others" in record.before and "others" in record.after]
    if not killed:
        return nothing()
    worst = max(killed, key=lambda record: record.after["others"].p99_ms / record.before["others"].p99_ms)
    before, after = worst.before["others"], worst.after["others"]
    words = (
        f"p99 of other keys {milliseconds(before.p99_ms)} before and {milliseconds(after.p99_ms)} after: "
        f"{ratio(after.p99_ms / before.p99_ms)} ({worst.cell.failure}{_doubt(before)})"
    )
    return _judged(after.p99_ms <= UNDISTURBED * before.p99_ms, words)


def pause_is_short(runs: Runs) -> tuple[Outcome, str]:
    """Whether the affected keys wait less than half as long as where all roll back."""
    pairs = [
        (mine, theirs)
        for mine in _actor_kills(runs, STASH)
        for theirs in _actor_kills(runs, "global-checkpoint")
        if (mine.cell.failure, mine.cell.parameters) == (theirs.cell.failure, theirs.cell.parameters)
        and "affected" in mine.pause_ms
        and theirs.pause_ms.get("affected")
    ]
    if not pairs:
        return nothing()
    mine, theirs = max(pairs, key=lambda pair: pair[0].pause_ms["affected"] / pair[1].pause_ms["affected"])
    own, other = mine.pause_ms["affected"], theirs.pause_ms["affected"]
    words = (
        f"{milliseconds(own)} against {milliseconds(other)} of global-checkpoint: {ratio(own / other)} "
        f"({mine.cell.failure})"
    )
    return _judged(own < PAUSE_SHARE * other, words)


def _delivered(runs: Runs, promised: Semantics) -> tuple[Outcome, str]:
    failing = runs.of(system=STASH, is_failing=True).where(
        lambda record: record.promised == promised and record.status in ("ok", "wrong", "failed")
    )
    happened = failing.where(lambda record: record.injected or record.status != "ok")
    if not len(happened):
        return nothing()
    others = [record for record in happened if not keeps(promised, record.delivered)]
    delivered = Counter(record.delivered for record in happened if record not in others)
    words = f"{len(happened)} runs with failures: {listed([f'{count} {what}' for what, count in delivered.items()])}"
    for record in others:
        words += f"; {record.cell.workload}, {record.cell.failure} ({label_of(record.cell)}): {record.delivered}"
    return _judged(not others, words)


# everything


def same_commit(runs: Runs) -> tuple[Outcome, str]:
    """Whether all figures come from one commit, as it is committed."""
    measured = runs.where(lambda record: record.status != "skipped")
    if not len(measured):
        return nothing()
    commits = sorted({record.environment.commit[:12] for record in measured})
    changed = sum(record.environment.is_changed for record in measured)
    words = f"{len(measured)} runs of commit {', '.join(commits)}"
    words += f", {changed} of them with changes that are in no commit" if changed else ""
    return _judged(len(commits) == 1 and not changed, words)


def _suite(cells: str) -> str:
    return f"python -m benchmarks suite --quick --only {cells}"


BARS = (
    Bar("ring", "stash: p50 with 100 ms of store delay within 5 % of that with none", ring_is_level, _suite("ring")),
    Bar("ring", "sync-log: p50 grows with the store's delay", sync_log_grows, _suite("ring")),
    Bar("wordcount", f"p50 at most {P50_OF_PLAIN} × plain Ray's at the same rate",
        lambda runs: _compared(runs, "plain", "p50_ms", P50_OF_PLAIN), _suite("wordcount")),
    Bar("wordcount", f"p99 at most {P99_OF_PLAIN} × plain Ray's at the same rate",
        lambda runs: _compared(runs, "plain", "p99_ms", P99_OF_PLAIN), _suite("wordcount")),
    Bar("wordcount", "p50 and p99 below PyFlink's (threads, exactly-once checkpoints every second)", below_pyflink,
        f"make peers, then {_suite('wordcount')}"),
    Bar("wordcount", "sustained throughput at least 10 × plain Ray's",
        lambda runs: _faster(runs, "plain", FASTER_THAN_PLAIN), _suite("wordcount")),
    Bar("wordcount", "sustained throughput at least 10 × PyFlink's",
        lambda runs: _faster(runs, "pyflink", FASTER_THAN_PLAIN), f"make peers, then {_suite('wordcount')}"),
    Bar("wordcount", "sustained throughput ahead of Bytewax's on the same cores",
        lambda runs: _faster(runs, "bytewax", 1.0), f"make peers, then {_suite('wordcount')}"),
    Bar("outputs", f"exactly-once output, released by the gate: p99 under {OUTPUT_P99_MS:g} ms", output_is_quick,
        _suite("effects")),
    Bar("actor kill", f"keys on other actors: p99 after the kill at most {UNDISTURBED} × that of before",
        others_see_no_pause, _suite("wordcount")),
    Bar("actor kill", "affected keys: pause under half of global-checkpoint's", pause_is_short, _suite("wordcount")),
    Bar("failures", "stash is precise in every failure up to max_failures",
        lambda runs: _delivered(runs, "precise"), _suite("stash")),
    Bar("failures", "stash survives or detects every failure beyond max_failures",
        lambda runs: _delivered(runs, "detected"), _suite("stash")),
    Bar("all", "every figure comes from a run at one commit", same_commit, "python -m benchmarks suite --quick"),
)  # fmt: skip
