"""Figures of runs with failures: what the affected keys, the others and all of them saw, and where the time went."""

from collections.abc import Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from benchmarks.suite.records import Group, Moment, Record, Recovery
from benchmarks.suite.report.drawing import Drawn, Missing, Shown, milliseconds
from benchmarks.suite.report.looks import (
    GROUP_SHADES,
    NEUTRAL,
    PHASE_SHADES,
    PHASES,
    new_figure,
    plain_number,
    with_plain_ticks,
)
from benchmarks.suite.report.runs import Runs, label_of

MOST_COLUMNS = 5
GROUPS: tuple[Group, ...] = ("affected", "others", "all")
QUIET = NEUTRAL["quiet"].light


def around_failure(runs: Runs) -> Shown:
    """One column for each system: throughput, and latency of the affected keys, of the others and of all."""
    name, title = "around-a-failure", "Around a failure"
    killed = runs.ended.of(workload="wordcount", is_failing=True).where(lambda record: record.timeline)
    if not len(killed):
        return Missing(name, title, "no run of wordcount with a failure has a timeline")
    failure = _commonest_failure(killed)
    chosen = killed.where(lambda record: record.cell.failure == failure).commonest().one_each()
    chosen = Runs(chosen.records[:MOST_COLUMNS])
    columns = len(chosen)
    figure, axes = new_figure(
        4,
        columns,
        width=max(2.3 * columns + 1.2, 6),
        height=7.6,
        sharex="col",
        sharey="row",
        height_ratios=[1, 1, 1, 1],
    )
    for column, record in enumerate(chosen):
        _draw_column([row[column] for row in axes], record, is_first=column == 0)
    words = [_pause_in_words(record) for record in chosen]
    caption = (
        f"The failure is {failure}, at the vertical line. First row: replies per second. Below, latency "
        f"by the scheduled "
        "time of each record: median (thin), p99 (thick) and longest (dots), for keys on what failed and downstream of "
        "it, for the others, and for all."
    )
    return Drawn(name, f"{title}: {failure}", figure, caption, "; ".join(words))


def _commonest_failure(runs: Runs) -> str:
    counts: dict[str, set[str]] = {}
    for record in runs:
        counts.setdefault(record.cell.failure, set()).add(label_of(record.cell))
    return max(sorted(counts), key=lambda failure: (len(counts[failure]), "kill:actor" in failure))


def _pause_in_words(record: Record) -> str:
    pauses = ", ".join(f"{group} {milliseconds(value)}" for group, value in sorted(record.pause_ms.items()))
    return f"{label_of(record.cell)}: pause {pauses or 'not measured'}, delivered {record.delivered}"


def _draw_column(axes: Sequence[Axes], record: Record, *, is_first: bool) -> None:
    _draw_throughput(axes[0], record)
    axes[0].set_title(label_of(record.cell))
    for panel, group in zip(axes[1:], GROUPS, strict=True):
        _draw_group(panel, [moment for moment in record.timeline if moment.group == group], group,
                    is_named=is_first)  # fmt: skip
        if is_first:
            panel.set_ylabel(f"{group}, ms (log)")
    if is_first:
        axes[0].set_ylabel("replies/s")
    axes[-1].set_xlabel("seconds")
    for panel in axes:
        for injected in record.injected:
            panel.axvline(injected.second, color=QUIET, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)


def _draw_throughput(axes: Axes, record: Record) -> None:
    for group in ("all", "others", "affected"):
        moments = [moment for moment in record.timeline if moment.group == group]
        if len(moments) > 1:
            slice_s = min(after.second - before.second for before, after in pairwise(moments))
            rates = [moment.done / max(slice_s, 1e-6) for moment in moments]
            colour = GROUP_SHADES[group].light
            axes.plot([moment.second for moment in moments], rates, color=colour, linewidth=1.4)
            axes.text(0.02, 0.06 + 0.13 * GROUPS.index(group), group, transform=axes.transAxes, color=colour,
                      fontsize=8)  # fmt: skip
    axes.set_ylim(bottom=0)
    with_plain_ticks(axes.yaxis)


def _draw_group(axes: Axes, moments: Sequence[Moment], group: Group, *, is_named: bool) -> None:
    colour = GROUP_SHADES[group].light
    seen = [moment for moment in moments if moment.count]
    places = [moment.second for moment in seen]
    axes.plot(places, [moment.p50_ms for moment in seen], color=colour, linewidth=0.9)
    axes.plot(places, [moment.p99_ms for moment in seen], color=colour, linewidth=2.0)
    axes.plot(places, [moment.max_ms for moment in seen], ".", color=colour, markersize=2.5, alpha=0.7)
    axes.set_yscale("log")
    with_plain_ticks(axes.yaxis)
    if is_named and seen:
        for which in ("p50", "p99", "max"):
            axes.annotate(which, (places[0], getattr(seen[0], f"{which}_ms")), xytext=(-3, 0), ha="right", va="center",
                          textcoords="offset points", color=colour, fontsize=7.5)  # fmt: skip
    if not seen:
        axes.text(0.5, 0.5, "no such keys", transform=axes.transAxes, ha="center", color=QUIET, fontsize=8)


def downtime_by_phase(runs: Runs) -> Shown:
    """A bar for each system and failure, of the phases of its longest recovery."""
    name, title = "downtime-by-phase", "Downtime by phase"
    bars = [(record, longest_recovery(record)) for record in runs.ended if record.recoveries]
    bars = [(record, recovery) for record, recovery in bars if total_ms(recovery) > 0]
    if not bars:
        return Missing(name, title, "no run has reported the phases of a recovery")
    bars = sorted(bars, key=lambda bar: total_ms(bar[1]))[-24:]
    figure, [[axes]] = new_figure(1, 1, width=9.2, height=1.3 + 0.36 * len(bars))
    for height, (_, recovery) in enumerate(bars):
        left = 0.0
        for phase in PHASES:
            length = float(getattr(recovery, f"{phase}_ms"))
            axes.barh(height, length, left=left, color=PHASE_SHADES[phase].light, height=0.66, zorder=3)
            left += length
        axes.text(left, height, f"  {milliseconds(left)}", va="center", fontsize=9)
    axes.set_yticks(range(len(bars)), [_bar_label(record) for record, _ in bars])
    axes.set_xlabel("ms, from the failure to the first new call")
    axes.margins(x=0.14)
    axes.set_xlim(left=0)
    axes.grid(axis="y", visible=False)
    with_plain_ticks(axes.xaxis)
    handles = [Patch(color=PHASE_SHADES[phase].light) for phase in PHASES]
    figure.legend(handles, PHASES, loc="outside upper center", ncols=len(PHASES), fontsize=9)
    words = [f"{_bar_label(record)}: {phases_in_words(recovery)}" for record, recovery in reversed(bars)]
    caption = "The longest recovery of each run, by phase. A phase that a system does not have is not drawn."
    return Drawn(name, title, figure, caption, "; ".join(words))


def _bar_label(record: Record) -> str:
    return f"{label_of(record.cell)} · {record.cell.workload} · {record.cell.failure}"[:60]


def total_ms(recovery: Recovery) -> float:
    """The length of a recovery."""
    return sum(float(getattr(recovery, f"{phase}_ms")) for phase in PHASES)


def longest_recovery(record: Record) -> Recovery:
    """The longest of a run's recoveries."""
    return max(record.recoveries, key=total_ms)


def phases_in_words(recovery: Recovery) -> str:
    """The phases that took any time."""
    taken = [(phase, float(getattr(recovery, f"{phase}_ms"))) for phase in PHASES]
    words = ", ".join(f"{phase} {plain_number(value)}" for phase, value in taken if value > 0)
    return f"{words} ms; {recovery.replayed} calls replayed"
