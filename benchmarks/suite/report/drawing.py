"""What a figure is: drawn from records with a caption and words for those who cannot see it, or missing, and why."""

from typing import NamedTuple

from matplotlib.figure import Figure

from benchmarks.suite.records import Latency, Record
from benchmarks.suite.report.looks import plain_number


class Drawn(NamedTuple):
    """A figure."""

    name: str
    title: str
    figure: Figure
    caption: str
    """What is on it and how to read it."""
    alternative: str
    """Its figures in words, computed like the figure itself."""


class Missing(NamedTuple):
    """A figure that nothing was measured for."""

    name: str
    title: str
    why: str


Shown = Drawn | Missing

DELAY = "store_delay_ms"


def delay_of(record: Record) -> float:
    """How much was added to every answer of the store."""
    return float(record.cell.parameters.get(DELAY, 0.0))


def milliseconds(value: float) -> str:
    """A time as people write it."""
    if value >= 10_000:
        return f"{value / 1000:.1f} s"
    return f"{plain_number(value)} ms" if value >= 0.1 else f"{value * 1000:.0f} µs"


def ratio(value: float) -> str:
    """A ratio as people write it."""
    return f"{value:.2f} ×" if value < 10 else f"{value:,.0f} ×"


def tail_of(latency: Latency) -> list[tuple[float, float]]:
    """A distribution as (share of all below, latency), up to the longest."""
    points = [(number / 200, value) for number, value in enumerate(latency.quantiles_ms[:-1])]
    if not points:
        points = [(0.5, latency.p50_ms), (0.9, latency.p90_ms), (0.99, latency.p99_ms)]
    last = 1 - 1 / max(latency.count, 2)
    points += [(0.999, latency.p999_ms)] if last > 0.999 else []
    return [*points, (last, latency.max_ms)] if last > points[-1][0] else points


def listed(words: list[str]) -> str:
    """Words as a list in a sentence."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "none"
