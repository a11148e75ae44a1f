"""Placement groups: what is created in one belongs to it, and what is left of it when it is removed runs elsewhere.

Rules:
- What somebody has created runs in its creator's group, if that one captures it, as in Ray.
- Ray kills all that runs in a group that is removed. An actor is killed for good then, as in Ray, which is a fact that
  its callers get to know. A task runs again, outside of the group: nobody has asked for it to be cancelled.
"""

from typing import Any

from ray.util import placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lineage_stash.core.ids import PeerId
from lineage_stash.on_ray.creation import RUNNERS, Creation, pack_options, read_creation, unpack_placement
from lineage_stash.on_ray.payloads import pack_death
from lineage_stash.on_ray.registry import Registry

OF_GROUPS = ("scheduling_strategy", "placement_group", "placement_group_bundle_index",
             "placement_group_capture_child_tasks")  # fmt: skip
"""The options that name a group, or say something about it."""

REMOVED = "REMOVED"


def inherit_placement(placement: str, creators: str) -> str:
    """Where what somebody has created runs: in its creator's placement group, if that one captures it.

    Ray does this by the thread that asks for something to be started, which here is not the one that the user's code
    runs in; and by what is on record, the next lives are started there too.
    """
    group = _capturing_group(unpack_placement(creators))
    own = unpack_placement(placement)
    if group is None or own.get("scheduling_strategy") is not None or own.get("placement_group") is not None:
        return placement
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    return pack_options({**own, "scheduling_strategy": strategy})


def _capturing_group(options: dict[str, Any]) -> Any:
    strategy = options.get("scheduling_strategy")
    if isinstance(strategy, PlacementGroupSchedulingStrategy):
        return strategy.placement_group if strategy.placement_group_capture_child_tasks else None
    return options.get("placement_group") if options.get("placement_group_capture_child_tasks") else None


def _group(options: dict[str, Any]) -> Any:
    strategy = options.get("scheduling_strategy")
    if isinstance(strategy, PlacementGroupSchedulingStrategy):
        return strategy.placement_group
    return options.get("placement_group")


def creation_for_next_life(registry: Registry, peer: PeerId) -> Creation | None:
    """What is on record of an actor; without its group where that was removed, which is the end of it."""
    creation = read_creation(registry.plane, peer)
    options = {} if creation is None else unpack_placement(creation.placement)
    group = _group(options)
    if creation is None or group is None or not _is_removed(group):
        return creation
    if RUNNERS not in peer:
        registry.note_killed(peer, pack_death(f"The actor {peer} is dead: its placement group was removed."))
    rest = {name: wish for name, wish in options.items() if name not in OF_GROUPS}
    return creation._replace(placement=pack_options(rest))


def _is_removed(group: Any) -> bool:
    """Whether a group is no more; Ray forgets those that were removed long ago."""
    state: str = placement_group_table(group).get("state", REMOVED)
    return state == REMOVED
