"""A minute of random `kill -9` over a program of ten actors ends exact."""

import os
import random
import signal
import time

import pytest

import lineage_stash as ray
from lineage_stash.testing import inject

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(400)]

ACTORS = 10
CHAOS_S = 60.0
PATIENCE_S = 120.0


@ray.remote(num_cpus=0, checkpoint_every=200)
class Account:
    """Money moves between accounts, and every movement is counted: nothing may be lost, doubled or made."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.balance = 0
        self.moved = 0

    def deposit(self, amount: int) -> int:
        self.balance += amount
        self.moved += 1
        return self.balance

    def transfer(self, other: "ray.ActorHandle", amount: int) -> int:
        self.balance -= amount
        self.moved += 1
        ray.get(other.deposit.remote(amount))
        return self.balance

    def send(self, other: "ray.ActorHandle", amount: int) -> int:
        """A transfer that waits for nothing."""
        self.balance -= amount
        self.moved += 1
        other.deposit.remote(amount)
        return self.balance

    def statement(self) -> tuple[int, int]:
        return self.balance, self.moved


class Books:
    """What must be true in the end, kept by the driver."""

    def __init__(self) -> None:
        self.balance = [0] * ACTORS
        self.moved = [0] * ACTORS

    def note(self, source: int | None, target: int, amount: int) -> None:
        self.balance[target] += amount
        self.moved[target] += 1
        if source is not None:
            self.balance[source] -= amount
            self.moved[source] += 1


def some_calls(draw: random.Random, accounts: list["ray.ActorHandle"], books: Books) -> list["ray.ObjectRef"]:
    """Deposits, and transfers that go up so that no two actors wait for each other."""
    refs = []
    for _ in range(draw.choice((1, 20, 100))):
        source, target = sorted(draw.sample(range(ACTORS), 2))
        amount = draw.randrange(1, 50)
        if draw.random() < 0.3:
            refs.append(accounts[target].deposit.remote(amount))
            books.note(None, target, amount)
        else:
            verb = accounts[source].transfer if draw.random() < 0.7 else accounts[source].send
            refs.append(verb.remote(accounts[target], amount))
            books.note(source, target, amount)
    return refs


def strike(draw: random.Random, accounts: list["ray.ActorHandle"]) -> int:
    """Kill one, or several at once, now and then the coordinator or the replica with them."""
    pids = [inject.pid_of(victim) for victim in draw.sample(accounts, draw.choice((1, 1, 1, 2, 3)))]
    if draw.random() < 0.1:
        pids.append(draw.choice((inject.coordinator_pid, inject.replica_pid))())
    struck = 0
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            struck += 1
        except ProcessLookupError:
            pass  # it was dead already, and is being recovered
    return struck


@pytest.mark.parametrize("seed", [1, 2])
def test_random_kills_over_ten_actors_end_exact(seed: int) -> None:
    draw = random.Random(seed)
    books = Books()
    accounts = [Account.remote(number) for number in range(ACTORS)]
    ray.get([account.statement.remote() for account in accounts], timeout=PATIENCE_S)
    ends_at = time.monotonic() + CHAOS_S / 2
    next_strike = time.monotonic() + 1.0
    struck = calls = 0
    while time.monotonic() < ends_at:
        refs = some_calls(draw, accounts, books)
        calls += len(refs)
        if time.monotonic() > next_strike:
            struck += strike(draw, accounts)
            next_strike = time.monotonic() + draw.uniform(0.1, 2.0)
        ray.get(refs, timeout=PATIENCE_S)

    def statements() -> list[tuple[int, int]]:
        return ray.get([account.statement.remote() for account in accounts], timeout=PATIENCE_S)

    # What `send` began may still be on its way when its caller has answered.
    expected = list(zip(books.balance, books.moved, strict=True))
    inject.wait_until(lambda: statements() == expected, f"{statements()} become {expected}", PATIENCE_S / 4)
    assert struck >= 5
    assert calls >= 100
    for account in accounts:
        ray.kill(account)
