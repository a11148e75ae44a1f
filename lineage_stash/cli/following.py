"""Following recoveries as they come."""

import time
from collections.abc import Callable, Iterator

from lineage_stash.cli.records import Recovery

LOOK_S = 0.5
"""How often to look; each look is two requests to the control plane."""


def follow(look: Callable[[], tuple[Recovery, ...]], known: tuple[Recovery, ...],
           pause: Callable[[], None] = lambda: time.sleep(LOOK_S)) -> Iterator[Recovery]:  # fmt: skip
    """Every recovery that is not known yet, once, oldest first, for ever."""
    # A frontier would not do: a life that takes long to replay is recorded after those of later rounds.
    seen = {(recovery.round, recovery.peer) for recovery in known}
    while True:
        for recovery in look():
            if (recovery.round, recovery.peer) not in seen:
                seen.add((recovery.round, recovery.peer))
                yield recovery
        pause()
