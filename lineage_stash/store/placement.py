"""Placement: on which nodes replicas should be, and what that survives. Pure.

Rules:
- Two replicas on one node are one failure domain: nodes are counted, not replicas.
- By default there are as many replicas as nodes, up to three; nodes that come later get theirs.
- A set is changed only for one that is at least as large: fewer replicas than before would keep no promise better.
"""

from collections import Counter
from typing import NamedTuple

from lineage_stash.store.contract import ReplicaId

DEFAULT_REPLICAS = 3


class Plan(NamedTuple):
    """Which replicas stay, and on which nodes others are to be started."""

    staying: tuple[ReplicaId, ...]
    nodes: tuple[str, ...]


def wanted_replicas(option: int | None, nodes: int) -> int:
    """How many replicas there should be; `option` is what the user said."""
    return option if option is not None else max(1, min(DEFAULT_REPLICAS, nodes))


def choose_nodes(count: int, alive: tuple[str, ...], taken: tuple[str, ...]) -> tuple[str, ...]:
    """Nodes for so many replicas more: each time one with the fewest, in the order in which they are given."""
    load = Counter(node for node in taken if node in alive)
    chosen: list[str] = []
    for _ in range(count if alive else 0):
        node = min(alive, key=lambda node: load[node])
        load[node] += 1
        chosen.append(node)
    return tuple(chosen)


def plan_next(current: dict[ReplicaId, str], lost: tuple[ReplicaId, ...], alive: tuple[str, ...],
              option: int | None) -> Plan | None:  # fmt: skip
    """What the next set should be, given on which node each replica of the present one is; None if it is good."""
    staying = tuple(replica for replica, node in current.items() if replica not in lost and node in alive)
    wanted = max(len(current), wanted_replicas(option, len(alive)))
    if len(staying) == wanted or len(staying) <= len(current) // 2:
        return None
    taken = tuple(current[replica] for replica in staying)
    free = [node for node in alive if node not in taken]
    places = wanted - len(staying)
    # A node has one replica, unless the user has asked for more replicas than there are nodes.
    nodes = choose_nodes(places, alive, taken) if option is not None else tuple(free[:places])
    return Plan(staying, nodes) if nodes and len(staying) + len(nodes) >= len(current) else None


def survived_nodes(nodes: tuple[str, ...]) -> int:
    """How many of the nodes that replicas are on may be lost at once with a majority left."""
    majority = len(nodes) // 2 + 1
    left, survived = len(nodes), 0
    for _, count in Counter(nodes).most_common():
        left -= count
        if left < majority:
            break
        survived += 1
    return survived


def promise(nodes: tuple[str, ...]) -> str:
    """What a set with replicas on these nodes promises, in words."""
    if not nodes:
        return "no replica of the store is registered: a process that dies now is not recovered"
    survived = survived_nodes(nodes)
    if len(nodes) == 1:
        return (
            "one replica: any number of processes may die, the replica's own included; its node or its disk may not "
            "(3 nodes survive the loss of one)"
        )
    several = f"{len(nodes)} replicas on {len(set(nodes))} node{'s' if len(set(nodes)) > 1 else ''}"
    if survived:
        return f"{several}: any number of processes may die, and {survived} of these nodes be lost at once"
    return f"{several}: any number of processes may die, but no node be lost (2f + 1 distinct nodes survive f of them)"
