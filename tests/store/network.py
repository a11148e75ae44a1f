"""A store in the hands of a test: real replicas, and nothing gets to them or comes back unless it is carried."""

from collections.abc import Callable
from typing import Any, NamedTuple

from lineage_stash.codec import decode, encode, pack_span
from lineage_stash.core.batch import Range
from lineage_stash.core.entry import Entry
from lineage_stash.core.history import History, Segments
from lineage_stash.core.ids import Epoch, PeerId
from lineage_stash.store.chunks import digest_of
from lineage_stash.store.contract import (
    Append,
    Chunk,
    PutCheckpoint,
    PutChunks,
    ReplicaId,
    ReplicaSet,
    Reply,
    Request,
    Ticket,
)
from lineage_stash.store.quorum import Quorum
from lineage_stash.store.replica import FIRST_EPOCH, Replica
from lineage_stash.store.states import pack_state
from lineage_stash.store.succession import Phase, Succession
from lineage_stash.testing.ghosts import entries_in
from lineage_stash.testing.process import cut_small
from tests.store.contract_suite import FIRST_LIFE, checkpoint

MOST_PARCELS = 5000
"""More than any of these stories takes: whoever sends more goes round in a circle."""


class Parcel(NamedTuple):
    """A request on its way, and who waits for the answer."""

    replica: ReplicaId
    ticket: Ticket
    frame: bytes
    answer: Callable[[ReplicaId, int, Reply], object]

    @property
    def request(self) -> Any:
        """What it asks for."""
        return decode(self.frame)


class Network:
    """Replicas, the registry of their sets, and everything that is on its way, first come first served."""

    def __init__(self, *replicas: ReplicaId) -> None:
        self.replicas: dict[ReplicaId, Replica] = {}
        self.sets = [ReplicaSet(FIRST_EPOCH, replicas)]
        self.away: set[ReplicaId] = set()
        self.unanswered: set[tuple[ReplicaId, type]] = set()
        self.wire: list[Parcel] = []
        self.carried = 0
        self.add(*replicas)

    def add(self, *replicas: ReplicaId) -> None:
        """Start replicas that have nothing."""
        self.replicas.update({replica: Replica() for replica in replicas})

    # who uses it

    def client(self, history: History | None = None) -> Quorum:
        """A client of the newest set, which finds later ones by itself."""

        def send(replica: ReplicaId, ticket: Ticket, frame: Any) -> None:
            self.wire.append(Parcel(replica, ticket, frame, client.on_reply))

        client = Quorum(self.sets[-1], history or History(), encode, send, lambda: client.on_set(self.sets[-1]))
        return client

    def succession(self, *successor: ReplicaId, attempt: int = 1) -> Succession:
        """Somebody begins to make other replicas the store."""

        def send(replica: ReplicaId, ticket: Ticket, frame: Any) -> None:
            self.wire.append(Parcel(replica, ticket, frame, lambda _, number, reply: made.on_reply(number, reply)))

        def publish(wanted: ReplicaSet) -> None:
            made.on_published(self.publish(wanted))

        current = self.sets[-1]
        made = Succession(current, ReplicaSet(Epoch(current.epoch + 1), successor), encode, send, publish, attempt)
        made.begin()
        return made

    def publish(self, wanted: ReplicaSet) -> ReplicaSet:
        """Put-if-absent."""
        if len(self.sets) < wanted.epoch:
            self.sets.append(wanted)
        return self.sets[wanted.epoch - 1]

    # what gets where

    def deliver(self, parcel: Parcel) -> None:
        """Carry one request to its replica and the answer back, unless the replica is away."""
        self.carried += 1
        assert self.carried < MOST_PARCELS, "this goes round in a circle"
        if parcel.replica not in self.away and (parcel.replica, type(parcel.request)) not in self.unanswered:
            reply = decode(encode(self.replicas[parcel.replica].handle(parcel.request, parcel.ticket.epoch)))
            parcel.answer(parcel.replica, parcel.ticket.number, reply)

    def carry(self) -> None:
        """Carry what has been on its way for longest."""
        self.deliver(self.wire.pop(0))

    def carry_all(self) -> None:
        """Carry everything, and all that follows from it."""
        while self.wire:
            self.carry()

    def carry_until(self, condition: Callable[[], bool], *machines: Quorum | Succession) -> None:
        """Carry, and let time pass when nothing is on its way, until something is the case."""
        while not condition():
            if self.wire:
                self.carry()
            else:
                self.carried += 1
                assert self.carried < MOST_PARCELS, "nothing happens any more"
                for machine in machines:
                    machine.on_ticked()

    def finish(self, made: Succession) -> None:
        """Carry on until a succession is over."""
        self.carry_until(lambda: made.phase is Phase.OVER, made)

    def take(self, kind: type, *, epoch: Epoch | None = None) -> list[Parcel]:
        """Take all requests of a kind off the wire, for later or for never."""
        taken = [of for of in self.wire if isinstance(of.request, kind) and epoch in (None, of.ticket.epoch)]
        self.wire = [of for of in self.wire if of not in taken]
        return taken

    # what is done and seen

    def ask(self, client: Quorum, request: Request) -> tuple[Any, ...]:
        """The answers of a majority, however long that takes."""
        done: list[tuple[Any, ...]] = []
        client.request(request, done.append)
        self.carry_until(lambda: bool(done), client)
        self.carry_all()
        assert len(done) == 1, "a request was answered twice"
        return done[0]

    def give(self, request: Request, *replicas: ReplicaId) -> list[Any]:
        """What some replicas of the newest set have taken, and others have not."""
        return [self.replicas[replica].handle(request, self.sets[-1].epoch) for replica in replicas]

    def logs(self, peer: PeerId) -> dict[ReplicaId, list[Entry]]:
        """The log of a peer at each replica of the newest set, from its base on."""
        found = {of: self.replicas[of].logs.get(peer) for of in self.sets[-1].replicas}
        return {
            of: [] if log is None else [
                entries_in(span.body)[index - span.first]
                for span in log.spans for index in range(span.lower, span.upper)
            ]
            for of, log in found.items()
        }  # fmt: skip


def append_of(piece: Range, segments: Segments = FIRST_LIFE, *, settling: bool = False) -> Append:
    """An append of one range, whose writer also asks."""
    asker = (piece.peer, piece.incarnation)
    return Append((pack_span(piece),), ((piece.peer, segments),), (), (piece.peer,), settling, asker)


def chunked(upper: int, content: bytes, *, life: int = 0) -> tuple[PutCheckpoint, PutChunks]:
    """A checkpoint whose state is in chunks of four bytes, and its chunks."""
    state, pieces = pack_state(content, inline_bytes=0, cut=cut_small)
    taken = checkpoint(upper, life=life, state=state)
    chunks = tuple(Chunk(digest, bytes(piece), len(piece)) for digest, piece in pieces.items())
    assert all(digest_of(chunk.body) == chunk.digest for chunk in chunks)
    return PutCheckpoint(taken), PutChunks(taken.peer, chunks)
