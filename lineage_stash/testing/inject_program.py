"""A running program of this library as the target of failures: its actors, its store, its coordinator, and what is
around it.

- Actors are named as in the program, or by handles that are passed; where there are neither, by their ids.
- Replicas are named by their numbers; `disk` is that of a replica. Processes of Spark are numbered from 1.
- Nodes and a driver in a process of its own can be hit only where whoever has started them passes them.

It asks the control plane only, and so leaves no trace in the log of the script that it runs in.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import ray

from lineage_stash.core.ids import PeerId
from lineage_stash.on_ray.api import ActorHandle, current
from lineage_stash.on_ray.names import find_name, list_names
from lineage_stash.on_ray.process import split_address
from lineage_stash.store.contract import ReplicaId
from lineage_stash.testing import inject
from lineage_stash.testing.drivers import DriverProcess
from lineage_stash.testing.inject_gcs import Gcs
from lineage_stash.testing.inject_nodes import LocalNodes

SPARK_PARTS = {"spark-executor": "executor", "spark-master": "master", "spark-application": "driver"}


class Program:
    """The program that this script runs."""

    def __init__(self, *, actors: Mapping[str, ActorHandle] | None = None, nodes: LocalNodes | None = None,
                 driver: DriverProcess | None = None, gcs: Gcs | None = None) -> None:  # fmt: skip
        self._actors = dict(actors or {})
        self._nodes = nodes
        self._driver = driver
        self._gcs = gcs or Gcs(int(ray.get_runtime_context().gcs_address.rpartition(":")[2]))
        self._names: dict[str, Callable[[], Sequence[str]]] = {
            "actor": self._actor_names,
            "replica": _replicas,
            "disk": _replicas,
            "coordinator": lambda: ("coordinator",),
            "gcs": lambda: ("gcs",),
            **{kind: partial(_spark_numbers, kind) for kind in SPARK_PARTS},
        }  # fmt: skip
        self._pids: dict[str, Callable[[str], Sequence[int]]] = {
            "actor": lambda name: (inject.pid_of_peer(self._peer_of(name)),),
            "replica": lambda name: (inject.replica_pid(_replica(name)),),
            "disk": lambda name: (inject.replica_pid(_replica(name)),),
            "coordinator": lambda _: (inject.coordinator_pid(),),
            "gcs": lambda _: self._gcs_pids(),
            **{kind: partial(_spark_process, kind) for kind in SPARK_PARTS},
        }  # fmt: skip
        if nodes is not None:
            self._names["node"], self._pids["node"] = nodes.running, nodes.processes_of
        if driver is not None:
            self._names["driver"], self._pids["driver"] = lambda: ("driver",), lambda _: driver.pids()

    def kinds(self) -> Sequence[str]:
        """What there is, as far as it was passed or is always there."""
        return tuple(self._names)

    def names(self, kind: str) -> Sequence[str]:
        """All of a kind that are there now."""
        return self._names[kind]()

    def pids(self, kind: str, name: str) -> Sequence[int]:
        """The processes of one; waits for an actor that is about to come up."""
        return self._pids[kind](name)

    def start_again(self, kind: str, name: str) -> None:
        """Start the GCS or the driver again."""
        if kind == "gcs":
            self._gcs.start_again()
        elif kind == "driver" and self._driver is not None:
            self._driver.start_again()
        else:
            raise LookupError(f"nobody has said how to start the {kind} {name!r} again")

    def disturb(self, name: str, *, pause: bool, delay_ms: float) -> None:
        """Have a replica answer nothing, or late, or as always; returns when it has said so."""
        inject.disturb_replica(_replica(name), pause=pause, delay_ms=delay_ms)

    # actors

    def _actor_names(self) -> Sequence[str]:
        runtime = current()
        named = [name for namespace, name in list_names(runtime.process.plane) if namespace == runtime.namespace]
        return list(dict.fromkeys((*self._actors, *named))) or self._ids()

    def _ids(self) -> list[str]:
        lives = map(split_address, inject.processes_of_this_script())
        return sorted({life[0] for life in lives if life is not None and life[0] != current().id})

    def _peer_of(self, name: str) -> PeerId:
        if name in self._actors:
            return self._actors[name]._peer
        runtime = current()
        try:
            return PeerId(find_name(runtime.process.plane, name, runtime.namespace).peer)
        except ValueError as error:
            if name in self._ids():
                return PeerId(name)
            raise LookupError(str(error)) from error

    # around it

    def _gcs_pids(self) -> Sequence[int]:
        pid = self._gcs.pid()
        if pid is None:
            raise LookupError("no GCS of this cluster runs on this machine")
        if not self._gcs.has_redis:
            raise LookupError("this GCS has no Redis behind it: killed, it would lose all that the cluster knows")
        return (pid,)


def _replicas() -> Sequence[str]:
    return [str(replica) for replica in current().process.registry.present_set().replicas]


def _replica(name: str) -> ReplicaId:
    if name not in _replicas():
        raise LookupError(f"there is no replica {name!r}: {', '.join(_replicas())}")
    return int(name)


def _spark(kind: str) -> list[int]:
    from lineage_stash.on_spark import processes  # loads Spark

    return [found.pid for found in processes.find_processes() if found.part == SPARK_PARTS[kind]]


def _spark_numbers(kind: str) -> Sequence[str]:
    return [str(number + 1) for number in range(len(_spark(kind)))]


def _spark_process(kind: str, number: str) -> Sequence[int]:
    found = _spark(kind)
    if not number.isdecimal() or not 1 <= int(number) <= len(found):
        raise LookupError(f"there is no {kind} {number}: {len(found)} run")
    return (found[int(number) - 1],)
