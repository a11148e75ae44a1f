"""Durability as a dial: what users say for it, and what it is now."""

from typing import NamedTuple

from lineage_stash.on_ray.control_plane import ControlPlane
from lineage_stash.store.contract import Level
from lineage_stash.store.quorum import Quorum

DURABILITY = "durability"
"""The fact in the control plane that says how durable commits are where an actor does not say otherwise."""

DEFAULT_LEVEL = "disk"


def parse_level(text: str) -> Level:
    """The level that a user has named."""
    try:
        return Level[text.upper()]
    except (KeyError, AttributeError):
        names = ", ".join(repr(level.name.lower()) for level in Level)
        raise ValueError(f"durability={text!r} is not known: it is one of {names}") from None


def default_level(plane: ControlPlane) -> Level:
    """The level of whoever does not say otherwise."""
    return parse_level((plane.get(DURABILITY) or DEFAULT_LEVEL.encode()).decode())


def level_kept(text: str, store: Quorum | None) -> Level:
    """The level that a user has named, if this store can keep it."""
    level = parse_level(text)
    if level is Level.REMOTE and store is not None and store.set.archive is None:
        raise ValueError(f"durability={text!r} needs an archive, and this store has none: init(archive=URL)")
    return level


class Durability(NamedTuple):
    """How durable the commits of this process are, and what is on its way to the store."""

    level: str
    uncommitted_entries: int
    """Entries of this process's own log that are not committed."""
    stash_bytes: int
    """All entries held that may not be durable yet, others' included."""
    cap_bytes: int
