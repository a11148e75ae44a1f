"""The services of a cluster: one coordinator and one replica of the store, started by whoever comes first.

Both are detached and named, and Ray restarts their processes. Names of the users' actors are kept here too.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from lineage_stash.core.ids import PeerId
from lineage_stash.on_ray.control_plane import ControlPlane
from lineage_stash.on_ray.creation import RAY_NAMESPACE
from lineage_stash.on_ray.process import MAIL, TRANSPORT, WIRE
from lineage_stash.on_ray.registry import COORDINATOR, REPLICA, own_node

if TYPE_CHECKING:
    from lineage_stash.on_ray.api import ActorHandle

COME_UP_S = 60.0


def ensure(*, storage: str | Path | None, spares: int, transport: str | None) -> None:
    """Have the services run, and wait until they do."""
    from lineage_stash.on_ray.coordinator import CoordinatorActor
    from lineage_stash.on_ray.replica import ENVIRONMENT, ReplicaActor

    settle_transport(ControlPlane(), transport)
    folder = Path(storage) if storage is not None else default_folder()
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(own_node(), soft=False)
    common: dict[str, Any] = {
        "namespace": RAY_NAMESPACE, "lifetime": "detached", "get_if_exists": True, "num_cpus": 0, "max_restarts": -1,
        "max_concurrency": 2,
    }  # fmt: skip
    replica = (
        ray.remote(ReplicaActor)
        .options(name=REPLICA, scheduling_strategy=here, runtime_env=ENVIRONMENT, **common)
        .remote(str((folder / REPLICA).absolute()))
    )
    coordinator = ray.remote(CoordinatorActor).options(name=COORDINATOR, **common).remote(spares)
    try:
        ray.get([replica.address.remote(), coordinator.address.remote()], timeout=COME_UP_S)
        used = ControlPlane().get("storage")
        if storage is not None and used is not None and Path(used.decode()) != (folder / REPLICA).absolute():
            raise ValueError(f"this cluster's store is in {used.decode()} already: leave out storage={str(storage)!r}")
    except ray.exceptions.GetTimeoutError as error:
        raise TimeoutError(
            f"the store and the coordinator did not start within {COME_UP_S:g} s: see the logs of the actors "
            f"'{REPLICA}' and '{COORDINATOR}' (ray list actors), and whether {folder} can be written to"
        ) from error


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


# names


def _name_key(name: str, namespace: str | None) -> str:
    return f"names/{namespace or ray.get_runtime_context().namespace}/{name}"


def put_name(plane: ControlPlane, options: dict[str, Any], handle: "ActorHandle") -> "ActorHandle | None":
    """Give an actor its name; the one that has it already, where that is asked for."""
    name = options.get("name")
    if name is None:
        return None
    value = json.dumps([handle._peer, handle._class_name, sorted(handle._method_names)]).encode()
    key = _name_key(name, options.get("namespace"))
    standing = _parse(plane.put_if_absent(key, value))
    if standing._peer == handle._peer:
        return None
    if plane.get(f"retired/{standing._peer}") is not None or plane.get(f"killed/{standing._peer}") is not None:
        plane.put(key, value)
        return None
    if options.get("get_if_exists"):
        return standing
    raise ValueError(f"an actor with the name {name!r} exists already: choose another name, or get_if_exists=True")


def find_name(plane: ControlPlane, name: str, namespace: str | None) -> "ActorHandle":
    """The actor that has a name."""
    found = plane.get(_name_key(name, namespace))
    if found is None:
        raise ValueError(f"no actor has the name {name!r} in this namespace: was it created, and is it still there?")
    return _parse(found)


def _parse(value: bytes) -> "ActorHandle":
    from lineage_stash.on_ray.api import ActorHandle

    peer, class_name, methods = json.loads(value)
    return ActorHandle(PeerId(peer), class_name, frozenset(methods))
