"""Every command against one real run in which an actor was killed, and against the files of it when the run is over."""

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import ray as plain_ray
import yaml
from typer.testing import CliRunner

import lineage_stash as ray
from lineage_stash.cli.commands import app
from lineage_stash.cli.records import read_recoveries
from lineage_stash.on_ray.api import current
from lineage_stash.testing import inject
from tests.cli.actors import Shop, Till

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]

WITHIN_S = 60.0
ORDERS = 8


class Run(NamedTuple):
    """What the commands look at."""

    address: str
    storage: Path
    driver: str
    till: str
    shop: str
    killed: int


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def line(self) -> str:
        """What kept it from an answer."""
        assert (self.code, self.out) == (1, "")
        (line,) = self.err.splitlines()
        return line


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A shop whose till was killed between two orders, and has answered since."""
    storage = tmp_path_factory.mktemp("storage")
    plain_ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray.init(storage=storage)
    till = ray.remote(Till).options(name="till").remote()
    shop = ray.remote(Shop).options(name="shop").remote(till)
    saver = ray.remote(Till).options(name="saver", checkpoint_every=5).remote()
    assert ray.get([saver.add.remote(number) for number in range(30)])[-1] == 435
    assert ray.get([shop.order.remote(number) for number in range(ORDERS)])[-1] == 28
    killed = ray.get(till.pid.remote())
    os.kill(killed, signal.SIGKILL)
    assert ray.get(shop.order.remote(100), timeout=WITHIN_S) == 128
    inject.wait_until(lambda: bool(read_recoveries(current().process.plane)), "the recovery on record", WITHIN_S)
    yield Run(plain_ray.get_runtime_context().gcs_address, storage, current().id, till._peer, shop._peer, killed)
    ray.shutdown()
    plain_ray.shutdown()


def stash(*arguments: str) -> Answer:
    """A command in this process, which takes part in the cluster already."""
    result = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "250"}).invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


def real_stash(*arguments: str) -> Answer:
    """A command in a process of its own."""
    command = [sys.executable, "-m", "lineage_stash.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    return Answer(done.returncode, done.stdout, done.stderr)


def committed(run: Run) -> dict[str, Any]:
    """The peers by name, once all that they have logged is committed."""
    found: dict[str, Any] = {}

    def is_settled() -> bool:
        peers = stash("status", "--address", run.address, "--format", "json").json["peers"]
        found.update({peer["peer"]: peer for peer in peers})
        return all(found[peer]["lag"] == 0 and found[peer]["state"] == "alive" for peer in (run.till, run.shop))

    inject.wait_until(is_settled, "commits of all that was logged", WITHIN_S)
    return found


# status, recoveries


def test_status_tells_frontier_stash_level_runs_and_the_last_recovery(run: Run) -> None:
    peers = committed(run)
    till = peers[run.till]
    assert till["upper"] == till["committed"] == ORDERS + 4, "constructor, orders, pid and its reading, one more order"
    assert (till["calls"], till["level"], till["is_held_back"]) == (ORDERS + 3, "disk", False)
    assert 0 <= till["stash_bytes"] < till["stash_cap_bytes"] == 64 * 1024 * 1024
    found = stash("status", "--address", run.address, "--format", "json", "--filter", f"peer={run.till}").json
    assert [peer["peer"] for peer in found["peers"]] == [run.till]
    assert [(one["run"], one["state"]) for one in found["runs"]] == [(run.driver, "running")]
    assert found["last_recovery"]["peer"] == run.till
    table = real_stash("status", "--address", run.address, "--living").out
    assert all(word in table for word in (run.till, "committed", "lag", "64.0 MiB", "last recovery: 1-"))


def test_status_in_yaml_says_what_it_says_in_json(run: Run) -> None:
    committed(run)
    as_yaml = yaml.safe_load(stash("status", "--address", run.address, "--format", "yaml").out)
    as_json = stash("status", "--address", run.address, "--format", "json").json
    assert as_yaml["peers"] == as_json["peers"]
    assert as_yaml["last_recovery"] == as_json["last_recovery"]


def test_filter_that_names_no_field_is_refused(run: Run) -> None:
    refused = stash("status", "--address", run.address, "--filter", "colour=red")
    assert refused.code == 2
    assert "there is no field 'colour'" in refused.err


def test_recovery_by_its_id_is_told_in_full(run: Run) -> None:
    (listed,) = stash("recoveries", "--address", run.address, "--format", "json").json["recoveries"]
    assert stash("recoveries", "--address", run.address, "--format", "json", "--filter", "peer!=" + run.till).json == {
        "recoveries": []
    }
    found = stash("recovery", listed["id"], "--address", run.address, "--format", "json").json
    assert found == stash("recovery", "last", "--address", run.address, "--format", "json").json
    assert (found["peer"], found["former"]["pid"], found["incarnation"]) == (run.till, run.killed, 1)
    assert found["present"]["pid"] == inject.pid_of_peer(run.till) != run.killed  # type: ignore[arg-type]
    assert (found["replayed"], found["replayed_calls"], found["history_ends"]) == (ORDERS + 3, ORDERS + 2, ORDERS + 3)
    assert found["replayed_bytes"] > 0
    assert found["affected"] == [run.driver, run.shop]
    assert [phase["name"] for phase in found["timeline"]] == [
        "detect", "gather", "settle", "start", "restore", "replay",
    ]  # fmt: skip
    assert sum(phase["took_ms"] for phase in found["timeline"]) == pytest.approx(found["total_ms"])
    text = stash("recovery", listed["id"], "--address", run.address).out
    assert f"died: {run.till}, life 0 (pid {run.killed}" in text


# logs and causes


def test_log_of_a_running_cluster_is_told_in_words(run: Run) -> None:
    committed(run)
    found = stash("log", "till", "--address", run.address, "--format", "json").json
    assert (found["peer"], found["base"], found["upper"]) == (run.till, 0, ORDERS + 4)
    assert found["incarnations"] == [{"incarnation": 0, "began": 0}, {"incarnation": 1, "began": ORDERS + 3}]
    entries = found["entries"]
    assert entries[1]["words"] == f"ran add(0), call #0 of {run.shop}"
    assert entries[-2]["words"] == f"observed {run.killed}"
    assert (entries[-1]["words"], entries[-1]["incarnation"]) == (f"ran add(100), call #{ORDERS} of {run.shop}", 1)
    assert any(run.shop in entry["needs"] for entry in entries)
    some = stash("log", run.till, "--address", run.address, "--from", "2", "--to", "4", "--format", "json").json
    assert [entry["at"] for entry in some["entries"]] == [2, 3]
    reads = stash("log", "till", "--address", run.address, "--filter", "kind=read", "--format", "json").json
    assert [entry["kind"] for entry in reads["entries"]] == ["read"]
    assert "time.time said" in real_stash("log", "Shop-2", "--address", run.address, "--tail", "2").out


def test_why_tells_who_called_in_which_order_and_draws_it(run: Run, tmp_path: Path) -> None:
    committed(run)
    call = f"{run.shop}->{run.till}#{ORDERS}"
    picture, graph = tmp_path / "why.svg", tmp_path / "why.dot"
    found = stash("why", call, "--address", run.address, "--format", "json", "--svg", str(picture), "--dot",
                  str(graph)).json  # fmt: skip
    nodes = {node["id"]: node for node in found["nodes"]}
    causes = {edge["kind"]: nodes[edge["cause"]] for edge in found["edges"] if edge["effect"] == found["root"]}
    assert nodes[found["root"]]["title"] == "add(100)"
    assert (causes["called"]["peer"], causes["called"]["title"]) == (run.shop, "order(100)")
    assert causes["called"]["details"][0].startswith("time.time said")
    assert causes["order"]["title"] == "pid()"
    assert nodes[run.driver]["title"] == f"{run.driver}, which keeps no log"
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    assert graph.read_text().count(" -> ") == len(found["edges"])
    text = stash("why", f"{run.till}:{ORDERS + 3}", "--address", run.address, "--depth", "1").out
    assert "called by" in text
    assert "ran after" in text


def test_prefix_that_a_checkpoint_covers_is_told_and_a_replay_begins_after_it(run: Run) -> None:
    def log() -> Any:
        return stash("log", "saver", "--address", run.address, "--format", "json").json

    inject.wait_until(lambda: log()["base"] > 0, "a truncated log", WITHIN_S)
    found = log()
    assert found["checkpoints"][-1] >= found["base"] > 0
    assert all(entry["at"] >= found["base"] for entry in found["entries"])
    assert "is truncated: the checkpoint at" in stash("log", "saver", "--address", run.address).out
    assert "covers it" in stash("why", "saver:0", "--address", run.address).line
    replayed = stash("replay", "saver", "--address", run.address, "--format", "json").json["own"]
    assert (replayed["lower"] > 0, replayed["state"]) == (True, {"self.total": "435"})
    other = stash(
        "replay", "saver", "--with", "tests.cli.actors:Till", "--address", run.address, "--format", "json"
    ).json
    assert (other["difference"], other["other"]["state"]) == (None, {"self.total": "435"})


def test_why_finds_an_effect_by_its_key(run: Run) -> None:
    sent = ray.get(ray.get_actor("shop").bill.remote(7))
    assert sent.startswith("7 under ")
    inject.wait_until(lambda: sent in stash("log", "shop", "--address", run.address).out, "its log", WITHIN_S)
    found = stash("why", sent.removeprefix("7 under "), "--address", run.address, "--format", "json").json
    assert [node["title"] for node in found["nodes"] if node["id"] == found["root"]] == ["bill(7)"]
    assert f"observed {sent!r}" in found["nodes"][0]["details"]
    assert "has had no effect with the number 99" in stash("why", "shop!99", "--address", run.address).line


# replay


def test_replay_rebuilds_the_state_at_any_index(run: Run) -> None:
    committed(run)
    found = real_stash("replay", "till", "--address", run.address, "--format", "json").json
    assert (found["own"]["state"], found["own"]["ended"]) == ({"self.total": "128"}, None)
    earlier = stash("replay", run.till, "--to", "4", "--address", run.address, "--format", "json").json
    assert earlier["own"]["state"] == {"self.total": "3"}
    cut = stash("replay", run.shop, "--to", "2", "--address", run.address, "--format", "json").json["own"]
    assert (cut["ended"]["kind"], cut["state"]["self.orders"]) == ("cut", "[]"), "in the middle of the first order"
    assert ray.get(ray.get_actor("till").add.remote(0)) == 128, "nobody was touched, and this script goes on"


def test_replay_of_a_caller_asks_others_for_their_answers(run: Run) -> None:
    committed(run)
    found = stash("replay", "Shop-2", "--address", run.address, "--format", "json").json["own"]
    assert found["ended"] is None
    assert found["last"].startswith(("order(100) → 128", "bill(7)"))
    assert found["state"]["self.till"].startswith("Actor(Till")


def test_replay_with_other_code_shows_the_first_difference(run: Run) -> None:
    committed(run)
    same = stash("replay", "till", "--with", "tests.cli.actors:Till", "--address", run.address, "--format", "json")
    assert same.json["difference"] is None
    other = stash("replay", "till", "--with", "tests.cli.actors:CappedTill", "--address", run.address, "--format",
                  "json")  # fmt: skip
    assert other.code == 1
    difference = json.loads(other.out)["difference"]
    assert (difference["at"], difference["what"], difference["first"], difference["other"]) == (
        7, "its reply", "21", "20",
    )  # fmt: skip
    assert difference["words"] == "add(6)"


# top, chaos, doctor


def test_top_once_tells_rates(run: Run) -> None:
    found = stash("top", "--once", "--every", "0.2", "--address", run.address, "--format", "json").json
    peers = {peer["peer"]: peer for peer in found["peers"]}
    assert peers[run.till]["calls"] >= ORDERS + 3
    assert peers[run.till]["calls_per_s"] >= 0
    assert found["recoveries"] >= 1


def test_top_is_live_on_a_terminal_until_q(run: Run) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "lineage_stash.cli", "top", "--every", "0.2", "--address", run.address]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as live:
        os.close(theirs)
        try:
            seen = b""
            deadline = time.monotonic() + WITHIN_S
            while seen.count(b"calls/s") < 2 and time.monotonic() < deadline:
                if select.select([ours], [], [], 1.0)[0]:
                    seen += os.read(ours, 65536)
            os.write(ours, b"q")
            with suppress(OSError):  # whoever has the other end of the terminal is gone
                while select.select([ours], [], [], WITHIN_S)[0]:
                    os.read(ours, 65536)
            assert live.wait(WITHIN_S) == 0
        finally:
            live.kill()
            os.close(ours)


def test_chaos_asks_first_and_then_all_who_were_killed_are_back(run: Run) -> None:
    before = {peer: inject.pid_of_peer(peer) for peer in (run.till, run.shop)}  # type: ignore[arg-type]
    refused = stash("chaos", "--address", run.address, "--for", "60s")
    assert refused.code == 1
    assert "warning: this kills processes" in refused.err
    assert all(inject.is_running(pid) for pid in before.values())
    found = real_stash("chaos", "--address", run.address, "--for", "60s", "--kills", "2", "--seed", "3", "--yes",
                       "--format", "json").json  # fmt: skip
    assert len(found["killed"]) == 2
    assert (found["missing"], found["recoveries"] >= 1) == ([], True)
    assert {kill["name"].partition("@")[0] for kill in found["killed"]} <= set(before)
    assert ray.get(ray.get_actor("till").add.remote(0), timeout=WITHIN_S) == 128


def test_doctor_checks_the_machine_around_the_cluster(run: Run) -> None:
    found = stash("doctor", "--address", run.address, "--format", "json").json["checks"]
    checks = {check["name"]: check for check in found}
    for name in ("version of raydp", "version of pyspark", "Java 17", "flags of Java", "clock", "ports"):
        assert checks[name]["verdict"] == "ok", checks[name]
    assert "GiB free" in checks["memory"]["found"]
    assert "ms" in checks["clock"]["found"]


# what is not there


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("log", "nobody"), "there is no peer nobody in the cluster"),
        (("why", "nobody"), "names no call"),
        (("why", "till:100000"), "its log in the cluster ends at index"),
        (("recovery", "77-beef"), "there is no recovery 77-beef"),
        (("replay", "till", "--to", "100000"), "ends at index"),
        (("replay", "till", "--with", "nowhere:Class"), "cannot be imported"),
        (("chaos", "--run", "driver-none", "--yes"), "there is no run driver-none"),
        (("log", "till", "--storage", "/nowhere"), "there is no store in /nowhere"),
    ],
)
def test_what_is_not_there_is_one_line_and_exit_code_1(run: Run, arguments: tuple[str, ...], said: str) -> None:
    assert said in stash(*arguments, "--address", run.address).line


def test_wrong_address_is_one_line_and_exit_code_1() -> None:
    for command in (("log", "till"), ("why", "till:1"), ("top", "--once"), ("recovery", "last"), ("chaos", "--yes")):
        assert "nothing answers at 127.0.0.1:1" in real_stash(*command, "--address", "127.0.0.1:1").line


# after the run: its cluster is gone, and its files are there


@pytest.fixture
def left(run: Run, tmp_path: Path) -> Path:
    """The files as they would be left if the machine went down now; a run that ends in order leaves records only."""
    committed(run)
    return Path(shutil.copytree(run.storage, tmp_path / "left"))


def test_log_causes_and_state_come_from_the_files_when_the_cluster_is_gone(run: Run, left: Path) -> None:
    live = stash("log", "till", "--address", run.address, "--format", "json").json["entries"]
    files = ("--storage", str(left))
    found = real_stash("log", run.till, *files, "--format", "json").json
    assert [(entry["at"], entry["kind"]) for entry in found["entries"]] == [(one["at"], one["kind"]) for one in live]
    past = real_stash("why", f"{run.till}:5", *files, "--format", "json").json
    assert run.shop in {node["peer"] for node in past["nodes"]}
    assert "is not in" in real_stash("replay", "Shop-2", *files).line, "the code went with the cluster"
    alone = real_stash("replay", "Shop-2", *files, "--with", "tests.cli.actors:Shop", "--format", "json")
    ended = json.loads(alone.out)["other"]["ended"]
    assert (alone.code, ended["kind"]) == (1, "missing")
    assert f"the reply of {run.till} to call #0" in ended["text"]


def test_files_that_are_damaged_are_one_line_and_exit_code_1(left: Path) -> None:
    for segment in left.rglob("*.segment"):
        segment.write_bytes(b"nonsense" + segment.read_bytes())
    for command in (("log", "Till-1"), ("why", "Till-1:1"), ("replay", "Till-1")):
        assert "is damaged at byte 0" in stash(*command, "--storage", str(left)).line
