"""Holding: the actors whose handles one peer has, in its program's state or in bytes that it keeps.

Rules:
- The shell notes every handle that the program gets or loses. What was noted since the last look is told in the next.
- Bytes count from the moment they are delivered here until they are opened, which is noted, or taken, dropped or
  forwarded, which is noted too (`values`); at the sender's until they are acknowledged. So they are always somebody's.
- A call that is not answered holds its callee.
- What was lost at some index counts as held until the log is committed up to there: a past that is lost may be lived
  once more, and otherwise. For the same reason whoever has something that is not committed counts as one that acts.
"""

from collections.abc import Iterable

from lineage_stash.core.counterpart import Counterpart
from lineage_stash.core.frontier import START
from lineage_stash.core.handles import actors_in
from lineage_stash.core.ids import Index, PeerId, Round
from lineage_stash.core.peer import Peer
from lineage_stash.core.reach import NO_LOOK, Answer

MOST_NOTED = 10_000
"""Actors that are noted between two looks; of more, it is only remembered that there were more."""

FORGOTTEN = "forgotten"
"""What stands for the look before, where not all that happened since is known any more."""


class Holding:
    """What one life has to say when it is looked at."""

    def __init__(self) -> None:
        self.counts: dict[PeerId, int] = {}
        self.touched: dict[PeerId, None] = {}
        self.lost_at: dict[PeerId, Index] = {}
        """Up to where the log must be committed before an actor counts as let go."""
        self.last = Answer(NO_LOOK, NO_LOOK, Round(0), settled=False, active=True, held=())
        self._upper = START
        self._since = NO_LOOK
        self._unsure_below = START
        """Up to where the log must be committed before this life knows again what it may come back to."""

    def note(self, actor: PeerId, change: int, upper: Index) -> None:
        """The program has handles of this actor more, or fewer, or has had one for a moment."""
        count = self.counts.pop(actor, 0) + change
        if count > 0:
            self.counts[actor] = count
        if len(self.lost_at) >= MOST_NOTED:  # nobody has looked for long
            self.touched, self.lost_at = {}, {}
            self._since, self._unsure_below = FORGOTTEN, upper
        self.touched[actor] = None
        self.lost_at[actor] = upper

    def answer(self, look: str, round_: Round, kept: Iterable[PeerId], upper: Index, committed: Index, *,
               settled: bool, active: bool, unread: tuple[PeerId, ...] = ()) -> Answer:  # fmt: skip
        """What to say of the time since the last look; the same if the same is asked again."""
        if look == self.last.look:
            return self.last
        held = {**self.counts, **dict.fromkeys(kept), **self.touched}
        self.lost_at = {actor: at for actor, at in self.lost_at.items() if at > committed}
        moved, self._upper = upper != self._upper or upper > committed, upper
        self.touched = {}
        settled = settled and committed >= self._unsure_below
        self.last = Answer(look, self._since, round_, settled, active or moved, tuple({**held, **self.lost_at}),
                           unread, begun=committed > START)  # fmt: skip
        self._since = look
        return self.last


def answer_of(peer: Peer, holding: Holding, look: str, also: Iterable[PeerId]) -> Answer:
    """What a peer says: what its program has, what its boxes keep, and what else its shell knows of."""
    upper = peer.lineage.upper if peer.member.replayable else START
    kept: dict[PeerId, None] = dict.fromkeys(also)
    for counterpart in peer.counterparts.values():
        _add_all(kept, in_boxes(counterpart))
        if counterpart.owes_answers:
            kept[counterpart.peer] = None
    for task in peer.program.values.waiting.values():
        _add_all(kept, [task.payload])
    is_settled = not (peer.program.is_replaying or peer.promises.ignored) and not any(
        _is_out_of_sight(counterpart) for counterpart in peer.counterparts.values()
    )
    return holding.answer(
        look, peer.history.round, kept, upper, peer.lineage.committed.get(peer.id, START), settled=is_settled,
        active=_is_active(peer), unread=_unread(peer),
    )  # fmt: skip


def on_their_way(peer: Peer) -> dict[PeerId, None]:
    """The actors whose handles are in something that others have not acknowledged, and those to whom a call is due."""
    found: dict[PeerId, None] = {}
    for counterpart in peer.counterparts.values():
        _add_all(found, _undelivered(counterpart))
        unacknowledged = counterpart.channel.unacknowledged
        if not counterpart.gone and (
            counterpart.outbox.calls.has_unsent or any(message.calls for message in unacknowledged)
        ):
            found[counterpart.peer] = None
    return found


def _add_all(kept: dict[PeerId, None], payloads: Iterable[bytes]) -> None:
    for payload in payloads:
        for actor in actors_in(payload):
            kept[actor] = None


def in_boxes(counterpart: Counterpart) -> list[bytes]:
    """What is kept that was sent and may not have come, or has come and was not opened."""
    found = _undelivered(counterpart)
    found += counterpart.inbox.queue
    found += counterpart.outbox.results.values()
    found += [parcel.value for parcel in counterpart.incoming.kept.values()]
    return found


def _undelivered(counterpart: Counterpart) -> list[bytes]:
    """What the other side has not acknowledged."""
    found: list[bytes] = []
    if counterpart.gone:
        return found
    for message in counterpart.channel.unacknowledged:
        found += message.calls
        found += message.replies
        found += [parcel.value for parcel in message.parcels]
    found += counterpart.outbox.calls.unsent_items
    found += counterpart.inbox.replies.unsent_items
    outgoing = counterpart.outgoing
    found += [outgoing.filled[number].value for number in outgoing.unsent if number in outgoing.filled]
    return found


def _is_out_of_sight(counterpart: Counterpart) -> bool:
    """Whether something that was not sent yet is kept where it cannot be looked at."""
    calls, replies = counterpart.outbox.calls, counterpart.inbox.replies
    return not counterpart.gone and (calls.has_unsent_spilled or replies.has_unsent_spilled)


def _is_active(peer: Peer) -> bool:
    """Whether it runs something, or will, or has something to send."""
    program = peer.program
    return program.busy or bool(program.ready) or bool(program.values.waiting) or any(
        counterpart.inbox.queue
        or (not counterpart.gone and (counterpart.channel.unacknowledged or counterpart.wants_to_send
                                      or counterpart.outgoing.sources))
        for counterpart in peer.counterparts.values()
    )  # fmt: skip


def _unread(peer: Peer) -> tuple[PeerId, ...]:
    """Whose records are to be read, should they have left: what this life, or its former one, was sent may be there."""
    others = [other for other in peer.counterparts.values() if other.peer != peer.id]
    if peer.incarnation:
        return tuple([other.peer for other in others if not other.incoming.orphaned])
    return tuple([other.peer for other in others if not other.gone or other.owes_answers])
