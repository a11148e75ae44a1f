"""Actors that were killed before any process lived for them: there is nobody who could leave a record.

A process that comes up later finds the note that the actor was killed, runs nothing, and leaves a record that says what
is said here: so both may happen, in any order. Where none ever comes up, because there is no room for it, this is all.
"""

from typing import TYPE_CHECKING

from lineage_stash.core import events
from lineage_stash.core.checkpoint import Checkpoint
from lineage_stash.core.frontier import START
from lineage_stash.core.ids import FIRST_INCARNATION, PeerId
from lineage_stash.shell import address_of

if TYPE_CHECKING:
    from lineage_stash.on_ray.runtime import Runtime


def fail_calls_of_unborn(runtime: "Runtime", actor: PeerId) -> None:
    """Have what this process has asked of a killed actor fail, if the actor has never begun."""
    registry = runtime.process.registry
    last_words = registry.last_words_of(actor)
    if last_words is None or registry.is_claimed(address_of(actor, FIRST_INCARNATION)):
        return
    record = Checkpoint(actor, FIRST_INCARNATION, START, last_words, 0, (), (), (), 0, final=True)
    with runtime.process.lock:
        runtime.shell.feed(events.Departed(actor))
        runtime.shell.feed(events.RecordLoaded(record))
