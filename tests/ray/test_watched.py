"""Spans and JSON logs of a script that loses two actors and the services, in a Ray that has no metrics."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
PHASES = ["detect", "gather", "settle", "start", "restore", "replay"]


class Span(NamedTuple):
    name: str
    trace: int
    id: int
    parent: int | None
    status: str
    attributes: dict[str, Any]


class Watched(NamedTuple):
    said: dict[str, Any]
    spans: list[Span]
    lines: list[dict[str, Any]]

    def named(self, name: str) -> list[Span]:
        found = [span for span in self.spans if span.name == name]
        return sorted(found, key=lambda span: span.attributes.get("lineage_stash.index", 0))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line.get("event") == name]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    folder = tmp_path_factory.mktemp("spans")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LINEAGE_STASH_METRICS": "0.2"}
    ran = subprocess.run([sys.executable, "-m", "tests.ray.watched", str(folder)], cwd=ROOT, env=environment,
                         capture_output=True, text=True, check=False, timeout=100)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    spans = [Span(*json.loads(line)) for file in folder.iterdir() for line in file.read_text().splitlines()]
    said = json.loads(ran.stdout.splitlines()[-1])
    written = [line for file in Path(said["logs"]).glob("worker-*.err") for line in file.read_text().splitlines()]
    return Watched(said, spans, [json.loads(line) for line in written if line.startswith("{")])


def test_run_is_what_it_would_be_unwatched(watched: Watched) -> None:
    assert (watched.said["seen"], watched.said["doubled"], watched.said["failed"]) == ([1, 2, 3, 4, 5], 8, 1)
    assert watched.events("no metrics") == []


def test_call_is_a_child_of_the_span_that_it_was_submitted_in(watched: Watched) -> None:
    trace, request = watched.said["trace"], watched.said["span"]
    outer = watched.named("Outer.add")
    assert [(span.trace, span.parent) for span in outer[:3]] == [(trace, request)] * 3
    inner = watched.named("Inner.add")
    assert [span.parent for span in inner] == [span.id for span in outer]
    assert sorted(span.parent or 0 for span in watched.named("adding")) == sorted(span.id for span in inner)
    assert [(span.trace, span.parent) for span in watched.named("double")] == [(trace, request)]
    assert [span.status for span in watched.named("Inner.fail")] == ["ERROR"]
    assert {span.status for span in outer} == {"UNSET"}


def test_replayed_calls_have_no_spans_and_neither_has_what_is_in_them(watched: Watched) -> None:
    outer, inner = watched.named("Outer.add"), watched.named("Inner.add")
    assert [span.attributes["lineage_stash.incarnation"] for span in outer] == [0, 0, 0, 1, 1]
    assert [span.attributes["lineage_stash.incarnation"] for span in inner] == [0, 0, 0, 1, 1]
    assert len(watched.named("adding")) == 5
    assert len({span.id for span in watched.spans}) == len(watched.spans)


def test_recovery_is_a_span_with_one_for_each_phase(watched: Watched) -> None:
    recoveries = watched.named("recovery")
    assert len(recoveries) == 2
    for recovery in recoveries:
        assert recovery.parent is None
        assert recovery.attributes["lineage_stash.replayed"] > 0
        assert [span.name for span in watched.spans if span.parent == recovery.id] == PHASES


def test_events_are_json_where_rays_logging_is(watched: Watched) -> None:
    peers = [span.attributes["lineage_stash.peer"] for span in watched.named("recovery")]
    recovered = watched.events("recovered")
    assert sorted(line["peer"] for line in recovered) == sorted(peers)
    for line in recovered:
        assert line["message"].startswith(f"recovered {line['peer']} (life 1) in ")
        assert line["total_ms"] == pytest.approx(sum(line[f"{phase}_ms"] for phase in PHASES))
        assert {"levelname", "node_id", "actor_name"} <= line.keys()
    assert len(watched.events("coordinator back")) == len(watched.events("replica back")) == 1
    begun = [peer for line in watched.events("round") for peer in line["peers"]]
    assert sorted(begun) == sorted(peers)
