"""The report says what the records say: all of it is computed, and what is not there is said to be missing."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from benchmarks.suite import records
from benchmarks.suite.report import claims, command, published
from benchmarks.suite.report.bars import verdicts
from benchmarks.suite.report.runs import Runs
from tests.benchmarks import made_up

ROOT = Path(__file__).parents[2]


def outcome(made: list[records.Record], words: str) -> str:
    [found] = [verdict for verdict in verdicts(Runs(made)) if words in verdict.bar]
    return found.outcome


def test_without_records_every_bar_is_unmeasured_and_says_what_to_run() -> None:
    found = verdicts(Runs([]))
    assert len(found) == 14
    assert all(verdict.outcome == "not measured" and verdict.to_run for verdict in found)


@pytest.mark.parametrize(("slow_ms", "expected"), [(0.209, "met"), (0.212, "missed")])
def test_ring_must_be_level_within_five_per_cent(slow_ms: float, expected: str) -> None:
    assert outcome(made_up.ring("stash", {0.0: 0.2, 100.0: slow_ms}), "within 5 %") == expected


@pytest.mark.parametrize(("slow_ms", "expected"), [(101.0, "met"), (1.0, "missed")])
def test_log_that_is_written_first_must_show_the_delay(slow_ms: float, expected: str) -> None:
    assert outcome(made_up.ring("sync-log", {0.0: 0.9, 100.0: slow_ms}), "grows with") == expected


def test_systems_at_different_rates_are_not_compared() -> None:
    made = [
        made_up.record("wordcount", system, p50_ms=1.0, parameters={"rate": rate})
        for system, rate in (("stash", 100), ("plain", 200))
    ]
    assert outcome(made, "p50 at most") == "not measured"


def test_run_that_failed_has_no_figures_to_compare() -> None:
    made = [
        made_up.record("wordcount", system, p50_ms=p50_ms, parameters={"rate": 100}, status=status)
        for system, p50_ms, status in (("stash", 0.1, "failed"), ("plain", 2.0, "ok"))
    ]
    assert outcome(made, "p50 at most") == "not measured"


@pytest.mark.parametrize(("pause_ms", "expected"), [(440.0, "met"), (460.0, "missed")])
def test_pause_must_be_under_half_of_that_of_global_checkpoints(pause_ms: float, expected: str) -> None:
    made = [made_up.killed("stash", pause_ms=pause_ms), made_up.killed("global-checkpoint", pause_ms=900.0)]
    assert outcome(made, "pause under half") == expected


def test_wrong_result_misses_the_bar_and_is_named() -> None:
    made = [made_up.killed("stash", pause_ms=9.0, delivered="gap", status="wrong", why="one is missing")]
    assert outcome(made, "precise in every failure") == "missed"
    assert made_up.KILL in next(v.measured for v in verdicts(Runs(made)) if "precise in every" in v.bar)


def test_failure_that_did_not_happen_proves_nothing() -> None:
    made = [made_up.killed("stash", pause_ms=0.0, injected=[])]
    assert outcome(made, "precise in every failure") == "not measured"


def test_uncommitted_changes_miss_the_bar_of_one_commit() -> None:
    made = [made_up.record("ring", "stash", environment=made_up.environment(is_changed=True))]
    assert outcome(made, "one commit") == "missed"


def test_sentences_speak_only_of_what_was_measured() -> None:
    runs = Runs([made_up.record("wordcount", "stash", p50_ms=0.4)])
    assert list(claims.calm_sentences(runs)) == []
    assert list(claims.failure_sentences(runs)) == []
    assert list(claims.cost_sentences(runs)) == []
    assert claims.where_worse(runs) == []


def test_where_another_system_is_better_is_listed() -> None:
    made = [
        made_up.record("wordcount", system, p50_ms=p50_ms, parameters={"rate": 9})
        for system, p50_ms in (("stash", 2.0), ("bytewax", 0.5))
    ]
    worst = claims.where_worse(Runs(made))[0]
    assert worst.who == "bytewax"
    assert worst.by == pytest.approx(4.0)


class Reader(HTMLParser):
    """Collects what a page would ask other hosts for, its ids, and its figures without words."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.ids: list[str] = []
        self.unnamed = 0
        self.headless = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [given["id"] or ""] if "id" in given else []
        for name in ("src", "href", "xlink:href", "srcset"):
            address = given.get(name) or ""
            if address and not address.startswith(("#", "data:")):
                self.outside.append(address)
        self.unnamed += tag == "svg" and not given.get("aria-label")
        self.headless += tag == "th" and "scope" not in given


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    command.make(made_up.all_kinds(), folder, with_scale=False, asked_for=["ring--nobody"])
    return folder


def test_page_asks_no_other_host_and_every_figure_has_words(report: Path) -> None:
    text = (report / "index.html").read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(text)
    assert reader.outside == []
    assert reader.unnamed == reader.headless == 0
    assert len(reader.ids) == len(set(reader.ids))
    assert "@import" not in text
    assert not re.findall(r"url\((?!#)", text)


def test_every_figure_is_drawn_as_png_and_svg(report: Path) -> None:
    assert len(list(report.glob("*.png"))) == len(list(report.glob("*.svg"))) == len(command.DRAWERS)


def test_page_names_what_is_missing_wrong_failed_and_skipped(report: Path) -> None:
    text = (report / "index.html").read_text(encoding="utf-8")
    for words in ("ring--nobody: no record", "12 words are missing", "timed out after 60 s", "make peers", "not run"):
        assert words in text


def test_report_of_nothing_is_refused_with_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--records", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "no records" in capsys.readouterr().out


def test_one_record_alone_makes_a_report(tmp_path: Path) -> None:
    records.write(made_up.record("graph", "stash", status="failed", why="no answer"), tmp_path / "records")
    assert command.main(["--records", str(tmp_path / "records"), "--out", str(tmp_path / "out"), "--no-scale"]) == 0
    assert "no answer" in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")


def copy_of_docs(tmp_path: Path, parts: Any) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "benchmarks").mkdir()
    marked = "\n".join(f"<!-- suite: {name} -->\nold\n<!-- end -->\nkept" for name in parts)
    (tmp_path / "docs" / "performance.md").write_text(marked, encoding="utf-8")
    return tmp_path / "docs" / "performance.md"


def test_docs_are_written_from_published_records_and_then_stay(tmp_path: Path) -> None:
    path = copy_of_docs(tmp_path, [*published.PARTS, *published.PLAIN_PARTS])
    published.publish(made_up.all_kinds(), tmp_path)
    assert published.write_docs(tmp_path) == [Path("docs/performance.md")]
    text = path.read_text(encoding="utf-8")
    assert "\nold\n" not in text
    assert text.count("<!-- end -->\nkept") == len(published.PARTS) + len(published.PLAIN_PARTS)
    assert published.write_docs(tmp_path) == []


def test_docs_stay_as_they_are_while_nothing_is_published(tmp_path: Path) -> None:
    path = copy_of_docs(tmp_path, published.PARTS)
    assert published.write_docs(tmp_path) == []
    assert "\nold\n" in path.read_text(encoding="utf-8")


def test_published_records_give_the_same_verdicts(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    published.publish(made_up.all_kinds(), tmp_path)
    kept = published.read_published(tmp_path)
    assert kept is not None
    assert verdicts(kept) == verdicts(Runs(made_up.all_kinds()))


def test_unknown_part_is_refused() -> None:
    with pytest.raises(ValueError, match="no part 'other'"):
        published.rewritten("<!-- suite: other -->\n<!-- end -->", None)


@pytest.mark.parametrize("name", published.DOCS)
def test_docs_are_what_the_script_would_write(name: Path) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert published.rewritten(text, published.read_published(ROOT)) == text
