"""Real peers driven by hand: every event is followed by a check of the peer's invariants."""

from typing import Any, TypeVar

from lineage_stash.core import events
from lineage_stash.core.batch import EMPTY, Batch
from lineage_stash.core.channel import Message
from lineage_stash.core.effects import AppendToStore, RunCall, SendMessage
from lineage_stash.core.history import History
from lineage_stash.core.ids import Incarnation, Index, Member, PeerId, Round, Seqno
from lineage_stash.core.invariants import validate
from lineage_stash.core.peer import Peer
from lineage_stash.core.policy import Policy
from tests.core.builders import member

E = TypeVar("E")


class Driven:
    """One incarnation of a peer, and the effects of its last event and of all so far."""

    def __init__(self, peer: PeerId, *, replayable: bool = True, begun: int | None = None,
                 history: History | None = None, policy: Policy | None = None, **restored: Any) -> None:  # fmt: skip
        history = history or History()
        me = member(peer, replayable=replayable, begun=begun)
        self.peer = Peer(me, history.incarnation(peer), history, policy or Policy(), **restored)
        self.last: list[Any] = []
        self.all: list[Any] = []

    def handle(self, event: object) -> list[Any]:
        self.last = self.peer.handle(event)
        self.all += self.last
        validate(self.peer)
        return self.last

    def receive(self, message: Message) -> list[Any]:
        return self.handle(events.MessageArrived(message))

    def of(self, kind: type[E], *, ever: bool = False) -> list[E]:
        """The effects of one kind: those of the last event, or all so far."""
        return [effect for effect in (self.all if ever else self.last) if type(effect) is kind]

    @property
    def ran(self) -> list[bytes]:
        """The payloads of all calls that were run, in order."""
        return [effect.payload for effect in self.of(RunCall, ever=True)]

    @property
    def sent(self) -> list[Message]:
        return [effect.message for effect in self.of(SendMessage)]

    @property
    def logged(self) -> list[Any]:
        """All entries that were given to the store, in order."""
        flushes = self.of(AppendToStore, ever=True)
        own = {
            piece.lower + at: entry
            for flush in flushes
            for piece in flush.ranges
            if piece.peer == self.peer.id
            for at, entry in enumerate(piece.entries)
        }
        return [own[index] for index in sorted(own)]

    def commit(self, **uppers: int) -> list[Any]:
        """The store answers that it is durable up to here, by peer."""
        holdings = tuple(
            (PeerId(peer), self.peer.history.incarnation(PeerId(peer)), Index(u)) for peer, u in uppers.items()
        )
        return self.handle(events.Appended((holdings,), 1))


def message(sender: PeerId, receiver: PeerId, *calls: bytes, number: int = 0, first_call: int = 0,
            lives: tuple[int, int] = (0, 0), round_: int = 0, batch: Batch = EMPTY, hello: Member | None = None,
            replies: tuple[bytes, ...] = ()) -> Message:  # fmt: skip
    """What `sender` may say; a first message introduces it."""
    introduction = hello or (member(sender) if number == 0 else None)
    return Message(
        sender, Incarnation(lives[0]), receiver, Incarnation(lives[1]), Round(round_), number, 0,
        introduction, Seqno(first_call), calls, Seqno(0), replies, Seqno(0), Seqno(0), batch,
    )  # fmt: skip
