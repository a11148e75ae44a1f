"""What a system under test offers to the workloads: actors, calls, and the truth about its processes.

Workloads are written once, against this. An actor's class is plain Python; its methods call other actors through the
handles that they are given, as `handle.method.remote(...)`, and read replies with `get` of this module, which knows
whose refs they are. So every handle and ref, of every system, has Ray's shape.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from benchmarks.suite.records import Lineage, Recovery, Semantics


class Guarantee(NamedTuple):
    """What a system says of itself when something fails."""

    promised: Semantics
    words: str
    """Of state and of output, in one line."""


class System(Protocol):
    """One system, started for one run of one cell."""

    name: str
    guarantee: Guarantee

    def start(self, *, store_delay_ms: float = 0.0) -> None:
        """Bring up a cluster of its own on this machine."""

    def stop(self) -> None:
        """End all that it has started."""

    def actor(self, kind: type, *arguments: Any, name: str) -> Any:
        """Create an actor; failures name it by `name`. Returns its handle once it answers."""

    def get(self, refs: Sequence[Any], timeout_s: float) -> list[Any]:
        """The replies."""

    def pid_of(self, name: str) -> int:
        """The process that an actor lives in now."""

    def recoveries(self, since: float) -> list[Recovery]:
        """Those since a moment of `time.time()`, with seconds from then."""

    def lineage(self) -> Lineage | None:
        """What was written down so far; None where nothing is."""

    def processes(self) -> dict[str, int]:
        """The processes whose memory is worth a line: driver, actors, store."""
