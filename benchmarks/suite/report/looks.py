"""Looks: one colour for each system wherever it appears, and figures that a page can show light or dark.

A figure is drawn with the light colours below. In the page the same SVG is shown with each of these colours replaced by
a variable of the style sheet, so that it follows the reader's setting.
"""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.suite.report.runs import SYSTEMS


class Shade(NamedTuple):
    """A colour on white, and on black."""

    light: str
    dark: str


NEUTRAL = {
    "ink": Shade("#17191c", "#eceef1"),
    "quiet": Shade("#5c6169", "#a3a9b3"),
    "line": Shade("#d8dbe0", "#33383f"),
    "paper": Shade("#fdfdfe", "#14161a"),
}

SYSTEM_SHADES = {
    "stash": Shade("#1261c9", "#5aa2ff"),
    "plain": Shade("#70757e", "#9aa0aa"),
    "ray-retry": Shade("#a8720a", "#e0ab3f"),
    "sync-log": Shade("#7a3fb5", "#b98cf0"),
    "global-checkpoint": Shade("#c8382b", "#ff7a6b"),
    "pyflink": Shade("#c02d7d", "#f57fbd"),
    "bytewax": Shade("#0c8577", "#3fc7b5"),
    "dbos": Shade("#4f7d16", "#93c54b"),
    "spark": Shade("#8a4b1f", "#d0905f"),
}
OTHER_SHADE = Shade("#3d4f63", "#8fa5bd")

PHASES = ("detect", "gather", "settle", "restore", "replay", "resume")
PHASE_SHADES = {
    "detect": Shade("#8d949f", "#7d8590"),
    "gather": Shade("#9cc3f5", "#2d5a94"),
    "settle": Shade("#5b9bea", "#4685d6"),
    "restore": Shade("#f0c063", "#c79432"),
    "replay": Shade("#e08b3a", "#f0a35c"),
    "resume": Shade("#57ad7c", "#6cc796"),
}

GROUP_SHADES = {
    "affected": Shade("#c4471d", "#ff8a5c"),
    "others": Shade("#177a4e", "#4cc98d"),
    "all": Shade("#4b5563", "#aab4c2"),
}

STYLES = ("-", "--", ":", "-.")
"""One for each variant of a system, its defaults first."""

SETTINGS: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": NEUTRAL["ink"].light,
    "axes.labelcolor": NEUTRAL["quiet"].light,
    "axes.edgecolor": NEUTRAL["line"].light,
    "axes.facecolor": NEUTRAL["paper"].light,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": NEUTRAL["line"].light,
    "grid.linewidth": 0.6,
    "figure.facecolor": NEUTRAL["paper"].light,
    "figure.constrained_layout.use": True,
    "text.color": NEUTRAL["ink"].light,
    "xtick.color": NEUTRAL["quiet"].light,
    "ytick.color": NEUTRAL["quiet"].light,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "svg.fonttype": "none",
}


def shade_of(label: str) -> Shade:
    """The colour of a system, the same in every figure."""
    return SYSTEM_SHADES.get(label.split(" ")[0], OTHER_SHADE)


def colour_of(label: str) -> str:
    """The colour of a system, as figures are drawn."""
    return shade_of(label).light


def style_of(label: str, labels: Sequence[str]) -> str:
    """The dashes of a variant among all labels of a figure."""
    name = label.split(" ")[0]
    variants = [other for other in labels if other.split(" ")[0] == name]
    return STYLES[variants.index(label) % len(STYLES)]


def new_figure(rows: int, columns: int, *, width: float = 8.6, height: float = 3.6,
               **arguments: Any) -> tuple[Figure, list[list[Axes]]]:  # fmt: skip
    """A figure of panels; drawn without any window or global state."""
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(width, height))
        panels = figure.subplots(rows, columns, squeeze=False, **arguments)
    return figure, [list(row) for row in panels]


def plain_number(value: float, _: object = None) -> str:
    """As people write it: 0.05, 3, 1,200, 3.4 M."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g} M"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def with_plain_ticks(axis: Any) -> None:
    """Numbers instead of powers, and only at the major ticks."""
    axis.set_major_formatter(FuncFormatter(plain_number))
    axis.set_minor_formatter(NullFormatter())


class End(NamedTuple):
    """Where a line ends, and what it is."""

    height: float
    text: str
    colour: str


def label_ends(axes: Axes, ends: Sequence[End], *, apart: float = 0.062, at: float = 1.015) -> None:
    """Name lines at their ends instead of in a legend; names that would touch are moved apart."""
    to_axes = axes.transScale + axes.transLimits
    placed = sorted(((float(to_axes.transform((1.0, end.height))[1]), end) for end in ends), key=lambda pair: pair[0])
    heights = [min(max(height, 0.0), 1.0) for height, _ in placed]
    for position in range(1, len(heights)):
        heights[position] = max(heights[position], heights[position - 1] + apart)
    ceiling = 1.0
    for position in reversed(range(len(heights))):
        heights[position] = min(heights[position], ceiling)
        ceiling = heights[position] - apart
    for height, (_, end) in zip(heights, placed, strict=True):
        axes.text(
            at, height, end.text, transform=axes.transAxes, color=end.colour, va="center", fontsize=9,
            fontweight="bold" if end.text.split(" ")[0] == SYSTEMS[0] else "normal",
        )  # fmt: skip


def save(figure: Figure, folder: Path, name: str) -> tuple[Path, Path]:
    """As PNG and as SVG; the same figure gives the same bytes."""
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    figure.savefig(png, dpi=160, metadata={"Software": None})
    svg.write_text(svg_of(figure, name), encoding="utf-8")
    return png, svg


def svg_of(figure: Figure, name: str) -> str:
    """The figure as SVG, with ids that no other figure of a page has."""
    written = io.StringIO()
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": name}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    return re.sub(r'href="#', f'href="#{name}-', text)


def all_shades() -> dict[str, Shade]:
    """Every colour by the name of its variable in the page."""
    return {
        **NEUTRAL,
        **{f"system-{name}": shade for name, shade in SYSTEM_SHADES.items()},
        "system-other": OTHER_SHADE,
        **{f"phase-{name}": shade for name, shade in PHASE_SHADES.items()},
        **{f"group-{name}": shade for name, shade in GROUP_SHADES.items()},
    }


def for_page(svg: str, alternative: str) -> str:
    """An SVG for use inside a page: named for those who cannot see it, and in the page's own colours."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    for name, shade in all_shades().items():
        body = re.sub(re.escape(shade.light), f"var(--{name})", body, flags=re.IGNORECASE)
    body = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", body, count=1)
    body = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", body, count=1)
    return body.replace("<svg ", f'<svg role="img" aria-label="{alternative}" ', 1)
