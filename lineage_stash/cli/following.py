"""Following recoveries as they come."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lineage_stash.cli.records import Recovery

LOOK_S = 0.5
"""How often to look; each look is two requests to the control plane."""

Pause = Callable[[], bool]
"""Wait a little; whether to go on after that."""


@contextmanager
def until_interrupted() -> Iterator[Pause]:
    """Pauses that end at Ctrl-C: noted and not raised, because Ray's client loses an exception that it is struck by."""
    interrupted = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        yield lambda: not interrupted.wait(LOOK_S)
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Whether nobody has pressed Ctrl-C yet."""
    interrupted = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        yield lambda: not interrupted.is_set()
    finally:
        signal.signal(signal.SIGINT, before)


def follow(look: Callable[[], tuple[Recovery, ...]], known: tuple[Recovery, ...],
           pause: Pause) -> Iterator[Recovery]:  # fmt: skip
    """Every recovery that is not known yet, once, oldest first, until a pause says that it is enough."""
    # A frontier would not do: a life that takes long to replay is recorded after those of later rounds.
    seen = {(recovery.round, recovery.peer) for recovery in known}
    goes_on = True
    while goes_on:
        for recovery in look():
            if (recovery.round, recovery.peer) not in seen:
                seen.add((recovery.round, recovery.peer))
                yield recovery
        goes_on = pause()
