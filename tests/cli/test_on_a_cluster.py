"""The commands as real processes, on a cluster whose actor was killed and goes on."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import IO, Any, NamedTuple

import pytest
import ray as plain_ray
from typer.testing import CliRunner

import lineage_stash as ray
from lineage_stash.cli.commands import app
from lineage_stash.cli.records import read_recoveries
from lineage_stash.on_ray.api import current
from lineage_stash.store.disk import DiskReplica
from lineage_stash.testing import inject

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]

WITHIN_S = 60.0
REPLICAS = ("replica-0", "replica-1", "replica-2")
PROGRAM = """
import os, signal, sys
import lineage_stash as ray
from lineage_stash.on_ray.api import current
from tests.cli.test_on_a_cluster import Counter

ray.init(address=sys.argv[1], namespace=sys.argv[2], log_to_driver=False, logging_level="ERROR")
counters = [Counter.remote(), Counter.options(name="named", lifetime=sys.argv[4]).remote()]
for counter in counters:
    ray.get([counter.add.remote(1) for _ in range(50)])
print(current().id, flush=True)
if sys.argv[3] == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@ray.remote
class Counter:
    """Counts, and says which process it counted in."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, number: int) -> int:
        self.value += number
        return self.value

    def pid(self) -> int:
        return int(ray.observe(os.getpid))


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "lineage_stash.cli", *arguments]


def stash(*arguments: str, without: tuple[str, ...] = ()) -> Result:
    """Run the command in a process of its own, without some of our environment."""
    environment = {name: value for name, value in os.environ.items() if name not in without}
    finished = subprocess.run(
        command(*arguments), env=environment, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    return Result(finished.returncode, finished.stdout, finished.stderr)


@pytest.fixture(scope="module")
def sessions() -> Iterator[Path]:
    """Where Ray, and whoever collects, has the sessions of this test and of nobody else; sockets need a short path."""
    with (
        tempfile.TemporaryDirectory(prefix="stash-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as monkeypatch,
    ):
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder) / "ray"


@pytest.fixture(scope="module")
def address(sessions: Path) -> Iterator[str]:
    """A cluster of plain Ray, and nothing in it yet."""
    plain_ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    assert plain_ray.get_runtime_context().worker.node.get_session_dir_path().startswith(str(sessions))
    yield plain_ray.get_runtime_context().gcs_address
    ray.shutdown()
    plain_ray.shutdown()


@pytest.fixture(scope="module")
def before(address: str) -> Result:
    """What status says before any program has started the services."""
    return stash("status", "--address", address)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def counter(before: Result, storage: Path) -> "ray.ActorHandle":
    """An actor that was killed once and has recovered."""
    assert before.code
    ray.init(storage=storage, replicas=len(REPLICAS))
    inject.wait_until(lambda: count_spares() == 1, "the first spare", WITHIN_S)
    actor = Counter.remote()
    assert ray.get([actor.add.remote(number) for number in range(5)]) == [0, 1, 3, 6, 10]
    kill(actor)
    return actor


def count_spares() -> int:
    """What status says of them, asked from within this process."""
    return int(json.loads(CliRunner().invoke(app, ["status", "--format", "json"]).stdout)["spares"])


def kill(actor: "ray.ActorHandle") -> None:
    """`kill -9`, a right answer after it, and the recovery on record."""
    known = len(read_recoveries(current().process.plane))
    value = ray.get(actor.add.remote(0))
    os.kill(ray.get(actor.pid.remote()), signal.SIGKILL)
    assert ray.get(actor.add.remote(1), timeout=WITHIN_S) == value + 1
    inject.wait_until(lambda: len(read_recoveries(current().process.plane)) > known, "the recovery on record", WITHIN_S)


def test_cluster_without_services_is_one_line_that_says_how_to_start_them(before: Result, address: str) -> None:
    assert (before.code, before.out) == (1, "")
    (line,) = before.err.splitlines()
    assert line.startswith(f"stash: no lineage_stash services run in the cluster at {address}")


def test_cluster_that_asks_for_a_token_says_how_to_send_one(address: str) -> None:
    refused = stash("status", "--address", address, without=("RAY_AUTH_MODE",))
    assert (refused.code, refused.out) == (1, "")
    (line,) = refused.err.splitlines()
    assert "RAY_AUTH_MODE=token" in line


def test_status_shows_services_and_the_new_life_of_an_actor(address: str, counter: "ray.ActorHandle") -> None:
    found = stash("status", "--address", address, "--format", "json").json
    assert found["address"] == address
    assert {service["name"]: service["up"] for service in found["services"]} == dict.fromkeys(
        ("coordinator", *REPLICAS), True
    )
    assert (found["epoch"], found["durability"], found["lost"]) == (1, "disk", {})
    assert found["promise"].startswith("3 replicas on 1 node: any number of processes may die, but no node be lost")
    replicas = found["services"][1:]
    assert [replica["pid"] for replica in replicas] == list(inject.replica_pids().values())
    assert all(replica["held_bytes"] > 0 for replica in replicas)
    peers = {peer["peer"]: peer for peer in found["peers"]}
    actor, driver = peers[counter._peer], peers[current().id]
    assert (actor["kind"], actor["class_name"], actor["state"]) == ("actor", "Counter", "alive")
    assert actor["incarnation"] == actor["recovered"] == inject.life_of(counter) > 0
    assert actor["pid"] == inject.pid_of(counter)
    assert (driver["kind"], driver["state"], driver["pid"]) == ("driver", "alive", os.getpid())


def test_spare_that_was_used_is_counted_again_when_it_is_replaced(counter: "ray.ActorHandle") -> None:
    assert counter is not None
    inject.wait_until(lambda: count_spares() == 1, "a new spare", WITHIN_S)


def test_recoveries_show_each_phase_of_the_recovery(address: str, counter: "ray.ActorHandle") -> None:
    found = stash("recoveries", "--address", address, "--format", "json").json["recoveries"]
    first = found[0]
    assert (first["peer"], first["incarnation"], first["host"]) == (counter._peer, 1, "a spare")
    assert first["reason"]
    assert first["replayed"] >= 5
    phases = [first[f"{phase}_ms"] for phase in ("detect", "gather", "settle", "start", "restore", "replay")]
    assert min(phases) >= 0
    assert sum(phases) == pytest.approx(first["total_ms"])
    table = stash("recoveries", "--address", address)
    assert counter._peer in table.out


def test_doctor_finds_a_healthy_cluster_well(address: str, counter: "ray.ActorHandle", storage: Path) -> None:
    assert counter is not None
    found = stash("doctor", "--address", address, "--format", "json")
    checks = {check["name"]: check for check in json.loads(found.out)["checks"]}
    services = ("cluster", "secret", "coordinator", *REPLICAS, "space of the store", "sync of the store")
    assert {name: checks[name]["verdict"] for name in services if checks[name]["verdict"] == "problem"} == {}
    assert str(storage) in checks["space of the store"]["found"]
    assert checks["socket folder"]["verdict"] == "ok"
    assert checks["actors without a process"]["verdict"] == "ok"
    assert found.code == 0
    assert (checks["replicas"]["verdict"], checks["facts of the cluster"]["verdict"]) == ("warning", "warning")
    assert "share a node" in checks["replicas"]["advice"]
    assert "end with the GCS process" in checks["facts of the cluster"]["found"]
    names = [path.name.partition(".")[2] or path.name for path in storage.rglob("*") if path.is_file()]
    assert sorted(set(names)) == ["jsonl", "lock", "segment"], "the doctor leaves nothing behind"


def run_program(address: str, how: str, lifetime: str = "non_detached") -> str:
    """Another program on the same cluster, until its end; which run it was."""
    namespace = plain_ray.get_runtime_context().namespace
    program = [sys.executable, "-c", PROGRAM, address, namespace, how, lifetime]
    finished = subprocess.run(program, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert (finished.returncode == 0) is (how == "ends"), finished.stderr
    return finished.stdout.split()[-1]


def runs(address: str) -> dict[str, Any]:
    """The runs of the cluster by name."""
    return {run["run"]: run for run in stash("runs", "--address", address, "--format", "json").json["runs"]}


def test_runs_tell_what_the_store_has_of_each_and_which_folders_are_in_use(
    address: str, counter: "ray.ActorHandle", storage: Path
) -> None:
    assert counter is not None
    found = stash("runs", "--address", address, "--format", "json").json
    (run,) = (run for run in found["runs"] if run["run"] == current().id)
    assert (run["state"], run["pid"], run["actors_alive"], run["actors_ended"]) == ("running", os.getpid(), 1, 0)
    assert run["entries"] >= 5
    assert run["bytes"] > 0
    assert run["started_at"] < time.time()
    assert {(folder["path"], folder["state"]) for folder in found["folders"]} == {
        (str(storage / name), "in use") for name in REPLICAS
    }
    assert current().id in stash("runs", "--address", address).out


def test_run_that_goes_on_is_not_removed(address: str, counter: "ray.ActorHandle") -> None:
    refused = stash("rm", current().id, "--address", address)
    assert (refused.code, refused.out) == (1, "")
    assert "its driver is alive" in refused.err
    assert counter._peer in refused.err
    kill(counter)


def test_run_that_is_over_is_removed_and_the_others_go_on(address: str, counter: "ray.ActorHandle") -> None:
    run = run_program(address, "ends")
    ended = runs(address)[run]
    assert (ended["state"], ended["actors_alive"], ended["actors_ended"]) == ("ended", 0, 2)
    assert ended["ended_at"] > ended["started_at"]
    removed = stash("rm", run, "--address", address, "--format", "json").json
    assert removed["removed"][0]["copies"] == len(REPLICAS)
    assert removed["freed_bytes"] == len(REPLICAS) * ended["bytes"] > 0
    assert run not in runs(address)
    plane = current().process.plane
    assert [key for key in plane.keys("") if run in key] == []
    with pytest.raises(ValueError, match="Failed to look up actor with name"):
        ray.get_actor("named")
    kill(counter)


def test_detached_actor_that_is_alive_keeps_its_run_until_it_is_killed(
    address: str, counter: "ray.ActorHandle"
) -> None:
    assert counter is not None
    run = run_program(address, "ends", lifetime="detached")
    refused = stash("rm", run, "--address", address)
    assert refused.code == 1
    assert "(Counter, detached, named 'named') is alive" in refused.err
    named = ray.get_actor("named")
    assert ray.get(named.add.remote(1)) == 51
    ray.kill(named)
    inject.wait_until(lambda: runs(address)[run]["actors_alive"] == 0, "the end of the detached actor", WITHIN_S)
    assert stash("rm", run, "--address", address).code == 0


def test_too_few_replicas_that_answer_refuse_a_removal(address: str, counter: "ray.ActorHandle") -> None:
    assert counter is not None
    run = run_program(address, "ends")
    inject.disturb_store(pause=True, replicas=(1, 2))
    try:
        refused = stash("rm", run, "--address", address)
        assert (refused.code, refused.out) == (1, "")
        assert "fewer than a majority" in refused.err
        inject.disturb_store(replicas=(2,))
        removed = stash("rm", run, "--address", address)
        assert (removed.code, removed.out.endswith("on each of 2 replicas\n")) == (0, True)
    finally:
        inject.disturb_store()


def test_collection_removes_a_run_whose_driver_was_killed_and_a_folder_that_was_left(
    address: str, counter: "ray.ActorHandle", sessions: Path
) -> None:
    run = run_program(address, "dies")
    inject.wait_until(
        lambda: (runs(address)[run]["state"], runs(address)[run]["actors_alive"]) == ("died", 0), "its end", WITHIN_S
    )
    (sessions / "session_old" / "sockets").mkdir(parents=True)
    left = sessions / "session_old" / "lineage_stash" / "replica-0"
    DiskReplica(left, identity="another store/replica-0").close()
    would = stash("gc", "--dry-run", "--address", address, "--format", "json").json
    assert run in runs(address)
    done = stash("gc", "--address", address, "--format", "json").json
    assert {**done, "dry_run": True} == would
    assert {(one["kind"], one["name"]) for one in done["removed"]} >= {("run", run), ("folder", str(left))}
    assert done["kept"] == []
    assert not left.exists()
    assert list(runs(address)) == [current().id]
    kill(counter)


def test_followed_recovery_is_printed_when_it_comes(address: str, counter: "ray.ActorHandle") -> None:
    arguments = command("recoveries", "--address", address, "--format", "json", "--follow")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        try:
            assert following.stdout is not None
            next_line = reader(following.stdout)
            assert json.loads(next_line())["incarnation"] == 1
            kill(counter)
            life = inject.life_of(counter)
            while json.loads(next_line())["incarnation"] < life:
                pass
            following.send_signal(signal.SIGINT)
            assert following.wait(WITHIN_S) == 0
        finally:
            following.kill()


def reader(stream: IO[str]) -> Callable[[], str]:
    """Lines of a stream, each awaited for so long and no longer."""
    lines: Queue[str] = Queue()

    def read() -> None:
        for line in stream:
            lines.put(line)

    threading.Thread(target=read, daemon=True).start()
    return lambda: lines.get(timeout=WITHIN_S)
