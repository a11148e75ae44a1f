"""Chaos on a running cluster: kills processes of its actors on this machine on purpose, and sees whether all are back.

Only actors and tasks are killed, and services where that is asked for; never a script, a node, or a process that is not
one of Ray's workers. Everything that was killed must live again, or have left because it was done.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lineage_stash.cli.cluster import Cluster
from lineage_stash.cli.records import Records, read, read_recoveries
from lineage_stash.cli.runs import run_of
from lineage_stash.cli.status import State, state_of
from lineage_stash.core.ids import Incarnation, PeerId
from lineage_stash.on_ray.process import split_address
from lineage_stash.on_ray.registry import COORDINATOR, replica_name
from lineage_stash.testing.killer import Kill, Killer

BACK_WITHIN_S = 60.0
"""How long the last of those who were killed may take to be back: a node that is lost takes seconds."""

ON_RECORD_WITHIN_S = 10.0
"""A life is there before it has caught up, and on record only after that."""

LOOK_S = 0.1
OF_RAY = b"ray::"
"""How the command lines of Ray's workers begin."""


class Outcome(NamedTuple):
    """What was killed, and what became of it."""

    killed: tuple[Kill, ...]
    missing: tuple[str, ...]
    """Who was killed and is not back."""
    recoveries: int
    slowest_ms: float


class Targets:
    """Which processes may be killed now."""

    def __init__(self, cluster: Cluster, run: str | None) -> None:
        self.cluster = cluster
        self.run = run

    def actors(self) -> dict[str, int]:
        """The lives of actors and tasks on this machine."""
        return self._here(lambda records: [records.address(peer) for peer in records.creations
                                           if self._is_meant(peer, records)])  # fmt: skip

    def services(self) -> dict[str, int]:
        """The coordinator and the replicas on this machine."""
        return self._here(lambda records: [*map(replica_name, records.replicas), records.coordinator or COORDINATOR])

    def elsewhere(self) -> int:
        """How many lives are on other machines, where they are not killed."""
        records = read(self.cluster.plane)
        places = [records.places.get(records.address(peer)) for peer in records.creations
                  if self._is_meant(peer, records)]  # fmt: skip
        return sum(place is not None and place.node != self.cluster.node for place in places)

    def _is_meant(self, peer: PeerId, records: Records) -> bool:
        of_the_run = self.run is None or run_of(peer) == self.run
        return of_the_run and state_of(peer, records, None) is State.ALIVE

    def _here(self, named: Callable[[Records], list[str]]) -> dict[str, int]:
        records = read(self.cluster.plane)
        places = {address: records.places.get(address) for address in named(records)}
        return {address: place.pid for address, place in places.items()
                if place is not None and place.node == self.cluster.node and is_worker(place.pid)}  # fmt: skip


def is_worker(pid: int) -> bool:
    """Whether a process runs and is one of Ray's workers: its number may be somebody else's by now."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(OF_RAY)
    except OSError:
        return False


def unleash(cluster: Cluster, *, seed: int, for_s: float, most: int, run: str | None, services: bool,
            tell: Callable[[Kill], None], goes_on: Callable[[], bool]) -> Outcome:  # fmt: skip
    """Kill until time is up, so many are killed or somebody has seen enough; then wait until all are back."""
    targets = Targets(cluster, run)
    before = len(read(cluster.plane).recoveries)
    nobody: Callable[[], dict[str, int]] = dict
    ends_at = time.monotonic() + for_s
    with Killer(seed, targets.actors, targets.services if services else nobody, most=most, tell=tell) as killer:
        while not killer.is_over and time.monotonic() < ends_at and goes_on():
            time.sleep(LOOK_S)
    if killer.failure is not None:
        raise killer.failure
    missing = wait_for(cluster, killer.killed)
    found = read(cluster.plane).recoveries[before:]
    return Outcome(
        tuple(killer.killed), missing, len(found), max((recovery.total_ms for recovery in found), default=0.0)
    )


def wait_for(cluster: Cluster, killed: list[Kill]) -> tuple[str, ...]:
    """Who of those who were killed is not back, after the time that this may take."""
    lives = [lived for kill in killed if (lived := split_address(kill.name)) is not None]
    deadline = time.monotonic() + BACK_WITHIN_S
    while missing := _missing(read(cluster.plane), lives):
        if time.monotonic() > deadline:
            return missing
        time.sleep(LOOK_S)
    _wait_for_records(cluster, lives)
    return ()


def _wait_for_records(cluster: Cluster, lives: list[tuple[PeerId, Incarnation]]) -> None:
    """Give the coordinator time to put on record what it has seen; it may have died, and then it cannot."""
    deadline = time.monotonic() + ON_RECORD_WITHIN_S

    def are_on_record() -> bool:
        found = read_recoveries(cluster.plane)
        return all(any(one.peer == peer and one.incarnation > life for one in found) for peer, life in lives)

    while not are_on_record() and time.monotonic() < deadline:
        time.sleep(LOOK_S)


def _missing(records: Records, lives: list[tuple[PeerId, Incarnation]]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for peer, incarnation in lives:
        state = state_of(peer, records, None)
        is_back = state is State.ALIVE and records.history.incarnation(peer) > incarnation
        if not is_back and not state.has_left:
            found[str(peer)] = None
    return tuple(found)
