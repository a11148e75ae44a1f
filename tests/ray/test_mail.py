"""The same promises where nobody listens: frames travel as Ray actor calls, and processes are really killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import ray as plain_ray
from typer.testing import CliRunner

import lineage_stash as ray
from lineage_stash.cli.commands import app
from lineage_stash.on_ray.api import current
from lineage_stash.on_ray.services import settle_transport
from lineage_stash.testing import inject

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(240)]

PATIENCE_S = 120.0

ASK_FOR_THE_OTHER_TRANSPORT = """
import sys
import lineage_stash
try:
    lineage_stash.init(address=sys.argv[1], transport="wire", log_to_driver=False)
except ValueError as error:
    print(error)
"""

LOSE_THE_MAILBOX = """
import sys
import ray as plain_ray
import lineage_stash
from lineage_stash.on_ray.api import current
lineage_stash.init(address=sys.argv[1], log_to_driver=False)
ledger = lineage_stash.get_actor("shared", namespace=sys.argv[2])
lineage_stash.get(ledger.add.remote(1), timeout=60)
print(current().id, flush=True)
plain_ray.kill(plain_ray.get_actor(current().process.place.actor, namespace="lineage_stash"))
try:
    while True:
        lineage_stash.get(ledger.add.remote(0), timeout=60)
except RuntimeError as error:
    print(error)
"""

DIE = """
import os, signal, sys
import lineage_stash
from lineage_stash.on_ray.api import current
lineage_stash.init(address=sys.argv[1], log_to_driver=False)
ledger = lineage_stash.get_actor("shared", namespace=sys.argv[2])
lineage_stash.get(ledger.add.remote(1), timeout=60)
print(current().id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def run_driver(script: str) -> str:
    """Another driver of the same cluster, in a process of its own; what it prints."""
    context = plain_ray.get_runtime_context()
    command = [sys.executable, "-c", script, context.gcs_address, context.namespace]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False).stdout


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, transport="ray")
    yield
    ray.shutdown()


@ray.remote(num_cpus=0, checkpoint_every=500)
class Ledger:
    """Adds up, and remembers how often, so that a repeated or lost call shows."""

    def __init__(self) -> None:
        self.total = 0
        self.calls = 0

    def add(self, amount: int) -> tuple[int, int]:
        self.total += amount
        self.calls += 1
        return self.total, self.calls

    def send_many(self, other: "ray.ActorHandle", count: int) -> int:
        return len(ray.get([other.add.remote(1) for _ in range(count)]))

    def size_of(self, blob: bytes) -> int:
        return len(blob)

    def pid(self) -> int:
        return int(ray.observe(os.getpid))


@pytest.fixture
def ledger() -> "ray.ActorHandle":
    created = Ledger.remote()
    ray.get(created.add.remote(0), timeout=PATIENCE_S)
    return created


def test_calls_of_one_caller_run_in_order_and_once(ledger: "ray.ActorHandle") -> None:
    refs = [ledger.add.remote(1) for _ in range(3000)]
    assert ray.get(refs, timeout=PATIENCE_S) == [(number + 1, number + 2) for number in range(3000)]


def test_actors_call_actors(ledger: "ray.ActorHandle") -> None:
    callers = [Ledger.remote() for _ in range(2)]
    refs = [caller.send_many.remote(ledger, 100) for caller in callers for _ in range(3)]
    assert ray.get(refs, timeout=PATIENCE_S) == [100] * 6
    assert ray.get(ledger.add.remote(0), timeout=PATIENCE_S) == (600, 602)


def test_arguments_beyond_what_ray_sends_inline_arrive(ledger: "ray.ActorHandle") -> None:
    assert ray.get(ledger.size_of.remote(bytes(3_000_000)), timeout=PATIENCE_S) == 3_000_000


def test_nobody_listens() -> None:
    place = current().process.place
    assert (place.unix, place.tcp) == ("", "")
    assert plain_ray.get_actor(place.actor, namespace="lineage_stash") is not None


def test_actor_killed_in_the_middle_of_traffic_loses_and_repeats_nothing(ledger: "ray.ActorHandle") -> None:
    refs = []
    for number in range(3000):
        refs.append(ledger.add.remote(1))
        if number in (1000, 2000):
            ray.get(refs[number // 2], timeout=PATIENCE_S)
            inject.kill_process(ledger)
    assert ray.get(refs, timeout=PATIENCE_S) == [(number + 1, number + 2) for number in range(3000)]
    assert inject.recoveries_of(ledger) >= 1


def test_killed_actor_that_nobody_talks_to_is_noticed_and_recovered(ledger: "ray.ActorHandle") -> None:
    inject.kill_process(ledger)
    inject.wait_until(lambda: inject.recoveries_of(ledger) == 1, "the coordinator notices by its pings")
    assert ray.get(ledger.add.remote(1), timeout=PATIENCE_S) == (1, 2)


def test_caller_and_callee_killed_together(ledger: "ray.ActorHandle") -> None:
    caller = Ledger.remote()
    refs = [caller.send_many.remote(ledger, 300) for _ in range(3)]
    ray.wait(refs, num_returns=1, timeout=PATIENCE_S)
    for victim in (caller, ledger):
        inject.kill_process(victim)
    assert ray.get(refs, timeout=PATIENCE_S) == [300] * 3
    assert ray.get(ledger.add.remote(0), timeout=PATIENCE_S) == (900, 902)


def test_coordinator_killed_together_with_an_actor(ledger: "ray.ActorHandle") -> None:
    ray.get([ledger.add.remote(1) for _ in range(100)], timeout=PATIENCE_S)
    os.kill(inject.coordinator_pid(), signal.SIGKILL)
    inject.kill_process(ledger)
    assert ray.get(ledger.add.remote(1), timeout=PATIENCE_S) == (101, 102)


def test_replica_killed_and_restarted_is_asked_again(ledger: "ray.ActorHandle") -> None:
    ray.get([ledger.add.remote(1) for _ in range(500)], timeout=PATIENCE_S)
    old = inject.replica_pid()
    os.kill(old, signal.SIGKILL)
    assert ray.get([ledger.add.remote(1) for _ in range(100)], timeout=PATIENCE_S)[-1] == (600, 601)
    inject.wait_until(lambda: inject.replica_pid() != old, "the replica is back")
    inject.kill_process(ledger)
    assert ray.get(ledger.add.remote(1), timeout=PATIENCE_S) == (601, 602)


def test_caller_that_waits_learns_that_its_callee_was_ended(ledger: "ray.ActorHandle") -> None:
    ray.kill(ledger)
    with pytest.raises(plain_ray.exceptions.RayActorError, match="it was killed"):
        ray.get(ledger.add.remote(1), timeout=PATIENCE_S)


def test_status_is_told_without_a_connection(ledger: "ray.ActorHandle") -> None:
    pid = ray.get(ledger.pid.remote(), timeout=PATIENCE_S)
    result = CliRunner().invoke(app, ["status"])
    assert result.exit_code == 0, result.output
    assert str(pid) in result.output
    assert result.output.count("answers in") == 2


def test_driver_that_asks_for_another_transport_is_refused() -> None:
    refused = run_driver(ASK_FOR_THE_OTHER_TRANSPORT)
    assert "this cluster's transport is 'ray' already: leave out transport='wire'" in refused


@pytest.fixture(scope="module")
def shared() -> "ray.ActorHandle":
    """One for all tests of this file: an actor whose handle goes ends a little later, and has its name until then."""
    return Ledger.options(name="shared").remote()


@pytest.mark.parametrize(("script", "outcome"), [(DIE, ""), (LOSE_THE_MAILBOX, "its mailbox is gone")])
def test_driver_that_dies_or_loses_its_mailbox_is_taken_for_dead(
    script: str, outcome: str, shared: "ray.ActorHandle"
) -> None:
    _, calls = ray.get(shared.add.remote(0), timeout=PATIENCE_S)
    said = run_driver(script)
    (driver,) = [line for line in said.splitlines() if line.startswith("driver-")]  # Ray says this and that too
    assert outcome in said
    registry = current().process.registry
    inject.wait_until(lambda: driver in registry.read_history().gone, f"{driver} is taken for dead")
    assert ray.get(shared.add.remote(0), timeout=PATIENCE_S)[1] > calls


def test_transport_is_settled_by_the_first_and_followed_by_who_does_not_ask() -> None:
    plane = current().process.plane
    settle_transport(plane, None)
    settle_transport(plane, "ray")
    with pytest.raises(ValueError, match="'carrier pigeon' is not known"):
        settle_transport(plane, "carrier pigeon")
