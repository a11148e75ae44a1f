"""The runtime of this process, if it has one: a script's, or that of the actor that lives here."""

import threading
from typing import ClassVar

import ray

from lineage_stash.core.ids import PeerId
from lineage_stash.on_ray import garbage
from lineage_stash.on_ray.options import connects_by_itself
from lineage_stash.on_ray.runtime import Runtime


class Now:
    """What this process takes part as, and the actors that end with it."""

    runtime: Runtime | None = None
    owns_ray = False
    lock = threading.Lock()
    actors: ClassVar[list[PeerId]] = []


def adopt(runtime: Runtime | None) -> None:
    """This process takes part from here on, or does so no more."""
    Now.runtime = runtime
    if runtime is not None:
        garbage.look_seldom()
    else:
        garbage.look_as_before()


def is_initialized() -> bool:
    """Whether this process takes part."""
    return Now.runtime is not None


def current() -> Runtime:
    """The runtime of this process; a script that has none is initialized, as Ray does on first use."""
    runtime = Now.runtime
    if runtime is None:
        _begin()
        runtime = Now.runtime
        assert runtime is not None
    return runtime


def _begin() -> None:
    from lineage_stash.on_ray import api

    if not ray.is_initialized() and not connects_by_itself():
        raise ray.exceptions.RaySystemError("Ray has not been started yet. You can start Ray with 'ray.init()'.")
    api.init(ignore_reinit_error=True)
