"""ring: a token goes around a ring of actors, none of which waits for a reply. The latency is that of one hop.

A hop counts from just before an actor sends the token on to the moment at which the next one has it. Both times are
read by the actors, so that every hop has reads of the clock in its lineage, as a program with real work has.
"""

import time
from collections.abc import Mapping
from typing import Any

from benchmarks.suite.driving import PATIENCE_S
from benchmarks.suite.measuring import latency_of
from benchmarks.suite.oracle import Judged
from benchmarks.suite.records import Cell
from benchmarks.suite.systems.base import System
from benchmarks.suite.workloads.base import Injection, Measured, Parameter

PARAMETERS = {
    "actors": Parameter(8, "in the ring"),
    "seconds": Parameter(4.0, "how long, without the warm-up"),
    "warm_up_s": Parameter(1.0, "what is not measured at the beginning"),
    "store_delay_ms": Parameter(0, "what is added to every answer of the store"),
}


class Link:
    """One actor of the ring."""

    def __init__(self) -> None:
        self.further: Any = None
        self.is_over = False
        self.hops: list[tuple[int, float, float]] = []

    def meet(self, further: Any) -> None:
        self.further = further

    def take(self, hop: int, sent_at: float) -> None:
        came_at = time.time()
        self.hops.append((hop, sent_at, came_at))
        if not self.is_over:
            self.further.take.remote(hop + 1, time.time())

    def end(self) -> None:
        self.is_over = True

    def tell(self) -> list[tuple[int, float, float]]:
        return self.hops


def run(system: System, cell: Cell, parameters: Mapping[str, Any]) -> Measured:
    """Let one token go around for some time."""
    links = [system.actor(Link, name=f"link-{number}") for number in range(parameters["actors"])]
    met = [link.meet.remote(links[(number + 1) % len(links)]) for number, link in enumerate(links)]
    system.get(met, PATIENCE_S)
    began_at, lasts_s = time.time(), parameters["warm_up_s"] + parameters["seconds"]
    with Injection(cell, system, lambda: (time.time() - began_at) / lasts_s) as injection:
        system.get([links[0].take.remote(0, time.time())], PATIENCE_S)
        time.sleep(lasts_s)
    try:
        system.get([link.end.remote() for link in links], PATIENCE_S)
        hops = sorted(settled(system, links))
    except system.detections as loss:
        return Measured(Judged("detected", f"the script was told: {type(loss).__name__}"), injection=injection)
    measured = [hop for hop in hops if hop[1] >= began_at + parameters["warm_up_s"]]
    hops_ms = [1e3 * (came_at - sent_at) for _, sent_at, came_at in measured]
    return Measured(judge([number for number, _, _ in hops]), latency=latency_of(hops_ms),
                    injection=injection, throughput_per_s=len(measured) / parameters["seconds"])  # fmt: skip


def settled(system: System, links: list[Any]) -> list[tuple[int, float, float]]:
    """All hops, once the token has come to rest."""
    seen = -1
    while True:
        told = system.get([link.tell.remote() for link in links], PATIENCE_S)
        hops = [hop for one in told for hop in one]
        if len(hops) == seen:
            return hops
        seen = len(hops)
        time.sleep(0.5)


def judge(numbers: list[int]) -> Judged:
    """Every hop once, and no number left out."""
    if numbers == list(range(len(numbers))):
        return Judged("precise")
    twice = len(numbers) - len(set(numbers))
    return Judged("divergent", f"{twice} hops came twice") if twice else Judged("gap", "hops are missing")
