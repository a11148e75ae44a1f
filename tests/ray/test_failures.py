"""Real processes, really killed: whoever dies, callers see nothing of it and every call is applied exactly once."""

import os
import signal
import time
from collections.abc import Iterator

import pytest
import ray as plain_ray

import lineage_stash as ray
from lineage_stash.testing import inject

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(240)]

PATIENCE_S = 120.0


@ray.remote(num_cpus=0, checkpoint_every=500)
class Ledger:
    """Adds up, and remembers what it has seen so that a repeated or lost call shows."""

    def __init__(self) -> None:
        self.total = 0
        self.calls = 0
        self.drawn: list[bytes] = []

    def add(self, amount: int) -> tuple[int, int]:
        self.total += amount
        self.calls += 1
        return self.total, self.calls

    def pass_on(self, other: "ray.ActorHandle", amount: int) -> tuple[int, int]:
        self.calls += 1
        result = ray.get(other.add.remote(amount))
        self.total += result[0]
        return self.total, self.calls

    def send_many(self, other: "ray.ActorHandle", count: int) -> int:
        refs = [other.add.remote(1) for _ in range(count)]
        return len(ray.get(refs))

    def draw(self) -> bytes:
        self.drawn.append(ray.observe(lambda: os.urandom(8)))
        return self.drawn[-1]

    def all_drawn(self) -> list[bytes]:
        return self.drawn

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def pid(self) -> int:
        return os.getpid()

    def slow_add(self, seconds: float) -> int:
        time.sleep(seconds)
        self.total += 1
        return self.total


@pytest.fixture
def ledger() -> "ray.ActorHandle":
    created = Ledger.remote()
    ray.get(created.add.remote(0), timeout=PATIENCE_S)
    return created


@pytest.fixture(autouse=True)
def store_answers_again() -> Iterator[None]:
    yield
    inject.disturb_store()


def test_actor_killed_in_the_middle_of_traffic_loses_and_repeats_nothing(ledger: "ray.ActorHandle") -> None:
    refs = []
    for number in range(4000):
        refs.append(ledger.add.remote(1))
        if number in (1000, 2500):
            ray.get(refs[number // 2], timeout=PATIENCE_S)
            inject.kill_process(ledger)
    results = ray.get(refs, timeout=PATIENCE_S)
    assert results == [(number + 1, number + 2) for number in range(4000)]
    assert inject.recoveries_of(ledger) >= 1


def test_killed_actor_recalls_what_the_outside_world_said(ledger: "ray.ActorHandle") -> None:
    drawn = [ray.get(ledger.draw.remote(), timeout=PATIENCE_S) for _ in range(5)]
    inject.kill_process(ledger)
    assert len(set(drawn)) == 5
    assert ray.get(ledger.all_drawn.remote(), timeout=PATIENCE_S) == drawn


def test_several_callers_and_their_callee_killed_together(ledger: "ray.ActorHandle") -> None:
    callers = [Ledger.remote() for _ in range(2)]
    refs = [caller.send_many.remote(ledger, 400) for caller in callers for _ in range(3)]
    ray.wait(refs, num_returns=1, timeout=PATIENCE_S)
    for victim in (*callers, ledger):
        inject.kill_process(victim)
    assert ray.get(refs, timeout=PATIENCE_S) == [400] * 6
    assert ray.get(ledger.add.remote(0), timeout=PATIENCE_S) == (2400, 2402)


def test_killed_again_while_it_is_being_recovered(ledger: "ray.ActorHandle") -> None:
    refs = [ledger.add.remote(1) for _ in range(300)]
    ray.get(refs, timeout=PATIENCE_S)
    for life in range(1, 4):
        inject.kill_process(ledger)
        inject.wait_until(lambda life=life: inject.life_of(ledger) >= life, "the next life is decided")
    assert ray.get(ledger.add.remote(1), timeout=PATIENCE_S) == (301, 302)


def test_killed_twice_in_a_row_dies_two_times_and_not_once(ledger: "ray.ActorHandle") -> None:
    first = inject.kill_process(ledger)
    inject.wait_until(lambda: not inject.is_running(first), "its end")
    assert inject.kill_process(ledger) != first
    assert ray.get(ledger.add.remote(1), timeout=PATIENCE_S) == (1, 2)


def test_coordinator_killed_together_with_an_actor(ledger: "ray.ActorHandle") -> None:
    ray.get([ledger.add.remote(1) for _ in range(100)], timeout=PATIENCE_S)
    os.kill(inject.coordinator_pid(), signal.SIGKILL)
    inject.kill_process(ledger)
    assert ray.get(ledger.add.remote(1), timeout=PATIENCE_S) == (101, 102)


def test_coordinator_killed_while_it_recovers_an_actor(ledger: "ray.ActorHandle") -> None:
    ray.get([ledger.add.remote(1) for _ in range(100)], timeout=PATIENCE_S)
    inject.disturb_store(pause=True)
    inject.kill_process(ledger)
    ref = ledger.add.remote(1)
    ray.wait([ref], timeout=0.5)
    os.kill(inject.coordinator_pid(), signal.SIGKILL)
    inject.disturb_store()
    assert ray.get(ref, timeout=PATIENCE_S) == (101, 102)


def test_replica_killed_loses_nothing_that_was_committed(ledger: "ray.ActorHandle") -> None:
    ray.get([ledger.add.remote(1) for _ in range(1000)], timeout=PATIENCE_S)
    old = inject.replica_pid()
    os.kill(old, signal.SIGKILL)
    assert ray.get([ledger.add.remote(1) for _ in range(100)], timeout=PATIENCE_S)[-1] == (1100, 1101)
    inject.wait_until(lambda: inject.replica_pid() != old, "the replica is back")
    inject.kill_process(ledger)
    assert ray.get(ledger.add.remote(1), timeout=PATIENCE_S) == (1101, 1102)


def test_replica_and_actor_killed_together(ledger: "ray.ActorHandle") -> None:
    results = ray.get([ledger.add.remote(1) for _ in range(1000)], timeout=PATIENCE_S)
    os.kill(inject.replica_pid(), signal.SIGKILL)
    inject.kill_process(ledger)
    assert results[-1] == (1000, 1001)
    assert ray.get(ledger.add.remote(1), timeout=PATIENCE_S) == (1001, 1002)


def test_zombie_that_was_stopped_and_continues_changes_nothing(ledger: "ray.ActorHandle") -> None:
    """While it is stopped another death opens a round, which the stopped one does not answer: it is replaced."""
    other = Ledger.remote()
    ray.get(other.add.remote(1), timeout=PATIENCE_S)
    ray.get([ledger.add.remote(1) for _ in range(50)], timeout=PATIENCE_S)
    zombie = inject.pid_of(ledger)
    os.kill(zombie, signal.SIGSTOP)
    try:
        refs = [ledger.add.remote(1) for _ in range(50)]
        inject.kill_process(other)
        assert ray.get(refs, timeout=PATIENCE_S)[-1] == (100, 101)
    finally:
        os.kill(zombie, signal.SIGCONT)
    assert inject.pid_of(ledger) != zombie
    inject.wait_until(lambda: not is_running(zombie), "the zombie ends")
    assert ray.get(ledger.add.remote(1), timeout=PATIENCE_S) == (101, 102)
    assert ray.get(other.add.remote(1), timeout=PATIENCE_S) == (2, 2)


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_call_that_kills_its_process_every_time_is_given_up_and_named(ledger: "ray.ActorHandle") -> None:
    ray.get(ledger.add.remote(5), timeout=PATIENCE_S)
    fatal = ledger.die.remote()
    with pytest.raises(plain_ray.exceptions.RayActorError, match=r"died 3 times in a row while running die\(\)"):
        ray.get(fatal, timeout=PATIENCE_S)
    with pytest.raises(plain_ray.exceptions.RayActorError, match="die"):
        ray.get(ledger.add.remote(1), timeout=PATIENCE_S)


def test_nondeterminism_is_reported_and_ends_the_actor(ledger: "ray.ActorHandle") -> None:
    ray.get([ledger.pid.remote(), ledger.add.remote(1)], timeout=PATIENCE_S)
    inject.kill_process(ledger)
    with pytest.raises(plain_ray.exceptions.RayActorError, match="observe"):
        ray.get(ledger.add.remote(1), timeout=PATIENCE_S)


def test_calls_run_while_the_store_is_away_and_survive_when_it_is_back(ledger: "ray.ActorHandle") -> None:
    inject.disturb_store(pause=True)
    results = ray.get([ledger.add.remote(1) for _ in range(2000)], timeout=PATIENCE_S)
    inject.kill_process(ledger)
    inject.disturb_store()
    assert results[-1] == (2000, 2001)
    assert ray.get(ledger.add.remote(1), timeout=PATIENCE_S) == (2001, 2002)


def test_busy_actor_is_not_taken_for_dead_by_a_round_of_others(ledger: "ray.ActorHandle") -> None:
    other = Ledger.remote()
    ray.get(other.add.remote(1), timeout=PATIENCE_S)
    busy = ledger.slow_add.remote(4.0)
    inject.kill_process(other)
    assert ray.get(other.add.remote(1), timeout=PATIENCE_S) == (2, 2)
    assert ray.get(busy, timeout=PATIENCE_S) == 1
    assert inject.recoveries_of(ledger) == 0


@ray.remote(num_cpus=0, checkpoint_every=50)
class Archive:
    """Has a state of some size, and says what of it to save."""

    def __init__(self) -> None:
        self.blob = b"x" * 5_000_000
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def __ray_save__(self) -> dict[str, object]:
        return {"count": self.count, "size": len(self.blob)}

    def __ray_restore__(self, saved: dict[str, int]) -> None:
        self.count = saved["count"]
        self.blob = b"x" * saved["size"]

    def size(self) -> int:
        return len(self.blob)


def test_class_that_saves_and_restores_itself() -> None:
    archive = Archive.remote()
    ray.get([archive.add.remote() for _ in range(500)], timeout=PATIENCE_S)
    inject.kill_process(archive)
    assert ray.get(archive.add.remote(), timeout=PATIENCE_S) == 501
    assert ray.get(archive.size.remote(), timeout=PATIENCE_S) == 5_000_000


@ray.remote(num_cpus=0, checkpoint_every=50)
class Unpicklable:
    def __init__(self) -> None:
        self.lock = open("/dev/null")  # noqa: SIM115 - an open file cannot be pickled
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count


def test_actor_whose_state_cannot_be_copied_is_replayed_from_its_log() -> None:
    actor = Unpicklable.remote()
    ray.get([actor.add.remote() for _ in range(500)], timeout=PATIENCE_S)
    inject.kill_process(actor)
    assert ray.get(actor.add.remote(), timeout=PATIENCE_S) == 501
