"""Placing: which nodes a process may be started on.

Where the user has decided where an actor runs, that is kept to, and where only Ray can tell, Ray decides.
"""

import json
import random
from collections.abc import Mapping
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from lineage_stash.on_ray.control_plane import ControlPlane, draining_nodes

SHUNNED = "shunned"
"""The fact in the control plane that says which nodes are lost while Ray still has them for alive."""

UNBOUND = (None, "DEFAULT", "SPREAD")
"""Strategies that leave the choice of a node to whoever starts a process."""


class Node(NamedTuple):
    """What Ray says of a node."""

    alive: bool
    resources: dict[str, float]
    """What it has in total."""
    draining: bool = False
    """Whether it is about to go, so that Ray places nothing there any more."""


def all_nodes() -> dict[str, Node]:
    """The nodes that Ray knows."""
    draining = draining_nodes()
    return {node["NodeID"]: Node(node["Alive"], node["Resources"], node["NodeID"] in draining) for node in ray.nodes()}


def node_for_first_life(plane: ControlPlane, wishes: Mapping[str, Any]) -> str | None:
    """Where to start the first host of an actor while Ray would use a node that is lost; None if Ray may decide."""
    shunned = json.loads(plane.get(SHUNNED) or b"[]")
    if not shunned:
        return None
    living = {
        node: known for node, known in all_nodes().items() if known.alive and not known.draining and node not in shunned
    }
    fitting = nodes_for(wishes, living)
    return random.choice(fitting) if fitting else None


def nodes_for(wishes: Mapping[str, Any], living: Mapping[str, Node]) -> list[str]:
    """The living nodes that a host may run on; none where only Ray can tell."""
    strategy = wishes.get("scheduling_strategy")
    needs = needed_resources(wishes)
    fitting = [
        node for node, known in living.items()
        if all(known.resources.get(resource, 0.0) >= amount for resource, amount in needs.items())
    ]  # fmt: skip
    if strategy in UNBOUND:
        return fitting
    if isinstance(strategy, NodeAffinitySchedulingStrategy):
        if strategy.node_id in fitting:
            return [strategy.node_id]
        return fitting if strategy.soft else []
    return []


def needed_resources(wishes: Mapping[str, Any]) -> dict[str, float]:
    """What a node must have in total to run a host with these wishes."""
    named = {"CPU": wishes.get("num_cpus") or 1, "GPU": wishes.get("num_gpus"), "memory": wishes.get("memory")}
    needs = {**named, **(wishes.get("resources") or {})}
    if wishes.get("accelerator_type"):
        needs[f"accelerator_type:{wishes['accelerator_type']}"] = 0.001
    return {resource: float(amount) for resource, amount in needs.items() if amount}
