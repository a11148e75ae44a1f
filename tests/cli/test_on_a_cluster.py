"""The commands as real processes, on a cluster whose actor was killed and goes on."""

import json
import os
import signal
import subprocess
import sys
import threading
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
from lineage_stash.testing import inject

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]

WITHIN_S = 60.0


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
def address() -> Iterator[str]:
    """A cluster of plain Ray, and nothing in it yet."""
    plain_ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
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
    ray.init(storage=storage)
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
    assert {service["name"]: service["up"] for service in found["services"]} == {"coordinator": True, "replica-0": True}
    assert "disk is not survived" in found["promise"]
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
    services = ("cluster", "secret", "coordinator", "replica-0", "space of the store", "sync of the store")
    assert {name: checks[name]["verdict"] for name in services if checks[name]["verdict"] == "problem"} == {}
    assert str(storage) in checks["space of the store"]["found"]
    assert checks["socket folder"]["verdict"] == "ok"
    assert checks["actors without a process"]["verdict"] == "ok"
    assert found.code == 0
    assert [path.name for path in storage.rglob("doctor-*")] == []


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
