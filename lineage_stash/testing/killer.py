"""A killer: kills some of the processes that it is shown, at moments drawn from a seed, until it is told to stop.

When who is killed is drawn, but real time decides what each kill hits, so that a seed is no proof; run it again, it is
likely to find the same.
"""

import os
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 2.5
"""Between two strikes: often enough that most runs see some, seldom enough that a run comes to its end."""

MOST_KILLS = 10
"""In one run: on a machine that is slow to start processes they would be killed faster than they come up, for ever."""

MOST_AT_ONCE = (1, 1, 1, 2, 3)

SERVICE_ODDS = 0.1

Targets = Callable[[], dict[str, int]]
"""Which processes there are now, by name."""


class Kill(NamedTuple):
    """One process that was killed."""

    name: str
    pid: int


class Killer:
    """Kills processes of a program, and now and then a service, until it is told to stop."""

    def __init__(self, seed: int, alive: Targets, services: Targets, *, most: int = MOST_KILLS,
                 tell: Callable[[Kill], None] = lambda _: None) -> None:  # fmt: skip
        self.draw = random.Random(seed)
        self.killed: list[Kill] = []
        self.failure: BaseException | None = None
        """Why it ended before it was told to."""
        self._alive = alive
        self._services = services
        self._most = most
        self._tell = tell
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._strike_on, name="chaos", daemon=True)

    @property
    def kills(self) -> int:
        """How many processes were killed."""
        return len(self.killed)

    @property
    def is_over(self) -> bool:
        """Whether it kills no more."""
        return not self._thread.is_alive()

    def __enter__(self) -> "Killer":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self._over.set()
        self._thread.join()

    def _strike_on(self) -> None:
        try:
            while not self._over.wait(self.draw.uniform(SHORTEST_PAUSE_S, LONGEST_PAUSE_S)) and self.kills < self._most:
                self._strike()
        except BaseException as error:  # noqa: BLE001 - told by whoever started it
            self.failure = error

    def _strike(self) -> None:
        alive = self._alive()
        count = min(len(alive), self.draw.choice(MOST_AT_ONCE), self._most - self.kills)
        victims = [Kill(name, alive[name]) for name in self.draw.sample(sorted(alive), count)]
        if self.draw.random() < SERVICE_ODDS:
            services = self._services()
            chosen = self.draw.sample(sorted(services), min(len(services), 1))  # they may all be dead just now
            victims += [Kill(name, services[name]) for name in chosen]
        for victim in victims:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(victim.pid, signal.SIGKILL)
                self.killed.append(victim)
                self._tell(victim)
