"""What a call costs in the state machines: submit → execute → reply → commit, in batches of 100, on one core.

A driver calls an actor; both are real peers, the store is a real replica. There is no network and no thread: messages
are handed over as they are, so that the figure is the protocol's own. The cost must not grow with the number of calls
made before, so it is taken over the first thousand calls and over the thousands around the millionth.
"""

import gc
import time

from lineage_stash import codec
from lineage_stash.core import effects, events
from lineage_stash.core.batch import Range
from lineage_stash.core.entry import Ran
from lineage_stash.core.history import History
from lineage_stash.core.ids import Incarnation, Index, Member, NodeId, PeerId, Ref, Seqno
from lineage_stash.core.peer import Peer
from lineage_stash.core.policy import Policy
from lineage_stash.store.contract import Append, Found, Held, PutCheckpoint
from lineage_stash.store.replica import Replica

BATCH = 100
PAYLOAD = b"twenty bytes of data"
BAR_MICROSECONDS = 10.0


class Pair:
    """A driver and an actor, joined by hand, with one replica behind them."""

    def __init__(self, *, replayable_driver: bool = False, encoded: bool = False) -> None:
        driver = Member(PeerId("driver"), NodeId("n0"), replayable_driver)
        actor = Member(PeerId("actor"), NodeId("n1"), True)
        every = Policy(checkpoint_every_entries=10_000)
        self.driver = Peer(driver, Incarnation(0), History(), every._replace(checkpoint_every_entries=None))
        self.actor = Peer(actor, Incarnation(0), History(), every)
        self.replica = Replica()
        self.encoded = encoded
        self.calls = 0
        self.carry(self.driver, self.driver.handle(events.MainStarted()))

    def carry(self, peer: Peer, orders: list[effects.Effect]) -> None:
        """Carry out effects until none is left."""
        pending = [(peer, orders)]
        while pending:
            peer, orders = pending.pop()
            for order in orders:
                follow = self._carry_one(peer, order)
                if follow is not None:
                    pending.append(follow)

    def _carry_one(self, peer: Peer, order: effects.Effect) -> tuple[Peer, list[effects.Effect]] | None:
        kind = type(order)
        if kind is effects.RunCall:
            return peer, peer.handle(events.CallFinished(PAYLOAD))
        if kind is effects.SendMessage:
            other = self.actor if peer is self.driver else self.driver
            message = order.message
            if self.encoded:
                message = codec.decode(codec.encode(message))
            return other, other.handle(events.MessageArrived(message))
        if kind is effects.AppendToStore:
            spans = tuple([codec.pack_span(piece) for piece in order.ranges])
            held = self.replica.handle(Append(spans, (), (), order.watch, False))
            assert isinstance(held, Held)
            return peer, peer.handle(events.Appended((held.holdings,), 1))
        if kind is effects.CaptureState:
            return peer, peer.handle(events.StateCaptured(b""))
        if kind is effects.StoreCheckpoint:
            self.replica.handle(PutCheckpoint(order.checkpoint))
            return peer, peer.handle(events.CheckpointStored(order.checkpoint.upper))
        if kind is effects.TruncateStore:
            self.replica.logs[peer.id].truncate(order.below)
        return None

    def run_batch(self) -> None:
        """A hundred calls, all their replies, and the commit of what they left behind."""
        submitted = (events.CallSubmitted(self.actor.id, PAYLOAD),) * BATCH
        self.carry(self.driver, self.driver.handle_all(submitted))
        refs = tuple([Ref(self.actor.id, Seqno(self.calls + number)) for number in range(BATCH)])
        self.carry(self.driver, self.driver.handle(events.GetStarted(refs)))
        self.calls += BATCH
        if self.calls % 1000 == 0:
            self.carry(self.actor, self.actor.handle(events.Ticked()))
            self.carry(self.driver, self.driver.handle(events.Ticked()))
        assert self.driver.program.waiting is None


def cost_microseconds(pair: Pair, calls: int) -> float:
    """Per call, over the next `calls` calls."""
    started = time.perf_counter()
    for _ in range(calls // BATCH):
        pair.run_batch()
    return (time.perf_counter() - started) / calls * 1e6


def measure(*, total: int, encoded: bool) -> tuple[float, float]:
    """The cost around the first thousand calls and around the last of `total`: the best of several looks at each."""
    window, looks = 1000, 20
    early = min(_early(window, encoded) for _ in range(looks))
    pair = Pair(encoded=encoded)
    cost_microseconds(pair, total - window * looks)
    late = min(cost_microseconds(pair, window) for _ in range(looks))
    return early, late


def _early(window: int, encoded: bool) -> float:
    pair = Pair(encoded=encoded)
    cost_microseconds(pair, window)
    return cost_microseconds(pair, window)


def entry_bytes(entries: int, *, needs_grow: bool) -> float:
    """What one entry costs on the wire in a run of calls from one caller, everything around it included."""
    caller = PeerId("caller")
    ran = tuple(
        Ran(caller, Seqno(number), None, number * 2654435761 & 0xFFFFFFFF, needs)
        for number in range(entries)
        for needs in [((caller, Index(number + 1)),) if needs_grow else ()]
    )
    span = codec.pack_span(Range(PeerId("callee"), Incarnation(0), Index(0), ran))
    return len(codec.encode(Found((span,), ()))) / entries


def main(total: int = 1_000_000) -> None:
    """Print the figures beside their bars."""
    gc.collect()
    gc.freeze()
    for name, encoded in (("state machines", False), ("with encoding and decoding", True)):
        early, late = measure(total=total, encoded=encoded)
        print(
            f"{name:28} {early:6.2f} µs per call at 10^3 calls, {late:6.2f} µs at {total:.0e} calls, "
            f"ratio {late / early:.2f} (best of 20 windows; bars: {BAR_MICROSECONDS:.0f} µs, 1.10)"
        )
    for name, needs_grow in (("caller without entries", False), ("caller with an entry each", True)):
        print(f"entry on the wire, {name:26} {entry_bytes(1000, needs_grow=needs_grow):5.1f} bytes (bar: 16)")


if __name__ == "__main__":
    main()
