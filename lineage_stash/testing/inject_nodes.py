"""Failure injection for whole nodes: several nodes of a Ray cluster on this machine, which can be killed, stopped and
continued with all of their processes at once, as when a machine loses its power, hangs, or is cut off for a while.

A process belongs to a node if Ray has started it as a part of that node, or if it descends from such a one.
"""

import gc
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

from lineage_stash.testing import signals
from lineage_stash.testing.signals import with_descendants


class LocalNodes:
    """A cluster whose nodes are all on this machine; the first one is the head."""

    def __init__(self, count: int, **head_options: Any) -> None:
        # A port of its own, so that another cluster on this machine is not in the way.
        options = {"num_cpus": 1, "dashboard_port": free_port(), **head_options}
        with litter_forgotten():
            self._cluster = Cluster(initialize_head=True, head_node_args=options)
        for _ in range(count - 1):
            self.add()
        self._cluster.wait_for_nodes()
        self._stopped: dict[str, list[int]] = {}
        self._killed: list[Any] = []

    @property
    def address(self) -> str:
        """Where to join."""
        address: str = self._cluster.address
        return address

    @property
    def head(self) -> str:
        """The head node."""
        head: str = self._cluster.head_node.node_id
        return head

    @property
    def others(self) -> list[str]:
        """All nodes but the head that were not killed."""
        return [node.node_id for node in self._cluster.worker_nodes]

    def running(self) -> list[str]:
        """All nodes but the head that have processes."""
        return [node for node in self.others if self.processes_of(node)]

    def add(self, **options: Any) -> str:
        """Start one more node."""
        with litter_forgotten():
            added: str = self._cluster.add_node(num_cpus=1, **options).node_id
        return added

    def processes_of(self, node: str) -> list[int]:
        """Every process of a node that runs."""
        (found,) = [each for each in self._cluster.list_all_nodes() if each.node_id == node]
        roots = [started.process.pid for of_kind in found.all_processes.values() for started in of_kind]
        return with_descendants(roots)

    def kill(self, *nodes: str) -> None:
        """`kill -9` all processes of nodes at once."""
        doomed = [pid for node in nodes for pid in self.processes_of(node)]
        signals.kill(doomed)
        self.forget(*nodes)

    def forget(self, *nodes: str) -> None:
        """All processes of nodes were killed."""
        for node in [each for each in self._cluster.worker_nodes if each.node_id in nodes]:
            self._cluster.worker_nodes.remove(node)
            self._killed.append(node)

    def stop(self, node: str) -> None:
        """Have a node stand still; nothing on it answers, and no connection ends."""
        self._stopped[node] = self.processes_of(node)
        signals.stop(self._stopped[node])

    def resume(self, node: str) -> None:
        """Have a node that stands still go on."""
        signals.resume(self._stopped.pop(node))

    def drain(self, node: str, within_s: float) -> None:
        """Let Ray know that a node is about to go, as a preemption notice does."""
        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        deadline_ms = int(1e3 * (time.time() + within_s))
        taken, why_not = GcsClient(address=self.address).drain_node(node, reason, "to be preempted", deadline_ms)
        if not taken:
            raise RuntimeError(f"Ray does not drain node {node}: {why_not}")

    def close(self) -> None:
        """End all of it."""
        ray.shutdown()
        self.forget(*(set(self.others) - set(self.running())))
        for node in list(self._stopped):
            self.resume(node)
        with litter_forgotten():
            self._cluster.shutdown()
            del self._cluster
            self._killed.clear()


@contextmanager
def litter_forgotten() -> Iterator[None]:
    """Ray's Cluster leaves sockets open and processes unwaited for, which others would be blamed for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


@contextmanager
def local_nodes(count: int, **head_options: Any) -> Iterator[LocalNodes]:
    """A cluster of so many nodes on this machine."""
    nodes = LocalNodes(count, **head_options)
    try:
        yield nodes
    finally:
        nodes.close()


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
