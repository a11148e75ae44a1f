"""States are pickled without frames, come back as they were, and change little where the state changed little."""

import os
import random
from typing import Any

import numpy as np
import pytest

from lineage_stash.core.events import StateCaptured
from lineage_stash.on_ray.pickling import pickle_state, unpickle_state
from lineage_stash.on_ray.runner import TaskProgram
from lineage_stash.store.chunks import Manifest, split


class Own:
    """The actor's own class."""


def frame_like(size: int) -> bytes:
    """An object whose bytes look like a frame of exactly its length."""
    return b"\x95" + (size - 9).to_bytes(8, "little") + bytes(size - 9)


def draw_object(draw: random.Random, depth: int = 0) -> Any:
    size = draw.choice([65535, 65536, 65537, 70_000, 131_072])
    makers = [
        lambda: frame_like(size),
        lambda: b"\x80\x05" + frame_like(size - 2),
        lambda: bytearray(frame_like(size)),
        lambda: "x\x95" * (size // 2),
        lambda: draw.randbytes(draw.randrange(100)),
        lambda: 0x95,
        lambda: {str(number): draw.random() for number in range(draw.randrange(4000))},
        lambda: tuple(range(draw.randrange(3000))),
        lambda: [draw_object(draw, depth + 1) for _ in range(draw.randrange(4))] if depth < 3 else None,
    ]
    return draw.choice(makers)()


@pytest.mark.parametrize("seed", range(150))
def test_any_state_comes_back_even_if_its_bytes_look_like_frames(seed: int) -> None:
    draw = random.Random(seed)
    state = [draw_object(draw) for _ in range(4)]
    assert unpickle_state(pickle_state(state, Own), Own) == state


def test_arrays_come_back_and_the_own_class_is_named() -> None:
    state = {"array": np.arange(100_000, dtype=np.float64), "class": Own}
    back = unpickle_state(pickle_state(state, Own), Own)
    assert np.array_equal(back["array"], state["array"])
    assert back["class"] is Own


def test_one_changed_value_of_a_large_dict_changes_few_chunks() -> None:
    records = {f"key-{number}": (number * 0.5, "x" * (number % 30)) for number in range(100_000)}
    before = set(Manifest.of(split(pickle_state(records, Own))).digests)
    records["key-50000"] = (1.0, "a value of another length than the one before")
    after = Manifest.of(split(pickle_state(records, Own))).digests
    assert len([digest for digest in after if digest not in before]) <= 3
    assert len(after) > 50


def test_runner_copies_its_state_without_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    nothing: Any = None  # no network and no refs are needed
    program = TaskProgram(nothing)
    captured: list[object] = []
    program.capture(nothing, lambda event, _: captured.append(event))
    assert [type(event) for event in captured] == [StateCaptured]
