"""The node agent: one small process on each node that says to the coordinator, every so often, that the node is there.

It runs no user's code, so nothing keeps it from speaking as long as its node lives: one `list.sort` stops every thread
of an actor's process for seconds, and never this one. What its silence means is for the coordinator to judge
(`node_watch.py`); an agent knows nothing and decides nothing.
"""

import os
import threading
import time
from typing import Any

import ray

from lineage_stash.on_ray.creation import RAY_NAMESPACE, bound_to
from lineage_stash.on_ray.mail import Addressee
from lineage_stash.on_ray.process import Process
from lineage_stash.on_ray.registry import COORDINATOR, own_node
from lineage_stash.on_ray.telling import tell_crash

AGENTS = "agent-"
"""How the address of an agent begins; its node follows, and then which process it is."""

BEAT_S = 0.2
"""How often an agent speaks: several times in the time after which silence counts, and too seldom to cost anything."""


def agent_name(node: str) -> str:
    """The name of the Ray actor, and where an agent is on record."""
    return f"{AGENTS}{node}"


def node_of(address: str) -> str | None:
    """The node of the agent that has this address, if it is one of an agent's."""
    return address.removeprefix(AGENTS).partition("-")[0] if address.startswith(AGENTS) else None


class NodeAgent(Addressee):
    """What Ray sees: a process with one thread that speaks."""

    def __init__(self) -> None:
        threading.Thread(target=self._run, name="stash agent", daemon=True).start()

    def _run(self) -> None:
        try:
            self._speak()
        except BaseException:  # noqa: BLE001 - whatever it was, the thread is over
            tell_crash("the agent of this node")
            os._exit(1)  # the coordinator starts another one

    def _speak(self) -> None:
        node = own_node()
        process = Process(agent_name(node), actor=agent_name(node))
        process.loop.introduction = f"{agent_name(node)}-{process.token}"
        process.registry.settle_in(agent_name(node), process.place)
        process.links.reach(COORDINATOR)
        next_at = time.monotonic()
        while True:
            process.wait(max(0.0, next_at - time.monotonic()))
            if time.monotonic() < next_at:
                continue
            next_at = time.monotonic() + BEAT_S
            with process.lock:
                if COORDINATOR in process.links.open:  # beats that wait for a coordinator would be old ones
                    process.control(COORDINATOR, beat=1)
                else:
                    process.links.reach(COORDINATOR)


def start_agent(node: str) -> None:
    """Have an agent on a node; Ray does not restart it, because only the coordinator knows whether one is missing."""
    options: dict[str, Any] = {
        "name": agent_name(node), "namespace": RAY_NAMESPACE, "lifetime": "detached", "get_if_exists": True,
        "num_cpus": 0, "max_concurrency": 2, **bound_to(node),
    }  # fmt: skip
    ray.remote(NodeAgent).options(**options).remote()
