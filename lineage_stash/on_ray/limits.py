"""Limits: how much a process of this cluster may hold in memory before it spills, and before its callers wait."""

import json
from typing import NamedTuple

from lineage_stash.core.policy import Policy
from lineage_stash.on_ray.control_plane import ControlPlane

LIMITS = "limits"


class Limits(NamedTuple):
    """In bytes; the same for every process of a cluster."""

    stash_cap_bytes: int = Policy().stash_cap_bytes
    """Lineage that is not committed: then new calls wait until the store has caught up."""
    buffer_cap_bytes: int = Policy().buffer_cap_bytes
    """Calls and replies kept for those who may ask again: what is more is put on disk."""


def settle_limits(plane: ControlPlane, stash_cap_bytes: int | None, buffer_cap_bytes: int | None) -> None:
    """Put the limits on record, unless they are."""
    for name, value in (("stash_cap_bytes", stash_cap_bytes), ("buffer_cap_bytes", buffer_cap_bytes)):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} leaves room for nothing: it is a number of bytes above 0")
    given = Limits(stash_cap_bytes or Limits().stash_cap_bytes, buffer_cap_bytes or Limits().buffer_cap_bytes)
    used = Limits(*json.loads(plane.put_if_absent(LIMITS, json.dumps(given).encode())))
    if used != given and (stash_cap_bytes is not None or buffer_cap_bytes is not None):
        raise ValueError(f"this cluster has other limits already: {used}; leave them out")


def within_limits(policy: Policy, plane: ControlPlane) -> Policy:
    """A policy with the limits of this cluster."""
    found = plane.get(LIMITS)
    limits = Limits() if found is None else Limits(*json.loads(found))
    return policy._replace(**limits._asdict())
