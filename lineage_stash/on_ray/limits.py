"""Limits: how much a process of this cluster may hold in memory, and how many nodes may fail at once.

They are the same for every process of a cluster, and stay as whoever began it has said.
"""

import json
from typing import NamedTuple

from lineage_stash.core.policy import Policy
from lineage_stash.on_ray.control_plane import ControlPlane

LIMITS = "limits"


class Limits(NamedTuple):
    """Those that users may set."""

    stash_cap_bytes: int = Policy().stash_cap_bytes
    """Lineage that is not committed: then new calls wait until the store has caught up."""
    buffer_cap_bytes: int = Policy().buffer_cap_bytes
    """Calls and replies kept for those who may ask again: what is more is put on disk."""
    max_failures: int | None = Policy().max_failures
    """Nodes that may fail within one commit window; None survives any number, and forwards most."""


class WantedLimits(NamedTuple):
    """What a script has said of them; None where it has not."""

    stash_cap_bytes: int | None = None
    buffer_cap_bytes: int | None = None
    max_failures: int | None = None

    @property
    def said(self) -> dict[str, int]:
        """Those that it has said something of."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def check(self) -> None:
        """Refuse what cannot be."""
        for name in ("stash_cap_bytes", "buffer_cap_bytes"):
            value = self.said.get(name, 1)
            if value < 1:
                raise ValueError(f"{name}={value} leaves room for nothing: it is a number of bytes above 0")
        if self.max_failures is not None and self.max_failures < 1:
            raise ValueError(
                f"max_failures={self.max_failures} would survive nothing: it is a number of nodes above 0, or None for "
                "any number"
            )


def settle_limits(plane: ControlPlane, wanted: WantedLimits) -> None:
    """Put the limits on record, unless they are."""
    wanted.check()
    given = Limits()._replace(**wanted.said)
    used = Limits(*json.loads(plane.put_if_absent(LIMITS, json.dumps(given).encode())))
    if any(getattr(used, name) != value for name, value in wanted.said.items()):
        raise ValueError(f"this cluster has other limits already: {used}; leave them out")


def within_limits(policy: Policy, plane: ControlPlane) -> Policy:
    """A policy with the limits of this cluster."""
    found = plane.get(LIMITS)
    limits = Limits() if found is None else Limits(*json.loads(found))
    return policy._replace(**limits._asdict())
