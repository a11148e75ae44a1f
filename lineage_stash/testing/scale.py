"""Scale on paper: what a ring of many nodes would cost, from the real machines of the protocol and few constants.

A token goes around a ring of actors, one per node. Up to `MOST_SIMULATED` nodes, real `Peer` machines pass it on in
virtual time, with a real replica behind them: how many entries and bytes travel with each message is the protocol's
own doing. A message costs its receiver a fixed time and a time for each entry in it; the store answers after a time.

Beyond that size nothing is simulated: entries and bytes per message are extended by the parabola through three rings
that were (every entry names what it depends on, so that bytes grow by the square where entries grow). Such predictions
say of themselves that they are extended. What is left out:
switches that fill up, stragglers, more than one token, and machines that share cores.
"""

from functools import cache
from heapq import heappop, heappush
from itertools import count
from statistics import median
from typing import NamedTuple

from lineage_stash import codec
from lineage_stash.core import effects, events
from lineage_stash.core.batch import Range
from lineage_stash.core.channel import Message
from lineage_stash.core.history import History
from lineage_stash.core.ids import Incarnation, Member, NodeId, PeerId
from lineage_stash.core.peer import Peer
from lineage_stash.core.policy import Policy
from lineage_stash.store.contract import Append, Held
from lineage_stash.store.replica import Replica

MOST_SIMULATED = 96
EXTENDED_FROM = (24, 48, 96)
"""The rings that larger ones are extended from."""
TOKEN = b"token"


class Constants(NamedTuple):
    """What one machine costs, in ms."""

    hop_ms: float
    """From one call to the next with no lineage in the message: the call, the wire, and the wake-up."""
    entry_ms: float
    """For each entry that a message carries."""
    store_ms: float
    """From a flush to its commit."""
    restart_ms: float = 0.0
    """Detection and the new process, whatever the size."""
    gather_ms: float = 0.0
    """For each live peer that a round asks."""


class Traffic(NamedTuple):
    """What messages carried once the ring had warmed up."""

    entries: float
    """Per hop."""
    forwarded_bytes: float
    """Per hop, everything in the message included."""
    hop_ms: float
    """The median from one call to the next."""


class Prediction(NamedTuple):
    """One size of ring under one way of logging."""

    nodes: int
    logging: str
    hop_ms: float
    entries: float
    forwarded_bytes: float
    recovery_ms: float
    is_extended: bool
    """Whether entries and bytes were extended from smaller rings and not simulated."""


class Ring:
    """Real peers in a ring, one replica, and a clock that only goes on when something is due."""

    def __init__(self, nodes: int, constants: Constants, *, max_failures: int | None, reads: bool) -> None:
        policy = Policy(max_failures=max_failures, checkpoint_every_entries=None)
        names = [PeerId(f"hop-{number}") for number in range(nodes)]
        members = [Member(name, NodeId(f"n{number}"), True) for number, name in enumerate(names)]
        driver = Member(PeerId("driver"), NodeId("n-driver"), False)
        self.peers = {member.peer: Peer(member, Incarnation(0), History(), policy) for member in (*members, driver)}
        self.after = dict(zip(names, [*names[1:], names[0]], strict=True))
        self.constants, self.reads = constants, reads
        self.replica = Replica()
        self.now_ms = 0.0
        self.free_at: dict[PeerId, float] = {}
        self.hops_ms: list[float] = []
        self.carried: list[tuple[int, int]] = []
        self._queue: list[tuple[float, int, PeerId, object]] = []
        self._order = count()
        self._feed(driver.peer, events.MainStarted())
        self._feed(driver.peer, events.CallSubmitted(names[0], TOKEN, wanted=False))

    def run(self, hops: int) -> None:
        """Until the token has been handed on so often."""
        while len(self.hops_ms) < hops:
            self.now_ms, _, name, event = heappop(self._queue)
            free_at = self.free_at.get(name, 0.0)
            if free_at > self.now_ms:
                self._at(free_at, name, event)
                continue
            if isinstance(event, events.MessageArrived):
                self.now_ms += self._cost_ms(event.message)
                self.free_at[name] = self.now_ms
            self._feed(name, event)

    def _cost_ms(self, message: Message) -> float:
        """What a message takes of its receiver beyond the fixed cost of a call, which is on the wire here."""
        return entries_in(message) * self.constants.entry_ms

    def _at(self, when_ms: float, name: PeerId, event: object) -> None:
        heappush(self._queue, (when_ms, next(self._order), name, event))

    def _feed(self, name: PeerId, event: object) -> None:
        for effect in self.peers[name].handle(event):
            match effect:
                case effects.SendMessage(message):
                    self._send(message)
                case effects.RunCall():
                    self._hand_on(name)
                case effects.TakeReading():
                    self._feed(name, events.ReadingTaken(b"12345678"))
                case effects.AppendToStore(ranges, watch):
                    self._append(name, ranges, watch)
                case _:
                    pass

    def _send(self, message: Message) -> None:
        if message.calls and message.sender in self.after:
            self.carried.append((entries_in(message), len(codec.encode(message))))
        self._at(self.now_ms + self.constants.hop_ms, message.receiver, events.MessageArrived(message))

    def _hand_on(self, name: PeerId) -> None:
        self.hops_ms.append(self.now_ms)
        if self.reads:
            self._feed(name, events.ReadStarted("clock"))
        self._feed(name, events.CallSubmitted(self.after[name], TOKEN, wanted=False))
        self._feed(name, events.CallFinished(b""))

    def _append(self, name: PeerId, ranges: tuple[Range, ...], watch: tuple[PeerId, ...]) -> None:
        spans = tuple([codec.pack_span(piece) for piece in ranges])
        held = self.replica.handle(Append(spans, (), (), watch, False))
        assert isinstance(held, Held)
        self._at(self.now_ms + self.constants.store_ms, name, events.Appended((held.holdings,), 1))


def entries_in(message: Message) -> int:
    """How many entries of lineage a message carries."""
    return sum(len(piece.entries) for piece in message.batch.ranges)


@cache
def simulate_ring(nodes: int, constants: Constants, *, max_failures: int | None = None, reads: bool = False,
                  laps: int = 4) -> Traffic:  # fmt: skip
    """Entries, bytes and time per hop after the first laps."""
    ring = Ring(nodes, constants, max_failures=max_failures, reads=reads)
    ring.run(nodes * laps)
    from_hop = nodes * (laps - 1)
    carried = ring.carried[from_hop:] or ring.carried[-1:]
    gaps = [
        after - before for before, after in zip(ring.hops_ms[from_hop:], ring.hops_ms[from_hop + 1 :], strict=False)
    ]
    return Traffic(
        sum(entries for entries, _ in carried) / len(carried),
        sum(size for _, size in carried) / len(carried),
        median(gaps),
    )


def predict_asynchronous(nodes: int, constants: Constants, *, max_failures: int | None, reads: bool,
                         laps: int = 4) -> Prediction:  # fmt: skip
    """Lineage that travels with messages: simulated, or extended from what was simulated."""
    how = f"asynchronous, f = {'∞' if max_failures is None else max_failures}{', reads' if reads else ''}"

    def traffic(size: int) -> Traffic:
        return simulate_ring(size, constants, max_failures=max_failures, reads=reads, laps=laps)

    if nodes <= MOST_SIMULATED:
        found, is_extended = traffic(nodes), False
    else:
        known = [traffic(each) for each in EXTENDED_FROM]
        entries = extended([each.entries for each in known], nodes)
        size = extended([each.forwarded_bytes for each in known], nodes)
        found, is_extended = Traffic(entries, size, constants.hop_ms + entries * constants.entry_ms), True
    recovery = constants.restart_ms + nodes * constants.gather_ms + 3 * constants.store_ms
    return Prediction(nodes, how, found.hop_ms, found.entries, found.forwarded_bytes, recovery, is_extended)


def extended(values: list[float], size: int) -> float:
    """A value at a larger size: on the parabola through the values at the sizes of `EXTENDED_FROM`."""
    total = 0.0
    for at, value in zip(EXTENDED_FROM, values, strict=True):
        weight = 1.0
        for other in EXTENDED_FROM:
            weight *= 1.0 if other == at else (size - other) / (at - other)
        total += weight * value
    return total


def predict_synchronous(nodes: int, constants: Constants, *, reads: bool) -> Prediction:
    """Lineage that is committed first: a hop waits once for the call, and once more for what it reads."""
    waits = 2 if reads else 1
    how = f"synchronous{', reads' if reads else ''}"
    recovery = constants.restart_ms + 3 * constants.store_ms
    return Prediction(nodes, how, constants.hop_ms + waits * constants.store_ms, 0.0, 0.0, recovery, False)


SIZES = (10, 32, 100, 320, 1000, 3200, 10_000)
BOUNDS: tuple[int | None, ...] = (1, 2, 8, None)


def predict(constants: Constants, sizes: tuple[int, ...] = SIZES) -> list[Prediction]:
    """Every way of logging at every size."""
    found = []
    for nodes in sizes:
        for reads in (False, True):
            found += [predict_asynchronous(nodes, constants, max_failures=bound, reads=reads) for bound in BOUNDS]
            found.append(predict_synchronous(nodes, constants, reads=reads))
    return found
