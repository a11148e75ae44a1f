"""The plot of the job `flights`: one panel for each airport, one line for each of its largest carriers.

matplotlib draws it. Where it is not installed there is no plot, and the summary says what to install.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raydp_jobs.output import Output

if TYPE_CHECKING:
    from pandas import DataFrame

NAME = "delays.png"
MOST_LINES = 6
"""More would be one colour among many: the others are grey."""


def plot(delays: pa.Table, days: int, output: Output) -> str:
    """Draw the rolling delays of all airports; the name of the file, or what to do to get one."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "none: pip install matplotlib for one"
    if not delays.num_rows:
        return "none: there are no flights"
    frame = delays.to_pandas(date_as_object=False).dropna(subset=["mean_delay"])
    airports = sorted(frame["airport"].unique())
    figure = Figure(figsize=(10, 2.6 * len(airports) + 0.8), layout="constrained")
    panels = figure.subplots(len(airports), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    largest = frame.groupby("airline")["flights"].sum().nlargest(MOST_LINES).index.tolist()
    lines: dict[str, Any] = {}
    for panel, airport in zip(panels, airports, strict=True):
        _draw(panel, frame[frame["airport"] == airport], airport, largest, lines)
    shown = frame[frame["airline"].isin(largest)]["mean_delay"]
    panels[0].set_ylim(min(0, shown.min()) - 3, shown.max() + 3)  # else one flight of a small carrier sets the scale
    panels[0].set_title(f"Mean delay of departures, last {days} days", loc="left", fontweight="bold")
    figure.legend(
        [lines[name] for name in (*largest, "others") if name in lines],
        [name for name in (*largest, "others") if name in lines],
        loc="outside lower center", ncols=3, frameon=False,
    )  # fmt: skip

    def write(file: Path) -> None:
        figure.savefig(file, dpi=120, metadata={"Software": None})

    output.write_by(NAME, write)
    return NAME


def _draw(panel: Any, frame: "DataFrame", airport: str, largest: Sequence[str], lines: dict[str, Any]) -> None:
    """One airport; the same colours in all."""
    for airline, rows in frame.groupby("airline"):
        is_large = airline in largest
        style = {"color": f"C{largest.index(airline)}", "linewidth": 1.4} if is_large else {
            "color": "0.8", "linewidth": 0.8, "zorder": 1}  # fmt: skip
        delays = rows.set_index("day")["mean_delay"].sort_index().asfreq("D")  # no line where nobody flew
        (line,) = panel.plot(delays.index, delays, **style)
        lines.setdefault(airline if is_large else "others", line)
    panel.set_ylabel(f"{airport}, minutes")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color="0.92")
    panel.axhline(0, color="0.6", linewidth=0.8)
