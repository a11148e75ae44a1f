"""Replica sets in the control plane: which replicas the store was in each epoch, and where each replica is.

Rules:
- Epoch n is put if absent, once: of two that follow the same one, the first stands.
- A replica's number is claimed before its process is started, together with its node and folder, and never given again.
- A replica that has lost what it confirmed says so itself, or its node is gone; then it is out for good.
"""

import json
from typing import NamedTuple

from lineage_stash.core.ids import Epoch
from lineage_stash.on_ray.control_plane import ControlPlane
from lineage_stash.store.contract import ReplicaId, ReplicaSet

ANYWHERE = ""
"""The node of the archive, which is bound to none."""


class Residence(NamedTuple):
    """Where a replica lives: on a node, in a folder there; the archive anywhere, at a URL."""

    node: str
    folder: str


def newest_set(plane: ControlPlane) -> ReplicaSet | None:
    """The replica set of the newest epoch; None before the first."""
    keys = plane.keys("epochs/")
    value = plane.get(keys[-1]) if keys else None
    return None if value is None else unpack_set(value)


def publish_set(plane: ControlPlane, replica_set: ReplicaSet) -> ReplicaSet:
    """Make a set the store of its epoch unless there is one; the set that stands."""
    return unpack_set(plane.put_if_absent(f"epochs/{replica_set.epoch:08d}", json.dumps(replica_set).encode()))


def unpack_set(value: bytes) -> ReplicaSet:
    """A set as it was published."""
    epoch, replicas, archive = json.loads(value)
    return ReplicaSet(Epoch(epoch), tuple(replicas), archive)


def claim_replica(plane: ControlPlane, replica: ReplicaId, residence: Residence) -> Residence:
    """Give a number to a replica that is to live somewhere; where the one of that number lives."""
    return Residence(*json.loads(plane.put_if_absent(f"replicas/{replica}", json.dumps(residence).encode())))


def residences(plane: ControlPlane) -> dict[ReplicaId, Residence]:
    """All replicas that ever were, and where."""
    found = plane.get_all("replicas/")
    return {int(key.rpartition("/")[2]): Residence(*json.loads(value)) for key, value in found.items()}


def note_opened(plane: ControlPlane, replica: ReplicaId) -> bool:
    """Note that a replica has opened its folder; whether it had done so before."""
    key = f"opened/{replica}"
    if plane.get(key) is not None:
        return True
    plane.put(key, b"1")
    return False


def note_lost(plane: ControlPlane, replica: ReplicaId, reason: str) -> None:
    """A replica does not have any more what it has confirmed."""
    plane.put_if_absent(f"lost/{replica}", reason.encode())


def lost_replicas(plane: ControlPlane) -> dict[ReplicaId, str]:
    """The replicas that said so, and why."""
    found = plane.get_all("lost/")
    return {int(key.rpartition("/")[2]): value.decode() for key, value in found.items()}
