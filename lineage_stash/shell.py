"""The shell: feeds events to a machine and carries out its effects on ports. The same code in simulation and on Ray.

It decides nothing. It owns the quorum client, encodes and decodes, and turns answers of ports back into events.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, get_args

from lineage_stash import codec
from lineage_stash.core import effects, events
from lineage_stash.core.batch import Range
from lineage_stash.core.channel import Message
from lineage_stash.core.checkpoint import age
from lineage_stash.core.history import History, Segments
from lineage_stash.core.ids import Incarnation, Member, PeerId
from lineage_stash.core.peer import Peer
from lineage_stash.core.recovery import Coordinator
from lineage_stash.ports import Executor, Membership, Outside, Transport
from lineage_stash.store import contract
from lineage_stash.store.quorum import Quorum


def address_of(peer: PeerId, incarnation: Incarnation) -> str:
    """Where an incarnation of a peer is reached."""
    return f"{peer}@{incarnation}"


def open_store(replica_set: contract.ReplicaSet, history: History, transport: Transport,
               membership: Membership) -> Quorum:  # fmt: skip
    """A quorum client over a transport, which learns from the registry who the replicas are."""

    def look_up() -> None:
        membership.fetch_set(store.set.epoch, store.on_set)

    store = Quorum(replica_set, history, codec.encode_in_pieces, transport.ask_replica, look_up)
    return store


class Shell:
    """One machine, a peer or a coordinator, joined to the ports of one process."""

    def __init__(self, machine: Peer | Coordinator, *, transport: Transport, membership: Membership, outside: Outside,
                 executor: Executor | None, store: Quorum) -> None:  # fmt: skip
        self.machine = machine
        self.handle: Callable[[object], list[effects.Effect]] = machine.handle
        self.transport = transport
        self.membership = membership
        self.outside = outside
        self.executor = executor
        self.store = store
        self.level = contract.Level.DISK
        self.flushed_entries = 0
        self.flushed_bytes = 0
        """What has left for the store, of one copy, for whoever watches."""
        self._queue: deque[object] = deque()
        self._busy = False
        self.stopped = False
        self._carriers: dict[type, Callable[[Any], None]] = {
            effects.SendMessage: self._send_message,
            effects.AppendToStore: self._append,
            effects.StoreCheckpoint: self._store_checkpoint,
            effects.TruncateStore: self._truncate,
            effects.TakeReading: self._take_reading,
            effects.ReleaseOutput: self._release,
            effects.FindRecord: self._find_record,
            effects.FetchDecisions: self._fetch_decisions,
            effects.ReportSuspicion: self._report_suspicion,
            effects.SendAnswer: lambda e: self.transport.send(e.coordinator, codec.encode_in_pieces(e.answer)),
            effects.SendDecision: lambda e: self.transport.send(
                e.coordinator, codec.encode(events.Decided(e.decision))
            ),
            effects.ReportFault: lambda e: self.outside.report(e.kind, e.text),
            effects.Retire: self._retire,
            effects.Stop: self._stop,
            effects.OpenRound: self._open_round,
            effects.AskGather: self._ask_gather,
            effects.FenceStore: self._fence,
            effects.StoreSettlement: self._settle,
            effects.Publish: lambda e: self.membership.publish(e.decision, self._on_published),
            effects.Announce: self._announce,
            effects.StartIncarnation: lambda e: self.membership.start_incarnation(*e),
        }
        if executor is not None:
            self._carriers.update(dict.fromkeys(get_args(effects.ProgramEffect), executor.carry_out))

    # in

    def feed(self, event: object) -> None:
        """Give the machine one event, and carry out whatever follows, in order."""
        self._queue.append(event)
        if self._busy or self.stopped:
            return
        self._busy = True
        try:
            while self._queue:
                for effect in self.handle(self._queue.popleft()):
                    self._carriers[type(effect)](effect)
                    if self._has_stopped():
                        return
        finally:
            self._busy = False

    def _has_stopped(self) -> bool:
        return self.stopped

    def on_frame(self, frame: bytes) -> None:
        """A frame has come over the transport."""
        thing = codec.decode(frame)
        self.feed(events.MessageArrived(thing) if type(thing) is Message else thing)

    def on_replica_answer(self, replica: int, number: int, frame: bytes) -> None:
        """A replica has answered."""
        self.store.on_reply(replica, number, codec.decode(frame))

    def tick(self) -> None:
        """Some time has passed."""
        self.store.on_ticked()
        self.feed(events.Ticked())

    # out: to peers

    def _send_message(self, effect: effects.SendMessage) -> None:
        message = effect.message
        address = address_of(message.receiver, message.receiver_incarnation)
        self.transport.send(address, codec.encode_in_pieces(message))

    def _report_suspicion(self, effect: effects.ReportSuspicion) -> None:
        coordinator = self.membership.coordinator
        if coordinator is not None:
            self.transport.send(coordinator, codec.encode(events.Suspected(effect.peer, effect.incarnation)))

    def _ask_gather(self, effect: effects.AskGather) -> None:
        asked = events.GatherAsked(effect.round, effect.dead, self._coordinator.token)
        self.transport.send(address_of(effect.peer, effect.incarnation), codec.encode(asked))

    def _announce(self, effect: effects.Announce) -> None:
        frame = codec.encode(events.Decided(effect.decision))
        self.transport.send(address_of(effect.peer, effect.incarnation), frame)

    @property
    def _peer(self) -> Peer:
        assert isinstance(self.machine, Peer)
        return self.machine

    @property
    def _coordinator(self) -> Coordinator:
        assert isinstance(self.machine, Coordinator)
        return self.machine

    # out: to the store

    def _segments_of(self, ranges: tuple[Range, ...]) -> tuple[tuple[PeerId, Segments], ...]:
        """What history says of the logs that are written to."""
        peers = dict.fromkeys(piece.peer for piece in ranges)
        return tuple((peer, self.machine.history.segments(peer)) for peer in peers)

    def _append(self, effect: effects.AppendToStore) -> None:
        asker = (self._peer.id, self._peer.incarnation)
        spans = tuple([codec.pack_span(piece) for piece in effect.ranges])
        for piece, span in zip(effect.ranges, spans, strict=True):
            self.flushed_entries += len(piece.entries)
            self.flushed_bytes += span.body_bytes
        request = contract.Append(spans, self._segments_of(effect.ranges), (), effect.watch, False, asker)
        self.store.request(request, self._on_appended, self.level)

    def _on_appended(self, replies: tuple[Any, ...]) -> None:
        if any(self._peer.id in reply.refused for reply in replies):
            self.feed(events.StoreRefused())
        else:
            self.feed(events.Appended(tuple(reply.holdings for reply in replies), self.store.majority))

    def _store_checkpoint(self, effect: effects.StoreCheckpoint) -> None:
        def on_stored(replies: tuple[Any, ...]) -> None:
            self.store.chunks = {}
            stored = all(reply.stored for reply in replies)
            self.feed(events.CheckpointStored(effect.checkpoint.upper) if stored else events.StoreRefused())

        self.store.request(contract.PutCheckpoint(effect.checkpoint), on_stored, self.level)

    def _truncate(self, effect: effects.TruncateStore) -> None:
        segments = self._peer.history.segments(self._peer.id)
        self.store.truncate(contract.Truncate(self._peer.id, segments, effect.below), self.level)

    def _fence(self, effect: effects.FenceStore) -> None:
        def on_fenced(replies: tuple[Any, ...]) -> None:
            ranges = codec.unpack_spans([span for reply in replies for span in reply.spans])
            bases = tuple(base for reply in replies for base in reply.bases)
            self.feed(events.StoreFenced(effect.attempt, ranges, bases))

        self.store.request(contract.Fence(effect.dead, effect.lowers), on_fenced)

    def _settle(self, effect: effects.StoreSettlement) -> None:
        spans = tuple([codec.pack_span(piece) for piece in effect.ranges])
        request = contract.Append(spans, self._segments_of(effect.ranges), (), (), True)
        self.store.request(request, lambda _: self.feed(events.SettlementStored(effect.attempt)))

    # out: to the registry

    def look_up_departure(self, peer: PeerId) -> None:
        """See whether a peer that has fallen silent has left for good."""
        self._find_record(effects.FindRecord(peer))

    def _find_record(self, effect: effects.FindRecord) -> None:
        def on_loaded(replies: tuple[Any, ...]) -> None:
            records = [reply.checkpoint for reply in replies if reply.checkpoint and reply.checkpoint.final]
            if records:
                self.feed(events.RecordLoaded(max(records, key=age)))

        def on_known(retired: bool) -> None:
            if retired:
                self.feed(events.Departed(effect.peer))
                self.store.request(contract.GetCheckpoint(effect.peer), on_loaded)

        self.membership.has_retired(effect.peer, on_known)

    def _fetch_decisions(self, effect: effects.FetchDecisions) -> None:
        def on_fetched(decisions: tuple[Any, ...]) -> None:
            for decision in decisions:
                self.feed(events.Decided(decision))

        self.membership.fetch_decisions(effect.round, on_fetched)

    def _open_round(self, effect: effects.OpenRound) -> None:
        def on_members(members: tuple[Member, ...]) -> None:
            self.feed(events.MembersRead(effect.attempt, members))

        self.membership.open_round(effect.round, effect.dead, on_members)

    def _on_published(self, decision: Any) -> None:
        self.feed(events.Published(decision))

    # out: to the outside and the program

    def _take_reading(self, effect: effects.TakeReading) -> None:
        value = self.outside.take_reading(effect.kind)
        if value is not None:
            self.feed(events.ReadingTaken(value))

    def _release(self, effect: effects.ReleaseOutput) -> None:
        self.outside.release(self._peer.id, effect.output.number, effect.output.value)

    def _retire(self, _: effects.Retire) -> None:
        self.membership.retire(self._peer.id)
        self._stop(effects.Stop("retired"))

    def _stop(self, effect: effects.Stop) -> None:
        self.stopped = True
        if self.executor is not None:
            self.executor.stop(effect.reason)
