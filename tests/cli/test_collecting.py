"""`stash runs`, `stash rm` and `stash gc`: what they print, with which exit code they end, and what is left then."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lineage_stash.cli import cluster, folders, show
from lineage_stash.cli.cluster import Cluster, NoCluster
from lineage_stash.cli.collecting import TOO_YOUNG, UNKNOWN_AGE
from lineage_stash.cli.commands import app, parse_duration_s
from lineage_stash.cli.show import in_units
from lineage_stash.cli.show_runs import ago
from lineage_stash.on_ray.far_files import folder_name
from lineage_stash.store.disk import DiskReplica
from tests.cli.listeners import Store
from tests.cli.planes import NODES, MemoryPlane, cluster_of

RUN, DEAD, LIVING = "driver-1", "driver-2", "driver-3"
ACTOR = f"{RUN}/A-1"
DAY_S = 86400.0
LONG_AGO = 1_000_000_000.0

runner = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "200"})


@pytest.fixture(autouse=True)
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As if this machine had nothing but these Ray sessions, which are all over."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(folders, "live_sessions", frozenset)
    return tmp_path / "ray"


@pytest.fixture
def left(sessions: Path) -> Path:
    """A folder that a cluster has left long ago."""
    (sessions / "session_1" / "sockets").mkdir(parents=True)
    folder = sessions / "session_1" / "lineage_stash" / "replica-0"
    DiskReplica(folder, identity="store-0/replica-0").close()
    for path in (*folder.iterdir(), folder):
        os.utime(path, (LONG_AGO, LONG_AGO))
    return folder


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch) -> MemoryPlane:
    """The control plane of a cluster with a run that has ended, one whose driver died, and one that goes on."""
    found = MemoryPlane()
    found.add_services(NODES)
    found.begin_run(RUN, entrypoint="train.py --epochs 3")
    found.create(ACTOR)
    found.live(ACTOR, 0, pid=5)
    found.retire(ACTOR)
    found.end_run(RUN, at=LONG_AGO)
    found.begin_run(DEAD, started_at=1001.0)
    found.decide(1, gone=(DEAD,))
    found.begin_run(LIVING, started_at=1002.0)

    @contextmanager
    def joined(_: str | None) -> Iterator[Cluster]:
        yield cluster_of(found)

    monkeypatch.setattr(cluster, "joined", joined)
    return found


@pytest.fixture
def store(tmp_path: Path, plane: MemoryPlane) -> Iterator[Store]:
    found = Store(tmp_path, plane, 3)
    found.write(ACTOR, RUN, RUN)
    found.start()
    yield found
    found.stop()


@pytest.fixture
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def joined(_: str | None) -> None:
        raise NoCluster("no Ray cluster runs on this machine: start one")

    monkeypatch.setattr(cluster, "joined", joined)


def stash(*arguments: str) -> Result:
    return runner.invoke(app, list(arguments))


def answer(*arguments: str) -> Any:
    result = stash(*arguments, "--format", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


# runs


def test_runs_and_folders_are_told_in_json(plane: MemoryPlane, store: Store, left: Path) -> None:
    assert plane.facts
    assert store.replicas
    found = answer("runs")
    assert found["cluster"] == "192.0.2.7:6379"
    assert [(run["run"], run["state"], run["entries"]) for run in found["runs"]] == [
        (RUN, "ended", 2), (DEAD, "died", 0), (LIVING, "running", 0),
    ]  # fmt: skip
    first = found["runs"][0]
    assert (first["started_at"], first["ended_at"], first["entrypoint"]) == (1000.0, LONG_AGO, "train.py --epochs 3")
    assert (first["actors_alive"], first["actors_ended"]) == (0, 1)
    assert first["bytes"] > 200
    (folder,) = found["folders"]
    assert (folder["path"], folder["state"], folder["written_at"]) == (str(left), "left", LONG_AGO)


@pytest.mark.usefixtures("plane", "store", "left")
def test_runs_and_folders_are_told_in_tables() -> None:
    lines = stash("runs").stdout.splitlines()
    (row,) = (line for line in lines if RUN in line)
    assert all(word in row for word in ("ended", "1 ended", "train.py --epochs 3", "2001-09-"))
    (row,) = (line for line in lines if DEAD in line)
    assert "died" in row
    (row,) = (line for line in lines if "session_1" in line)
    assert all(word in row for word in ("left", "KiB", "d ago"))


@pytest.mark.usefixtures("plane", "store")
def test_terminal_too_narrow_for_the_tables_gets_lines(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "FILE_WIDTH", 100)
    lines = " ".join(stash("runs").stdout.split())
    assert f"{RUN}: train.py --epochs 3; ended 2001-09-" in lines
    assert f"{DEAD}: job.py; died; no actors; 0 entries, 0 B" in lines
    assert left.name in lines
    assert ": left, " in lines
    lines = " ".join(stash("gc", "--dry-run").stdout.split())
    assert f"would remove run {RUN}: 2 entries, " in lines


@pytest.mark.usefixtures("plane")
def test_runs_of_a_store_that_does_not_answer_say_so() -> None:
    result = stash("runs")
    assert result.exit_code == 0
    assert "the store does not say what it has: " in result.stdout
    assert RUN in result.stdout


@pytest.mark.usefixtures("_no_cluster")
def test_folders_are_told_without_a_cluster(left: Path) -> None:
    found = answer("runs")
    assert (found["cluster"], found["runs"], len(found["folders"])) == (None, [], 1)
    assert str(left) in stash("runs").stdout


@pytest.mark.usefixtures("_no_cluster")
def test_folder_that_was_chosen_is_looked_into_where_it_is_named(tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    DiskReplica(storage / "replica-0", identity="store-0/replica-0").close()
    assert answer("runs")["folders"] == []
    (found,) = answer("runs", "--storage", str(storage))["folders"]
    assert found["path"] == str(storage / "replica-0")


# rm


def test_removed_run_is_told_with_its_bytes_and_is_not_there_any_more(plane: MemoryPlane, store: Store) -> None:
    result = stash("rm", RUN)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"removed run {RUN}: 2 entries, ")
    assert result.stdout.endswith("B on each of 3 replicas\n")
    assert store.peers() == [[], [], []]
    assert f"runs/{RUN}" not in plane.facts
    again = stash("rm", RUN)
    assert (again.exit_code, again.stdout) == (1, "")
    assert again.stderr == f"stash: {RUN}: there is no such run in this cluster: see `stash runs`\n"


@pytest.mark.usefixtures("plane", "store")
def test_removed_run_is_told_in_json() -> None:
    found = answer("rm", RUN)
    (removed,) = found["removed"]
    assert (removed["kind"], removed["name"], removed["entries"], removed["copies"]) == ("run", RUN, 2, 3)
    assert found["freed_bytes"] == 3 * removed["bytes"] > 0


@pytest.mark.usefixtures("plane", "store")
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (LIVING, f"{LIVING}: it is not over: its driver is alive"),
        (ACTOR, f"{ACTOR}: this is an actor, which is removed with its run, {RUN}"),
        ("/proc", "/proc is not the folder of a store: there is no file of a replica in it"),
    ],
)
def test_refusal_is_one_line_and_exit_code_1(what: str, reason: str) -> None:
    result = stash("rm", what)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"stash: {reason}\n")


@pytest.mark.usefixtures("_no_cluster")
def test_run_without_a_cluster_is_refused_and_a_folder_is_removed(left: Path) -> None:
    assert "no Ray cluster runs" in stash("rm", RUN).stderr
    found = answer("rm", str(left))
    assert found["removed"][0]["name"] == str(left)
    assert not left.exists()


@pytest.mark.usefixtures("plane", "store")
@pytest.mark.parametrize("command", [("rm", RUN), ("gc",)])
def test_cluster_is_not_guessed_for_removing(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "live_sessions", lambda: frozenset(("/tmp/ray/session_1", "/tmp/ray/session_2")))
    result = stash(*command)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "several Ray clusters run on this machine" in result.stderr
    assert stash(*command, "--address", "192.0.2.7:6379").exit_code == 0


# gc


def test_collection_removes_what_is_over_and_leaves_what_is_not(plane: MemoryPlane, store: Store, left: Path) -> None:
    found = answer("gc")
    assert [(one["kind"], one["name"]) for one in found["removed"]] == [
        ("run", RUN), ("run", DEAD), ("folder", str(left)),
    ]  # fmt: skip
    assert found["freed_bytes"] > 0
    assert found["kept"] == []
    assert store.peers() == [[], [], []]
    assert plane.keys("runs/") == [f"runs/{LIVING}"]
    assert not left.exists()
    assert "nothing is over that could be removed" in stash("gc").stdout


def test_dry_run_says_the_same_and_removes_nothing(plane: MemoryPlane, store: Store, left: Path) -> None:
    before, files = dict(plane.facts), sorted(os.listdir(left))
    said = answer("gc", "--dry-run")
    text = stash("gc", "--dry-run").stdout
    assert "would remove" in text
    assert "would free" in text
    assert (plane.facts, sorted(os.listdir(left))) == (before, files)
    assert store.peers() == [[ACTOR]] * 3
    done = answer("gc")
    assert {**done, "dry_run": True} == said


def test_what_has_not_been_over_for_long_enough_is_kept(plane: MemoryPlane, store: Store, left: Path) -> None:
    assert store.replicas
    plane.end_run(LIVING, at=float(2**40))
    found = answer("gc", "--older-than", "1d")
    assert [one["name"] for one in found["removed"]] == [RUN, str(left)]
    assert {one["name"]: one["reason"] for one in found["kept"]} == {
        DEAD: UNKNOWN_AGE,
        LIVING: TOO_YOUNG,
    }


def test_driver_that_died_is_collected_when_it_was_found_dead_long_enough_ago(plane: MemoryPlane, store: Store) -> None:
    assert store.replicas
    answer("gc", "--older-than", "1d")
    noted = json.loads(plane.facts[f"runs/{DEAD}"])
    assert noted["started_at"] == 1001.0, "the rest stays as it was"
    plane.facts[f"runs/{DEAD}"] = json.dumps({**noted, "ended_at": noted["ended_at"] - DAY_S}).encode()
    assert [one["name"] for one in answer("gc", "--older-than", "1d")["removed"]] == [DEAD]


def test_peers_of_no_run_are_collected(plane: MemoryPlane, store: Store) -> None:
    assert plane.facts
    store.write("driver-9/A-1", "driver-9")
    assert answer("runs")["strays"] == 1
    assert "in the store, of no run: 1 peers; `stash gc` removes them" in stash("runs").stdout
    assert [one["kind"] for one in answer("gc")["removed"]] == ["run", "run", "leftovers"]
    assert store.peers() == [[], [], []]


def test_run_that_others_may_need_is_kept_with_the_reason(plane: MemoryPlane, store: Store) -> None:
    service = f"{LIVING}/Service-1"
    plane.create(service, detached=True)
    plane.live(service, 0, pid=6)
    store.write(service, LIVING, RUN)
    result = stash("gc")
    assert result.exit_code == 0
    (row,) = (line for line in result.stdout.splitlines() if f"may still be needed by {service}" in line)
    assert row.startswith(f"kept run {RUN}: it may")


def test_store_without_a_majority_fails_the_collection_of_runs_and_not_of_folders(
    plane: MemoryPlane, store: Store, left: Path
) -> None:
    store.stop(0, 1)
    result = stash("gc", "--format", "json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [one["name"] for one in found["removed"]] == [str(left)]
    assert [(one["name"], one["failed"]) for one in found["kept"]] == [(RUN, True), (DEAD, True)]
    assert f"runs/{RUN}" in plane.facts


@pytest.mark.usefixtures("_no_cluster")
def test_folders_are_collected_without_a_cluster(left: Path) -> None:
    assert [one["name"] for one in answer("gc")["removed"]] == [str(left)]


@pytest.mark.usefixtures("_no_cluster")
def test_folder_in_use_is_not_collected(sessions: Path) -> None:
    folder = sessions / "session_2" / "lineage_stash" / "replica-0"
    replica = DiskReplica(folder, identity="store-0/replica-0")
    try:
        assert answer("runs")["folders"][0]["state"] == "in use"
        assert answer("gc")["removed"] == []
    finally:
        replica.close()
    assert folder.exists()


def write_partition(session: Path, stage: str, name: str = "000000.arrow") -> Path:
    """A file as a Spark stage leaves it."""
    (session / "sockets").mkdir(parents=True, exist_ok=True)
    file = session / "partitions" / folder_name(stage) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"rows" * 1000)
    return file


@pytest.mark.usefixtures("_no_cluster")
def test_partitions_of_a_session_that_is_over_are_listed_and_removed(sessions: Path) -> None:
    file = write_partition(sessions / "session_1", f"{RUN}:words-1")
    unfinished = write_partition(sessions / "session_1", f"{RUN}:words-1", "000001.arrow.17")
    other = write_partition(sessions / "session_1", f"{RUN}:words-2", "mine.txt")
    assert [(one["path"], one["state"]) for one in answer("runs")["folders"]] == [
        (str(file.parent), "left"), (str(other.parent), "left"),
    ]  # fmt: skip
    assert answer("gc", "--older-than", "1d")["removed"] == []
    assert [one["bytes"] > 0 for one in answer("gc")["removed"]] == [True, False]
    assert not unfinished.parent.exists()
    assert other.exists(), "what is no partition stays"


def test_partitions_go_with_their_run_and_those_of_living_runs_stay(
    plane: MemoryPlane, store: Store, sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.replicas
    own = sessions / "session_2"
    over, living = (write_partition(own, f"{run}:words-1") for run in (RUN, LIVING))
    orphan = write_partition(own, "driver-9:words-1")
    for run in (RUN, LIVING):
        plane.put(f"partitions/{run}:words-1/0", b"{}")
        plane.put(f"digests/{run}:words-1/0", b"abc")

    @contextmanager
    def joined(_: str | None) -> Iterator[Cluster]:
        yield cluster_of(plane, session=str(own))

    monkeypatch.setattr(cluster, "joined", joined)
    assert {one["path"]: one["state"] for one in answer("runs")["folders"] if "partitions" in one["path"]} == {
        str(over.parent): "in use", str(living.parent): "in use", str(orphan.parent): "left",
    }  # fmt: skip
    would = [one["name"] for one in answer("gc", "--dry-run")["removed"]]
    assert {str(over.parent), str(orphan.parent)} <= set(would)
    assert str(living.parent) not in would
    assert over.exists()
    assert [one["name"] for one in answer("gc")["removed"]] == would
    assert (over.exists(), orphan.exists(), living.exists()) == (False, False, True)
    assert plane.keys("digests/") == [f"digests/{LIVING}:words-1/0"]
    assert plane.keys("partitions/") == [f"partitions/{LIVING}:words-1/0"]


@pytest.mark.parametrize("text", ["", "1", "1w", "-1d", "d"])
def test_length_of_time_that_is_none_is_refused(text: str) -> None:
    result = stash("gc", "--older-than", text)
    assert result.exit_code == 2
    assert "1d" in result.stderr


def test_numbers_are_told_in_units() -> None:
    assert [parse_duration_s(text) for text in ("90s", "30m", "1.5h", "1d")] == [90, 1800, 5400, DAY_S]
    assert [in_units(count) for count in (0, 1023, 1024, 5 << 20, 3 << 50)] == [
        "0 B", "1023 B", "1.0 KiB", "5.0 MiB", "3072.0 TiB",
    ]  # fmt: skip
    assert [ago(seconds) for seconds in (0.0, 59.0, 60.0, 7300.0, 3 * DAY_S)] == [
        "just now", "59 s ago", "1 min ago", "2 h ago", "3 d ago",
    ]  # fmt: skip
