"""Actors, as in `ray.actor`; what is not here is Ray's own."""

from importlib import import_module
from typing import Any

from lineage_stash.on_ray.actors import ActorClass, ActorHandle, ActorMethod
from lineage_stash.on_ray.context import exit_actor

__all__ = ["ActorClass", "ActorHandle", "ActorMethod", "exit_actor"]


def __getattr__(name: str) -> Any:
    """Whatever Ray has under this name."""
    if name.startswith("__"):
        raise AttributeError(f"module 'lineage_stash.actor' has no attribute {name!r}")
    return getattr(import_module("ray.actor"), name)
