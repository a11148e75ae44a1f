"""Holdings: what a process says about handles: to the coordinator when it looks, and on record where that is needed.

Rules:
- Handles come and go at any moment and in any thread. What was noted is taken in by ticks, and before every answer.
- An actor that its creator has given away is put on record, so that the coordinator looks for it (`sweeping`). So is
  one that is out of sight, and until that is on record it counts as held.
- A peer that leaves puts on record whose handles are in something that was not acknowledged, and who is to get a call
  that was not: both are in a record of the store from then on, where nobody looks.
"""

import json
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from lineage_stash.core.frontier import START
from lineage_stash.core.holding import Holding, answer_of, on_their_way
from lineage_stash.core.ids import PeerId
from lineage_stash.on_ray.lending import comings, given_away, out_of_sight
from lineage_stash.on_ray.links import Kind, Link
from lineage_stash.on_ray.registry import COORDINATOR

if TYPE_CHECKING:
    from lineage_stash.on_ray.runtime import Runtime

HANDLES = "handles/"
"""Where actors are on record whose handles have left their creators."""

GIVEN_AWAY, OUT_OF_SIGHT = b"given away", b"out of sight"


class Holdings:
    """Those of one life."""

    def __init__(self, runtime: "Runtime") -> None:
        self.runtime = runtime
        self.holding = Holding()
        self._recording: dict[PeerId, None] = {}
        """Those that are about to be on record as out of sight."""

    def begin(self) -> None:
        """The life has begun."""
        process = self.runtime.process
        process.on_look = self._on_look
        process.registry.before_retiring = self._leave

    def touch(self, actors: Iterable[PeerId]) -> None:
        """Handles of these were here for a moment."""
        comings.extend([(actor, 0) for actor in actors])

    def on_ticked(self) -> None:
        """Take in what was noted since."""
        if comings or given_away or out_of_sight or self.runtime.peer.program.values.touched:
            self._take_in()

    def _take_in(self) -> None:
        peer = self.runtime.peer
        upper = peer.lineage.upper if peer.member.replayable else START
        touched, peer.program.values.touched = peer.program.values.touched, {}
        comings.extend([(actor, 0) for actor in touched])
        while comings:
            actor, change = comings.popleft()
            self.holding.note(actor, change, upper)
        while given_away:
            self._put_on_record(given_away.popleft(), GIVEN_AWAY)
        while out_of_sight:
            self._put_on_record(out_of_sight.popleft(), OUT_OF_SIGHT)

    # on record

    def _put_on_record(self, actor: PeerId, how: bytes) -> None:
        process = self.runtime.process
        if how == OUT_OF_SIGHT:
            self._recording[actor] = None
        process.registry.ask(
            partial(put_on_record, process.plane, actor, how), lambda _: self._on_recorded(actor, how),
            lambda: (given_away if how == GIVEN_AWAY else out_of_sight).append(actor),
        )  # fmt: skip

    def _on_recorded(self, actor: PeerId, how: bytes) -> None:
        if how == OUT_OF_SIGHT:
            self._recording.pop(actor, None)
        else:
            self.runtime.process.control(COORDINATOR, given=actor)

    def _leave(self) -> None:
        for actor in on_their_way(self.runtime.peer):
            put_on_record(self.runtime.process.plane, actor, OUT_OF_SIGHT)

    # looks

    def _on_look(self, link: Link, said: dict[str, Any]) -> None:
        runtime = self.runtime
        if runtime.process.shell is None or runtime.process.shell.stopped:
            return
        for departed in said.get("read", ()):
            runtime.shell.look_up_departure(PeerId(departed))
        self._take_in()
        also = (*self._recording, *runtime.handles_at_hand())
        answer = answer_of(runtime.peer, self.holding, said["look"], also)
        link.send(Kind.CONTROL, json.dumps({"held": answer}).encode())


def put_on_record(plane: Any, actor: PeerId, how: bytes) -> None:
    """What is out of sight stays so."""
    if how == OUT_OF_SIGHT:
        plane.put(f"{HANDLES}{actor}", how)
    else:
        plane.put_if_absent(f"{HANDLES}{actor}", how)
