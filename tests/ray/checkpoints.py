"""What the store has of an actor, asked from a test."""

from typing import Any

import lineage_stash as ray
from lineage_stash.core.checkpoint import Checkpoint, age
from lineage_stash.on_ray.present import current
from lineage_stash.store.contract import GetCheckpoint, Loaded
from lineage_stash.testing import inject


def checkpoint_of(actor: "ray.ActorHandle") -> Checkpoint | None:
    """The newest checkpoint of an actor."""
    process = current().process
    assert process.store is not None
    answers: list[Any] = []
    with process.lock:
        process.store.request(GetCheckpoint(actor._peer), answers.append)
    inject.wait_until(lambda: bool(answers), "an answer of the store")
    found = [each.checkpoint for each in answers[0] if isinstance(each, Loaded) and each.checkpoint is not None]
    return max(found, key=age, default=None)


def wait_for_checkpoint(actor: "ray.ActorHandle", upper: int) -> None:
    """Wait until the store has a checkpoint that covers so much of an actor's log; calls are when they are made."""

    def has_come() -> bool:
        ray.get(actor.__ray_ready__.remote())
        found = checkpoint_of(actor)
        return found is not None and found.upper >= upper

    inject.wait_until(has_come, f"a checkpoint of {actor!r}")
