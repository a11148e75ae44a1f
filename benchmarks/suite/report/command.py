"""`python -m benchmarks report`: figures and a page out of a folder of records; with `--write-docs` the docs too."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib

from benchmarks.suite.records import Record, name_of, read_all
from benchmarks.suite.report import published
from benchmarks.suite.report.drawing import Drawn, Shown
from benchmarks.suite.report.figures_calm import latency_by_delay, latency_distribution
from benchmarks.suite.report.figures_cost import cost_by_size, lineage_bytes, memory_over_time
from benchmarks.suite.report.figures_failing import around_failure, downtime_by_phase
from benchmarks.suite.report.figures_scale import Scale, scale_figure, scale_html
from benchmarks.suite.report.looks import SETTINGS, save
from benchmarks.suite.report.page import page
from benchmarks.suite.report.runs import Runs

DRAWERS = (
    latency_distribution, latency_by_delay, around_failure, downtime_by_phase, lineage_bytes, memory_over_time,
    cost_by_size,
)  # fmt: skip

ROOT = Path(__file__).parents[3]
RECORDS = Path("benchmarks/results/local/records")
OUT = Path("benchmarks/results/local/report")


def main(arguments: Sequence[str]) -> int:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks report", description=__doc__)
    parser.add_argument("--records", type=Path, default=RECORDS, help=f"the folder of records (default {RECORDS})")
    parser.add_argument("--out", type=Path, default=OUT, help=f"where the report goes (default {OUT})")
    parser.add_argument(
        "--no-scale", action="store_true", help="leave out the model of large rings, which takes a minute"
    )
    parser.add_argument(
        "--publish", action="store_true", help="keep the records, without their timelines, for the docs"
    )
    parser.add_argument(
        "--write-docs", action="store_true", help="write the marked parts of the docs and do nothing else"
    )
    asked = parser.parse_args(arguments)
    if asked.write_docs:
        changed = published.write_docs(ROOT)
        print("\n".join(f"written: {path}" for path in changed) or "the docs are as they should be")
        return 0
    records = read_all(asked.records)
    if not records:
        print(f"there are no records in {asked.records}: python -m benchmarks suite --quick makes some")
        return 1
    if asked.publish:
        published.publish(records, ROOT)
    print(make(records, asked.out, with_scale=not asked.no_scale, asked_for=asked_cells(asked.records)))
    return 0


def asked_cells(folder: Path) -> list[str]:
    """The names of the cells that the suite was asked for, if it has left a list beside the records."""
    plan = folder.parent / "plan.json"
    return [str(name) for name in json.loads(plan.read_text(encoding="utf-8"))] if plan.exists() else []


def make(records: Sequence[Record], out: Path, *, with_scale: bool, asked_for: Sequence[str] = ()) -> Path:
    """Draw everything into a folder; where the page is."""
    out.mkdir(parents=True, exist_ok=True)
    runs = Runs(records)
    figures: dict[str, Shown] = {}
    with matplotlib.rc_context(SETTINGS):
        for draw in DRAWERS:
            shown = draw(runs)
            figures[shown.name] = shown
    scale_words = ""
    if with_scale:
        scale = Scale.of(runs)
        with matplotlib.rc_context(SETTINGS):
            figures["scale"] = scale_figure(scale)
        scale_words = scale_html(scale)
    for name, shown in figures.items():
        if isinstance(shown, Drawn):
            save(shown.figure, out, name)
    there = {name_of(record.cell) for record in records}
    absent = [name for name in asked_for if name not in there]
    path = out / "index.html"
    path.write_text(page(runs, figures, absent=absent, scale=scale_words), encoding="utf-8")
    return path
