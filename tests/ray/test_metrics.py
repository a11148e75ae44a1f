"""What a real run with failures in it says in Ray's Prometheus endpoint, and in the logs of its processes."""

import json
import os
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import ray as plain_ray

import lineage_stash as ray
from lineage_stash.core.history import History
from lineage_stash.core.ids import FIRST_INCARNATION, Member, PeerId
from lineage_stash.core.peer import Peer
from lineage_stash.core.policy import Policy
from lineage_stash.on_ray.metrics import COUNTER, HISTOGRAM, METRICS, VARIABLE
from lineage_stash.on_ray.vitals import PRESSED_S, RELIEVED_S, Pressure
from lineage_stash.testing import inject

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(120)]

DOCS = Path(__file__).parents[2] / "docs"
WITHIN_S = 40.0
CALLS = 500
STASH_CAP_BYTES = 200_000

NEVER_HERE = {"ray_stash_orphans_total"}
"""What only a run that has lost more nodes than it may would say: a counter is there from its first count on."""

SERIES = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
NAMED = re.compile(r"\bray_stash_\w+")


@ray.remote(num_cpus=0, checkpoint_every=100)
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count


@ray.remote(num_cpus=0, checkpoint_every=10)
class Uncopyable(Counter._cls):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.file = open(os.devnull)  # noqa: SIM115 - that is the point


@ray.remote
def double(value: int) -> int:
    return 2 * value


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


def scrape() -> list[Sample]:
    """What Prometheus would get from this node."""
    (node,) = plain_ray.nodes()
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return [Sample(name, dict(LABEL.findall(labels)), float(value)) for name, labels, value in SERIES.findall(text)]


def total(samples: list[Sample], name: str, **labels: str) -> float:
    """The sum of all series with these labels."""
    return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A run in which an actor was killed, a state could not be copied, and the store was away; the actor's id."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "0.3"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, stash_cap_bytes=STASH_CAP_BYTES,
             storage=tmp_path_factory.mktemp("store"), _system_config={"metrics_report_interval_ms": 500})  # fmt: skip
    try:
        counter, uncopyable = Counter.remote(), Uncopyable.remote()
        ray.get([counter.add.remote() for _ in range(CALLS)])
        ray.get([uncopyable.add.remote() for _ in range(50)])
        assert ray.get([double.remote(number) for number in range(10)]) == [2 * number for number in range(10)]
        inject.wait_until(
            lambda: total(scrape(), "ray_stash_calls_total", title="Counter") > CALLS, "calls are counted"
        )
        inject.kill_process(counter)
        assert ray.get(counter.add.remote(), timeout=WITHIN_S) == CALLS + 1
        starve(counter)
        yield counter._peer
    finally:
        ray.shutdown()
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def starve(counter: "ray.ActorHandle") -> None:
    """Have the store away until the stash is full, and people were told of both."""
    inject.disturb_store(pause=True)
    enough = threading.Event()

    def call_on() -> None:
        while not enough.is_set():
            counter.add.remote()

    caller = threading.Thread(target=call_on)
    caller.start()
    try:
        inject.wait_until(lambda: bool(told("store away") and told("back-pressure")), "people are told")
    finally:
        enough.set()
        inject.disturb_store()
        caller.join(WITHIN_S)
    ray.get(counter.add.remote(), timeout=WITHIN_S)
    inject.wait_until(lambda: bool(told("store back")), "people are told that it is over")


EVENTS = {
    "recovered": "recovered ",
    "round": "round 1 is decided: ",
    "no checkpoint": "the state of Uncopyable cannot be copied",
    "store away": "store: it does not answer; ",
    "store back": "store: it answers again, after ",
    "back-pressure": "back-pressure: calls of ",
}


def told(event: str) -> list[str]:
    """The lines about an event that processes of this cluster have written."""
    logs = Path(plain_ray.get_runtime_context().worker.node.get_logs_dir_path())
    lines = [line for file in logs.glob("worker-*.err") for line in file.read_text(errors="replace").splitlines()]
    return [line for line in lines if line.startswith(f"lineage_stash: {EVENTS[event]}")]


@pytest.fixture(scope="module")
def samples(peer: str) -> list[Sample]:
    """The endpoint, once it has heard of everything that has happened."""
    latest: list[Sample] = []

    def has_heard_all() -> bool:
        latest[:] = scrape()
        seen = {sample.name.removesuffix("_count") for sample in latest}
        return (
            {metric.in_prometheus for metric in METRICS} - NEVER_HERE <= seen
            and total(latest, "ray_stash_replayed_entries_total", peer=peer) > 0
            and total(latest, "ray_stash_store_up") == 1
        )

    deadline = time.monotonic() + WITHIN_S
    while not has_heard_all() and time.monotonic() < deadline:
        time.sleep(0.2)
    return latest


def test_every_metric_of_the_table_is_in_the_endpoint_with_its_tags(samples: list[Sample]) -> None:
    labels = {sample.name.removesuffix("_count"): sample.labels for sample in samples}
    missing = [metric.name for metric in METRICS if metric.in_prometheus not in labels]
    assert missing == ["stash_orphans"]
    untagged = [each.name for each in METRICS if not set(each.tags) <= labels.get(each.in_prometheus, {}).keys()]
    assert untagged == ["stash_orphans"] or untagged == []


def test_calls_of_a_killed_actor_are_counted_once_and_replays_are_not_calls(samples: list[Sample], peer: str) -> None:
    lives = [each for each in samples if each.name == "ray_stash_calls_total" and each.labels["peer"] == peer]
    assert len(lives) == 2, "each process has its own"
    assert max(each.value for each in lives) >= CALLS + 1
    assert 0 < total(samples, "ray_stash_replayed_entries_total", peer=peer) < CALLS
    assert total(samples, "ray_stash_calls_total", title="tasks") == 10
    assert total(samples, "ray_stash_checkpoints_total", peer=peer) >= 1
    assert total(samples, "ray_stash_failed_checkpoints_total", title="Uncopyable") >= 1
    flushed = total(samples, "ray_stash_flushed_entries_total", peer=peer)
    assert flushed >= CALLS
    assert total(samples, "ray_stash_flushed_bytes_total", peer=peer) > flushed
    assert total(samples, "ray_stash_forwarded_bytes_total", peer=peer) > 0


def test_recovery_is_counted_with_all_its_phases(samples: list[Sample]) -> None:
    assert total(samples, "ray_stash_recoveries_total") == 1
    assert total(samples, "ray_stash_rounds_total") == 1
    counts = {each.labels["phase"]: each.value for each in samples if each.name == "ray_stash_recovery_seconds_count"}
    assert counts == dict.fromkeys(("detect", "gather", "settle", "start", "restore", "replay", "total"), 1.0)
    assert total(samples, "ray_stash_replay_rate") > 0
    assert total(samples, "ray_stash_replicas_up") == total(samples, "ray_stash_replicas") == 1
    assert total(samples, "ray_stash_backpressure_seconds_total") > 1


def test_every_metric_that_the_dashboard_names_exists(samples: list[Sample]) -> None:
    seen = {sample.name for sample in samples}
    queries = list(queries_of(json.loads((DOCS / "grafana.json").read_text(encoding="utf-8"))))
    named = {name for query in queries for name in NAMED.findall(query)}
    assert named - seen == NEVER_HERE
    by_name = {sample.name: sample.labels for sample in samples}
    for query in queries:
        known = set().union(*(by_name.get(name, {}) for name in NAMED.findall(query)), {"SessionName", "le"})
        assert set(re.findall(r"(\w+)(?:=~|!=|=)\"", query)) <= known, query
        for grouped in re.findall(r"by \((\w+)\)", query):
            assert grouped in known, query
    shown = {metric.in_prometheus for metric in METRICS if metric.kind != HISTOGRAM}
    assert shown <= named, "what is worth counting is worth showing"


def test_dashboard_is_well_formed() -> None:
    dashboard = json.loads((DOCS / "grafana.json").read_text(encoding="utf-8"))
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (x, y) for panel in panels for at in [panel["gridPos"]] for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]  # fmt: skip
    assert len(set(taken)) == len(taken), "no panel hides another one"
    assert max(x for x, _ in taken) < 24
    variables = {variable["name"] for variable in dashboard["templating"]["list"]} | {"__rate_interval", "__range"}
    for query in queries_of(dashboard):
        assert [query.count(opening) - query.count(closing) for opening, closing in ("()", "[]", "{}")] == [0, 0, 0]
        assert set(re.findall(r"\$(\w+)", query)) <= variables, query


def queries_of(dashboard: dict[str, object]) -> Iterator[str]:
    """Every query in a dashboard, wherever it is."""
    for key, value in dashboard.items():
        children = value if isinstance(value, list) else [value]
        for child in children:
            if isinstance(child, dict):
                yield from queries_of(child)
            elif isinstance(child, str) and key in ("expr", "query", "definition") and "ray_" in child:
                yield child


@pytest.mark.parametrize("event", EVENTS)
def test_event_is_told_in_one_line(peer: str, event: str) -> None:
    about_this = [line for line in told(event) if peer in line or event not in ("recovered", "round", "back-pressure")]
    assert len(about_this) == 1, about_this


@pytest.mark.usefixtures("peer")
def test_happy_path_makes_no_noise() -> None:
    logs = Path(plain_ray.get_runtime_context().worker.node.get_logs_dir_path())
    lines = [line for file in logs.glob("worker-*.*") for line in file.read_text(errors="replace").splitlines()]
    own = [line for line in lines if line.startswith("lineage_stash: ")]
    known = tuple(f"lineage_stash: {words}" for words in EVENTS.values())
    assert [line for line in own if not line.startswith(known)] == []


def test_back_pressure_is_over_when_the_stash_has_had_room_for_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    member = Member(PeerId("a"), "node", True)  # type: ignore[arg-type]
    full = Peer(member, FIRST_INCARNATION, History(), Policy(stash_cap_bytes=0))
    pressure, start = Pressure(full), time.monotonic()
    pressure.look(start)
    pressure.look(start + PRESSED_S / 2)
    assert capsys.readouterr().err == ""
    pressure.look(start + 2 * PRESSED_S)
    assert capsys.readouterr().err.startswith("lineage_stash: back-pressure: calls of a wait for the store: 0 bytes")
    full.program.cap_bytes = 1
    pressure.look(start + 3 * PRESSED_S)
    assert capsys.readouterr().err == ""
    pressure.look(start + 3 * PRESSED_S + RELIEVED_S)
    assert "calls of a do not wait for the store any more" in capsys.readouterr().err
    assert 2 * PRESSED_S <= pressure.total_s < 3 * PRESSED_S


def test_documented_metrics_are_those_that_there_are() -> None:
    text = (DOCS / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(ray_stash_\w+)` \| (\w+) \|", text, re.MULTILINE)
    assert sorted(rows) == sorted((metric.in_prometheus, metric.kind) for metric in METRICS)
    assert [name for name, kind in rows if name.endswith("_total") is not (kind == COUNTER)] == []
