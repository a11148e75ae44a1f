"""What a workload is: it drives a started system, causes the failures of its cell, and judges what came out."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from benchmarks.suite.driving import Reply
from benchmarks.suite.oracle import Judged
from benchmarks.suite.records import Cell, Injected, Latency
from benchmarks.suite.systems.base import System
from lineage_stash.testing.failures import Injector, parse


class Parameter(NamedTuple):
    """One knob of a workload: its default, and what it is."""

    default: float | int | str
    words: str


class Injection:
    """A block in which the failures of a cell happen; seconds count from its beginning."""

    def __init__(self, cell: Cell, system: System, progress: Callable[[], float]) -> None:
        self._injector = None
        if cell.failure:
            self._injector = Injector(parse(cell.failure, cell.seed), system.targets(), progress)
        self.began_at = 0.0
        """By `time.time()`."""

    def __enter__(self) -> "Injection":
        self.began_at = time.time()
        if self._injector is not None:
            self._injector.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        if self._injector is not None:
            self._injector.__exit__(*raised)

    @property
    def injected(self) -> list[Injected]:
        """What has really happened."""
        found = () if self._injector is None else self._injector.injected
        return [Injected(second=one.second, what=one.what, target=one.target, pids=one.pids) for one in found]


@dataclass
class Measured:
    """What came out of one run."""

    judged: Judged
    replies: list[Reply] = field(default_factory=list)
    """Of a run at a fixed rate."""
    latency: Latency | None = None
    """Where there are no such replies."""
    warm_up_s: float = 0.0
    injection: Injection | None = None
    affected: Sequence[str] = ()
    """Lanes that a failure has hit."""
    throughput_per_s: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)


class Workload(Protocol):
    """A module with these."""

    PARAMETERS: Mapping[str, Parameter]

    def run(self, system: System, cell: Cell, parameters: Mapping[str, Any]) -> Measured:
        """Drive a system that is up."""
