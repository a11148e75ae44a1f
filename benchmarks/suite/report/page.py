"""The page: one HTML file with all figures and tables in it, that asks nothing of any other host."""

import html
from collections.abc import Iterable, Sequence

from benchmarks.suite.records import Record, name_of
from benchmarks.suite.report import claims
from benchmarks.suite.report.bars import Verdict, verdicts
from benchmarks.suite.report.drawing import Drawn, Shown, milliseconds, ratio
from benchmarks.suite.report.looks import all_shades, for_page, plain_number, svg_of
from benchmarks.suite.report.runs import SYSTEMS, Runs, label_of, place_of, setting_of
from benchmarks.suite.report.style import STYLE

TITLE = "What exactly-once actors cost, and what a failure does to them"

QUESTIONS = (
    "What does fault tolerance cost when nothing fails, in latency, in throughput, in bytes and in memory?",
    "Does a slow store slow down calls?",
    "When a process dies, who notices, for how long, and is the result right?",
    "How do these costs grow with actors, with calls, with the failures to be survived, and beyond this machine?",
)

VOCABULARY = (
    ("precise", "as if nothing had failed"),
    ("repeating", "the same outputs, some of them twice"),
    ("convergent", "some outputs differ, later ones do not"),
    ("divergent", "outputs differ and never come back to what they would have been"),
    ("gap", "something is missing"),
    ("detected", "the run stopped and said why, and delivered nothing wrong"),
    ("unknown", "nobody could tell"),
)


def escaped(text: object) -> str:
    """Text as HTML."""
    return html.escape(str(text), quote=True)


def paragraphs(sentences: Iterable[str], otherwise: str) -> str:
    """A list of sentences, or the one that says that there is nothing to say."""
    items = [f"<li>{escaped(sentence)}</li>" for sentence in sentences]
    return f"<ul>{''.join(items)}</ul>" if items else f'<p class="quiet">{escaped(otherwise)}</p>'


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "") -> str:
    """A table whose cells are HTML already; the first of each row is its header."""
    heads = "".join(f'<th scope="col">{escaped(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>' for row in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escaped(caption)}"><table class="{kind}"><caption>'
        f"{escaped(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def badge(word: str, text: str = "") -> str:
    """A word in the colour of what it means; the word itself always says it too."""
    return f'<span class="badge {escaped(word.replace(" ", "-"))}">{escaped(text or word)}</span>'


def figure_html(shown: Shown, number: int) -> str:
    """A figure with its caption, or a box that says what is missing."""
    if not isinstance(shown, Drawn):
        return f'<p class="missing"><strong>{escaped(shown.title)}</strong>: not drawn, {escaped(shown.why)}.</p>'
    drawing = for_page(svg_of(shown.figure, shown.name), escaped(f"{shown.title}. {shown.alternative}"))
    return (
        f'<figure id="{shown.name}"><div class="wide" tabindex="0">{drawing}</div><figcaption><strong>Figure {number}. '
        f"{escaped(shown.title)}.</strong> {escaped(shown.caption)}</figcaption></figure>"
    )


def bars_table(judged: Sequence[Verdict]) -> str:
    """The bars, and how they stand."""
    rows = [
        (
            escaped(verdict.workload),
            escaped(verdict.bar),
            badge(verdict.outcome),
            escaped(verdict.measured) + (f"<br><code>{escaped(verdict.to_run)}</code>" if verdict.to_run else ""),
        )
        for verdict in judged
    ]
    return table("What must be shown, and what the records say", ("part", "bar", "", "measured"), rows, kind="bars")


def semantics_html(runs: Runs) -> str:
    """System by failure: what was delivered, and what had been promised."""
    found = claims.semantics_table(runs)
    if not found:
        return '<p class="missing">No run with a failure: what is delivered under failures was not measured.</p>'
    labels = sorted({label for row in found.values() for label in row}, key=place_of)
    rows = []
    for (workload, failure), row in found.items():
        cells = [f"{escaped(workload)}<br><code>{escaped(failure)}</code>"]
        for label in labels:
            seen = row.get(label)
            cells.append(_delivered_html(seen) if seen else '<span class="quiet">not run</span>')
        rows.append(cells)
    words = "; ".join(f"{word}: {meaning}" for word, meaning in VOCABULARY)
    caption = "What each system delivered under each failure, and what it had promised"
    return table(caption, ("failure", *labels), rows) + f'<p class="quiet">{escaped(words)}.</p>'


def _delivered_html(seen: claims.Delivered) -> str:
    if seen.status == "skipped":
        return f'<span class="quiet">skipped: {escaped(seen.why)}</span>'
    if seen.status == "failed":
        return f"{badge('gap', 'failed')}<br><small>{escaped(seen.why[:90])}</small>"
    broke = " <strong>broke its promise</strong>" if seen.status == "wrong" else ""
    return f"{badge(seen.delivered)}{broke}<br><small>promised {escaped(seen.promised)}</small>"


def systems_table(runs: Runs) -> str:
    """What each system guarantees, in its own words."""
    rows = [
        (f'<span class="dot" style="background:var(--system-{name if name in SYSTEMS else "other"})"></span> '
         f"{escaped(name)}", escaped(promised), escaped(words))
        for name, promised, words in claims.guarantees(runs)
    ]  # fmt: skip
    return table("Systems and what they guarantee", ("system", "promises", "of state and of output"), rows)


def latency_table(runs: Runs) -> str:
    """Every run without failures, with its distribution."""
    rows = []
    for record in runs.ok.of(is_failing=False):
        latency = record.latency.get("all")
        if latency is not None:
            figures = (latency.p50_ms, latency.p90_ms, latency.p99_ms, latency.p999_ms, latency.max_ms)
            rows.append((
                escaped(record.cell.workload), escaped(label_of(record.cell)), escaped(setting_of(record.cell)),
                f"{latency.count:,}", *(escaped(milliseconds(value)) for value in figures),
                escaped(plain_number(record.throughput_per_s)) if record.throughput_per_s else "",
            ))  # fmt: skip
    head = ("workload", "system", "setting", "latencies", "p50", "p90", "p99", "p99.9", "longest", "per second")
    return table("Without failures", head, rows, kind="numbers") if rows else ""


def pauses_table(runs: Runs) -> str:
    """Every run with a failure: how long each group got no answer, and its p99 before and after."""
    rows = []
    for record in runs.ended.of(is_failing=True):
        cells = [f"{escaped(record.cell.workload)}<br><code>{escaped(record.cell.failure)}</code>",
                 escaped(label_of(record.cell)), badge(record.delivered)]  # fmt: skip
        for group in ("affected", "others", "all"):
            pause, before, after = record.pause_ms.get(group), record.before.get(group), record.after.get(group)
            cells.append("" if pause is None else escaped(milliseconds(pause)))
            tails = f"{milliseconds(before.p99_ms)} → {milliseconds(after.p99_ms)}" if before and after else ""
            cells.append(escaped(tails))
        rows.append(cells)
    head = ("failure", "system", "delivered", "affected: pause", "p99 before → after", "others: pause",
            "p99 before → after", "all: pause", "p99 before → after")  # fmt: skip
    return table("Around the first failure", head, rows, kind="numbers") if rows else ""


def worse_html(runs: Runs) -> str:
    """Where other systems are better, and where a bar was missed."""
    worse = claims.where_worse(runs)
    rows = [(escaped(w.what), escaped(w.who), escaped(w.own), escaped(w.other), escaped(ratio(w.by))) for w in worse]
    listed = paragraphs(claims.closing(runs), "No bar that was measured was missed.")
    if not rows:
        return listed + '<p class="quiet">No run of another system in the same setting was better by more than 5 %.</p>'
    head = ("figure", "better is", "stash", "the other", "worse by")
    return listed + table("Where another system is better in the same setting", head, rows, kind="numbers")


def runs_table(records: Iterable[Record], caption: str) -> str:
    """Runs with their status and reason."""
    rows = [
        (f"<code>{escaped(name_of(record.cell))}</code>", badge(record.status), escaped(record.why),
         escaped(f"{record.seconds:.0f} s"), escaped(record.environment.commit[:12]))
        for record in records
    ]  # fmt: skip
    return table(caption, ("cell", "", "why", "took", "commit"), rows)


def environment_table(runs: Runs) -> str:
    """The versions that all of this ran with."""
    packages: dict[str, set[str]] = {}
    for record in runs:
        for name, version in record.environment.packages.items():
            packages.setdefault(name, set()).add(version)
    rows = [(escaped(name), escaped(", ".join(sorted(versions)))) for name, versions in sorted(packages.items())]
    return table("Versions", ("package", "version"), rows) if rows else ""


def missing_html(runs: Runs, absent: Sequence[str]) -> str:
    """What did not end well, and what is not there at all."""
    bad = claims.not_ended_well(runs)
    parts = [
        runs_table(bad, "Runs that were wrong, failed or skipped") if bad else "<p>Every run here ended well.</p>",
        paragraphs(
            (f"{name}: no record. Run: python -m benchmarks suite --quick" for name in absent),
            "Of the cells that were asked for none is missing.",
        ),
    ]
    systems = claims.absent_systems(runs)
    if systems:
        parts.append(f"<p>No run at all is of: {escaped(', '.join(systems))}.</p>")
    return "".join(parts)


def page(runs: Runs, figures: dict[str, Shown], *, absent: Sequence[str] = (), scale: str = "") -> str:
    """The whole report."""
    numbers = {name: number for number, name in enumerate((n for n, f in figures.items() if isinstance(f, Drawn)), 1)}

    def draw(name: str) -> str:
        return figure_html(figures[name], numbers.get(name, 0)) if name in figures else ""

    sections = [
        ("asked", "What was asked", paragraphs(QUESTIONS, "") + bars_table(verdicts(runs))),
        ("how", "How it was measured", _method(runs) + systems_table(runs)),
        ("calm", "Without failures", draw("latency-distribution")
         + paragraphs(claims.calm_sentences(runs), "No two systems ran the same cell without failures.")
         + draw("latency-by-store-delay") + paragraphs(claims.throughput_sentences(runs), "") + latency_table(runs)),
        ("failures", "When something fails", semantics_html(runs) + draw("around-a-failure") + pauses_table(runs)
         + draw("downtime-by-phase")
         + paragraphs(claims.failure_sentences(runs), "No run of stash with a failure has ended.")),
        ("cost", "What is written down and kept", draw("lineage-bytes")
         + paragraphs(claims.cost_sentences(runs), "No run of stash has counted its lineage.")
         + draw("memory-over-time") + draw("cost-by-size")),
        ("scale", "Scale on paper", draw("scale") + scale),
        ("worse", "Where this system is worse", worse_html(runs)),
        ("missing", "What is missing or went wrong", missing_html(runs, absent)),
        ("runs", "All runs", f"<details><summary>{len(runs)} records</summary>{runs_table(runs, 'All runs')}"
         f"{environment_table(runs)}</details>"),
    ]  # fmt: skip
    links = "".join(f'<li><a href="#{name}">{escaped(title)}</a></li>' for name, title, _ in sections)
    body = "".join(
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{number}. {escaped(title)}</h2>'
        f"{content}</section>"
        for number, (name, title, content) in enumerate(sections, 1)
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark"><title>{TITLE}'
        f"</title><style>{_variables()}{STYLE}</style></head><body><header><h1>{TITLE}</h1>"
        f'<p class="lead">{escaped(claims.summary(runs))}</p><nav aria-label="Sections"><ol>{links}</ol></nav></header>'
        f"<main>{body}</main></body></html>\n"
    )


def _method(runs: Runs) -> str:
    sentences = [
        *claims.setting_sentences(runs),
        "The same workload code ran on every system; competitors run the same stream by their own means.",
        "A latency is counted from the time at which a record was due, not from when it was sent, so "
        "that a system that "
        "falls behind cannot hide it.",
        "Each cell ran in processes of its own; failures are scripted, and a run only counts as failing if the failure "
        "has really happened.",
        "Every output was compared with the truth.",
        "All text and figures of this page are computed from the records of these runs.",
    ]
    return paragraphs(sentences, "")


def _variables() -> str:
    shades = all_shades()
    light = "".join(f"--{name}:{shade.light};" for name, shade in shades.items())
    dark = "".join(f"--{name}:{shade.dark};" for name, shade in shades.items())
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
