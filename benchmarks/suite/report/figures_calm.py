"""Figures of runs without failures: how latency is distributed, and what a slow store does to it."""

import math

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter

from benchmarks.suite.records import Record
from benchmarks.suite.report.drawing import (
    DELAY,
    Drawn,
    Missing,
    Shown,
    delay_of,
    listed,
    milliseconds,
    tail_of,
)
from benchmarks.suite.report.looks import End, colour_of, label_ends, new_figure, style_of, with_plain_ticks
from benchmarks.suite.report.runs import Runs, label_of, setting_of

MOST_PANELS = 4
SHARES = (0.5, 0.9, 0.99, 0.999, 0.9999)


def _nines(share: float) -> float:
    """Where a share of all is drawn: each further nine takes as much room as the one before."""
    return -math.log10(max(1.0 - share, 1e-9))


def _with_shares(axes: Axes, longest: float) -> None:
    shares = [share for share in SHARES if _nines(share) <= longest + 0.01]
    axes.xaxis.set_major_locator(FixedLocator([_nines(share) for share in shares]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{(1 - 10**-at) * 100:.6g} %"))
    axes.set_xlim(0, longest)


def _is_calm(record: Record) -> bool:
    return not record.cell.failure and "all" in record.latency and delay_of(record) == 0


def latency_distribution(runs: Runs) -> Shown:
    """For each workload, the distribution of all systems that ran it with the same parameters."""
    name, title = "latency-distribution", "Latency without failures"
    calm = runs.ok.where(_is_calm)
    panels = [calm.of(workload=workload).commonest().one_each() for workload in calm.workloads]
    panels = sorted(panels, key=lambda panel: -len(panel.records))[:MOST_PANELS]
    if not panels:
        return Missing(name, title, "no run without failures has ended well")
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    figure, axes = new_figure(rows, columns, width=9.2, height=3.4 * rows)
    flat = [panel for row in axes for panel in row]
    for panel, shown in zip(flat, panels, strict=False):
        _draw_distribution(panel, shown)
    for empty in flat[len(panels) :]:
        empty.set_visible(False)
    words = [
        f"{label_of(record.cell)} in {record.cell.workload}: p50 {milliseconds(record.latency['all'].p50_ms)}, "
        f"p99 {milliseconds(record.latency['all'].p99_ms)}, longest {milliseconds(record.latency['all'].max_ms)}"
        for panel in panels
        for record in panel
    ]
    caption = (
        "Latency from the scheduled time of each record to its reply, by the share of records that were "
        "at least as fast;"
        " every further nine on the horizontal axis is as wide as the one before. Lower is better."
    )
    return Drawn(name, title, figure, caption, "; ".join(words))


def _draw_distribution(axes: Axes, panel: Runs) -> None:
    ends, longest = [], 1.0
    for record in panel:
        label = label_of(record.cell)
        points = tail_of(record.latency["all"])
        places = [_nines(share) for share, _ in points]
        axes.plot(
            places, [value for _, value in points], style_of(label, panel.labels), color=colour_of(label), zorder=3
        )
        axes.plot(places[-1], points[-1][1], "o", color=colour_of(label), markersize=3.5, zorder=4)
        longest = max(longest, places[-1])
        ends.append(End(points[-1][1], label, colour_of(label)))
    axes.set_yscale("log")
    axes.set_ylabel("latency, ms (log)")
    cell = panel.records[0].cell
    axes.set_title(f"{cell.workload}  {setting_of(cell)}"[:64])
    with_plain_ticks(axes.yaxis)
    _with_shares(axes, longest)
    label_ends(axes, ends, apart=0.075)


def latency_by_delay(runs: Runs) -> Shown:
    """The ring's latency per hop against what was added to the store's answers."""
    name, title = "latency-by-store-delay", "Latency per hop against the store's delay"
    ring = runs.ok.of(workload="ring", is_failing=False).where(
        lambda record: "all" in record.latency and DELAY in record.cell.parameters
    )
    ring = ring.commonest(without=(DELAY,))
    delays = sorted({delay_of(record) for record in ring})
    if len(delays) < 2:
        return Missing(name, title, "the ring needs runs with at least two delays of the store")
    figure, [[middle, tail]] = new_figure(1, 2, width=9.2, height=3.5)
    _draw_delays(middle, ring, "p50")
    _draw_delays(tail, ring, "p99")
    words = [
        f"{label}: "
        + ", ".join(
            f"{milliseconds(record.latency['all'].p50_ms)} at +{delay_of(record):g} ms"
            for record in _by_delay(ring, label)
        )
        for label in ring.labels
    ]
    caption = (
        "What was added to every answer of the store (horizontal) and the latency per hop of the ring (vertical). "
        "A system that waits for its log rises with the delay; one that does not stays level."
    )
    return Drawn(name, title, figure, caption, f"Median per hop. {'; '.join(words)}. Systems: {listed(ring.labels)}")


def _by_delay(ring: Runs, label: str) -> list[Record]:
    return sorted((record for record in ring if label_of(record.cell) == label), key=delay_of)


def _draw_delays(axes: Axes, ring: Runs, which: str) -> None:
    ends = []
    for label in ring.labels:
        records = _by_delay(ring, label)
        values = [getattr(record.latency["all"], f"{which}_ms") for record in records]
        places = [delay_of(record) for record in records]
        axes.plot(places, values, "o" + style_of(label, ring.labels), color=colour_of(label), markersize=4, zorder=3)
        ends.append(End(values[-1], label, colour_of(label)))
    delays = sorted({delay_of(record) for record in ring})
    axes.set_xscale("symlog", linthresh=1, linscale=0.6)
    axes.set_xlim(-0.1, delays[-1] * 1.25)
    axes.set_xticks(delays)
    axes.set_yscale("log")
    axes.set_xlabel("added to the store, ms")
    axes.set_ylabel(f"{which} per hop, ms (log)")
    axes.set_title("median" if which == "p50" else "one in a hundred")
    with_plain_ticks(axes.xaxis)
    with_plain_ticks(axes.yaxis)
    label_ends(axes, ends)
