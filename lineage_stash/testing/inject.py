"""Failure injection on a real cluster: kill, stop and continue the processes of a program, and disturb its store.

For tests and benchmarks of your own programs, on the machine where their processes run. Signals are real.
"""

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from lineage_stash.cli.asking import ask
from lineage_stash.core.ids import FIRST_INCARNATION, Incarnation, PeerId
from lineage_stash.on_ray.api import ActorHandle, current
from lineage_stash.on_ray.links import Kind
from lineage_stash.on_ray.registry import COORDINATOR, REPLICAS, Place, replica_name
from lineage_stash.shell import address_of
from lineage_stash.store.contract import ReplicaId
from lineage_stash.testing.signals import UP_WITHIN_S, is_running, status_of, wait_until

__all__ = [
    "coordinator_pid", "disturb_replica", "disturb_store", "is_running", "is_store_whole", "kill_process", "life_of",
    "pid_of", "pid_of_peer", "processes_of_services", "processes_of_this_script", "recoveries_of", "replica_pid",
    "replica_pids", "status_of", "wait_until",
]  # fmt: skip


def life_of(actor: ActorHandle) -> Incarnation:
    """Which life of an actor is the present one."""
    return current().process.registry.read_history().incarnation(actor._peer)


def pid_of(actor: ActorHandle) -> int:
    """The process that the present life of an actor lives in, once it has come up."""
    return pid_of_peer(actor._peer)


def pid_of_peer(peer: PeerId) -> int:
    """The same for one of whom only the id is known."""
    registry = current().process.registry
    found: list[int] = []

    def has_come_up() -> bool:
        place = registry.place_of(address_of(peer, registry.read_history().incarnation(peer)))
        if place is not None:
            found.append(place.pid)
        return place is not None

    wait_until(has_come_up, f"a process of {peer}")
    return found[0]


def kill_process(actor: ActorHandle) -> int:
    """`kill -9` the process of an actor; its pid. The actor goes on in another one.

    One that has died and was not yet missed is killed in its next life.
    """
    killed: list[int] = []

    def has_died() -> bool:
        pid = pid_of(actor)
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        return bool(killed)

    wait_until(has_died, f"a process of {actor._peer} that runs")
    return killed[0]


def recoveries_of(actor: ActorHandle) -> int:
    """How many times an actor was recovered so far."""
    return life_of(actor) - FIRST_INCARNATION


def coordinator_pid() -> int:
    """The process of the coordinator."""
    registry = current().process.registry
    address = registry.coordinator_address()
    place = registry.place_of(address) if address else None
    if place is None:
        raise LookupError(f"no {COORDINATOR} is registered")
    return place.pid


def replica_pid(replica: ReplicaId | None = None) -> int:
    """The process of a replica of the store; of the first one, if none is named."""
    registry = current().process.registry
    named = registry.present_set().replicas[0] if replica is None else replica
    place = registry.place_of(replica_name(named))
    if place is None:
        raise LookupError(f"no {replica_name(named)} is registered")
    return place.pid


def replica_pids() -> dict[ReplicaId, int]:
    """The processes of all replicas that the store has now."""
    return {replica: replica_pid(replica) for replica in current().process.registry.present_set().replicas}


def is_store_whole() -> bool:
    """Whether every replica that the store should have is there: one that is being replaced has no process yet."""
    registry = current().process.registry
    places = [registry.place_of(replica_name(replica)) for replica in registry.present_set().replicas]
    return all(place is not None and is_running(place.pid) for place in places)


def disturb_store(*, pause: bool = False, delay_ms: float = 0.0,
                  replicas: Sequence[ReplicaId] | None = None) -> None:  # fmt: skip
    """Have replicas answer nothing, or answer late; without a disturbance, as always. Without names, all of them."""
    process = current().process
    disturbed = process.registry.present_set().replicas if replicas is None else replicas
    with process.lock:
        for replica in disturbed:
            process.control(replica_name(replica), pause=pause, delay_ms=delay_ms)


def disturb_replica(replica: ReplicaId, *, pause: bool, delay_ms: float) -> None:
    """The same for one replica; returns when it has said that it is so."""
    process = current().process
    place, secret = process.registry.place_of(replica_name(replica)), process.plane.get("secret")
    if place is None or secret is None:
        raise LookupError(f"no {replica_name(replica)} is registered")
    said = {"pause": pause, "delay_ms": delay_ms, "confirm": True}
    ask(place.address_from(process.node), secret, Kind.CONTROL, json.dumps(said).encode(), within_s=UP_WITHIN_S)


def processes_of_this_script() -> dict[str, int]:
    """The processes of all actors and runners that this script and its actors have created and that are there."""
    runtime = current()
    return {address: pid for address, pid in _places().items() if address.startswith(f"{runtime.id}/")}


def processes_of_services() -> dict[str, int]:
    """The processes of the coordinator and of the store's replicas."""
    return {address: pid for address, pid in _places().items() if address.startswith((COORDINATOR, REPLICAS))}


def _places() -> dict[str, int]:
    """Where lives are, or were, as far as the processes are there."""
    found = current().process.plane.get_all("places/")
    pids = {key.removeprefix("places/"): Place(*json.loads(place)).pid for key, place in found.items()}
    return {address: pid for address, pid in sorted(pids.items()) if Path(f"/proc/{pid}").exists()}
