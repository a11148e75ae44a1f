"""What can be raised: Ray's exceptions, and those that only this package has."""

from importlib import import_module
from typing import Any

from lineage_stash.on_ray.control_plane import ControlPlaneAway, ControlPlaneReplaced
from lineage_stash.on_ray.services import StoreUnreachable

__all__ = ["ControlPlaneAway", "ControlPlaneReplaced", "StoreUnreachable"]


def __getattr__(name: str) -> Any:
    """Whatever Ray has under this name."""
    if name.startswith("__"):
        raise AttributeError(f"module 'lineage_stash.exceptions' has no attribute {name!r}")
    return getattr(import_module("ray.exceptions"), name)
