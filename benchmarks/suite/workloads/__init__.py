"""The workloads, by name; each is loaded when it is asked for.

An actor's process loads the module that the actor's class is in, and all that this one imports, also in a recovery: it
should not have to load Spark to count words.
"""

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from benchmarks.suite.workloads.base import Workload

NAMES = ("ring", "wordcount", "effects", "calls", "allreduce", "graph", "pipeline")


def workload_of(name: str) -> "Workload":
    """The workload of a name."""
    return cast("Workload", import_module(f"{__name__}.{name}"))
