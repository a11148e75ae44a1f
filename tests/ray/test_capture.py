"""An actor is killed: what its clocks and draws had said, they say again, and its generators go on where they were."""

import os
import random
import signal
import time
from random import random as draw
from time import time as now
from typing import Any

import numpy as np
import pytest
from numpy.random import rand

import lineage_stash as ray
from lineage_stash.testing import inject
from tests.capture import early
from tests.capture.test_clock import CLOCKS, DATES
from tests.capture.test_draws import DRAWS, draw_from_numpy, draw_from_random

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(120)]

PATIENCE_S = 60.0


@ray.remote(num_cpus=0)
class Witness:
    """Remembers what it has read."""

    def __init__(self) -> None:
        self.seen: list[Any] = [time.time(), draw()]

    def look(self) -> list[Any]:
        readers = {**CLOCKS, **DATES, **DRAWS}
        self.seen += [(name, read()) for name, read in readers.items()]
        self.seen += [draw_from_random(), draw_from_numpy(), early.by_global(), early.by_numpy(), early.by_default()]
        self.seen += [now(), draw(), float(rand())]
        return self.seen

    def draw(self) -> tuple[float, float, float]:
        return draw(), random.random(), float(np.random.rand())

    def steady(self) -> float:
        return time.monotonic()

    def order(self) -> list[str]:
        return list({f"name {number}" for number in range(50)})

    def seed(self, seed: int) -> float:
        random.seed(seed)
        np.random.seed(seed)
        return random.random()

    def pass_on(self, other: "ray.ActorHandle") -> Any:
        return time.time(), ray.get(other.steady.remote(), timeout=PATIENCE_S), random.random()

    def cost_us(self, count: int) -> float:
        clock, started = time.time, time.perf_counter()
        for _ in range(count):
            clock()
        return 1e6 * (time.perf_counter() - started) / count


@ray.remote(num_cpus=0, checkpoint_every=20)
class Saved(Witness._cls):  # type: ignore[misc,name-defined]
    """The same with checkpoints."""


@ray.remote(num_cpus=0, checkpoint_every=40)
class Wanderer:
    """Draws what to read next, and whom to ask."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def wander(self, other: "ray.ActorHandle | None" = None) -> list[Any]:
        readers = [*CLOCKS.values(), *DATES.values(), *DRAWS.values(), random.random, rand]
        found = [random.choice(readers)() for _ in range(random.randrange(6))]
        if other is not None and draw() < 0.5:
            refs = [other.wander.remote() for _ in range(3)]
            found.append(len(ray.wait(refs, timeout=0.01 * draw())[0]))
            found += ray.get(refs, timeout=PATIENCE_S)
        self.seen.append(found)
        return found

    def all_seen(self) -> list[Any]:
        return self.seen


@ray.remote(num_cpus=0)
class Careless:
    def process(self) -> int:
        return os.getpid()

    def choose(self) -> None:
        """In the first run the clock is read, in a replay something else."""
        if ray.observe(lambda: ray.observe(os.getpid)) == os.getpid():
            time.time()
        else:
            os.urandom(4)

    def harmless(self) -> int:
        return 1

    def die(self) -> None:
        for _ in range(random.randrange(3, 6)):
            time.time()
        os.kill(os.getpid(), signal.SIGKILL)


def ask(actor: "ray.ActorHandle", method: str, *args: Any) -> Any:
    return ray.get(getattr(actor, method).remote(*args), timeout=PATIENCE_S)


def test_all_that_is_captured_is_recalled_by_the_next_life() -> None:
    witness = Witness.remote()
    other = Witness.remote()
    passed_on = ask(witness, "pass_on", other)
    order = ask(witness, "order")
    seen = ask(witness, "look")
    assert ask(witness, "seed", 42) == random.Random(42).random()
    steady = ask(witness, "steady")
    drawn = [ask(witness, "draw") for _ in range(3)]
    inject.kill_process(witness)
    again = ask(witness, "look")
    assert again[: len(seen)] == seen
    assert again[len(seen) :] != seen[2:]
    assert ask(witness, "steady") > steady
    assert ask(witness, "draw") not in drawn
    assert ask(witness, "order") == order
    assert ask(witness, "pass_on", other)[1] > passed_on[1]
    assert inject.recoveries_of(witness) == 1


def test_generators_go_on_from_a_checkpoint() -> None:
    """The sequence after the seed is known, so that the next life cannot have begun it anew, or gone too far."""
    saved = Saved.remote()
    expected, expected_numpy = random.Random(42), np.random.RandomState(42)
    assert ask(saved, "seed", 42) == expected.random()
    for _ in range(60):
        assert ask(saved, "draw") == (expected.random(), expected.random(), expected_numpy.rand())
    inject.kill_process(saved)
    for _ in range(5):
        assert ask(saved, "draw") == (expected.random(), expected.random(), expected_numpy.rand())
    assert inject.recoveries_of(saved) == 1


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_actors_that_draw_what_to_read_are_killed_again_and_again() -> None:
    first, second = Wanderer.remote(), Wanderer.remote()
    refs = []
    for number in range(1000):
        refs.append(first.wander.remote(second))
        if number % 200 == 100:
            ray.get(refs[number - 50], timeout=PATIENCE_S)
            inject.kill_process(first if number % 400 == 100 else second)
    seen = ray.get(refs, timeout=2 * PATIENCE_S)
    inject.kill_process(first)
    assert ask(first, "all_seen") == seen
    assert inject.recoveries_of(first) >= 3
    assert inject.recoveries_of(second) >= 1


def test_replay_that_strays_ends_the_actor_and_the_error_names_the_call_and_both_versions() -> None:
    careless = Careless.remote()
    ask(careless, "process")
    ask(careless, "harmless")
    inject.kill_process(careless)
    with pytest.raises(
        ray.NondeterminismError, match=r"Careless .* in process\(\) or right after .* where the log has"
    ):
        ask(careless, "harmless")
    assert issubclass(ray.NondeterminismError, ray.exceptions.RayActorError)


def test_replay_that_reads_another_clock_than_the_log_has_ends_the_actor() -> None:
    careless = Careless.remote()
    ask(careless, "choose")
    inject.kill_process(careless)
    with pytest.raises(
        ray.NondeterminismError, match=r"came to a read of os.urandom, where the log has a read \(time.time\)"
    ):
        ask(careless, "harmless")


def test_call_that_reads_clocks_and_kills_its_process_every_time_is_given_up() -> None:
    careless = Careless.remote()
    ask(careless, "harmless")
    with pytest.raises(ray.exceptions.RayActorError, match=r"died 3 times in a row while running die\(\)"):
        ask(careless, "die")


def test_time_inside_a_method_costs_some_microseconds() -> None:
    """A bound that a busy machine keeps too; `docs/nondeterminism.md` has the figures."""
    witness = Witness.remote()
    assert min(ask(witness, "cost_us", 1000) for _ in range(5)) < 200
