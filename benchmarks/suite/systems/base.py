"""What a system under test offers to the workloads: actors, calls, and the truth about its processes.

Workloads are written once, against this. An actor's class is plain Python; its methods call other actors through the
handles that they are given, as `handle.method.remote(...)`, and wait for no reply. Every handle and ref, of every
system, has Ray's shape.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from benchmarks.suite.records import Lineage, Recovery, Semantics
from lineage_stash.testing.failures import Processes, Targets


class Guarantee(NamedTuple):
    """What a system says of itself when something fails."""

    promised: Semantics
    words: str
    """Of state and of output, in one line."""


class System(Protocol):
    """One system, started for one run of one cell."""

    name: str
    guarantee: Guarantee
    detections: tuple[type[BaseException], ...]
    """What it raises to say that it has lost something."""

    def start(self, *, store_delay_ms: float = 0.0) -> None:
        """Bring up a cluster of its own on this machine."""

    def stop(self) -> None:
        """End all that it has started."""

    def actor(self, kind: type, *arguments: Any, name: str) -> Any:
        """Create an actor; failures name it by `name`. Returns its handle once it answers."""

    def effect(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that acts on the outside, as this system would have it."""

    def get(self, refs: Sequence[Any], timeout_s: float) -> list[Any]:
        """The replies."""

    def wait(self, refs: Sequence[Any], timeout_s: float) -> Sequence[Any]:
        """Those that are answered or have failed: at least one, unless time is up."""

    def targets(self) -> Targets:
        """Whom failures can happen to."""

    def recoveries(self, since: float) -> list[Recovery]:
        """Those since a moment of `time.time()`, with seconds from then."""

    def losses(self) -> str:
        """What it has reported as lost, in one line; empty if nothing."""

    def lineage(self) -> Lineage | None:
        """What was written down so far; None where nothing is."""

    def processes(self) -> dict[str, int]:
        """The processes whose memory is worth a line: driver, actors, store."""


def options_of(variant: str, system: str, known: Sequence[str]) -> dict[str, str]:
    """A variant in words, `max_failures=2,level=memory`, as options of a system."""
    options = dict(part.split("=", 1) for part in variant.split(",") if part)
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ValueError(f"{system} has no option {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
    return options


def wrapped_methods(kind: type, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> type:
    """A class whose public methods are wrapped, each by the same."""
    public = {name: wrap(member) for name, member in vars(kind).items() if callable(member) and name[0] != "_"}
    return type(kind.__name__, (kind,), {"__module__": __name__, **public})


def killable(names: Sequence[str], pid_of: Callable[[str], int]) -> Processes:
    """Actors of which nothing but the process is known."""
    return Processes(actor={name: partial(pid_of, name) for name in names})
