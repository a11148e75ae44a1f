"""First lives: part of the coordinator: actors that are created while a node is being lost come up all the same.

Whoever creates an actor has Ray start its first host, and Ray goes on placing hosts on a node for a quarter of a minute
after its death. Nobody would miss an actor that never was there, except those who call it. So after the loss of a node,
and only then, creations that have led to nothing are looked for, and started again on a living node.
"""

import json
import time

from lineage_stash.core.ids import FIRST_INCARNATION, PeerId
from lineage_stash.on_ray.creation import Creation, read_creation, start_host, wishes_of
from lineage_stash.on_ray.hosting import Hosting
from lineage_stash.on_ray.process import Process
from lineage_stash.shell import address_of

WATCH_S = 60.0
"""How long to look after a node was lost: Ray needs 15 s to notice, and more where it was only stopped."""

LOOK_S = 1.0
LATE_S = 4.0
"""How long a first host may take before another one is started; a loaded machine needs seconds to start a Python."""

MOST_ATTEMPTS = 4
"""An actor may have been waiting for resources long before a node was lost, and goes on doing so."""


class FirstLives:
    """Looks for creations that have led to nothing."""

    def __init__(self, process: Process, hosting: Hosting) -> None:
        self.process = process
        self.hosting = hosting
        self._until = 0.0
        self._is_looking = False
        self._missing_since: dict[str, float] = {}
        self._attempts: dict[str, int] = {}

    def watch(self) -> None:
        """A node was lost, or is in doubt."""
        self._until = time.monotonic() + WATCH_S
        if not self._is_looking:
            self._is_looking = True
            self._look()

    def _look(self) -> None:
        self.process.registry.ask(self._find_missing, self._on_found, self._look_later)

    def _look_later(self) -> None:
        self.process.loop.later(LOOK_S, self._look)

    def _find_missing(self) -> list[str]:
        """In the registry's thread: actors that were created, and of which no life has settled anywhere."""
        plane = self.process.plane
        places = set(plane.keys("places/"))
        left = {key.partition("/")[2] for kind in ("retired/", "killed/") for key in plane.keys(kind)}
        created = [key.removeprefix("actors/") for key in plane.keys("actors/")]
        return [peer for peer in created if peer not in left and f"places/{first_address(peer)}" not in places]

    def _on_found(self, missing: list[str]) -> None:
        now = time.monotonic()
        since = self._missing_since
        self._missing_since = {peer: since.get(peer, now) for peer in missing}
        for peer in missing:
            attempts = self._attempts.get(peer, 1)
            if now - self._missing_since[peer] >= LATE_S and attempts < MOST_ATTEMPTS:
                self._missing_since[peer] = now
                self._attempts[peer] = attempts + 1
                self._start_again(PeerId(peer), attempts + 1)
        if now < self._until:
            self._look_later()
            return
        self._is_looking = False
        self._missing_since.clear()
        self._attempts.clear()

    def _start_again(self, peer: PeerId, attempt: int) -> None:
        registry = self.process.registry

        def start(creation: Creation | None) -> None:
            node = None if creation is None else self.hosting.choose(wishes_of(creation))
            if creation is not None and node is not None:
                registry.ask(lambda: start_host(creation, FIRST_INCARNATION, node, attempt))

        def bury(_: object) -> None:
            self.hosting.suspect(first_address(peer), "its node was lost before it had come up")

        def decide(is_claimed: bool) -> None:
            if is_claimed:  # by a process that was lost in the next moment: only another life can be lived
                member = json.dumps([self.process.node, True]).encode()
                registry.ask(lambda: self.process.plane.put(f"members/{peer}", member), bury)
            else:
                registry.ask(lambda: read_creation(self.process.plane, peer), start)

        registry.ask(lambda: registry.is_claimed(first_address(peer)), decide)


def first_address(peer: str) -> str:
    """Where the first life of a peer is reached."""
    return address_of(PeerId(peer), FIRST_INCARNATION)
