"""Preparing: what a spare does while it waits, so that a recovery need not wait for it.

To import what a class needs may take longer than all the rest of a recovery. So a spare loads the classes of the
cluster's actors beforehand, one at a look, and knows the limits and the replica set.

Rules:
- Where a module is found depends on the process and not on the class: what was loaded for one actor is what another one
  would have got.
- Nothing depends on it. A class that cannot be loaded here is left to whoever needs it, who says why.
- A replica set may have been followed by another one since: then its replicas refuse, and the newest is looked up.
"""

from lineage_stash.on_ray.control_plane import ControlPlane, ControlPlaneAway
from lineage_stash.on_ray.creation import CLASSES, load_recorded_class
from lineage_stash.on_ray.replica_sets import newest_set
from lineage_stash.on_ray.telling import log
from lineage_stash.store.contract import ReplicaSet

LOOK_S = 1.0
"""How often a spare looks whether there is something to prepare."""

MOST_CLASSES = 64
"""That are loaded beforehand: a cluster in which many programs have run has many, and few of them are needed."""


class Prepared:
    """What one process has ready."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._seen: set[str] = set()
        self._classes: dict[str, type] = {}
        self.replica_set: ReplicaSet | None = None

    def prepare_more(self) -> None:
        """Look once, and load one class that was not looked at yet."""
        try:
            self.replica_set = newest_set(self._plane)
            digests = [key.removeprefix(CLASSES) for key in self._plane.keys(CLASSES)]
        except ControlPlaneAway:
            return
        fresh = next((digest for digest in digests if digest not in self._seen), None)
        if fresh is not None and len(self._seen) < MOST_CLASSES:
            self._seen.add(fresh)
            try:
                self._classes[fresh] = load_recorded_class(self._plane, fresh)
            except Exception as error:  # noqa: BLE001 - the user's modules raise what they like
                log.debug("class %s cannot be loaded beforehand: %s", fresh, error)

    def class_of(self, digest: str) -> type | None:
        """The class with this digest, if it is here; it is given once, because whoever lives with it may change it."""
        return self._classes.pop(digest, None)
