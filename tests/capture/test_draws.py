"""Draws: a replay draws the same, generators belong to the actor, and seeding works as ever."""

import copy
import os
import pickle
import random
import secrets
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lineage_stash.capture.here import recording
from lineage_stash.capture.pickling import dumps
from tests.capture.replaying import Tape, is_captured, record, repeat

DRAWS: dict[str, Callable[[], Any]] = {
    "os.urandom": lambda: os.urandom(16),
    "os.getrandom": lambda: os.getrandom(16),
    "random.SystemRandom": lambda: (random.SystemRandom().random(), random.SystemRandom().choice(range(1000))),
    "secrets": lambda: (secrets.token_hex(), secrets.token_urlsafe(), secrets.randbelow(10**9), secrets.choice("abc")),
    "random.Random()": lambda: [random.Random().random() for _ in range(3)],
    "uuid.uuid1": lambda: uuid.uuid1(),
    "uuid.uuid4": lambda: uuid.uuid4(),
    "uuid.getnode": lambda: uuid.getnode(),
    "numpy.random.default_rng()": lambda: np.random.default_rng().random(),
    "numpy.random.RandomState()": lambda: np.random.RandomState().rand(),
    "numpy.random.SeedSequence()": lambda: np.random.SeedSequence().entropy,
}


@pytest.mark.parametrize("name", DRAWS)
def test_draw_is_captured(name: str) -> None:
    assert is_captured(DRAWS[name])
    assert DRAWS[name]() != DRAWS[name]() or name == "uuid.getnode"


def draw_from_random() -> list[Any]:
    deck = list(range(20))
    random.shuffle(deck)
    return [
        random.random(), random.randint(0, 10**9), random.choice(range(10**6)), random.sample(range(1000), 3), deck,
        random.gauss(), random.getrandbits(70), random.uniform(1, 2), random.randbytes(3), random.expovariate(2),
    ]  # fmt: skip


def draw_from_numpy() -> list[Any]:
    return [
        float(np.random.rand()), np.random.randint(0, 10**9, 3).tolist(), np.random.permutation(9).tolist(),
        float(np.random.sample()), float(np.random.ranf()), float(np.random.mtrand._rand.normal()),
    ]  # fmt: skip


@pytest.mark.parametrize("draw", [draw_from_random, draw_from_numpy])
def test_shared_generator_is_captured_with_one_entry(draw: Callable[[], list[Any]]) -> None:
    def draw_often() -> list[Any]:
        return [draw() for _ in range(10)]

    first, tape = record(draw_often)
    assert tape.kinds == ["os.urandom"]
    assert repeat(draw_often, tape) == first
    assert len({repr(each) for each in first}) == 10


@pytest.mark.parametrize(
    ("seed", "draw"),
    [(lambda *of: random.seed(*of), draw_from_random), (lambda *of: np.random.seed(*of), draw_from_numpy)],
    ids=["random", "numpy"],
)
def test_seed_of_the_user_gives_what_it_gives_everywhere(seed: Callable[..., None], draw: Callable[[], Any]) -> None:
    def seeded() -> Any:
        seed(42)
        return draw()

    expected = seeded()
    assert record(seeded)[0] == expected

    def unseeded() -> Any:
        seed(42)
        seed()
        return draw()

    assert is_captured(unseeded)
    assert record(unseeded)[0] != expected


@pytest.mark.parametrize("draw", [draw_from_random, draw_from_numpy])
def test_state_in_a_checkpoint_goes_on_with_the_same_sequence(draw: Callable[[], list[Any]]) -> None:
    tape = Tape()
    with recording(tape):
        draw()
    checkpoint = pickle.dumps(tape.belongings.pack())
    with recording(tape):
        expected = [draw(), draw()]
    restored = Tape([])
    restored.belongings.restore(pickle.loads(checkpoint))
    with recording(restored):
        assert [draw(), draw()] == expected


def test_generator_that_nobody_touched_is_no_part_of_a_checkpoint() -> None:
    _, tape = record(lambda: (os.urandom(3), uuid.uuid4()))
    assert tape.belongings.pack() is None


@pytest.mark.parametrize("draw", [lambda: random.random(), lambda: float(np.random.rand())], ids=["random", "numpy"])
def test_other_threads_draw_from_another_sequence(draw: Callable[[], float]) -> None:
    def draw_beside(others: int) -> list[float]:
        threads = [threading.Thread(target=draw) for _ in range(others)]
        drawn = [draw()]
        for thread in threads:
            thread.start()
            thread.join()
        return [*drawn, draw()]

    first, tape = record(lambda: draw_beside(0))
    assert repeat(lambda: draw_beside(3), tape) == first


def test_calls_leave_the_sequence_of_the_process_alone() -> None:
    random_state, numpy_state = random.getstate(), pickle.dumps(np.random.get_state())
    record(lambda: (draw_from_random(), draw_from_numpy()))
    assert random.getstate() == random_state
    assert pickle.dumps(np.random.get_state()) == numpy_state


def test_states_are_saved_set_and_copied_as_ever() -> None:
    def use() -> list[Any]:
        state, numpy_state = random.getstate(), np.random.get_state()
        drawn = [random.random(), float(np.random.rand())]
        random.setstate(state)
        np.random.set_state(numpy_state)
        assert drawn == [random.random(), float(np.random.rand())]
        own = random.Random(3)
        assert copy.deepcopy(own).random() == pickle.loads(pickle.dumps(own)).random() == own.random()
        np.random.set_bit_generator(np.random.PCG64(5))
        assert type(np.random.get_bit_generator()).__name__ == "PCG64"
        return [*drawn, float(np.random.rand())]

    assert is_captured(use)
    assert type(np.random.get_bit_generator()).__name__ == "MT19937"


def test_class_by_value_has_the_functions_of_random_by_name() -> None:
    from random import random as draw

    from numpy.random import rand

    def read() -> tuple[float, float]:
        return draw(), float(rand())

    loaded: Callable[[], Any] = pickle.loads(dumps(read))
    assert is_captured(loaded)


def test_function_of_random_that_an_actor_keeps_is_pickled_by_name() -> None:
    kept = (random.random, random.choice, np.random.rand, random._inst)  # type: ignore[attr-defined]
    pickled = pickle.dumps(kept)
    assert [str(each) for each in pickle.loads(pickled)] == [str(each) for each in kept]
    program = "import pickle, sys; pickle.load(sys.stdin.buffer)[0](); sys.exit('lineage_stash' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], input=pickled, check=True, timeout=60)
    assert is_captured(pickle.loads(pickled)[0])
    first, _ = record(lambda: (copy.deepcopy(random._inst).random(), random.random()))  # type: ignore[attr-defined]
    assert first[0] == first[1]


def test_temporary_names_are_drawn_for_each_process() -> None:
    import tempfile

    assert record(lambda: next(tempfile._RandomNameSequence()))[1].log == []  # type: ignore[attr-defined]
