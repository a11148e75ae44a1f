"""Docs out of records: the marked parts of the docs are tables that this writes and nobody edits.

A part begins with `<!-- suite: NAME -->` and ends with `<!-- end -->`, each on a line of its own. What is written comes
from `benchmarks/published.json`: the records of one run of the suite, without what only figures need.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from benchmarks.suite.records import Group, Record
from benchmarks.suite.report import claims
from benchmarks.suite.report.bars import default_stash, sustained_of, verdicts
from benchmarks.suite.report.drawing import milliseconds, ratio
from benchmarks.suite.report.looks import plain_number
from benchmarks.suite.report.runs import SYSTEMS, Runs, label_of, place_of, setting_of
from benchmarks.suite.report.schema import schema_markdown

PUBLISHED = Path("benchmarks/published.json")
DOCS = (Path("README.md"), Path("docs/performance.md"), Path("docs/benchmarks.md"))
GROUPS: tuple[Group, ...] = ("affected", "others")
PART = re.compile(r"(<!-- suite: (?P<name>[a-z-]+) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)


def compact(record: Record) -> Record:
    """A record without what only figures need."""
    latency = {
        field: {group: msgspec.structs.replace(one, quantiles_ms=[]) for group, one in getattr(record, field).items()}
        for field in ("latency", "before", "after")
    }
    last = {sample.process: sample for sample in record.memory}
    return msgspec.structs.replace(record, timeline=[], memory=list(last.values()), **latency)


def publish(records: Sequence[Record], root: Path) -> Path:
    """Keep records for the docs; where."""
    path = root / PUBLISHED
    encoded = msgspec.json.encode([compact(record) for record in Runs(records)])
    path.write_bytes(msgspec.json.format(encoded, indent=1) + b"\n")
    return path


def read_published(root: Path) -> Runs | None:
    """The records that the docs are made of; None while there are none."""
    path = root / PUBLISHED
    if not path.exists():
        return None
    return Runs(msgspec.json.decode(path.read_bytes(), type=list[Record]))


def write_docs(root: Path) -> list[Path]:
    """Bring every marked part up to date; which files have changed."""
    runs, changed = read_published(root), []
    for name in DOCS:
        path = root / name
        if path.exists():
            text = path.read_text(encoding="utf-8")
            written = rewritten(text, runs)
            if written != text:
                path.write_text(written, encoding="utf-8")
                changed.append(name)
    return changed


def rewritten(text: str, runs: Runs | None) -> str:
    """A text with its marked parts as they should be; parts that need records stay as they are while there are none."""

    def part(found: re.Match[str]) -> str:
        name = found["name"]
        if name in PLAIN_PARTS:
            return f"{found[1]}{PLAIN_PARTS[name]()}\n{found[4]}"
        if name not in PARTS:
            raise ValueError(f"there is no part {name!r}; there are {', '.join([*PARTS, *PLAIN_PARTS])}")
        return found[0] if runs is None else f"{found[1]}{PARTS[name](runs)}\n{found[4]}"

    return PART.sub(part, text)


# the parts


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def setting_part(runs: Runs) -> str:
    """Where and when it was measured."""
    commits = sorted({record.environment.commit[:12] for record in runs if record.status != "skipped"})
    return " ".join([*claims.setting_sentences(runs), f"Commit {', '.join(commits)}.", claims.summary(runs)])


def bars_part(runs: Runs) -> str:
    """Every bar and how it stands."""
    rows = [
        (v.workload, v.bar, v.measured + (f"; run `{v.to_run}`" if v.to_run else ""),
         f"**{v.outcome}**" if v.outcome == "missed" else v.outcome)
        for v in verdicts(runs)
    ]  # fmt: skip
    return markdown_table(("part", "bar", "measured", ""), rows)


def latency_part(runs: Runs) -> str:
    """Latency of every run without failures."""
    rows = [
        (record.cell.workload, label_of(record.cell), setting_of(record.cell),
         *(milliseconds(value) for value in (one.p50_ms, one.p99_ms, one.max_ms)))
        for record in runs.ok.of(is_failing=False)
        if (one := record.latency.get("all")) is not None
    ]  # fmt: skip
    return markdown_table(("workload", "system", "setting", "p50", "p99", "longest"), rows)


def throughput_part(runs: Runs) -> str:
    """The most that each system sustains, and what that is of this project's."""
    own = sustained_of(runs, SYSTEMS[0])
    rows = []
    for system in SYSTEMS:
        most = sustained_of(runs, system)
        words = "not measured" if most is None else f"{plain_number(most)} words/s"
        rows.append((system, words, ratio(most / own) if most and own else ""))
    return markdown_table(("system", "sustained", "of stash"), rows)


def semantics_part(runs: Runs) -> str:
    """What each system delivered under each failure."""
    found = claims.semantics_table(runs)
    labels = sorted({label for row in found.values() for label in row}, key=place_of)
    rows = [
        (workload, f"`{failure}`", *(_delivered(row.get(label)) for label in labels))
        for (workload, failure), row in found.items()
    ]
    return markdown_table(("workload", "failure", *labels), rows)


def _delivered(seen: claims.Delivered | None) -> str:
    if seen is None:
        return "not run"
    if seen.status in ("failed", "skipped"):
        return seen.status
    return seen.delivered if seen.status == "ok" else f"**{seen.delivered}**, promised {seen.promised}"


def pauses_part(runs: Runs) -> str:
    """How long the affected keys and the others waited."""
    rows = [
        (record.cell.workload, f"`{record.cell.failure}`", label_of(record.cell),
         *(_pause(record, group) for group in GROUPS))
        for record in runs.ended.of(is_failing=True)
        if record.pause_ms
    ]  # fmt: skip
    return markdown_table(("workload", "failure", "system", "pause of the affected keys", "of the others"), rows)


def _pause(record: Record, group: Group) -> str:
    if group not in record.pause_ms:
        return ""
    return milliseconds(record.pause_ms[group]) if group in record.after else "no answer any more"


def worse_part(runs: Runs) -> str:
    """Where another system is better."""
    rows = [(worse.what, worse.who, worse.own, worse.other, ratio(worse.by)) for worse in claims.where_worse(runs)]
    if not rows:
        return "No run of another system in the same setting was better by more than 5 %."
    return markdown_table(("figure", "better is", "stash", "the other", "worse by"), rows)


def headline_part(runs: Runs) -> str:
    """The figures of the README: only those that are there."""
    lines = []
    calm = runs.ok.of(workload="wordcount", is_failing=False)
    for mine in default_stash(calm):
        for theirs in calm.alike(mine).of(system="plain"):
            if "all" in mine.latency and "all" in theirs.latency:
                own, other = mine.latency["all"], theirs.latency["all"]
                lines.append(
                    f"- words counted at a fixed rate: p50 {milliseconds(own.p50_ms)}, p99 "
                    f"{milliseconds(own.p99_ms)}; plain "
                    f"Ray {milliseconds(other.p50_ms)} and {milliseconds(other.p99_ms)}"
                )
    own_most, plain_most = sustained_of(runs, SYSTEMS[0]), sustained_of(runs, "plain")
    if own_most and plain_most:
        lines.append(f"- sustained: {plain_number(own_most)} words/s, {ratio(own_most / plain_most)} plain Ray's")
    judged = [verdict for verdict in verdicts(runs) if verdict.workload in ("failures", "actor kill")]
    lines += [f"- {verdict.bar}: {verdict.outcome}, {verdict.measured}" for verdict in judged]
    return "\n".join(lines)


PARTS: dict[str, Callable[[Runs], str]] = {
    "setting": setting_part,
    "bars": bars_part,
    "latency": latency_part,
    "throughput": throughput_part,
    "semantics": semantics_part,
    "pauses": pauses_part,
    "worse": worse_part,
    "headline": headline_part,
}
"""Parts that are made of records."""

PLAIN_PARTS: dict[str, Callable[[], str]] = {"schema": schema_markdown}
"""Parts that are made of the code."""
