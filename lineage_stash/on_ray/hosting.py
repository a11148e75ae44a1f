"""Hosting: part of the coordinator, which finds a process for every new life: a spare, or a fresh one on a living node.

Rules:
- Nothing is started on a node that is not known to be alive: Ray itself goes on using a node for a quarter of a minute
  after its death. Where the user has decided where an actor runs, and it cannot be told from here which living nodes
  fit, Ray decides.
- A life that does not come up on one node is tried on another; the first process that claims it lives it.
- A life that does not come up at all, or whose node is lost meanwhile, is taken for dead, and another one begins.
- Spares are spread over the nodes that may run users' code: those that have a CPU.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lineage_stash.core.ids import Incarnation, NodeId, PeerId
from lineage_stash.on_ray.creation import Creation, start_host, start_spare, wishes_of
from lineage_stash.on_ray.groups import creation_for_next_life
from lineage_stash.on_ray.node_watch import NodeWatch
from lineage_stash.on_ray.placing import nodes_for
from lineage_stash.on_ray.process import Process
from lineage_stash.on_ray.registry import Place
from lineage_stash.shell import address_of

COME_UP_S = 30.0
"""How long a life may take to come up; a loaded machine needs seconds to start a Python."""

SPARE_COMES_UP_S = 8.0
"""The same in a process that is there already."""

TRY_ANOTHER_S = 12.0
"""How long a fresh process may take on one node before another node is tried as well. A node that is lost is left at
once, so this is for nodes that live and have no room; any sooner, and machines that are slow get twice the work."""

NEW_SPARE_S = 1.0
"""A spare that was used is replaced a little later, so that its start does not compete with the recovery."""

SPARES = "spare-"


class Awaited:
    """A life that was decided and has not come up."""

    def __init__(self, former_node: str) -> None:
        self.former_node = former_node
        self.creation: Creation | None = None
        self.incarnation = Incarnation(0)
        self.tried: list[str] = []
        """The nodes on which a process was started for it."""
        self.deadline = time.monotonic() + COME_UP_S
        self.try_another_at = self.deadline


class Hosting:
    """Spares, and the lives that are awaited."""

    def __init__(self, process: Process, nodes: NodeWatch, spares_wanted: int,
                 note_host: Callable[[str, str], None], suspect: Callable[[str, str], None]) -> None:  # fmt: skip
        self.process = process
        self.nodes = nodes
        self.spares_wanted = spares_wanted
        self.spares: dict[str, str] = {}
        """The spares that wait, and their nodes, which may be lost for a while."""
        self.awaited: dict[str, Awaited] = {}
        self._coming: dict[str, tuple[str, float]] = {}
        """Spares that were started: the names of their Ray actors, their nodes, and until when they may take."""
        self._started = 0
        self._placed: Counter[str] = Counter()
        """How many lives were given to each node from here."""
        self._note_host = note_host
        self.suspect = suspect
        self._tops_up = False

    # lives

    def start(self, peer: PeerId, incarnation: Incarnation, node: NodeId) -> None:
        """Have a process for a new life of a peer that lived on `node`."""
        address = address_of(peer, incarnation)
        self.awaited[address] = Awaited(node)
        self.process.links.reach(address)
        registry = self.process.registry
        registry.ask(
            lambda: creation_for_next_life(registry, peer), lambda found: self._host(found, incarnation, address)
        )

    def _host(self, creation: Creation | None, incarnation: Incarnation, address: str) -> None:
        awaited = self.awaited.get(address)
        if creation is None or awaited is None:
            return
        awaited.creation, awaited.incarnation = creation, incarnation
        spare = self._pick_spare(wishes_of(creation), awaited.former_node)
        if spare is None:
            self._start_fresh(address, awaited)
            return
        address_of_spare, node = spare
        awaited.tried.append(node)
        awaited.deadline = time.monotonic() + SPARE_COMES_UP_S
        self._placed[node] += 1
        self.process.control(address_of_spare, take=address)
        self._note_host(address, "a spare")
        self.process.loop.later(NEW_SPARE_S, self.top_up)

    def _start_fresh(self, address: str, awaited: Awaited) -> None:
        assert awaited.creation is not None
        living = {node: known for node, known in self.nodes.usable.items() if node not in awaited.tried}
        fitting = nodes_for(wishes_of(awaited.creation), living)
        node = self._choose(fitting, awaited.former_node)
        awaited.try_another_at = time.monotonic() + TRY_ANOTHER_S
        if node is not None:
            self._placed[node] += 1
        elif awaited.tried:
            return  # Ray has been told of it, and there is no other node
        awaited.tried.append(node or "")
        self._note_host(address, "a fresh process")
        self.process.registry.ask(partial(start_host, awaited.creation, awaited.incarnation, node, len(awaited.tried)))

    def choose(self, wishes: Mapping[str, Any]) -> str | None:
        """A living node for a host with these wishes; none where only Ray can tell."""
        return self._choose(nodes_for(wishes, self.nodes.usable), "")

    def _choose(self, fitting: list[str], preferred: str) -> str | None:
        """The preferred node, or the one with the fewest lives and spares."""
        if preferred in fitting:
            return preferred
        spares = Counter((*self.spares.values(), *(node for node, _ in self._coming.values())))
        return min(fitting, key=lambda node: self._placed[node] + spares[node], default=None)

    def has_come(self, address: str) -> None:
        """A life is up."""
        self.awaited.pop(address, None)

    def look_for_latecomers(self) -> None:
        """Try another node for lives that do not come up, and give up those that have not."""
        now = time.monotonic()
        for address, awaited in list(self.awaited.items()):
            if address in self.process.links.open:
                del self.awaited[address]
            elif awaited.deadline < now:
                del self.awaited[address]
                self.suspect(address, "did not come up in time")
            elif awaited.try_another_at < now:
                self._start_fresh(address, awaited)
        late = [name for name, (_, deadline) in self._coming.items() if deadline < now]
        for name in late:
            del self._coming[name]
        if late:
            self.top_up()

    def leave(self, node: str) -> list[str]:
        """Wait for nothing on a node any more; the lives that were to come up there."""
        self._coming = {name: coming for name, coming in self._coming.items() if coming[0] != node}
        self.process.loop.later(NEW_SPARE_S, self.top_up)
        return [address for address, awaited in self.awaited.items() if awaited.tried and awaited.tried[-1] == node]

    # spares

    def begin(self) -> None:
        """Have spares from now on."""
        self._tops_up = True
        self.top_up()

    def add_spare(self, address: str, place: Place | None) -> None:
        """A spare has reported."""
        if place is not None:
            self._coming.pop(place.actor, None)
        if place is not None and address in self.process.links.open:
            self.spares[address] = place.node

    @property
    def usable_spares(self) -> dict[str, str]:
        """The spares that wait on nodes that may be used, and these nodes."""
        usable = self.nodes.usable
        return {spare: node for spare, node in self.spares.items() if node in usable}

    def drop_spare(self, address: str) -> bool:
        """The link of a process has ended; whether it was a spare's."""
        if self.spares.pop(address, None) is None:
            return False
        self.process.loop.later(NEW_SPARE_S, self.top_up)
        return True

    def _pick_spare(self, wishes: Mapping[str, Any], former_node: str) -> tuple[str, str] | None:
        """A spare on a living node and that node, if any process there will do."""
        if any(wish for option, wish in wishes.items() if option != "scheduling_strategy"):
            return None
        spares = self.usable_spares
        fitting = nodes_for(wishes, self.nodes.usable) if wishes else spares.values()
        usable = [(spare, node) for spare, node in spares.items() if node in fitting]
        usable.sort(key=lambda pair: (pair[1] != former_node, self._placed[pair[1]]))
        if not usable:
            return None
        del self.spares[usable[0][0]]
        return usable[0]

    def top_up(self) -> None:
        """Start the spares that are missing, once it is known which nodes there are."""
        if not self._tops_up or not self.nodes.is_complete:
            return
        while len(self.usable_spares) + len(self._coming) < self.spares_wanted:
            self._started += 1
            name = f"spare {self.process.token}-{self._started}"
            node = self.choose({})
            self._coming[name] = (node or "", time.monotonic() + COME_UP_S)
            self.process.registry.ask(partial(start_spare, name, node))
