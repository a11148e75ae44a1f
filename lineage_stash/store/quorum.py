"""The quorum client: one request to all replicas, done when a majority has answered well. No I/O of its own.

Rules:
- A request is repeated to whoever has not answered, until it is done; requests are idempotent.
- An answer with a gap does not count: what is missing below the appended range is read from the other replicas and
  copied over, and the request is tried again there. So a replica that was away catches up from the others. Nothing from
  the range's lower end on is copied: that may be a dead incarnation's, and is the writer's to append.
- A reader that merges a majority's answers sees every committed range, because any two majorities share a replica.
"""

from collections.abc import Callable
from typing import NamedTuple

from lineage_stash.core.batch import Range
from lineage_stash.core.history import History
from lineage_stash.core.ids import Incarnation, Index, PeerId
from lineage_stash.store.contract import Append, Found, Held, Read, Reply, Request

Frame = bytes | tuple[bytes, ...]
Send = Callable[[int, int, Frame], None]
"""Send an encoded request, by its number, to a replica."""


class Pending(NamedTuple):
    """A request under way, the answers so far, and what to do with them."""

    request: Request
    frame: Frame
    answers: dict[int, Reply]
    done: Callable[[tuple[Reply, ...]], None]


class Repair(NamedTuple):
    """What one replica lacks of one log, `[lower, upper)`, for a request that it should take."""

    replica: int
    peer: PeerId
    lower: Index
    upper: Index
    settling: bool
    ticks: int


REPAIR_TICKS = 8
"""Ticks until an unanswered repair is given up; the request that needed it is repeated and begins another."""


class Quorum:
    """Requests under way to `replicas` replicas."""

    def __init__(self, replicas: int, history: History, encode: Callable[[Request], Frame], send: Send) -> None:
        self.replicas = replicas
        self.majority = replicas // 2 + 1
        self.history = history
        self._encode = encode
        self._send = send
        self._next = 0
        self._pending: dict[int, Pending] = {}
        self._repairs: dict[int, Repair] = {}
        self._lagging: dict[tuple[int, PeerId], Index] = {}
        self._ticks = 0

    def request(self, request: Request, done: Callable[[tuple[Reply, ...]], None]) -> None:
        """Ask all replicas; `done` gets the answers of a majority, once."""
        number = self._number()
        frame = self._encode(request)
        self._pending[number] = Pending(request, frame, {}, done)
        for replica in range(self.replicas):
            self._send(replica, number, frame)

    def tell(self, request: Request) -> None:
        """Ask all replicas once and do not wait: for requests that a later one will make good."""
        number = self._number()
        frame = self._encode(request)
        for replica in range(self.replicas):
            self._send(replica, number, frame)

    def on_reply(self, replica: int, number: int, reply: Reply) -> None:
        """Take in one answer."""
        if number in self._repairs and isinstance(reply, Found):
            self._copy(number, replica, reply)
            return
        pending = self._pending.get(number)
        if pending is None:
            return
        if isinstance(reply, Held) and reply.gaps:
            self._repair(replica, reply, pending.request)
            return
        pending.answers[replica] = reply
        if len(pending.answers) >= self.majority:
            del self._pending[number]
            self._repair_laggards(pending.answers)
            pending.done(tuple(pending.answers.values()))

    def on_ticked(self) -> None:
        """Ask again whoever has not answered."""
        self._ticks += 1
        for number, repair in list(self._repairs.items()):
            if self._ticks - repair.ticks > REPAIR_TICKS:
                del self._repairs[number]
        for number, pending in list(self._pending.items()):
            for replica in range(self.replicas):
                if replica not in pending.answers:
                    self._send(replica, number, pending.frame)

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _repair(self, replica: int, held: Held, request: Request) -> None:
        """Read from the others what `replica` lacks, unless that is under way."""
        assert isinstance(request, Append)
        for peer, lower in held.gaps:
            upper = min(piece.lower for piece in request.ranges if piece.peer == peer)
            self._begin(Repair(replica, peer, lower, upper, request.settling, self._ticks))

    def _repair_laggards(self, answers: dict[int, Reply]) -> None:
        """Bring a replica up that twice in a row held less of a log than another: the rest may be gone for good."""
        newest: dict[PeerId, tuple[Incarnation, Index]] = {}
        holdings = [(replica, *held) for replica, reply in answers.items() if isinstance(reply, Held)
                    for held in reply.holdings]  # fmt: skip
        for _, peer, incarnation, upper in holdings:
            newest[peer] = max(newest.get(peer, (incarnation, upper)), (incarnation, upper))
        for replica, peer, incarnation, upper in holdings:
            behind = (incarnation, upper) < newest[peer]
            if behind and self._lagging.get((replica, peer)) == upper:
                self._begin(Repair(replica, peer, upper, newest[peer][1], False, self._ticks))
            if behind:
                self._lagging[(replica, peer)] = upper
            else:
                self._lagging.pop((replica, peer), None)

    def _begin(self, repair: Repair) -> None:
        if any((repair.replica, repair.peer) == (other.replica, other.peer) for other in self._repairs.values()):
            return
        number = self._number()
        self._repairs[number] = repair
        frame = self._encode(Read(repair.peer, repair.lower))
        for other in range(self.replicas):
            if other != repair.replica:
                self._send(other, number, frame)

    def _copy(self, number: int, source: int, found: Found) -> None:
        """Give a lagging replica what another one has."""
        repair = self._repairs[number]
        if repair.replica == source:
            return
        ranges = tuple(_below(piece, repair.upper) for piece in found.ranges if piece.lower < repair.upper)
        bases = tuple((peer, base) for peer, base in found.bases if base > repair.lower)
        if ranges or bases:
            del self._repairs[number]
            segments = ((repair.peer, self.history.segments(repair.peer)),)
            append = Append(ranges, segments, bases, (), repair.settling)
            self._send(repair.replica, self._number(), self._encode(append))


def _below(piece: Range, upper: Index) -> Range:
    return piece._replace(entries=piece.entries[: upper - piece.lower])
