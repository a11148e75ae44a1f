"""effects: output to the outside. Records come at a fixed rate, and each adds a line to a file.

A record counts as done when its line is there and the script knows that: an effect that is released by a gate, or a
reply that is held until a checkpoint covers it. The line is the record's number: the file tells what came twice.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.suite.driving import Pacer
from benchmarks.suite.oracle import Judged
from benchmarks.suite.records import Cell
from benchmarks.suite.systems.base import System
from benchmarks.suite.workloads.base import Injection, Measured, Parameter

PARAMETERS = {
    "rate": Parameter(20, "records per second"),
    "seconds": Parameter(15.0, "how long, without the warm-up"),
    "warm_up_s": Parameter(2.0, "what is not measured at the beginning"),
}

LANE = "payer-0"


def add_line(path: str, number: int) -> None:
    """The effect: one write, which the kernel does not mix with others."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{number}\n".encode())
    finally:
        os.close(file)


def payer(release: Callable[..., Any]) -> type:
    """The actor, whose effect is as its system would have it."""

    class Payer:
        def __init__(self) -> None:
            self.paid = 0

        def pay(self, path: str, number: int) -> int:
            release(path, number)
            self.paid += 1
            return self.paid

    return Payer


def run(system: System, cell: Cell, parameters: Mapping[str, Any]) -> Measured:
    """At a rate, with the failures of the cell."""
    actor = system.actor(payer(system.effect(add_line)), name=LANE)
    count = int(parameters["rate"] * (parameters["warm_up_s"] + parameters["seconds"]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "paid"

        def send(number: int) -> Iterator[tuple[str, Any]]:
            yield LANE, actor.pay.remote(str(path), number)

        pacer = Pacer(system, parameters["rate"], count)
        with Injection(cell, system, lambda: pacer.progress) as injection:
            replies = pacer.run(send)
        lines = Counter(map(int, path.read_text(encoding="ascii").split()))
    return Measured(judge(lines, count), replies, warm_up_s=parameters["warm_up_s"], injection=injection,
                    affected=[LANE] if cell.failure else [], throughput_per_s=parameters["rate"])  # fmt: skip


def judge(lines: Mapping[int, int], count: int) -> Judged:
    """Every line must be there; one that came again has the same key, and a sink by key takes it once."""
    missing = [number for number in range(count) if not lines.get(number)]
    if missing:
        return Judged("gap", f"{len(missing)} of {count} lines are missing")
    repeated = sum(lines.values()) - count
    return Judged("precise", f"{repeated} came again, under the same key" if repeated else "")
