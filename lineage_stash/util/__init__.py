"""Tools on top of the verbs, as in `ray.util`; what is not here is Ray's own."""

from importlib import import_module
from typing import Any

from lineage_stash.on_ray.listing import list_named_actors
from lineage_stash.util.actor_pool import ActorPool

__all__ = ["ActorPool", "list_named_actors"]

_MODULES = frozenset(("actor_pool", "queue"))


def __getattr__(name: str) -> Any:
    """A module of ours, or whatever Ray has under this name."""
    if name in _MODULES:
        return import_module(f"lineage_stash.util.{name}")
    if name.startswith("__"):
        raise AttributeError(f"module 'lineage_stash.util' has no attribute {name!r}")
    return getattr(import_module("ray.util"), name)
