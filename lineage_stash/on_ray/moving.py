"""Moving: part of the coordinator, which has actors leave a node that is about to go: one that Ray is draining.

That is what autoscalers and preemption notices do to a node some time before its end. A move is a recovery that is not
waited for: the present life is taken for dead and ends, the next one replays on another node, and no call is lost. One
actor moves at a time, and not before a process waits for it, so that each is away for a moment only. If the node goes
before all have moved, the rest is recovered as after any loss.

Not moved: drivers, which cannot be run again, and actors that the user has bound to the node.
"""

import time
from collections.abc import Callable

from lineage_stash.core.ids import PeerId
from lineage_stash.on_ray.creation import Creation, read_creation, wishes_of
from lineage_stash.on_ray.hosting import Hosting
from lineage_stash.on_ray.process import Process, split_address
from lineage_stash.on_ray.telling import tell

LOOK_S = 1.0
"""How often to look who still lives on a node that is being drained."""

WAIT_FOR_SPARE_S = 5.0
"""How long the next one to move waits for a spare; without any, it moves into a fresh process."""


class Moving:
    """The nodes that are being drained, and who is to leave them."""

    def __init__(self, process: Process, hosting: Hosting, bury: Callable[[list[str], str], None]) -> None:
        self.process = process
        self.hosting = hosting
        self._bury = bury
        self._nodes: dict[str, float] = {}
        """The nodes that are left, and when to look again who is there."""
        self._leaving: list[str] = []
        self._moved: set[str] = set()
        self._moved_at = 0.0

    def on_ticked(self) -> None:
        """Some time has passed: see which nodes are being drained, who lives there, and whether the next may move."""
        now = time.monotonic()
        draining = self.hosting.nodes.draining
        for node in draining:
            if node not in self._nodes:
                tell("node drained", f"nodes: node {node} is being drained: the actors there move.", node=node)
                self.hosting.leave(node)
            if now >= self._nodes.get(node, 0.0):
                self._look(node)
        self._nodes = {node: self._nodes[node] for node in draining}
        if self._leaving and self._may_move(now):
            self._moved_at = now
            self._bury([self._leaving.pop(0)], "its node is being drained")

    def _may_move(self, now: float) -> bool:
        return not self.hosting.awaited and (
            bool(self.hosting.usable_spares) or now - self._moved_at > WAIT_FOR_SPARE_S
        )

    def _look(self, node: str) -> None:
        self._nodes[node] = time.monotonic() + LOOK_S
        self.process.registry.ask(lambda: self._find(node), self._on_found)

    def _find(self, node: str) -> list[tuple[str, Creation]]:
        """In the registry's thread: the lives of actors on a node, former ones too."""
        found = []
        for address in self.process.registry.addresses_on(node):
            lived = split_address(address)
            assert lived is not None, "an address on record that has an incarnation"
            creation = None if address in self._moved else read_creation(self.process.plane, PeerId(lived[0]))
            if creation is not None:
                found.append((address, creation))
        return found

    def _on_found(self, found: list[tuple[str, Creation]]) -> None:
        for address, creation in found:
            if address not in self._moved and self.hosting.choose(wishes_of(creation)) is not None:
                self._moved.add(address)
                self._leaving.append(address)
