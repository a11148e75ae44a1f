"""A module of a user: names that were bound before anything is replaced, in all the places where they are found."""

import os
import time as clock
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from random import Random, random
from secrets import token_hex
from time import time
from uuid import uuid1, uuid4

from numpy.random import default_rng, rand, seed


def by_global() -> tuple[object, ...]:
    return time(), random(), uuid4(), uuid1(), token_hex(), datetime.now(), date.today(), Random().random()


def by_numpy() -> tuple[object, ...]:
    return float(rand()), float(default_rng().random())


def by_seeded_numpy() -> float:
    seed(5)
    return float(rand())


def by_default(now: Callable[[], float] = time, *, draw: Callable[[], float] = random) -> tuple[float, float]:
    return now(), draw()


def _close_over(now: Callable[[], float]) -> Callable[[], float]:
    return lambda: now()


by_closure = _close_over(clock.time)


class ByAttribute:
    now = clock.monotonic
    entropy = staticmethod(os.urandom)

    def read(self) -> tuple[float, bytes]:
        return self.now(), self.entropy(4)


@dataclass
class ByFactory:
    made: float = field(default_factory=time)


in_a_container = {"now": clock.time}


def by_container() -> float:
    return in_a_container["now"]()
