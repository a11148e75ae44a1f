"""Dropped actors: those that a recovered actor or a task has created, and that nobody can call any more, end.

Rules:
- One ends when it has answered all calls that it got from its creator, and when the creator's log is committed up to
  the moment in which the handle was gone: a handle that was dropped in a past that is lost may be used in the next one.
- A replay drops the same handles again, and ends nobody before it is over; calls of those that have ended are answered
  from their records.
- A handle in a checkpoint is its creator's again in the next life. What was dropped and not ended when a life died ends
  with its creator: an actor may live too long, and never ends too early.
"""

import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from lineage_stash.core.frontier import START
from lineage_stash.core.ids import Index, PeerId
from lineage_stash.on_ray.lending import Tie
from lineage_stash.on_ray.methods import Methods

if TYPE_CHECKING:
    from lineage_stash.on_ray.host import Life


class DroppedActors:
    """Those of one life."""

    def __init__(self, life: "Life") -> None:
        self.life = life
        self.dropped: deque[PeerId] = deque()
        """Where ties note that they have gone: at any moment, in any thread."""
        self.restored: weakref.WeakValueDictionary[PeerId, Tie] = weakref.WeakValueDictionary()
        """The ties in the state that was restored: all handles of one actor hold on to the same one."""
        self._ending: deque[tuple[Index, PeerId]] = deque()

    def restore_tie(self, peer: PeerId, class_name: str, methods: Methods) -> Tie:
        """What a handle in a restored state holds on to."""
        tie = self.restored.get(peer)
        if tie is None:
            tie = self.restored[peer] = Tie(peer, class_name, methods, self.dropped)
        return tie

    def on_ticked(self) -> None:
        """End those whose time has come."""
        life = self.life
        if not (self.dropped or self._ending) or life.peer.program.is_replaying:
            return
        lineage, process = life.peer.lineage, life.process
        while self.dropped:
            self._ending.append((lineage.upper, self.dropped.popleft()))
        committed = lineage.committed.get(life.id, START)
        for _ in range(len(self._ending)):
            index, actor = self._ending.popleft()
            if committed < index or life.awaits_answer(actor):
                self._ending.append((index, actor))
            else:
                process.registry.ask(partial(process.kill, actor, "whoever created it has dropped its handle"))
