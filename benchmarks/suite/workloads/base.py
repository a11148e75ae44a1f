"""What a workload is: it drives a started system, causes the failures of its cell, and judges what came out."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
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


@dataclass
class Measured:
    """What came out of one run."""

    judged: Judged
    replies: list[Reply] = field(default_factory=list)
    """Of a run at a fixed rate."""
    latency: Latency | None = None
    """Where there are no such replies."""
    warm_up_s: float = 0.0
    injected: list[Injected] = field(default_factory=list)
    affected: Sequence[str] = ()
    """Lanes that a failure has hit."""
    throughput_per_s: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)


class Workload(Protocol):
    """A module with these."""

    PARAMETERS: Mapping[str, Parameter]

    def run(self, system: System, cell: Cell, parameters: Mapping[str, Any]) -> Measured:
        """Drive a system that is up."""


def injecting(cell: Cell, system: System, progress: Callable[[], float]) -> AbstractContextManager[Injector | None]:
    """A block in which the failures of a cell happen."""
    if not cell.failure:
        return nullcontext()
    return Injector(parse(cell.failure, cell.seed), system.targets(), progress)


def injected_by(injector: Injector | None) -> list[Injected]:
    """What has really happened; injections begin when the first record is due."""
    return [] if injector is None else [
        Injected(second=one.second, what=one.what, target=one.target, pids=one.pids)
        for one in injector.injected
    ]  # fmt: skip
