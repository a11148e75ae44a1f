"""The node watch: part of the coordinator, which knows which nodes are alive, long before Ray does.

It holds nothing that matters: a coordinator that was restarted hears the agents again within a second.

Rules:
- A node is alive while its agent speaks. An agent that is silent, on a link that is open, is a node that is lost: all
  who live there are dead, at once. A lost node whose agent speaks again was only stopped: it is one like any other.
- An agent whose link has ended is an agent that died. It is started again; until that one speaks nothing new is started
  on its node, and those who live there are judged by their own links. If none can be started, the node is lost.
- Silence is counted in the time in which the coordinator was listening. A coordinator that was kept from running, or a
  machine that stood still with all that is on it, has missed nothing.
- The coordinator's own node is alive, and has no agent.
"""

import json
import time
from collections.abc import Callable
from functools import partial

from lineage_stash.on_ray.node_agent import node_of, start_agent
from lineage_stash.on_ray.placing import SHUNNED, Node, all_nodes
from lineage_stash.on_ray.process import TICK_S, Process
from lineage_stash.on_ray.telling import tell, warn

SILENCE_S = 1.5
"""How long an agent may be silent. It speaks every 0.2 s, so seven beats in a row have not come. What may delay one: a
Python that wakes up so often beside twenty busy ones, on two cores, was late by 0.01 s; a lost packet is repeated after
0.2 s, and lost again after 0.6 s."""

MOST_TURN_S = 2 * TICK_S
"""How much of the time between two turns counts as listened to: what is more, the coordinator was away."""

LOOK_S = 1.0
"""How often to ask Ray which nodes there are."""

START_AGAIN_S = 3.0
"""How long an agent may take to speak after it was started, before another attempt is made."""

DOUBT_S = 10.0
"""How long a node may be without an agent after one died there; to start one takes a loaded machine some seconds."""

FIRST_BEATS_S = 5.0
"""How long a coordinator that begins waits for the agents of all nodes before it relies on those that it has heard."""


class Listening:
    """Whose agent speaks, on a clock that runs only while somebody listens. Pure."""

    def __init__(self, now: float) -> None:
        self.listened_s = 0.0
        self._turned_at = now
        self._heard: dict[str, tuple[str, float]] = {}
        """The agent of each node, and when it was heard last."""

    def hear(self, node: str, agent: str) -> bool:
        """An agent has spoken; whether its node was not alive."""
        is_back = node not in self._heard
        self._heard[node] = (agent, self.listened_s)
        return is_back

    def end(self, node: str, agent: str) -> bool:
        """The link of an agent has ended; whether it was the one that spoke for its node."""
        if self._heard.get(node, ("",))[0] != agent:
            return False
        del self._heard[node]
        return True

    def forget(self, node: str) -> None:
        """A node is not alive any more, whatever its agent says."""
        self._heard.pop(node, None)

    def turn(self, now: float) -> list[str]:
        """Time has passed: the nodes whose agents have been silent for too long, which are not alive any more."""
        self.listened_s += min(now - self._turned_at, MOST_TURN_S)
        self._turned_at = now
        silent = [node for node, (_, at) in self._heard.items() if self.listened_s - at > SILENCE_S]
        for node in silent:
            del self._heard[node]
        return silent

    @property
    def nodes(self) -> list[str]:
        """Those whose agents speak."""
        return list(self._heard)


class NodeWatch:
    """Listens to agents, starts those that are missing, and says which nodes are lost and which are alive."""

    def __init__(self, process: Process, on_lost: Callable[[str, str], None], on_alive: Callable[[], None],
                 on_agent_died: Callable[[str], None]) -> None:  # fmt: skip
        self.process = process
        self.known: dict[str, Node] = {}
        self.lost: dict[str, float] = {}
        """Nodes that are lost as far as agents say, and since when, while Ray has them for alive."""
        self._on_lost = on_lost
        self._on_alive = on_alive
        self._on_agent_died = on_agent_died
        self._listening = Listening(time.monotonic())
        self._started_at: dict[str, float] = {}
        self._doubted: dict[str, float] = {}
        """Nodes whose agents died, and since when, on the listener's clock."""
        self._told: frozenset[str] | None = None
        self._was_complete = False
        self._begun_at = time.monotonic()

    def begin(self) -> None:
        """Look now, and from time to time."""
        self.process.registry.ask(all_nodes, self._on_found, self._look_later)

    def _look_later(self) -> None:
        self.process.loop.later(LOOK_S, self.begin)

    # who is alive

    @property
    def living(self) -> dict[str, Node]:
        """The nodes that are known to be alive, this one first."""
        here = self.process.node
        heard = [here, *(node for node in self._listening.nodes if node != here)]
        nothing = Node(alive=True, resources={})
        return {node: self.known.get(node, nothing) for node in heard}

    @property
    def usable(self) -> dict[str, Node]:
        """The living nodes on which something may be started."""
        return {node: known for node, known in self.living.items() if not known.draining}

    @property
    def draining(self) -> list[str]:
        """The living nodes that are about to go."""
        return [node for node, known in self.living.items() if known.draining]

    @property
    def is_complete(self) -> bool:
        """Whether every node that Ray has for alive was heard of, or has had the time to be."""
        if not self.known:
            return False
        living = self.living
        unheard = [node for node, found in self.known.items() if found.alive and node not in living]
        return not unheard or time.monotonic() - self._begun_at > FIRST_BEATS_S

    def is_gone(self, node: str, for_s: float) -> bool:
        """Whether a node is lost for so long, as far as agents say, or is about to go."""
        if node in self.known and self.known[node].draining:
            return True
        return node in self.lost and time.monotonic() - self.lost[node] > for_s

    # listening

    def on_beat(self, agent: str) -> None:
        """An agent has spoken."""
        node = node_of(agent)
        if node is not None and self._listening.hear(node, agent):
            self._started_at.pop(node, None)
            self._doubted.pop(node, None)
            if self.lost.pop(node, None) is not None:
                tell("node back", f"nodes: node {node} is back: it was only stopped, or cut off.", node=node)
            self._on_alive()

    def on_link_lost(self, agent: str) -> None:
        """The link of an agent has ended."""
        node = node_of(agent)
        if node is not None and self._listening.end(node, agent):
            self._doubted[node] = self._listening.listened_s
            self._on_agent_died(node)

    def on_ticked(self) -> None:
        """Some time has passed."""
        for node in self._listening.turn(time.monotonic()):
            self._lose(node, f"its node is lost: the agent there was silent for {SILENCE_S:g} s")
        for node, since in list(self._doubted.items()):
            if self._listening.listened_s - since > DOUBT_S:
                self._lose(node, "its node is lost: the agent there died, and no other one could be started")
        self._tell_creators()

    def _lose(self, node: str, reason: str) -> None:
        self.lost[node] = time.monotonic()
        self._doubted.pop(node, None)
        why = reason.partition(": ")[2]
        warn("node lost", f"nodes: node {node} is lost ({why}).", node=node, reason=why)
        self._on_lost(node, reason)

    def _tell_creators(self) -> None:
        """Let those who create actors know which nodes not to use, while Ray would still use them."""
        shunned = frozenset((*self.lost, *self._doubted))
        if shunned != self._told:
            self._told = shunned
            value = json.dumps(sorted(shunned)).encode()
            self.process.registry.ask(lambda: self.process.plane.put(SHUNNED, value))

    # what Ray says

    def _on_found(self, found: dict[str, Node]) -> None:
        self._look_later()
        was_alive = [node for node, known in self.known.items() if known.alive]
        self.known = found
        for node in was_alive:
            if (node not in found or not found[node].alive) and node not in self.lost:
                self._listening.forget(node)
                self._lose(node, "its node is lost: Ray has declared it dead")
        self.lost = {node: since for node, since in self.lost.items() if node in found and found[node].alive}
        living = self.living
        now = time.monotonic()
        for node, known in found.items():
            if known.alive and node not in living and now - self._started_at.get(node, -START_AGAIN_S) >= START_AGAIN_S:
                self._started_at[node] = now
                self.process.registry.ask(partial(start_agent, node))
        if not self._was_complete and self.is_complete:
            self._was_complete = True
            self._on_alive()
