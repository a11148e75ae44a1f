"""The succession: from one replica set of the store to the next, without losing what is committed. No I/O of its own.

Seal a majority of the old set, copy its union to a majority of the new, publish. Rules:
- Sealed before listed: what a replica lists after its seal is all that it ever confirmed in that epoch. Any committed
  span is at one of a sealed majority, so that their union has it.
- A replica is up to date when its own list, taken after the union was known, lacks nothing of it. Copies that were lost
  on the way show in the next list; nothing is remembered of what was sent. One that is no better after copying waits
  until the union is taken anew.
- Replicas that join are brought up before anything is sealed, so that the store is closed only for the rest. Then one
  that was never heard of is not waited for, and one that has fallen silent only for a while.
- Published by put-if-absent: of two successions from one epoch one wins, and the other one has copied in vain.
- Sealing cannot be taken back: whoever finds a set sealed and no next one makes it.
"""

from collections.abc import Callable, Collection
from enum import Enum, auto
from typing import NamedTuple

from lineage_stash.core.checkpoint import Checkpoint, age
from lineage_stash.core.history import Segments, limit_in
from lineage_stash.core.ids import Epoch, Incarnation, Index, PeerId
from lineage_stash.store.chunks import digest_of
from lineage_stash.store.contract import (
    Append,
    Chunks,
    Elsewhere,
    Fence,
    Found,
    GetChunks,
    Inventory,
    Item,
    Level,
    List,
    PutCheckpoint,
    PutChunks,
    Read,
    ReplicaId,
    ReplicaSet,
    Reply,
    Request,
    Seal,
    Stored,
    Ticket,
)
from lineage_stash.store.quorum import Frame, Send
from lineage_stash.store.replica import CHECKPOINTS_KEPT, NO_EPOCH

FIRST_PEER = PeerId("")

NUMBERS_PER_ATTEMPT = 1 << 40
"""Requests are numbered from here on, so that answers to the quorum client of the same process are told apart."""

PATIENCE_TICKS = 40
"""How long to wait for the slower replicas once a majority is up to date, or for any news before; two seconds."""

ASK_AGAIN_TICKS = 10
"""Ticks until a request is repeated: a page takes its time, and repeats of it would only be in its way."""


class Phase(Enum):
    """How far a succession is."""

    PREPARING = auto()
    SEALING = auto()
    COPYING = auto()
    PUBLISHING = auto()
    OVER = auto()


class Asked(NamedTuple):
    """A request to any of some replicas, one after the other until one has answered."""

    replicas: tuple[ReplicaId, ...]
    ticket: Ticket
    frame: Frame
    ticks: int
    then: Callable[[Reply], None]


class Succession:
    """One attempt to make `successor` the store; `publish` is asked once its majority has the union."""

    def __init__(self, current: ReplicaSet, successor: ReplicaSet, encode: Callable[[Request], Frame], send: Send,
                 publish: Callable[[ReplicaSet], None], attempt: int = 1) -> None:  # fmt: skip
        assert successor.epoch == current.epoch + 1, f"epoch {successor.epoch} cannot follow {current.epoch}"
        self.current = current
        self.successor = successor
        self.phase = Phase.PREPARING
        self.copied_bytes = 0
        self._encode = encode
        self._send = send
        self._publish = publish
        self._asked: dict[int, Asked] = {}
        self._first = self._next = attempt * NUMBERS_PER_ATTEMPT
        self._sealed: dict[ReplicaId, None] = {}
        self._listed: dict[ReplicaId, dict[PeerId, Item]] = {}
        self._union: dict[PeerId, Item] = {}
        self._sources: dict[PeerId, tuple[ReplicaId, ...]] = {}
        self._up_to_date: dict[ReplicaId, None] = {}
        self._heard: dict[ReplicaId, None] = {}
        self._ticks = 0
        self._waited = 0

    # in

    def begin(self) -> None:
        """Bring up those who join from those who are there, then go on."""
        for replica in self.current.replicas:
            self._list(replica, self._on_first_list)

    def on_reply(self, number: int, reply: Reply) -> bool:
        """Take in an answer; False if it is not one to this succession."""
        asked = self._asked.pop(number, None)
        if asked is None:
            return number >= self._first
        if isinstance(reply, Elsewhere):
            self._end()  # others have gone further than this one ever will
        else:
            if len(asked.replicas) == 1:
                self._heard[asked.replicas[0]] = None
            if self._makes_progress:
                self._waited = 0
            asked.then(reply)
        return True

    @property
    def _makes_progress(self) -> bool:
        """Whether to wait for whoever still answers: there is time before the seal, and no choice before a majority."""
        copying = self.phase is Phase.COPYING and len(self._up_to_date) < self.successor.majority
        return copying or self.phase is Phase.PREPARING

    def on_ticked(self) -> None:
        """Ask again, and stop waiting for those who keep everyone waiting."""
        self._ticks += 1
        for asked in list(self._asked.values()):
            times, rest = divmod(self._ticks - asked.ticks, ASK_AGAIN_TICKS)
            if rest == 0:
                self._send(asked.replicas[times % len(asked.replicas)], asked.ticket, asked.frame)
        self._waited += 1
        if self._waited > PATIENCE_TICKS:
            self._waited = 0
            self._go_on_without_the_rest()

    def _go_on_without_the_rest(self) -> None:
        if self.phase is Phase.SEALING and len(self._sealed) >= self.current.majority:
            self._copy_union()
        elif self.phase is Phase.COPYING and len(self._up_to_date) >= self.successor.majority:
            self._conclude()
        elif self.phase is Phase.PUBLISHING:
            self._publish(self.successor)
        elif self.phase is not Phase.OVER:
            self._seal()  # for the first time, or again because a source is gone

    def is_on_its_way(self, current: ReplicaSet, lost: Collection[ReplicaId]) -> bool:
        """Whether this still can follow the current set: it is not over, and its own has not lost its majority."""
        if self.phase is Phase.OVER or self.current.epoch != current.epoch:
            return False
        left = [replica for replica in self.successor.replicas if replica not in lost]
        return len(left) >= self.successor.majority

    def on_published(self, standing: ReplicaSet) -> None:
        """Somebody's set stands for the next epoch."""
        assert standing.epoch == self.successor.epoch, f"{standing} does not follow {self.current}"
        self._end()

    def _end(self) -> None:
        self.phase = Phase.OVER
        self._asked.clear()

    def _ask(self, replica: ReplicaId, request: Request, then: Callable[[Reply], None], epoch: Epoch) -> None:
        self._ask_any((replica,), request, then, epoch)

    def _ask_any(self, replicas: tuple[ReplicaId, ...], request: Request, then: Callable[[Reply], None],
                 epoch: Epoch) -> None:  # fmt: skip
        self._next += 1
        ticket = Ticket(self._next, epoch, Level.DISK)
        asked = self._asked[self._next] = Asked(replicas, ticket, self._encode(request), self._ticks, then)
        self._send(replicas[0], ticket, asked.frame)

    # listing

    def _list(self, replica: ReplicaId, then: Callable[[ReplicaId, dict[PeerId, Item]], None]) -> None:
        """All that a replica has, page by page."""
        found: dict[PeerId, Item] = {}

        def on_page(reply: Reply) -> None:
            assert isinstance(reply, Inventory), f"a list was asked for, and {type(reply).__name__} was answered"
            for item in reply.items:
                found[item.peer] = item
            if reply.more:
                self._ask(replica, List(reply.items[-1].peer), on_page, NO_EPOCH)
            else:
                then(replica, found)

        self._ask(replica, List(FIRST_PEER), on_page, NO_EPOCH)

    # preparing and sealing

    @property
    def _joining(self) -> list[ReplicaId]:
        return [replica for replica in self.successor.replicas if replica not in self.current.replicas]

    def _on_first_list(self, replica: ReplicaId, items: dict[PeerId, Item]) -> None:
        if self.phase is not Phase.PREPARING:
            return
        self._listed[replica] = items
        if len(self._listed) == self.current.majority:
            self._unite()
            self._waited = 0
            for joining in self._joining:
                self._bring_up(joining, self._on_prepared)
            if not self._joining:
                self._seal()

    def _on_prepared(self, replica: ReplicaId) -> None:
        self._up_to_date[replica] = None
        if self.phase is Phase.PREPARING and len(self._up_to_date) == len(self._joining):
            self._seal()

    def _seal(self) -> None:
        self.phase = Phase.SEALING
        self._waited = 0
        self._listed.clear()
        self._sealed.clear()
        self._up_to_date.clear()
        self._asked.clear()
        for replica in self.current.replicas:
            self._ask(replica, Seal(self.current.epoch), self._on_sealed(replica), NO_EPOCH)

    def _on_sealed(self, replica: ReplicaId) -> Callable[[Reply], None]:
        def then(reply: Reply) -> None:
            assert isinstance(reply, Inventory), f"{type(reply).__name__} is no answer to a seal"
            self._list(replica, self._on_last_list)

        return then

    def _on_last_list(self, replica: ReplicaId, items: dict[PeerId, Item]) -> None:
        if self.phase is not Phase.SEALING:
            return
        self._sealed[replica] = None
        self._listed[replica] = items
        staying = [of for of in self.successor.replicas if of in self.current.replicas and of in self._heard]
        if len(self._sealed) >= self.current.majority and all(of in self._sealed for of in staying):
            self._copy_union()

    # uniting

    def _unite(self) -> None:
        """Per peer, all that any of the listed ones has, and who has all of its log."""
        self._union.clear()
        self._sources.clear()
        for items in self._listed.values():
            for peer, item in items.items():
                known = self._union.get(peer)
                self._union[peer] = item if known is None else _joined(known, item)
        for peer, union in self._union.items():
            uppers = {
                replica: _surviving_upper(items[peer], union.segments)
                for replica, items in self._listed.items() if peer in items
            }  # fmt: skip
            upper = max(uppers.values())
            sources = self._sources[peer] = tuple([replica for replica in uppers if uppers[replica] == upper])
            last_writer = self._listed[sources[0]][peer].last_writer
            self._union[peer] = union._replace(upper=max(upper, union.base), last_writer=last_writer)

    # copying

    def _copy_union(self) -> None:
        self.phase = Phase.COPYING
        self._waited = 0
        self._asked.clear()
        self._unite()
        for replica in self.successor.replicas:
            self._bring_up(replica, self._on_up_to_date)

    def _on_up_to_date(self, replica: ReplicaId) -> None:
        self._up_to_date[replica] = None
        rest = [of for of in self.successor.replicas if of in self._heard and of not in self._up_to_date]
        if self.phase is Phase.COPYING and len(self._up_to_date) >= self.successor.majority and not rest:
            self._conclude()

    def _conclude(self) -> None:
        self.phase = Phase.PUBLISHING
        self._asked.clear()
        self._publish(self.successor)

    def _bring_up(self, replica: ReplicaId, then: Callable[[ReplicaId], None],
                  before: dict[PeerId, Item] | None = None) -> None:  # fmt: skip
        """Have a replica list what it has, copy what it lacks, and so on until it lacks nothing or is no better."""

        def on_list(_: ReplicaId, items: dict[PeerId, Item]) -> None:
            lacking = [peer for peer, union in self._union.items() if _lacks(items.get(peer), union)]
            if not lacking:
                then(replica)
            elif items != before:
                self._copy_next(replica, items, lacking, lambda: self._bring_up(replica, then, items))

        self._list(replica, on_list)

    def _copy_next(self, replica: ReplicaId, items: dict[PeerId, Item], lacking: list[PeerId],
                   then: Callable[[], None]) -> None:  # fmt: skip
        """Copy one peer after the other, so that no more than a page is under way per replica."""
        if not lacking:
            then()
            return
        peer = lacking.pop()
        union = self._union[peer]
        held = _surviving_upper(items[peer], union.segments) if peer in items else Index(0)
        self._copy_log(replica, peer, max(held, union.base), lambda: self._copy_rest(
            replica, items.get(peer), union, lambda: self._copy_next(replica, items, lacking, then)))  # fmt: skip

    def _copy_log(self, replica: ReplicaId, peer: PeerId, lower: Index, then: Callable[[], None]) -> None:
        union = self._union[peer]

        def on_read(reply: Reply) -> None:
            assert isinstance(reply, Found), f"{type(reply).__name__} is no answer to a read"
            self.copied_bytes += sum([span.body_bytes for span in reply.spans])
            base = max(union.base, *[base for _, base in reply.bases])  # truncated since it was listed, perhaps
            append = Append(reply.spans, ((peer, union.segments),), ((peer, base),), (), True)
            following = reply.spans[-1].upper if reply.more else None
            self._ask(replica, append, lambda _: go_on(following), self.successor.epoch)

        def go_on(following: Index | None) -> None:
            if following is None:
                then()
            else:
                self._copy_log(replica, peer, following, then)

        self._ask_any(self._sources[peer], Read(peer, lower), on_read, NO_EPOCH)

    def _copy_rest(self, replica: ReplicaId, held: Item | None, union: Item, then: Callable[[], None]) -> None:
        """Checkpoints, then fences, which would refuse the checkpoints of the fenced."""
        kept = [age(checkpoint) for checkpoint in held.checkpoints] if held is not None else []
        lacking = [checkpoint for checkpoint in union.checkpoints if age(checkpoint) not in kept]
        self._copy_checkpoints(replica, lacking, lambda: self._copy_fence(replica, held, union, then))

    def _copy_fence(self, replica: ReplicaId, held: Item | None, union: Item, then: Callable[[], None]) -> None:
        if union.fenced > (held.fenced if held is not None else 0):
            fence = Fence(((union.peer, Incarnation(union.fenced - 1)),), ())
            self._ask(replica, fence, lambda _: then(), self.successor.epoch)
        else:
            then()

    def _copy_checkpoints(self, replica: ReplicaId, lacking: list[Checkpoint], then: Callable[[], None]) -> None:
        if not lacking:
            then()
            return
        checkpoint = lacking.pop(0)
        keepers = self._keepers_of(checkpoint)

        def on_stored(reply: Reply) -> None:
            missing = reply.missing if isinstance(reply, Stored) else ()
            if missing:
                self._copy_chunks(replica, GetChunks(checkpoint.peer, missing), keepers, put)
            else:
                self._copy_checkpoints(replica, lacking, then)

        def put() -> None:
            self._ask(replica, PutCheckpoint(checkpoint, copied=True), on_stored, self.successor.epoch)

        put()

    def _keepers_of(self, checkpoint: Checkpoint) -> tuple[ReplicaId, ...]:
        peer = checkpoint.peer
        keepers = [
            of for of, items in self._listed.items()
            if peer in items and any(age(other) == age(checkpoint) for other in items[peer].checkpoints)
        ]  # fmt: skip
        return tuple(keepers)

    def _copy_chunks(self, replica: ReplicaId, wanted: GetChunks, keepers: tuple[ReplicaId, ...],
                     then: Callable[[], None], fruitless: int = 0) -> None:  # fmt: skip
        """From one keeper after the other: a chunk may be gone there, or damaged. If from none, another seal helps."""

        def on_chunks(reply: Reply) -> None:
            assert isinstance(reply, Chunks), f"{type(reply).__name__} is no answer to a request for chunks"
            good = tuple([chunk for chunk in reply.chunks if digest_of(chunk.body) == chunk.digest])
            if good:
                self.copied_bytes += sum([chunk.body_bytes for chunk in good])
                self._ask(replica, PutChunks(wanted.peer, good), lambda _: then(), self.successor.epoch)
            else:
                self._copy_chunks(replica, wanted, (*keepers[1:], keepers[0]), then, fruitless + 1)

        if fruitless < len(keepers):
            self._ask_any(keepers, wanted, on_chunks, NO_EPOCH)


def _joined(one: Item, other: Item) -> Item:
    """What two replicas have of a peer, apart from where its log ends."""
    by_age = {age(checkpoint): checkpoint for checkpoint in (*one.checkpoints, *other.checkpoints)}
    newest = tuple([by_age[key] for key in sorted(by_age)[-CHECKPOINTS_KEPT:]])
    segments = max(one.segments, other.segments, key=lambda segments: segments[-1][0])
    return one._replace(
        base=max(one.base, other.base), segments=segments, fenced=max(one.fenced, other.fenced), checkpoints=newest
    )


def _surviving_upper(item: Item, segments: Segments) -> Index:
    """Where a log ends once `segments` have dropped what never happened."""
    limit = limit_in(segments, item.last_writer)
    return item.upper if limit is None else min(item.upper, limit)


def _lacks(held: Item | None, union: Item) -> bool:
    """Whether a replica has less of a peer than there is."""
    if held is None:
        return True
    newest, wanted = [[age(checkpoint) for checkpoint in item.checkpoints[-1:]] for item in (held, union)]
    segments = max(held.segments, union.segments, key=lambda segments: segments[-1][0])
    return (
        held.base < union.base
        or held.fenced < union.fenced
        or held.segments[-1][0] < union.segments[-1][0]
        or _surviving_upper(held, segments) < _surviving_upper(union, segments)
        or newest < wanted
    )
