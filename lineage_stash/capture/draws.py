"""Draws: `os.urandom` and all that is made of it, `uuid`, and the generator that the functions of `random` share.

- `random.SystemRandom`, `secrets`, and unseeded generators of numpy draw through `random._urandom`, whatever name they
  are known by; `uuid.uuid4` through `os.urandom`; `uuid.uuid1` through a function of its module.
- `random.Random` seeds itself in C where it is given nothing: its `seed` is replaced, and takes a captured draw.
- The functions of `random` are methods of one hidden generator. They become methods of a `SharedRandom`, which hands
  over to the generator of the actor whose call this thread runs, and to the hidden one in every other thread.
"""

import copy
import os
import random
import uuid
from collections.abc import Callable
from typing import Any

from lineage_stash.capture.here import here
from lineage_stash.capture.stand_ins import StandIn

ENTROPY_BYTES = 32

HIDDEN_NAME = "_inst"
_HIDDEN: random.Random = getattr(random, HIDDEN_NAME)

SHARED_NAMES = tuple(name for name, value in vars(random).items() if getattr(value, "__self__", None) is _HIDDEN)
"""The functions of `random` that are methods of the hidden generator."""


def urandom_stand_ins() -> list[StandIn]:
    """For what the operating system draws."""
    return [StandIn("os", "urandom", os.urandom), StandIn("os", "getrandom", os.getrandom)]


def uuid_stand_ins() -> list[StandIn]:
    """For what identifies a machine and a moment."""
    found = [StandIn("uuid", "getnode", uuid.getnode)]
    generate = getattr(uuid, "_generate_time_safe", None)
    if generate is not None:
        found.append(StandIn("uuid", "_generate_time_safe", generate, "uuid.uuid1"))
    return found


def draw_seed() -> int:
    """Entropy for a generator: captured while the user's call runs."""
    return int.from_bytes(os.urandom(ENTROPY_BYTES), "little")


def seed_of(real: Callable[..., None]) -> Callable[..., None]:
    """A replacement of `random.Random.seed`, which draws where it is given nothing."""

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        """Initialize internal state from a seed; without one, from the operating system's draws."""
        real(self, draw_seed() if a is None and here.recorder is not None else a, version)

    return seed


def _present() -> random.Random:
    """The generator that is meant in this thread, now."""
    recorder = here.recorder
    if recorder is None:
        return _HIDDEN
    belongings = recorder.belongings
    if belongings.random is None:
        belongings.random = random.Random(draw_seed())
    found: random.Random = belongings.random
    return found


class SharedRandom(random.Random):
    """Has no sequence of its own: every method is that of the generator that is meant."""

    def __init__(self) -> None:
        """Seeds nothing: the one that would be seeded is the hidden one."""

    def __reduce__(self) -> str:
        """By name, like a function: where it is loaded, it is what is shared there."""
        return HIDDEN_NAME

    def __copy__(self) -> random.Random:
        return copy.copy(_present())

    def __deepcopy__(self, memo: dict[int, Any]) -> random.Random:
        return copy.deepcopy(_present(), memo)


def _handing_over(name: str) -> Any:
    def method(_: SharedRandom, *args: Any, **kwargs: Any) -> Any:
        return getattr(_present(), name)(*args, **kwargs)

    real = getattr(random.Random, name)
    method.__name__, method.__doc__, method.__wrapped__ = name, real.__doc__, real  # type: ignore[attr-defined]
    return method


for _name in SHARED_NAMES:
    setattr(SharedRandom, _name, _handing_over(_name))

SharedRandom.__module__ = random.__name__
SHARED = SharedRandom()
