"""Figures of cost: bytes of lineage, memory over time, and how cost grows with actors, calls and failures survived."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from benchmarks.suite.records import Lineage, Record
from benchmarks.suite.report.drawing import Drawn, Missing, Shown, delay_of, listed, milliseconds
from benchmarks.suite.report.looks import (
    NEUTRAL,
    PHASE_SHADES,
    End,
    colour_of,
    label_ends,
    new_figure,
    plain_number,
    style_of,
    with_plain_ticks,
)
from benchmarks.suite.report.runs import STASH, Runs, label_of, setting_of, system_of

MOST_BARS = 18
MOST_PANELS = 4
FLUSHED, FORWARDED = PHASE_SHADES["settle"].light, PHASE_SHADES["replay"].light
UNLIMITED = "unlimited"


class PerCall(NamedTuple):
    """What was written down, per call and per second."""

    forwarded: float
    flushed: float
    forwarded_per_s: float
    flushed_per_s: float


def per_call(lineage: Lineage) -> PerCall:
    """A run's lineage by the calls and the seconds of the run."""
    calls, seconds = max(lineage.calls, 1), max(lineage.seconds, 1e-9)
    return PerCall(
        lineage.forwarded_bytes / calls,
        lineage.flushed_bytes / calls,
        lineage.forwarded_bytes / seconds,
        lineage.flushed_bytes / seconds,
    )


def lineage_bytes(runs: Runs) -> Shown:
    """Bytes that were forwarded with messages and flushed to the store."""
    name, title = "lineage-bytes", "Bytes of lineage"
    written: list[tuple[Record, Lineage]] = []
    for record in runs.ok.of(is_failing=False):
        if record.lineage is not None and record.lineage.calls:
            written.append((record, record.lineage))
    if not written:
        return Missing(name, title, "no run without failures has counted its lineage")
    written = sorted(written, key=lambda pair: (pair[0].cell.workload, label_of(pair[0].cell)))[:MOST_BARS][::-1]
    figure, [[each, rate]] = new_figure(1, 2, width=9.2, height=1.5 + 0.36 * len(written), sharey=True)
    labels = [
        f"{record.cell.workload} · {label_of(record.cell)} · {setting_of(record.cell)}"[:52] for record, _ in written
    ]
    costs = [per_call(lineage) for _, lineage in written]
    _draw_pairs(each, [(cost.forwarded, cost.flushed) for cost in costs], "bytes per call")
    _draw_pairs(rate, [(cost.forwarded_per_s / 1e6, cost.flushed_per_s / 1e6) for cost in costs], "MB per second")
    each.set_yticks(range(len(labels)), labels)
    figure.legend(
        [Patch(color=FORWARDED), Patch(color=FLUSHED)], ["forwarded with messages", "flushed to the store"],
        loc="outside upper center", ncols=2, fontsize=9,
    )  # fmt: skip
    words = [
        f"{label}: {plain_number(cost.forwarded)} forwarded and {plain_number(cost.flushed)} flushed bytes per call"
        for label, cost in zip(reversed(labels), reversed(costs), strict=True)
    ]
    caption = "All processes together: lineage in messages and to the store, with payloads that are logged by content."
    return Drawn(name, title, figure, caption, "; ".join(words))


def _draw_pairs(axes: Axes, pairs: Sequence[tuple[float, float]], label: str) -> None:
    for height, (forwarded, flushed) in enumerate(pairs):
        axes.barh(height + 0.19, forwarded, color=FORWARDED, height=0.36, zorder=3)
        axes.barh(height - 0.19, flushed, color=FLUSHED, height=0.36, zorder=3)
        axes.text(forwarded, height + 0.19, f" {plain_number(forwarded)}", va="center", fontsize=7.5)
        axes.text(flushed, height - 0.19, f" {plain_number(flushed)}", va="center", fontsize=7.5)
    axes.set_xlabel(label)
    axes.margins(x=0.18)
    axes.set_xlim(left=0)
    axes.grid(axis="y", visible=False)
    with_plain_ticks(axes.xaxis)


def memory_over_time(runs: Runs) -> Shown:
    """Resident memory of every process that a system reports, of its longest run."""
    name, title = "memory-over-time", "Memory over time"
    sampled = runs.ok.where(lambda record: record.memory)
    longest: dict[str, Record] = {}
    for record in sampled:
        label = label_of(record.cell)
        if label not in longest or record.memory[-1].second > longest[label].memory[-1].second:
            longest[label] = record
    shown = sorted(longest.values(), key=lambda record: -record.memory[-1].second)[:MOST_PANELS]
    if not shown:
        return Missing(name, title, "no run has samples of memory")
    figure, axes = new_figure(1, len(shown), width=max(2.4 * len(shown) + 1.4, 5), height=3.4, sharey=True)
    for panel, record in zip(axes[0], Runs(shown), strict=True):
        _draw_memory(panel, record)
    axes[0][0].set_ylabel("resident, MB")
    words = [f"{label_of(record.cell)}: {_memory_in_words(record)}" for record in Runs(shown)]
    caption = "Resident memory of each process over the longest run of a system. Level is what one wants to see."
    return Drawn(name, title, figure, caption, "; ".join(words))


def _series(record: Record) -> dict[str, list[tuple[float, float]]]:
    series: dict[str, list[tuple[float, float]]] = {}
    for sample in record.memory:
        series.setdefault(sample.process, []).append((sample.second, sample.resident_bytes / 1e6))
    return series


def _draw_memory(axes: Axes, record: Record) -> None:
    label = label_of(record.cell)
    for number, (process, points) in enumerate(sorted(_series(record).items())[:6]):
        axes.plot([at for at, _ in points], [value for _, value in points], color=colour_of(label), linewidth=1.2,
                  alpha=1.0 if number == 0 else 0.75)  # fmt: skip
        axes.annotate(process[:16], points[-1], xytext=(-2, 3), textcoords="offset points", fontsize=7.5, ha="right",
                      color=NEUTRAL["quiet"].light)  # fmt: skip
    axes.set_title(f"{label}\n{record.cell.workload}")
    axes.set_xlabel("seconds")
    axes.set_ylim(bottom=0)


def _memory_in_words(record: Record) -> str:
    return ", ".join(
        f"{process} {plain_number(points[0][1])} to {plain_number(points[-1][1])} MB"
        for process, points in sorted(_series(record).items())
    )


# growth


class Grower(NamedTuple):
    """Something that cost may grow with: its name, where a record has it, and what must be the same besides."""

    title: str
    label: str
    value: Callable[[Record], float | None]
    ignored: tuple[str, ...]


def _number(record: Record, *names: str) -> float | None:
    for name in names:
        value = record.cell.parameters.get(name, record.figures.get(name))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


ACTORS = ("actors", "nodes", "length", "counters", "hops")
CALLS = ("calls_before", "calls_so_far", "calls")


def max_failures_of(record: Record) -> str | None:
    """How many failures at once a run was set to survive: a number, or unlimited; None if it does not say."""
    for part in record.cell.variant.replace(",", " ").split():
        name, _, value = part.partition("=")
        if name == "max_failures":
            return UNLIMITED if value.lower() in ("none", "unlimited", "inf", "") else value
    return None


def _failures(record: Record) -> float | None:
    survived = max_failures_of(record)
    return None if survived is None else 16.0 if survived == UNLIMITED else float(survived)


GROWERS = (
    Grower("number of actors", "actors", lambda record: _number(record, *ACTORS), ACTORS),
    Grower("calls so far", "calls before", lambda record: _number(record, *CALLS), CALLS),
    Grower("failures survived at once", "max_failures (∞ at the right)", _failures, ()),
)


def cost_by_size(runs: Runs) -> Shown:
    """Median latency against the number of actors, the calls made before, and `max_failures`."""
    name, title = "cost-by-size", "Cost against size"
    calm = runs.ok.of(is_failing=False).where(lambda record: "all" in record.latency and delay_of(record) == 0)
    panels = [(grower, _lines(calm, grower)) for grower in GROWERS]
    if not any(lines for _, lines in panels):
        wanted = listed([grower.title for grower in GROWERS])
        return Missing(name, title, f"no two runs differ only in the {wanted}")
    figure, axes = new_figure(1, len(panels), width=9.6, height=3.3)
    words = []
    for panel, (grower, lines) in zip(axes[0], panels, strict=True):
        _draw_growth(panel, grower, lines)
        for label, points in lines.items():
            shown = ", ".join(f"{milliseconds(cost)} at {plain_number(size)}" for size, cost in points)
            words.append(f"{label} by {grower.title}: {shown}")
        if not lines:
            words.append(f"by {grower.title}: not measured")
    caption = "Median latency of runs that differ in one size only. An empty panel was not measured."
    return Drawn(name, title, figure, caption, "; ".join(words))


def _lines(calm: Runs, grower: Grower) -> dict[str, list[tuple[float, float]]]:
    grouped: dict[str, dict[float, float]] = {}
    for record in calm:
        size = grower.value(record)
        if size is None:
            continue
        system = system_of(record.cell.system) if grower.value is _failures else label_of(record.cell)
        setting = setting_of(record.cell, without=grower.ignored)
        line = f"{system} · {record.cell.workload} · {setting}".rstrip(" ·")
        grouped.setdefault(line, {}).setdefault(size, record.latency["all"].p50_ms)
    found = {line: sorted(points.items()) for line, points in grouped.items() if len(points) > 1}
    longest = sorted(found, key=lambda line: (not line.startswith(STASH), -len(found[line])))[:6]
    return {line: found[line] for line in longest}


def _draw_growth(axes: Axes, grower: Grower, lines: dict[str, list[tuple[float, float]]]) -> None:
    ends = []
    for line, points in lines.items():
        system = line.split(" · ")[0]
        axes.plot([size for size, _ in points], [cost for _, cost in points], "o" + style_of(line, list(lines)),
                  color=colour_of(system), markersize=4, zorder=3)  # fmt: skip
        ends.append(End(points[-1][1], " · ".join(line.split(" · ")[:2]), colour_of(system)))
    axes.set_title(grower.title)
    axes.set_xlabel(grower.label)
    if not lines:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=NEUTRAL["quiet"].light)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    axes.set_xscale("log", base=2 if grower.value is _failures else 10)
    axes.set_yscale("log")
    axes.set_ylabel("p50, ms (log)")
    sizes = sorted({size for points in lines.values() for size, _ in points})
    axes.set_xticks(sizes if len(sizes) < 6 else sizes[:: len(sizes) // 5 + 1])
    with_plain_ticks(axes.xaxis)
    with_plain_ticks(axes.yaxis)
    label_ends(axes, ends, apart=0.08)
