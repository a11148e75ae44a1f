"""Cancelling: calls that are not wanted any more fail, and whoever was to run them says so.

Rules:
- A call fails only in its callee's log. The caller asks, and asks again while there is no answer, because the callee
  may be living its next life by then; what comes is decided there, and is the same in every replay.
- A call that has not begun is answered without being run, when its turn comes; that is an entry of the callee's log.
- A running task is ended with its process, and its record says so. A running method of an actor goes on, as in Ray.
- A task that has no runner gets none: in its caller's log it is assigned to nobody.
- What is being run again after a crash may have been answered in its first run, so that it is not cancelled any more.
"""

import time
from typing import TYPE_CHECKING

from lineage_stash.core import events
from lineage_stash.core.ids import CANCELLED, OF_CALL, OF_PARCEL, OF_TASK, Ref
from lineage_stash.on_ray.refs import ObjectRef
from lineage_stash.shell import address_of

if TYPE_CHECKING:
    from lineage_stash.on_ray.runtime import Runtime

ASK_AGAIN_S = 0.25
"""How often to ask: a request costs little, and a new life takes longer to come up."""


class Cancelling:
    """The calls of one peer that are to be cancelled and have no answer yet."""

    def __init__(self, runtime: "Runtime") -> None:
        self.runtime = runtime
        self.unanswered: dict[Ref, ObjectRef] = {}
        """The refs are kept, because a value that nobody asks for cannot be followed."""
        self.asked_at = 0.0

    def cancel(self, ref: ObjectRef, *, force: bool) -> None:
        """Have a call fail, if that is still possible."""
        claim = ref.claim
        if claim._reply is not None:
            return  # it is finished
        assert claim.ref is not None, "what has no value yet is known to the peer"
        if claim.ref.kind == OF_PARCEL:
            raise ValueError(
                f"{ref!r} was passed on to this process: only whoever has made the call can cancel it. Have that one "
                "do it, for instance by a method that you call."
            )
        if force and claim.ref.kind == OF_CALL:
            raise ValueError("force=True is not supported for actor tasks. To end the actor, use ray.kill().")
        with self.runtime.process.lock:
            if self._ask(claim.ref):
                self.unanswered[claim.ref] = claim

    def on_ticked(self) -> None:
        """Ask again now and then."""
        now = time.monotonic()
        if self.unanswered and now - self.asked_at > ASK_AGAIN_S:
            self.asked_at = now
            for ref in list(self.unanswered):
                if not self._ask(ref):
                    del self.unanswered[ref]

    def _ask(self, ref: Ref) -> bool:
        """Ask for what is to be done about a call; whether there is still something to be done."""
        runtime = self.runtime
        program = runtime.peer.program
        if ref.kind == OF_TASK:
            if ref.number in program.values.waiting:
                if not program.script:  # otherwise its runner may be in the log
                    runtime.dispatcher.forget(ref.number)
                    runtime.shell.feed(events.TaskAssigned(ref.number, CANCELLED))
                return ref.number in program.values.waiting
            placed = program.values.placed.get(ref.number)
            if placed is None:
                return False
            ref = placed
            runtime.dispatcher.retire(ref.peer)
        if ref.peer == CANCELLED or runtime.peer.counterpart(ref.peer).outbox.answered > ref.number:
            return False
        callee = address_of(ref.peer, runtime.peer.history.incarnation(ref.peer))
        runtime.process.control(callee, cancel=ref.number, caller=runtime.id)
        return True
