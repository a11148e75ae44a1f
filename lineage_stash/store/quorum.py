"""The quorum client: one request to all replicas, done when a majority has answered well. No I/O of its own.

Rules:
- A request is repeated to whoever has not answered, until it is done; requests are idempotent.
- An answer with a gap does not count: what is missing below the appended span is read from the other replicas and
  copied over, and the request is tried again there. So a replica that was away catches up from the others. Nothing from
  the span's lower end on is copied: that may be a dead incarnation's, and is the writer's to append.
- A checkpoint whose chunks a replica lacks is taken there after these were brought, from here or from the others.
- A reader that merges a majority's answers sees every committed span, because any two majorities share a replica.
- A replica that has come to another epoch makes this client look up the newest replica set; then every request begins
  anew there. Answers of two epochs are never counted together.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from lineage_stash.core.history import History
from lineage_stash.core.ids import Incarnation, Index, PeerId
from lineage_stash.store.chunks import digest_of
from lineage_stash.store.contract import (
    Append,
    Chunks,
    Elsewhere,
    Found,
    GetChunks,
    Held,
    Level,
    PutCheckpoint,
    Read,
    ReplicaId,
    ReplicaSet,
    Reply,
    Request,
    Span,
    Stored,
    Ticket,
    Truncate,
)
from lineage_stash.store.supply import Supply, page_of

Frame = bytes | tuple[bytes, ...]
Send = Callable[[ReplicaId, Ticket, Frame], None]
"""Send an encoded request to a replica; the answer, if any, comes back with the ticket's number."""


class Pending(NamedTuple):
    """A request under way, the answers so far, and what to do with them."""

    request: Request
    frame: Frame
    level: Level
    answers: dict[ReplicaId, Reply]
    done: Callable[[tuple[Reply, ...]], None]


class Repair(NamedTuple):
    """What one replica lacks of one log, `[lower, upper)`, for a request that it should take."""

    replica: ReplicaId
    peer: PeerId
    lower: Index
    upper: Index
    settling: bool
    ticks: int


class Single(NamedTuple):
    """A request that any one replica may answer."""

    frame: Frame
    ticks: int
    done: Callable[[Reply], None]


SINGLE_TICKS = 10
"""Ticks until the next replica is asked as well."""

REPAIR_TICKS = 8
"""Ticks until an unanswered repair is given up; the request that needed it is repeated and begins another."""

SUPPLY_TICKS = 200
"""Ticks until chunks that were sent and not confirmed are given up; a page of them may take long."""

SILENT_TICKS = 20
"""Ticks without a majority after which the replica set may have changed without anyone left to say so."""


class Quorum:
    """Requests under way to the replicas of one set."""

    def __init__(self, replica_set: ReplicaSet, history: History, encode: Callable[[Request], Frame], send: Send,
                 look_up: Callable[[], None] = lambda: None) -> None:  # fmt: skip
        self.set = replica_set
        self.history = history
        self.chunks: Mapping[bytes, bytes | memoryview] = {}
        """What the checkpoint under way refers to, by digest; whoever takes or restores one puts it here."""
        self.is_turned_away = False
        """Whether a replica has said that this epoch is over; if no next one comes, somebody has to make it."""
        self.sent_bytes = 0
        """Of checkpoints and their chunks, to all replicas."""
        self._encode = encode
        self._send = send
        self._look_up = look_up
        self._next = 0
        self._pending: dict[int, Pending] = {}
        self._repairs: dict[int, Repair] = {}
        self._supplies: dict[int, Supply] = {}
        self._lagging: dict[tuple[ReplicaId, PeerId], Index] = {}
        self._singles: dict[int, Single] = {}
        self._turn = 0
        self._ticks = 0
        self._answered_at = 0
        self._looked_up_at = -SILENT_TICKS

    @property
    def majority(self) -> int:
        """How many make a quorum."""
        return self.set.majority

    def request(self, request: Request, done: Callable[[tuple[Reply, ...]], None], level: Level = Level.DISK) -> None:
        """Ask all replicas; `done` gets the answers of a majority, once."""
        self._note_begin()
        if isinstance(request, PutCheckpoint):
            self.sent_bytes += len(request.checkpoint.state) * len(self.set.everyone)
        self._begin(Pending(request, self._encode(request), level, {}, done))

    def _note_begin(self) -> None:
        if not self._pending and not self._singles:
            self._answered_at = self._ticks

    def _begin(self, pending: Pending) -> None:
        number = self._number()
        self._pending[number] = pending
        for replica in self.set.everyone:
            self._ask(replica, number, pending.frame, pending.level)

    def truncate(self, request: Truncate, level: Level) -> None:
        """Tell all replicas once and do not wait: a later one will make it good.

        The archive only where the checkpoint is known to be in it; it may lack one that was stored at a lower level.
        """
        number = self._number()
        frame = self._encode(request)
        for replica in self.set.everyone if level is Level.REMOTE else self.set.replicas:
            self._ask(replica, number, frame)

    def ask_one(self, request: Request, done: Callable[[Reply], None]) -> None:
        """Ask one replica after the other until one has answered; `done` gets whatever it says."""
        self._note_begin()
        number = self._number()
        self._singles[number] = Single(self._encode(request), self._ticks, done)
        self._ask_next(number)

    def _ask_next(self, number: int) -> None:
        replicas = self.set.replicas
        self._turn += 1
        self._ask(replicas[self._turn % len(replicas)], number, self._singles[number].frame)

    def _ask(self, replica: ReplicaId, number: int, frame: Frame, level: Level = Level.DISK) -> None:
        self._send(replica, Ticket(number, self.set.epoch, level), frame)

    # in

    def on_reply(self, replica: ReplicaId, number: int, reply: Reply) -> None:
        """Take in one answer."""
        if isinstance(reply, Elsewhere):
            self.is_turned_away = self.is_turned_away or reply.epoch >= self.set.epoch
            self._find_set()
        elif number in self._repairs and isinstance(reply, Found):
            self._copy(number, replica, reply)
        elif number in self._supplies:
            self._on_supply(number, replica, reply)
        elif number in self._singles:
            self._answered_at = self._ticks
            self._singles.pop(number).done(reply)
        elif number in self._pending:
            self._on_answer(number, replica, reply)

    def _on_answer(self, number: int, replica: ReplicaId, reply: Reply) -> None:
        pending = self._pending[number]
        if isinstance(reply, Held) and reply.gaps:
            self._repair(replica, reply, pending.request)
            return
        if isinstance(reply, Stored) and reply.missing:
            self._supply(replica, number, pending.request, reply.missing)
            return
        pending.answers[replica] = reply
        if self._is_done(pending):
            self._answered_at = self._ticks
            del self._pending[number]
            answers = {of: answer for of, answer in pending.answers.items() if of != self.set.archive}
            self._repair_laggards(answers)
            pending.done(tuple(answers.values()))

    def _is_done(self, pending: Pending) -> bool:
        answered = len([replica for replica in pending.answers if replica != self.set.archive])
        archived = pending.level < Level.REMOTE or self.set.archive is None or self.set.archive in pending.answers
        return answered >= self.set.majority and archived

    def on_ticked(self) -> None:
        """Ask again whoever has not answered."""
        self._ticks += 1
        for number, repair in list(self._repairs.items()):
            if self._ticks - repair.ticks > REPAIR_TICKS:
                del self._repairs[number]
        for number, supply in list(self._supplies.items()):
            if self._ticks - supply.ticks > SUPPLY_TICKS:
                del self._supplies[number]
        for number, pending in list(self._pending.items()):
            for replica in self.set.everyone:
                if replica not in pending.answers:
                    self._ask(replica, number, pending.frame, pending.level)
        for number, single in self._singles.items():
            if (self._ticks - single.ticks) % SINGLE_TICKS == 0:
                self._ask_next(number)
        if (self._pending or self._singles) and self._ticks - self._answered_at > SILENT_TICKS:
            self._find_set()

    # epochs

    def _find_set(self) -> None:
        """Look for the newest set, at most once per tick."""
        if self._ticks > self._looked_up_at:
            self._looked_up_at = self._ticks
            self._look_up()

    def on_set(self, replica_set: ReplicaSet) -> None:
        """Another set is the store now: everything under way begins anew there."""
        if replica_set.epoch <= self.set.epoch:
            return
        self.set = replica_set
        self.is_turned_away = False
        self._repairs.clear()
        self._supplies.clear()
        self._lagging.clear()
        for number in self._singles:
            self._ask_next(number)
        under_way = list(self._pending.values())
        self._pending.clear()
        for pending in under_way:
            self._begin(pending._replace(answers={}))

    def _number(self) -> int:
        self._next += 1
        return self._next

    # repairs

    def _repair(self, replica: ReplicaId, held: Held, request: Request) -> None:
        """Read from the others what `replica` lacks, unless that is under way."""
        assert isinstance(request, Append)
        for peer, lower in held.gaps:
            upper = min(span.lower for span in request.spans if span.peer == peer)
            self._begin_repair(Repair(replica, peer, lower, upper, request.settling, self._ticks))

    def _repair_laggards(self, answers: dict[ReplicaId, Reply]) -> None:
        """Bring a replica up that twice in a row held less of a log than another: the rest may be gone for good."""
        newest: dict[PeerId, tuple[Incarnation, Index]] = {}
        holdings = [(replica, *held) for replica, reply in answers.items() if isinstance(reply, Held)
                    for held in reply.holdings]  # fmt: skip
        for _, peer, incarnation, upper in holdings:
            newest[peer] = max(newest.get(peer, (incarnation, upper)), (incarnation, upper))
        for replica, peer, incarnation, upper in holdings:
            behind = (incarnation, upper) < newest[peer]
            if behind and self._lagging.get((replica, peer)) == upper:
                self._begin_repair(Repair(replica, peer, upper, newest[peer][1], False, self._ticks))
            if behind:
                self._lagging[(replica, peer)] = upper
            else:
                self._lagging.pop((replica, peer), None)

    def _begin_repair(self, repair: Repair) -> None:
        if any((repair.replica, repair.peer) == (other.replica, other.peer) for other in self._repairs.values()):
            return
        number = self._number()
        self._repairs[number] = repair
        frame = self._encode(Read(repair.peer, repair.lower))
        for other in self.set.replicas:
            if other != repair.replica:
                self._ask(other, number, frame)

    def _copy(self, number: int, source: ReplicaId, found: Found) -> None:
        """Give a lagging replica what another one has."""
        repair = self._repairs[number]
        if repair.replica == source:
            return
        spans = tuple([_below(span, repair.upper) for span in found.spans if span.lower < repair.upper])
        bases = tuple([(peer, base) for peer, base in found.bases if base > repair.lower])
        if spans or bases:
            del self._repairs[number]
            segments = ((repair.peer, self.history.segments(repair.peer)),)
            append = Append(spans, segments, bases, (), repair.settling)
            self._ask(repair.replica, self._number(), self._encode(append))

    # chunks

    def _supply(self, replica: ReplicaId, asked: int, request: Request, missing: tuple[bytes, ...]) -> None:
        """Bring a replica the chunks that it lacks, unless that is under way."""
        assert isinstance(request, PutCheckpoint)
        if all((replica, asked) != (supply.replica, supply.asked) for supply in self._supplies.values()):
            peer = request.checkpoint.peer
            self._send_page(Supply(replica, asked, peer, missing, fetching=False, ticks=self._ticks))

    def _send_page(self, supply: Supply) -> None:
        """Send as many chunks as fit into a page, or fetch those that are not here from the others."""
        number = self._number()
        request, left = page_of(supply, self.chunks)
        if request is not None:
            self._supplies[number] = supply._replace(missing=left, ticks=self._ticks)
            frame = self._encode(request)
            self.sent_bytes += sum([chunk.body_bytes for chunk in request.chunks])
            self._ask(supply.replica, number, frame)
            return
        self._supplies[number] = supply._replace(fetching=True, ticks=self._ticks)
        frame = self._encode(GetChunks(supply.peer, supply.missing))
        for other in self.set.replicas:
            if other != supply.replica:
                self._ask(other, number, frame)

    def _on_supply(self, number: int, replica: ReplicaId, reply: Reply) -> None:
        supply = self._supplies[number]
        if supply.fetching:
            brought = reply.chunks if isinstance(reply, Chunks) and replica != supply.replica else ()
            found = {chunk.digest: chunk.body for chunk in brought if digest_of(chunk.body) == chunk.digest}
            if found:
                del self._supplies[number]
                request, left = page_of(supply, found)
                assert request is not None, "a chunk was found that was not asked for"
                following = self._number()
                self._supplies[following] = supply._replace(missing=left, fetching=False, ticks=self._ticks)
                self._ask(supply.replica, following, self._encode(request))
        elif replica == supply.replica:
            del self._supplies[number]
            if supply.missing:
                self._send_page(supply)
            elif (pending := self._pending.get(supply.asked)) is not None:
                self._ask(replica, supply.asked, pending.frame, pending.level)


def _below(span: Span, upper: Index) -> Span:
    return span if span.upper <= upper else span._replace(upper=upper)
