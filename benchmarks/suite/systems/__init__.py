"""The systems under test, by name; each is loaded when it is asked for, and started for one run of one cell.

What the modules of workloads import is loaded in a recovery, too: none of these is.
"""

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from benchmarks.suite.systems.base import System

CLASSES = {
    "stash": "stash.Stash",
    "plain": "ray_actors.Plain",
    "ray-retry": "ray_actors.RayRetry",
    "sync-log": "stash.SyncLog",
    "global-checkpoint": "global_checkpoint.GlobalCheckpoint",
}


def make_system(name: str, variant: str = "") -> "System":
    """A system by its name, with its options; not started yet."""
    module, _, kind = CLASSES[name].partition(".")
    return cast("System", getattr(import_module(f"{__name__}.{module}"), kind)(variant))
