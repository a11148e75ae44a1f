"""Resting: a task of Ray's that waits for something else than Ray's gives its resources back meanwhile.

Ray takes a task's CPU back only while the task waits in Ray's own `get`. So whoever waits for our sockets waits there,
for something that never comes, and looks up from time to time; the steward looks after the sockets meanwhile.
"""

import asyncio
from functools import lru_cache
from typing import Any

import ray

from lineage_stash.on_ray.creation import RAY_NAMESPACE

REST_S = 0.03
"""How long at a time: what waits here has waited for a while, and people do not notice less than this."""


class Endless:
    """A Ray actor of which one call never ends."""

    async def wait(self) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()


@lru_cache(maxsize=1)
def _never() -> Any:
    """A ref of Ray's that never has a value."""
    endless = ray.remote(Endless).options(
        name="endless", namespace=RAY_NAMESPACE, lifetime="detached", get_if_exists=True, num_cpus=0, max_restarts=-1
    )
    return endless.remote().wait.remote()


def rest_in_ray(most_s: float = REST_S) -> None:
    """Wait a little in Ray's `get`."""
    try:
        ray.get(_never(), timeout=min(most_s, REST_S))
    except ray.exceptions.GetTimeoutError:
        return
    except ray.exceptions.RayActorError:
        _never.cache_clear()
