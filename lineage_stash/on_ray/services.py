"""The services of a cluster: a coordinator and the replicas of the store, started by whoever comes first.

They are detached and named, and Ray restarts their processes; the coordinator is on the head node.
"""

import time
from pathlib import Path
from typing import Any

import ray

from lineage_stash.on_ray.control_plane import ControlPlane
from lineage_stash.on_ray.creation import ASKED_AGAIN, RAY_NAMESPACE
from lineage_stash.on_ray.levels import DEFAULT_LEVEL, DURABILITY, parse_level
from lineage_stash.on_ray.limits import LIMITS, WantedLimits, settle_limits
from lineage_stash.on_ray.process import MAIL, TRANSPORT, WIRE
from lineage_stash.on_ray.registry import COORDINATOR, own_node, replica_name
from lineage_stash.on_ray.replica_sets import (
    ANYWHERE,
    Residence,
    claim_replica,
    newest_set,
    publish_set,
    residences,
)
from lineage_stash.on_ray.telling import tell
from lineage_stash.on_ray.versions import check_versions
from lineage_stash.store.contract import Level, ReplicaId, ReplicaSet
from lineage_stash.store.placement import choose_nodes, promise, survived_nodes, wanted_replicas
from lineage_stash.store.replica import FIRST_EPOCH

COME_UP_S = 60.0

HEAD = "node:__internal_head__"
"""Ray's mark of the head node. The coordinator lives there: it must not be lost while the cluster goes on, and without
the head, which has the GCS, it could do nothing anyway."""

DETACHED: dict[str, Any] = {
    "namespace": RAY_NAMESPACE, "lifetime": "detached", "get_if_exists": True, "num_cpus": 0, "max_restarts": -1,
    "max_concurrency": 2,
}  # fmt: skip


def ensure(*, storage: str | Path | None, spares: int, transport: str | None, replicas: int | None,
           durability: str | None, archive: str | None, limits: WantedLimits) -> None:  # fmt: skip
    """Have the services run, and wait until they do."""
    from lineage_stash.on_ray.coordinator import CoordinatorActor

    if replicas is not None and replicas < 1:
        raise ValueError(f"replicas={replicas} is no store: at least one is needed, and 3 survive the loss of a node")
    plane = ControlPlane()
    check_versions(plane)
    settle_transport(plane, transport)
    settle_durability(plane, durability)
    settle_limits(plane, limits)
    folder = settle_storage(plane, storage)
    deadline = time.monotonic() + COME_UP_S
    if newest_set(plane) is None:
        try:
            found_store(plane, folder, replicas, archive, deadline)
        except BaseException:
            # Nothing of this attempt stays on record: other settings may be better.
            for fact in ("storage", DURABILITY, LIMITS, *plane.keys("replicas/"), *plane.keys("lost/")):
                plane.delete(fact)
            raise
    check_archive(plane, archive)
    options = {**DETACHED, "name": COORDINATOR, "resources": on_the_head()}
    coordinator = ray.remote(CoordinatorActor).options(**options).remote(spares, replicas)
    try:
        ray.get(coordinator.address.options(**ASKED_AGAIN).remote(), timeout=max(1.0, deadline - time.monotonic()))
    except ray.exceptions.GetTimeoutError as error:
        raise TimeoutError(
            f"the coordinator did not start within {COME_UP_S:g} s: see the log of the actor '{COORDINATOR}' "
            "(ray list actors)"
        ) from error
    check_versions(plane)  # those that were started now run with what their nodes have


def found_store(plane: ControlPlane, folder: Path, option: int | None, archive: str | None,
                deadline: float) -> None:  # fmt: skip
    """Start the replicas of the first epoch, wait until they are up, and publish them."""
    if archive is None and (plane.get(DURABILITY) or b"").decode() == Level.REMOTE.name.lower():
        raise ValueError("durability='remote' needs an archive: init(archive='s3://bucket/folder', ...)")
    alive = alive_nodes()
    nodes = choose_nodes(wanted_replicas(option, len(alive)), alive, ())
    wanted = [Residence(node, str(folder / replica_name(replica))) for replica, node in enumerate(nodes)]
    if archive is not None:
        wanted.append(Residence(ANYWHERE, archive))
    actors = [
        start_replica(replica, claim_replica(plane, replica, residence)) for replica, residence in enumerate(wanted)
    ]
    try:
        asked = [actor.address.options(**ASKED_AGAIN).remote() for actor in actors]
        ray.get(asked, timeout=max(1.0, deadline - time.monotonic()))
    except ray.exceptions.GetTimeoutError as error:
        raise TimeoutError(
            f"the replicas of the store did not start within {COME_UP_S:g} s: see the logs of the actors "
            f"'{replica_name(0)}' and so on (ray list actors), and whether {folder} can be written to"
        ) from error
    except ray.exceptions.RayTaskError as error:
        for actor in actors:
            ray.kill(actor)
        raise StoreUnreachable(f"the store cannot be opened: {error.cause}") from error
    publish_set(plane, ReplicaSet(FIRST_EPOCH, tuple(range(len(nodes))), len(nodes) if archive is not None else None))
    if not survived_nodes(nodes):
        tell("promise", f"store: {promise(nodes)}", replicas=len(nodes))


def check_archive(plane: ControlPlane, wanted: str | None) -> None:
    """Refuse another archive than the one that the store has."""
    current = newest_set(plane)
    assert current is not None, "a store was founded"
    used = None if current.archive is None else residences(plane)[current.archive].folder
    if wanted is not None and wanted != used:
        has = f"has its archive in {used}" if used is not None else "was begun without an archive"
        raise ValueError(f"this cluster's store {has}: leave out archive={wanted!r}, or start another cluster")


class StoreUnreachable(ConnectionError):
    """The store does not answer, and says why, or nobody knows why."""


def start_replica(replica: ReplicaId, residence: Residence) -> Any:
    """The Ray actor of a replica, started if need be, on its own node and no other."""
    from lineage_stash.on_ray.replica import ENVIRONMENT, ReplicaActor

    options: dict[str, Any] = {"name": replica_name(replica), "runtime_env": ENVIRONMENT}
    if residence.node != ANYWHERE:
        there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(residence.node, soft=False)
        options["scheduling_strategy"] = there
    return ray.remote(ReplicaActor).options(**options, **DETACHED).remote(replica, residence.folder)


def on_the_head() -> dict[str, float]:
    """The resource that only the head node has, whichever node that is: a head that was started again is another."""
    is_marked = any(HEAD in node["Resources"] for node in ray.nodes() if node["Alive"])
    return {HEAD: 0.001} if is_marked else {}


def alive_nodes() -> tuple[str, ...]:
    """The nodes of the cluster, this one first."""
    own = own_node()
    others = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != own)
    return (own, *others)


def settle_storage(plane: ControlPlane, storage: str | Path | None) -> Path:
    """Put on record in which folder of each node the store is, unless it is; whoever asks for another is refused."""
    folder = (Path(storage) if storage is not None else default_folder()).absolute()
    used = Path(plane.put_if_absent("storage", str(folder).encode()).decode())
    if storage is not None and used != folder:
        raise ValueError(f"this cluster's store is in {used} already: leave out storage={str(storage)!r}")
    return used


def settle_durability(plane: ControlPlane, wanted: str | None) -> None:
    """Put on record how durable commits are where actors do not say otherwise."""
    if wanted is not None:
        parse_level(wanted)
    used = plane.put_if_absent(DURABILITY, (wanted or DEFAULT_LEVEL).encode()).decode()
    if wanted not in (None, used):
        raise ValueError(
            f"this cluster's durability is {used!r} already: leave out durability={wanted!r}, or say it of single "
            f"actors with .options(durability={wanted!r})"
        )


def settle_transport(plane: ControlPlane, wanted: str | None) -> None:
    """Put on record how the processes of this cluster talk, unless it is; whoever asks for another way is refused."""
    if wanted not in (None, WIRE, MAIL):
        raise ValueError(f"transport={wanted!r} is not known: it is {WIRE!r} or {MAIL!r}")
    used = plane.put_if_absent(TRANSPORT, (wanted or WIRE).encode()).decode()
    if wanted not in (None, used):
        raise ValueError(
            f"this cluster's transport is {used!r} already: leave out transport={wanted!r} to use it too, or start "
            "another cluster"
        )


def default_folder() -> Path:
    """In Ray's session folder: it ends with the cluster."""
    session = ray.get_runtime_context().worker.node.get_session_dir_path()
    return Path(session) / "lineage_stash"
