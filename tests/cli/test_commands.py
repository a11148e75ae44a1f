"""The command line: its help, its exit codes, and what it says when there is nothing to look at."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points

import pytest
from ray.exceptions import AuthenticationError
from typer.testing import CliRunner

from lineage_stash.cli import cluster, examine, folders, main
from lineage_stash.cli.cluster import Cluster, NoCluster, NotJoined, explain
from lineage_stash.cli.commands import app
from lineage_stash.on_ray.control_plane import ControlPlaneAway
from tests.cli.planes import MemoryPlane, cluster_of

COMMANDS = (
    ("status",),
    ("top", "--once"),
    ("recoveries",),
    ("recovery", "last"),
    ("log", "driver-1/A-1"),
    ("why", "driver-1/A-1:3"),
    ("replay", "driver-1/A-1"),
    ("doctor",),
    ("chaos", "--yes"),
    ("runs",),
    ("abandon", "driver-1"),
    ("rm", "driver-1"),
    ("gc",),
)
WITH_ROWS = ("status", "top", "recoveries", "log", "doctor", "runs")
runner = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "120"})


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no Ray cluster ran on this machine."""
    monkeypatch.setattr(folders, "live_sessions", frozenset)


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch) -> MemoryPlane:
    """Commands find this control plane instead of a cluster's."""
    found = MemoryPlane()

    @contextmanager
    def joined(_: str | None) -> Iterator[Cluster]:
        yield cluster_of(found)

    monkeypatch.setattr(cluster, "joined", joined)
    return found


@pytest.fixture
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def joined(_: str | None) -> None:
        raise NotJoined("no cluster: start one")

    monkeypatch.setattr(cluster, "joined", joined)


def test_help_loads_no_ray() -> None:
    program = "import sys; from lineage_stash.cli.commands import app; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_the_options(command: tuple[str, ...]) -> None:
    result = runner.invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert all(word in result.output for word in ("--format", "table", "json", "yaml", "--address", "RAY_ADDRESS"))
    assert ("--filter" in result.output) is (command[0] in WITH_ROWS)


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_format_is_refused(command: tuple[str, ...]) -> None:
    assert runner.invoke(app, [*command, "--format", "xml"]).exit_code == 2


@pytest.mark.usefixtures("_no_cluster")
@pytest.mark.parametrize("command", [command for command in COMMANDS if command != ("doctor",)])
def test_no_cluster_is_one_line_and_exit_code_1(command: tuple[str, ...]) -> None:
    result = runner.invoke(app, [*command, "--format", "json"])
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "stash: no cluster: start one\n")


@pytest.mark.usefixtures("_no_cluster")
def test_doctor_without_a_cluster_still_examines_the_machine() -> None:
    result = runner.invoke(app, ["doctor", "--format", "json"])
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert result.exit_code == 1
    assert checks["version of ray"]["verdict"] == "ok"
    assert checks["cluster"]["verdict"] == "problem"
    assert checks["cluster"]["advice"] == "start one"


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("command", ["status", "recoveries"])
def test_cluster_without_services_is_one_line_and_exit_code_1(command: str) -> None:
    result = runner.invoke(app, [command])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("stash: no lineage_stash services run in the cluster at 192.0.2.7:6379: ")
    assert "lineage_stash.init()" in result.stderr


@pytest.mark.usefixtures("plane")
def test_doctor_of_a_cluster_without_services_says_how_to_start_them() -> None:
    result = runner.invoke(app, ["doctor", "--format", "json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["checks"][-1]["name"] == "services"


def test_doctor_finds_services_that_are_registered_and_dead(plane: MemoryPlane) -> None:
    plane.add_services()
    result = runner.invoke(app, ["doctor", "--format", "json"])
    verdicts = {check["name"]: check["verdict"] for check in json.loads(result.stdout)["checks"]}
    assert result.exit_code == 1
    assert (verdicts["coordinator"], verdicts["replica-0"], verdicts["secret"]) == ("problem", "problem", "ok")


def test_doctor_names_an_actor_that_waits_for_a_process(plane: MemoryPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "CLAIM_WITHIN_S", 0.01)
    plane.add_services()
    plane.create("driver-1/A-1")
    checks = json.loads(runner.invoke(app, ["doctor", "--format", "json"]).stdout)["checks"]
    (check,) = (check for check in checks if check["name"] == "actors without a process")
    assert check["verdict"] == "warning"
    assert "driver-1/A-1" in check["found"]


def test_doctor_gives_an_actor_the_time_to_be_taken_up(plane: MemoryPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "LOOK_S", 0.0)
    plane.add_services()
    plane.create("driver-1/A-1")
    looks = iter(range(3))
    keys = plane.keys

    def keys_while_it_is_taken_up(prefix: str) -> list[str]:
        if prefix == "claims/" and next(looks) == 2:
            plane.live("driver-1/A-1", 0, pid=1)
        return keys(prefix)

    monkeypatch.setattr(plane, "keys", keys_while_it_is_taken_up)
    checks = json.loads(runner.invoke(app, ["doctor", "--format", "json"]).stdout)["checks"]
    assert checks[-1] == {"name": "actors without a process", "verdict": "ok", "found": "none", "advice": ""}


def test_recoveries_are_printed_as_table_and_json(plane: MemoryPlane) -> None:
    plane.add_services()
    plane.recover("driver-1/A-1", 1, round_=1, total_ms=35.2)
    assert "driver-1/A-1" in runner.invoke(app, ["recoveries"]).stdout
    (found,) = json.loads(runner.invoke(app, ["recoveries", "--format", "json"]).stdout)["recoveries"]
    assert (found["peer"], found["incarnation"], found["total_ms"]) == ("driver-1/A-1", 1, 35.2)


@pytest.mark.parametrize("command", [("status",), ("recoveries",), ("runs",), ("gc",)])
def test_cluster_that_ends_meanwhile_is_one_line_and_exit_code_1(
    plane: MemoryPlane, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def keys(_: str) -> list[str]:
        raise ControlPlaneAway("the GCS did not answer: gone")

    monkeypatch.setattr(plane, "keys", keys)
    result = runner.invoke(app, list(command))
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "stash: the GCS did not answer: gone\n")


def test_followed_cluster_that_ends_is_told(plane: MemoryPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    plane.add_services()
    looks = iter(range(2))
    get_all = plane.get_all

    def get_all_until_the_end(prefix: str) -> dict[str, bytes]:
        if prefix == "recoveries/" and next(looks):
            raise ControlPlaneAway("the GCS did not answer: gone")
        return get_all(prefix)

    monkeypatch.setattr(plane, "get_all", get_all_until_the_end)
    result = runner.invoke(app, ["recoveries", "--follow"])
    assert result.exit_code == 1
    assert "the cluster does not answer any more: the GCS did not answer: gone" in result.stderr


@pytest.mark.parametrize("address", ["ray://192.0.2.7:10001", "192.0.2.7", "192.0.2.7:", "nonsense"])
def test_address_that_is_none_is_refused_at_once(address: str) -> None:
    result = runner.invoke(app, ["status", "--address", address])
    assert result.exit_code == 1
    assert "is not the address of a cluster" in result.stderr


def test_address_where_nobody_listens_is_told_at_once() -> None:
    result = runner.invoke(app, ["status", "--address", "127.0.0.1:1"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing answers at 127.0.0.1:1" in result.stderr


@pytest.mark.parametrize(
    ("error", "said"),
    [(AuthenticationError("no token"), ""), (ConnectionError("failed"), "RPC error: InvalidAuthToken: missing")],
)
def test_refused_token_says_how_to_send_one(error: Exception, said: str) -> None:
    assert "set RAY_AUTH_MODE=token" in str(explain(error, said, "192.0.2.7:6379"))
    assert not isinstance(explain(error, said, "auto"), NoCluster)


def test_no_cluster_on_this_machine_says_how_to_start_one() -> None:
    found = explain(ConnectionError("Could not find any running Ray instance."), "", "auto")
    assert isinstance(found, NoCluster)
    assert "ray start --head" in str(found)


def test_other_failures_are_told_in_one_line() -> None:
    error = ConnectionError("Failed to connect")
    error.__cause__ = RuntimeError("This node has no raylet.\nStart one.")
    assert str(explain(error, "", "192.0.2.7:6379")).endswith("This node has no raylet. Start one.")


def test_stash_is_installed_as_a_command() -> None:
    (script,) = entry_points(group="console_scripts", name="stash")
    assert script.load() is main
