"""Versions: whether this process and the services of a cluster can understand one another.

Coordinator and replicas say what they are when they come up, because they run with what is installed on their nodes,
whoever has started them. A script compares before it joins, so that a mixture is one error, at once, and no riddle.
"""

import json
import platform
from typing import NamedTuple

import lineage_stash
from lineage_stash import codec
from lineage_stash.on_ray.control_plane import ControlPlane
from lineage_stash.on_ray.registry import COORDINATOR, replica_name
from lineage_stash.on_ray.replica_sets import newest_set

VERSIONS = "versions/"


class VersionMismatch(RuntimeError):
    """This process has another version than the services of the cluster."""


class Version(NamedTuple):
    """What has to be the same everywhere."""

    library: str
    format: int
    python: str

    def __str__(self) -> str:
        return f"lineage_stash {self.library} (format {self.format}) on Python {self.python}"


def own_version() -> Version:
    """Of this process."""
    return Version(lineage_stash.__version__, codec.VERSION, ".".join(platform.python_version_tuple()[:2]))


def note_version(plane: ControlPlane, service: str) -> None:
    """A service says what it is."""
    plane.put(f"{VERSIONS}{service}", json.dumps(own_version()).encode())


def check_versions(plane: ControlPlane) -> None:
    """Raise if a service of this cluster is of another version; those that have not said theirs are passed over."""
    present = newest_set(plane)
    replicas = [] if present is None else [*present.replicas, *([] if present.archive is None else [present.archive])]
    services = (COORDINATOR, *map(replica_name, replicas))
    noted = plane.get_all(VERSIONS)
    said = {service: noted.get(f"{VERSIONS}{service}") for service in services}
    known = {service: Version(*json.loads(value)) for service, value in said.items() if value is not None}
    others = {service: version for service, version in known.items() if version != own_version()}
    if others:
        service, version = next(iter(others.items()))
        raise VersionMismatch(
            f"this cluster's {service} has {version}, and this script has {own_version()}: run the script with the "
            "former, or start the cluster again with the latter on all nodes"
        )
