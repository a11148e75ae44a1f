"""Claims: sentences about what was measured, each made by a function that reads the records it speaks of."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.suite.records import Record, Semantics
from benchmarks.suite.report.bars import Verdict, default_stash, sustained_of, verdicts
from benchmarks.suite.report.drawing import delay_of, listed, milliseconds, ratio
from benchmarks.suite.report.figures_cost import per_call
from benchmarks.suite.report.figures_failing import longest_recovery, phases_in_words, total_ms
from benchmarks.suite.report.looks import plain_number
from benchmarks.suite.report.runs import RIVALS, STASH, SYSTEMS, Runs, label_of, setting_of, system_of

WORSE_BY = 1.05
"""A difference below this is taken for the machine's."""


class Delivered(NamedTuple):
    """What one system delivered under one failure, beside what it had promised."""

    promised: Semantics
    delivered: Semantics
    status: str
    why: str


def semantics_table(runs: Runs) -> dict[tuple[str, str], dict[str, Delivered]]:
    """By workload and failure, then by system with its variant; of several runs the one that broke its promise."""
    table: dict[tuple[str, str], dict[str, Delivered]] = {}
    for record in runs.of(is_failing=True):
        row = table.setdefault((record.cell.workload, record.cell.failure), {})
        seen = Delivered(record.promised, record.delivered, record.status, record.why)
        label = label_of(record.cell)
        if label not in row or row[label].status == "ok":
            row[label] = seen
    return dict(sorted(table.items()))


def summary(runs: Runs) -> str:
    """What there is, in one sentence, and how the bars stand."""
    counted = Counter(record.status for record in runs)
    judged = Counter(verdict.outcome for verdict in verdicts(runs))
    statuses = listed([f"{counted[status]} {status}" for status in ("ok", "wrong", "failed", "skipped")])
    return (
        f"{len(runs)} cells: {statuses}. Of {sum(judged.values())} bars, {judged['met']} are met, {judged['missed']} "
        f"missed and {judged['not measured']} not measured."
    )


def setting_sentences(runs: Runs) -> Iterator[str]:
    """Where and when it was measured."""
    measured = [record for record in runs if record.status != "skipped"]
    if not measured:
        yield "Nothing was measured."
        return
    machines = sorted({f"{r.environment.machine}, {r.environment.cores} cores, "
                       f"{r.environment.memory_bytes / 2**30:.0f} GiB, Linux {r.environment.kernel}, "
                       f"Python {r.environment.python}" for r in measured})  # fmt: skip
    yield f"All systems ran on {'the same machine' if len(machines) == 1 else 'these machines'}: {'; '.join(machines)}."
    days = sorted(record.started_at[:10] for record in measured if record.started_at)
    if days:
        yield f"The runs are of {days[0]}." if days[0] == days[-1] else f"The runs are of {days[0]} to {days[-1]}."
    uncompiled = sum(not record.environment.is_compiled for record in measured if record.cell.system == STASH)
    if uncompiled:
        yield f"In {uncompiled} runs of stash its hot modules were not compiled, which makes it slower."
    busy = [record.environment.load_before for record in measured]
    if max(busy) > 1:
        yield (
            f"The machine was not idle: before the runs its load was between {min(busy):.1f} and {max(busy):.1f}, so "
            "that absolute figures are worse than on a quiet one; compare systems with each other."
        )


def calm_sentences(runs: Runs) -> Iterator[str]:
    """What stash costs when nothing fails, beside each other system in the same setting."""
    calm = runs.ok.of(is_failing=False).where(lambda record: "all" in record.latency and delay_of(record) == 0)
    for mine in default_stash(calm):
        for theirs in calm.alike(mine):
            if theirs.cell.system != STASH:
                own, other = mine.latency["all"], theirs.latency["all"]
                yield (
                    f"{mine.cell.workload} ({setting_of(mine.cell) or 'its defaults'}): stash answers in "
                    f"{milliseconds(own.p50_ms)} (p50) and {milliseconds(own.p99_ms)} (p99), {label_of(theirs.cell)} "
                    f"in "
                    f"{milliseconds(other.p50_ms)} and {milliseconds(other.p99_ms)}: "
                    f"{ratio(own.p50_ms / other.p50_ms)} and "
                    f"{ratio(own.p99_ms / other.p99_ms)}."
                )


def throughput_sentences(runs: Runs) -> Iterator[str]:
    """The most that each system sustains."""
    found = {system: sustained_of(runs, system) for system in SYSTEMS}
    measured = {system: most for system, most in found.items() if most is not None}
    if measured:
        words = [
            f"{system} {plain_number(most)}" for system, most in sorted(measured.items(), key=lambda pair: -pair[1])
        ]
        yield f"Sustained, in words per second: {listed(words)}."
    missing = [system for system, most in found.items() if most is None]
    if missing:
        yield f"What {listed(missing)} can sustain was not measured."


def failure_sentences(runs: Runs) -> Iterator[str]:
    """What each failure did to stash."""
    for record in runs.ended.of(system=STASH, is_failing=True):
        parts = [f"{record.cell.workload}, {record.cell.failure} ({label_of(record.cell)}): {record.delivered}"]
        if record.pause_ms:
            pauses = [f"{group} {milliseconds(value)}" for group, value in sorted(record.pause_ms.items())]
            parts.append(f"pause of {listed(pauses)}")
        if record.recoveries:
            longest = longest_recovery(record)
            parts.append(f"longest recovery {milliseconds(total_ms(longest))} ({phases_in_words(longest)})")
        yield f"{'; '.join(parts)}."


def cost_sentences(runs: Runs) -> Iterator[str]:
    """What is written down per call."""
    for record in runs.ok.of(system=STASH, is_failing=False):
        if record.lineage is not None and record.lineage.calls:
            cost = per_call(record.lineage)
            yield (
                f"{record.cell.workload} ({label_of(record.cell)}; {setting_of(record.cell) or 'its defaults'}): "
                f"{plain_number(cost.forwarded)} bytes forwarded and {plain_number(cost.flushed)} flushed per call, "
                f"{plain_number(cost.forwarded_per_s / 1e6)} and {plain_number(cost.flushed_per_s / 1e6)} MB/s."
            )


class Worse(NamedTuple):
    """One figure in which another system is better than this one."""

    what: str
    own: str
    other: str
    by: float
    who: str


def where_worse(runs: Runs) -> list[Worse]:
    """Every figure in which stash with its defaults is behind another system in the same setting, the worst first.

    Not compared are runs that lost something: what never came has no latency.
    """
    found: list[Worse] = []
    for mine in default_stash(runs):
        for theirs in runs.ok.alike(mine):
            if theirs.cell.system != STASH and theirs.delivered not in ("gap", "divergent"):
                found.extend(_behind(mine, theirs))
    return sorted(found, key=lambda worse: -worse.by)


def _behind(mine: Record, theirs: Record) -> Iterator[Worse]:
    place = f"{mine.cell.workload}, {setting_of(mine.cell) or 'its defaults'}"
    place += f", {mine.cell.failure}" if mine.cell.failure else ""
    pairs: list[tuple[str, float, float, bool]] = []
    for which in ("p50_ms", "p99_ms", "max_ms"):
        if "all" in mine.latency and "all" in theirs.latency:
            own, other = (float(getattr(record.latency["all"], which)) for record in (mine, theirs))
            pairs.append((which.removesuffix("_ms"), own, other, True))
    for group in sorted(set(mine.pause_ms) & set(theirs.pause_ms)):
        pairs.append((f"pause of {group}", mine.pause_ms[group], theirs.pause_ms[group], True))
    for name in sorted(set(mine.figures) & set(theirs.figures)):
        if name.endswith(("_per_s", "_ms")):
            pairs.append((name, mine.figures[name], theirs.figures[name], name.endswith("_ms")))
    pairs.append(("memory of all processes, MB", *_memory(mine, theirs), True))
    for what, own, other, lower_is_better in pairs:
        if own > 0 and other > 0:
            by = own / other if lower_is_better else other / own
            if by > WORSE_BY:
                yield Worse(f"{what} · {place}", plain_number(own), plain_number(other), by, label_of(theirs.cell))


def _memory(mine: Record, theirs: Record) -> tuple[float, float]:
    return _resident_mb(mine), _resident_mb(theirs)


def _resident_mb(record: Record) -> float:
    last: dict[str, int] = {}
    for sample in record.memory:
        last[sample.process] = sample.resident_bytes
    return sum(last.values()) / 1e6


def not_ended_well(runs: Runs) -> list[Record]:
    """Runs that were wrong, failed or skipped."""
    return [record for record in runs if record.status != "ok"]


def absent_systems(runs: Runs) -> list[str]:
    """Systems that no run of this report is of."""
    present = {system_of(record.cell.system) for record in runs.where(lambda record: record.status != "skipped")}
    return [system for system in SYSTEMS if system not in present]


def guarantees(runs: Runs) -> list[tuple[str, str, str]]:
    """Of each system here: its label, what it promises, and that in its own words."""
    found: dict[str, tuple[str, str, str]] = {}
    for record in runs:
        system = system_of(record.cell.system)
        if record.guarantee and system not in found:
            found[system] = (system, record.promised, record.guarantee)
    return [found[system] for system in sorted(found, key=lambda s: SYSTEMS.index(s) if s in SYSTEMS else 99)]


def closing(runs: Runs) -> Iterator[str]:
    """What the missed bars are, and what is not known."""
    judged: list[Verdict] = verdicts(runs)
    for verdict in judged:
        if verdict.outcome == "missed":
            yield f"Missed: {verdict.bar}. Measured: {verdict.measured}."
    absent = absent_systems(runs)
    rivals = [system for system in absent if system in RIVALS]
    if rivals:
        yield f"Nothing is known here of {listed(rivals)}: `make peers` makes their environments."
