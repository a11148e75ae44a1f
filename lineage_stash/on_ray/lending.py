"""Lending: an actor lives as long as somebody may call it, also where its handle was passed on.

Rules:
- An actor ends when its creator has dropped the handle: after all calls that were submitted until then; where the
  creator is recovered, see `dropped_actors`. What handles and methods hold on to is a tie; a tie that goes has the
  actor end.
- A handle inside a call is lent for the time of the call. Whoever ran the call says in the reply whether all handles
  in it came back: none is left there, none was passed on, and no call through one is under way.
- The ref of the call holds on to what was lent. What has come back is the creator's again once the value was asked for.
- Whatever else happens to a handle gives the actor away: it ends when nobody can reach it any more (`sweeping`). So
  does what is lent in a call whose ref is dropped before its value was asked for. An actor may live too long; it never
  ends too early.
- Every handle in this process, and every value with one in it, is noted when it comes and when it goes (`Hold`).
- A handle that is pickled for anything but a call, a result, a put value or a state is out of sight: nobody can tell
  when it goes, and its actor lives until its owner ends.
- Whether handles came back depends on when replies came, so that a replay may say otherwise. It is said where it does
  not count in the digest that a replay is compared by.
"""

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from lineage_stash.core.digest import OPAQUE
from lineage_stash.core.handles import actors_in, name_actors, without_names
from lineage_stash.core.ids import PeerId
from lineage_stash.core.rope import behind, put_before
from lineage_stash.on_ray.methods import Methods

LENT = b"h"
_HEAD = bytes((OPAQUE, len(LENT))) + LENT
"""How the reply to a call with handles in it begins; then comes whether they came back, and the reply itself."""

CAME_BACK, KEPT = b"\1", b"\0"


comings: deque[tuple[PeerId, int]] = deque()
"""Where it is noted that this process has one handle more of an actor, or one fewer: at any moment, in any thread."""

given_away: deque[PeerId] = deque()
out_of_sight: deque[PeerId] = deque()
"""Actors that their creator has given away, and those of which a handle went where nobody can follow it."""


class _Now(threading.local):
    """What this thread is doing with handles."""

    packed: "dict[PeerId, None] | None" = None
    """The actors whose handles are in what is being packed for somebody, so far."""
    lent: "list[Tie] | None" = None
    """The handles in the call that is being packed, so far."""
    runs_call = False
    borrowed: "Borrowed | None" = None
    """The handles that came with the call that runs, if there are any."""


class Borrowed:
    """The handles that came with a call, or while it ran."""

    def __init__(self) -> None:
        self.ties: list[tuple[PeerId, weakref.ref[Tie]]] = []
        self.passed_on = False

    def came_back(self, owes: "Owes") -> bool:
        """Whether nobody here can call through any of them any more."""
        return not self.passed_on and all(tie() is None and not owes(peer) for peer, tie in self.ties)


class Owes(Protocol):
    """Says whether an actor has not answered all calls that it got from here."""

    def __call__(self, peer: PeerId, /) -> bool: ...


class Hold:
    """As long as this is there, there is a handle of an actor in this process, or a value with one in it."""

    __slots__ = ("__weakref__", "peer")

    def __init__(self, peer: PeerId) -> None:
        self.peer = peer
        comings.append((peer, 1))

    def __del__(self) -> None:
        if comings is not None:  # as it is where an interpreter ends, which has cleared its modules
            comings.append((self.peer, -1))


class Tie(Hold):
    """What the handle of an actor and its methods hold on to; when nobody does any more, the actor may end."""

    __slots__ = ("borrowed", "class_name", "methods", "unreferenced")

    def __init__(
        self, peer: PeerId, class_name: str, methods: Methods, unreferenced: deque[PeerId] | None = None
    ) -> None:
        super().__init__(peer)
        self.class_name = class_name
        self.methods = methods
        self.unreferenced = unreferenced
        """Where it is noted that this has gone, so that the actor may end; None where others may call it too."""
        self.borrowed: Borrowed | None = None

    def __del__(self) -> None:
        if self.unreferenced is not None:
            self.unreferenced.append(self.peer)
        super().__del__()

    def pass_on(self) -> None:
        """Somebody gets a handle: for the time of a call, or for good, or nobody knows who."""
        if _now.packed is None:
            out_of_sight.append(self.peer)
        else:
            _now.packed[self.peer] = None
        if self.unreferenced is not None and _now.lent is not None:
            _now.lent.append(self)
        else:
            self.give_away()

    def give_away(self) -> None:
        """Others may call the actor, whatever its creator does."""
        if self.unreferenced is not None:
            self.unreferenced = None
            given_away.append(self.peer)
        if self.borrowed is not None:
            self.borrowed.passed_on = True

    def note_received(self) -> None:
        """This one came from somebody else, perhaps with the call that runs here."""
        if _now.runs_call:
            if _now.borrowed is None:
                _now.borrowed = Borrowed()
            self.borrowed = _now.borrowed
            self.borrowed.ties.append((self.peer, weakref.ref(self)))


_now = _Now()


@contextmanager
def packing(lent: list[Tie] | None) -> Iterator[dict[PeerId, None]]:
    """What this thread pickles here is for somebody: the actors whose handles are in it, and those that are lent."""
    before = _now.packed, _now.lent
    _now.packed, _now.lent = {}, lent
    try:
        yield _now.packed
    finally:
        _now.packed, _now.lent = before


def begin_borrowing() -> None:
    """From here on this thread runs a call."""
    _now.runs_call = True


def end_borrowing(reply: bytes, owes: Owes) -> bytes:
    """The call is over: its reply, with what became of its handles if it had any."""
    _now.runs_call = False
    borrowed, _now.borrowed = _now.borrowed, None
    if borrowed is None:
        return reply
    said = _HEAD + (CAME_BACK if borrowed.came_back(owes) else KEPT)
    return name_actors(put_before(said, without_names(reply)), actors_in(reply))


def bare(reply: bytes) -> bytes:
    """The reply itself."""
    reply = without_names(reply)
    return behind(reply, len(_HEAD) + 1) if reply.startswith(_HEAD) else reply


def settle(lent: list[Tie], reply: bytes) -> None:
    """The reply to a call is known: what did not come back is given away."""
    if without_names(reply)[: len(_HEAD) + 1] != _HEAD + CAME_BACK:
        give_away(lent)


def give_away(lent: list[Tie]) -> None:
    """Nobody will know what became of these."""
    for tie in lent:
        tie.give_away()
