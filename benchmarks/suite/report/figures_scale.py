"""The figure of the model: rings of 10 to 10,000 nodes, with constants that records gave where there are such."""

from typing import NamedTuple

from matplotlib.axes import Axes

from benchmarks.suite.records import Record
from benchmarks.suite.report.drawing import Drawn, Shown, delay_of, milliseconds
from benchmarks.suite.report.figures_failing import longest_recovery, total_ms
from benchmarks.suite.report.looks import End, colour_of, label_ends, new_figure, plain_number, with_plain_ticks
from benchmarks.suite.report.page import escaped, table
from benchmarks.suite.report.runs import Runs
from lineage_stash.testing.scale import MOST_SIMULATED, Constants, Prediction, predict
from lineage_stash.testing.scale_published import NODES, Compared, fit

ENTRY_MS = 0.0043
"""Of the state machines alone, per call in batches, by `python -m benchmarks core`: there is no record of this."""
STYLES = {"1": ":", "2": "-.", "8": "--", "∞": "-"}


class Scale(NamedTuple):
    """Constants, where each comes from, what they predict, and the published ring."""

    constants: Constants
    sources: list[str]
    predictions: list[Prediction]
    fitted: Constants
    compared: list[Compared]

    @classmethod
    def of(cls, runs: Runs) -> "Scale":
        """With the constants that these records give; where they give none, with those fitted to the published ring."""
        fitted, compared = fit()
        sources: list[str] = []
        stash, sync = _median_at_once(runs, "stash"), _median_at_once(runs, "sync-log")
        hop_ms, store_ms, entry_ms = fitted.hop_ms, fitted.store_ms, fitted.entry_ms
        if stash is not None:
            hop_ms, entry_ms = stash, ENTRY_MS
            sources.append(f"a hop {milliseconds(hop_ms)}: p50 of the ring of stash")
            sources.append(f"an entry {milliseconds(entry_ms)}: from the core's own benchmark, not from these records")
        else:
            sources.append("a hop and an entry: fitted to the published ring, for there is no run of the ring")
        if stash is not None and sync is not None:
            store_ms = max(sync - stash, 0.0)
            sources.append(f"the store {milliseconds(store_ms)}: what the ring of sync-log takes longer")
        else:
            sources.append("the store: fitted to the published ring")
        restart_ms = _restart(runs)
        sources.append(
            f"a restart {milliseconds(restart_ms)}: the longest recovery after the kill of an actor" if restart_ms
            else "a restart: not measured, so that recovery has only the store's part"
        )  # fmt: skip
        constants = Constants(hop_ms, entry_ms, store_ms, restart_ms)
        return cls(constants, sources, predict(constants), fitted, compared)


def _median_at_once(runs: Runs, system: str) -> float | None:
    ring = runs.ok.of(workload="ring", system=system, variant="", is_failing=False)
    found = [record.latency["all"].p50_ms for record in ring if "all" in record.latency and delay_of(record) == 0]
    return min(found, default=None)


def _restart(runs: Runs) -> float:
    killed: list[Record] = [record for record in runs.ok.of(system="stash", is_failing=True) if record.recoveries]
    alone = [record for record in killed if record.cell.failure.startswith("kill:actor")]
    return max((total_ms(longest_recovery(record)) for record in alone), default=0.0)


def scale_figure(scale: Scale) -> Shown:
    """Latency per hop and bytes per message against the number of nodes, and the published ring."""
    figure, [[latency, size, ring]] = new_figure(1, 3, width=10.6, height=3.7)
    _draw_lines(latency, scale, "hop_ms", "ms per hop (log)")
    _draw_lines(size, scale, "forwarded_bytes", "bytes per message (log)")
    _draw_published(ring, scale.compared)
    latency.set_title("latency per hop")
    size.set_title("bytes per message")
    worst = max(scale.compared, key=lambda each: abs(each.error))
    words = [
        f"{each.logging} at {each.nodes} nodes: {milliseconds(each.hop_ms)}, {plain_number(each.forwarded_bytes)} bytes"
        for each in scale.predictions
        if each.nodes in (10, 1000, 10_000)
    ]
    caption = (
        f"A model, not a measurement. Up to {MOST_SIMULATED} nodes real state machines pass a token in "
        f"virtual time; beyond, "
        "right of the vertical line, the law is extended. Right: the published ring of "
        f"{NODES} nodes against the model; the worst error is {worst.error:+.0%} ({worst.logging}, "
        f"+{worst.delay_ms:g} ms)."
    )
    return Drawn("scale", "Rings of 10 to 10,000 nodes, on paper", figure, caption, "; ".join(words))


def _draw_lines(axes: Axes, scale: Scale, field: str, label: str) -> None:
    ends = []
    for how in dict.fromkeys(each.logging for each in scale.predictions):
        points = [each for each in scale.predictions if each.logging == how and getattr(each, field) > 0]
        if not points or "reads" in how:
            continue
        system = "stash" if how.startswith("async") else "sync-log"
        values = [float(getattr(each, field)) for each in points]
        axes.plot([each.nodes for each in points], values, STYLES.get(how[-1], "-"), color=colour_of(system))
        ends.append(End(values[-1], how.removeprefix("asynchronous, "), colour_of(system)))
    axes.axvline(MOST_SIMULATED, color=colour_of("plain"), linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("nodes (log)")
    axes.set_ylabel(label)
    with_plain_ticks(axes.xaxis)
    with_plain_ticks(axes.yaxis)
    label_ends(axes, ends, apart=0.075)


def _draw_published(axes: Axes, compared: list[Compared]) -> None:
    for each in compared:
        colour = colour_of("stash" if each.logging.startswith("async") else "sync-log")
        axes.plot(each.published_ms, each.predicted_ms, "o", color=colour, markersize=4)
    ends = (0.3, 15.0)
    axes.plot(ends, ends, color=colour_of("plain"), linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("published, ms")
    axes.set_ylabel("model, ms")
    axes.set_title("published ring")
    with_plain_ticks(axes.xaxis)
    with_plain_ticks(axes.yaxis)


def scale_html(scale: Scale) -> str:
    """Where the constants come from, what is predicted, and the error of every published figure."""
    sources = "".join(f"<li>{escaped(source)}</li>" for source in scale.sources)
    predicted = [
        (f"{each.nodes:,}", escaped(each.logging), milliseconds(each.hop_ms), plain_number(each.entries),
         plain_number(each.forwarded_bytes), milliseconds(each.recovery_ms),
         "extended" if each.is_extended else "simulated" if each.entries else "computed")
        for each in scale.predictions
    ]  # fmt: skip
    published = [
        (escaped(each.logging), f"+{each.delay_ms:g} ms", f"{each.published_ms:.2f}", f"{each.predicted_ms:.2f}",
         f"{each.error:+.0%}")
        for each in scale.compared
    ]  # fmt: skip
    fitted = (
        f"Fitted to the published ring: a hop {scale.fitted.hop_ms:.3f} ms, an entry "
        f"{scale.fitted.entry_ms:.4f} ms, the store "
        f"{scale.fitted.store_ms:.3f} ms. {_bounds_sentence(scale)}"
    )
    head = ("nodes", "logging", "per hop", "entries", "bytes", "recovery", "how")
    return (
        f"<p>Constants of the predictions:</p><ul>{sources}</ul><details><summary>All predictions</summary>"
        f"{table('Predicted', head, predicted, kind='numbers')}</details><p>{escaped(fitted)}</p>"
        + table(f"The published ring of {NODES} nodes, p50 in ms",
                ("logging", "store", "published", "model", "error"), published, kind="numbers")
    )  # fmt: skip


def _bounds_sentence(scale: Scale) -> str:
    """Whether a bound on failures keeps entries from travelling in this project's ring."""
    at = [each for each in scale.predictions if each.nodes == 100 or each.nodes == MOST_SIMULATED]
    entries = {each.logging: each.entries for each in at}
    bounded, unbounded = entries.get("asynchronous, f = 8"), entries.get("asynchronous, f = ∞")
    if bounded is None or unbounded is None:
        return ""
    if bounded >= unbounded:
        return (
            "With f = 8 this project's machines carry as many entries around a ring as without a bound: a "
            "hop knows of too "
            "few holders to stop. The published system stops after f hops, and is better there."
        )
    return f"With f = 8 a message carries {bounded:.0f} entries, without a bound {unbounded:.0f}."
