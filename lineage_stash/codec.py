"""Bytes: the only file that knows the format of what crosses a process boundary.

A frame is one byte of version, four bytes of checksum, and a msgpack body `[kind, peers, fields…]`. Peer ids are
spelled once per frame, in `peers`, and are numbers everywhere else; every field has a declared type. Entries travel in
columns: runs of calls from one caller are `(kind, caller, first seqno, count)`, digests are four bytes each, needs are
listed only where they grew. So an entry of a run costs a few bytes. A payload that is logged by content is left out of
a message to the caller that sent it and still has it. Large blobs follow the body as they are, so that nothing has to
copy them; their lengths are in the body, and the store, which keeps them, has a checksum over all it keeps.

On their way to the store, entries are packed once more: a span's body is a frame of its own, which the store keeps as
it is. So the cost of a flush at a replica does not grow with its entries, and only who recovers looks into them.

An unknown version, a wrong checksum and a body that does not decode are refused with a `FrameError` before anything is
looked at; nothing here unpickles.
"""

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Annotated, Any, NamedTuple
from zlib import crc32

import msgspec

from lineage_stash.core.batch import EMPTY, Batch, Range
from lineage_stash.core.channel import Message
from lineage_stash.core.checkpoint import CallsFrom, CallsTo, Checkpoint, Task, Tasks
from lineage_stash.core.entry import Assigned, Entry, Forwarded, Got, Ran, Read, Waited
from lineage_stash.core.events import Decided, GatherAnswered, GatherAsked, Suspected
from lineage_stash.core.history import Beginning, Decision
from lineage_stash.core.ids import NOBODY, Epoch, Incarnation, Index, Member, NodeId, PeerId, Ref, Round
from lineage_stash.core.parcels import Parcel, ParcelsFrom, ParcelsTo
from lineage_stash.core.rope import Rope, cut, pieces_of, weigh, whole
from lineage_stash.core.tuples import maker
from lineage_stash.store import contract

VERSION = 3
VERSION_WITH_BLOBS = 4
HEADER_BYTES = 5
LENGTH_BYTES = 4
LARGE_BYTES = 32 * 1024
"""From this length on, copying a blob costs more than a piece of its own."""

RAN, RAN_WITH_CONTENT, READ, WAITED, GOT, ASSIGNED, FORWARDED = range(7)
WITH_A_PEER = frozenset((RAN, RAN_WITH_CONTENT, GOT, ASSIGNED, FORWARDED))
_make_ran = maker(Ran)
_make_read = maker(Read)

N = Annotated[int, msgspec.Meta(ge=0)]
"""Any of the protocol's numbers: none is negative."""
Blob = bytes | N
"""Bytes, or the number of the blob behind the body that has them."""
WireRange = tuple[N, N, N, list[N], bytes, list[N], Sequence[Blob]]
WireSpan = tuple[N, N, N, N, N, N]
WireBatch = tuple[list[WireRange], list[N], list[N]]
WireParcels = tuple[tuple[N, N, Blob], ...]
WireRef = tuple[N, N, N]
WireSources = list[tuple[N, WireRef]]
WireTask = tuple[N, Blob, N, N, N, bool]
WireParcelsTo = tuple[N, N, N, WireParcels, WireSources]
WireParcelsFrom = tuple[N, N, tuple[N, ...], WireParcels, tuple[N, ...], tuple[tuple[N, tuple[N, ...]], ...]]
WireTasks = tuple[N, list[WireTask], WireSources]
WireCallsTo = tuple[
    N, N, tuple[bytes, ...], N, tuple[tuple[N, bytes], ...], tuple[N, ...], tuple[tuple[N, tuple[N, ...]], ...]
]  # fmt: skip
WireCallsFrom = tuple[N, N, tuple[bytes, ...], tuple[N, ...]]
WireCheckpoint = tuple[
    N, N, N, Blob, N, list[tuple[N, WireCallsTo]], list[tuple[N, WireCallsFrom]], list[tuple[N, bytes]], N, bool,
    list[WireParcelsTo], list[WireParcelsFrom], WireTasks,
]  # fmt: skip


class FrameError(ValueError):
    """Bytes that are not a frame of this version."""


class Names:
    """The peer ids of one frame, in order of first use, and its large blobs."""

    def __init__(self, peers: list[str] | None = None, blobs: list[Any] | None = None,
                 lengths: list[int] | None = None) -> None:  # fmt: skip
        self.peers: list[str] = peers if peers is not None else []
        self.blobs: list[Any] = blobs if blobs is not None else []
        self.lengths: list[int] = lengths if lengths is not None else []
        self._numbers: dict[str, int] = {}

    def put(self, blob: bytes) -> Blob:
        """What stands for a blob in the body: itself, or its number."""
        if type(blob) is bytes and len(blob) < LARGE_BYTES:
            return blob
        self.blobs.append(blob)
        return len(self.blobs) - 1

    def put_aside(self, body: Any) -> int:
        """The number of a body of any size, in one piece or in several, that goes behind."""
        self.blobs.append(body)
        return len(self.blobs) - 1

    def put_all(self, blobs: Sequence[bytes]) -> Sequence[Blob]:
        """The same for several; most often none is large."""
        if max(map(weigh, blobs), default=0) < LARGE_BYTES:
            return blobs
        return [self.put(blob) for blob in blobs]

    def take(self, blob: Blob) -> bytes:
        """What `put` put."""
        found: bytes = self.blobs[blob] if isinstance(blob, int) else blob
        return found

    def take_all(self, blobs: Sequence[Any]) -> tuple[bytes, ...]:
        """What `put_all` put."""
        has_numbers = bool(self.blobs) or int in map(type, blobs)
        return tuple([self.take(blob) for blob in blobs]) if has_numbers else tuple(blobs)

    def number(self, peer: str) -> int:
        """The number of a peer in this frame."""
        numbers = self._numbers
        if peer in numbers:
            return numbers[peer]
        number = numbers[peer] = len(numbers)
        self.peers.append(peer)
        return number

    def pack(self, pairs: "tuple[tuple[PeerId, int], ...]") -> list[int]:
        """(peer, number) pairs, flat."""
        flat: list[int] = []
        for peer, value in pairs:
            flat += (self.number(peer), value)
        return flat

    def unpack(self, flat: list[int]) -> tuple[tuple[PeerId, Any], ...]:
        """What `pack` packed."""
        return tuple((PeerId(self.peers[flat[at]]), flat[at + 1]) for at in range(0, len(flat), 2))


# Ranges of entries, in columns.


def _pack_range(piece: Range, names: Names, knows_payloads: PeerId = NOBODY) -> WireRange:
    runs: list[int] = []
    digests = array("I")
    needs: list[int] = []
    blobs: list[bytes] = []
    run = (-1, -1, -1)
    count = 0
    for position, entry in enumerate(piece.entries):
        kind, caller, seqno = _kind_of(entry, names, blobs, knows_payloads)
        if (kind, caller) == run[:2] and seqno == run[2] + count:
            count += 1
        else:
            if count:
                runs += (*run, count)
            run, count = (kind, caller, seqno), 1
        digests.append(entry.digest)
        for peer, upper in entry.needs:
            needs += (position, names.number(peer), upper)
    if count:
        runs += (*run, count)
    if sys.byteorder == "big":
        digests.byteswap()
    return (
        names.number(piece.peer),
        piece.incarnation,
        piece.lower,
        runs,
        digests.tobytes(),
        needs,
        names.put_all(blobs),
    )


def _kind_of(entry: Entry, names: Names, blobs: list[bytes], knows_payloads: PeerId) -> tuple[int, int, int]:
    if isinstance(entry, Ran):
        if entry.payload is None or entry.caller == knows_payloads:
            return RAN, names.number(entry.caller), entry.seqno
        blobs.append(entry.payload)
        return RAN_WITH_CONTENT, names.number(entry.caller), entry.seqno
    if isinstance(entry, Read):
        blobs.append(entry.value)
        return READ, 0, 0
    if isinstance(entry, Got):
        blobs.append(entry.value)
        return GOT, names.number(entry.giver), entry.number
    if isinstance(entry, Assigned):
        return ASSIGNED, names.number(entry.runner), entry.task
    if isinstance(entry, Forwarded):
        blobs.append(msgspec.msgpack.encode((entry.first, entry.refs)))
        return FORWARDED, names.number(entry.receiver), entry.number
    blobs.append(msgspec.msgpack.encode(entry.ready))
    return WAITED, 0, 0


def _unpack_range(wire: WireRange, names: Names) -> Range:
    peer, incarnation, lower, runs, packed, flat_needs, blobs = wire
    digests = _digests(packed)
    if sum(runs[3::4]) != len(digests) or len(runs) % 4 or len(flat_needs) % 3:
        raise FrameError("a range whose columns differ in length")
    needs: dict[int, list[tuple[PeerId, Index]]] = {}
    for at in range(0, len(flat_needs), 3):
        position, needed, upper = flat_needs[at : at + 3]
        needs.setdefault(position, []).append((PeerId(names.peers[needed]), Index(upper)))
    remaining = iter(names.take_all(blobs))
    entries: list[Entry] = []
    for at in range(0, len(runs), 4):
        kind, caller, first, count = runs[at : at + 4]
        seqnos = range(first, first + count)
        own_digests = digests[len(entries) : len(entries) + count]
        peer_of_run = PeerId(names.peers[caller]) if kind in WITH_A_PEER else NOBODY
        entries.extend(_unpack_run(kind, peer_of_run, seqnos, own_digests, remaining))
    if len(entries) != len(digests):
        raise FrameError("a range with fewer contents than it has entries")
    for position, own_needs in needs.items():
        entries[position] = entries[position]._replace(needs=tuple(own_needs))
    return Range(PeerId(names.peers[peer]), Incarnation(incarnation), Index(lower), tuple(entries))


def _unpack_run(kind: int, caller: PeerId, seqnos: range, digests: "array[int]",
                contents: Iterator[bytes]) -> Iterable[Entry]:  # fmt: skip
    """The entries of one run, without needs; columns are joined in C, because a recovery reads millions of them."""
    if kind == RAN:
        return map(_make_ran, zip(repeat(caller), seqnos, repeat(None), digests, repeat(())))
    if kind == ASSIGNED:
        return [Assigned(task, caller, digest, ()) for task, digest in zip(seqnos, digests, strict=False)]
    own = list(islice(contents, len(seqnos)))
    if kind == RAN_WITH_CONTENT:
        return map(_make_ran, zip(repeat(caller), seqnos, own, digests, repeat(())))
    if kind == READ:
        return map(_make_read, zip(own, digests, repeat(())))
    if kind == GOT:
        columns = zip(seqnos, own, digests, strict=False)
        return [Got(caller, number, value, digest, ()) for number, value, digest in columns]
    if kind == FORWARDED:
        pairs = [msgspec.msgpack.decode(content, type=tuple[int, int]) for content in own]
        those = zip(seqnos, pairs, digests, strict=False)
        return [Forwarded(caller, number, first, count, digest, ()) for number, (first, count), digest in those]
    if kind != WAITED:
        raise FrameError(f"an entry of unknown kind {kind}")
    ready = [msgspec.msgpack.decode(content, type=tuple[int, ...]) for content in own]
    return [Waited(those, digest, ()) for those, digest in zip(ready, digests, strict=False)]


def _digests(packed: bytes) -> "array[int]":
    """Four bytes each, the lowest first, whatever this machine prefers."""
    digests = array("I", packed)
    if sys.byteorder == "big":
        digests.byteswap()
    return digests


def _pack_ranges(ranges: tuple[Range, ...], names: Names) -> list[WireRange]:
    return [_pack_range(piece, names) for piece in ranges]


def _unpack_ranges(wire: list[WireRange], names: Names) -> tuple[Range, ...]:
    return tuple([_unpack_range(piece, names) for piece in wire])


def _pack_batch(batch: Batch, names: Names, sender: PeerId, receiver: PeerId) -> WireBatch | None:
    """A receiver that is named has kept what it sent to the sender, who has not said yet that it may forget."""
    if not batch.ranges and not batch.needs and not batch.committed:
        return None
    ranges = [_pack_range(piece, names, receiver if piece.peer == sender else NOBODY) for piece in batch.ranges]
    return ranges, names.pack(batch.needs), names.pack(batch.committed)


def _unpack_batch(wire: WireBatch | None, names: Names) -> Batch:
    if wire is None:
        return EMPTY
    ranges, needs, committed = wire
    return Batch(_unpack_ranges(ranges, names), names.unpack(needs), names.unpack(committed))


# Spans: entries as the store keeps them.


def pack_span(piece: Range) -> contract.Span:
    """A range as the store takes it; its large blobs are not copied."""
    names = Names()
    wire = _pack_range(piece, names)
    frame = _put_together(_SPAN, names, wire)
    size = len(frame) if isinstance(frame, bytes) else sum(map(len, frame))
    return contract.Span(piece.peer, piece.incarnation, piece.lower, piece.upper, piece.lower, frame, size)


def unpack_span(span: contract.Span) -> Range:
    """A range as it was packed, as far as it counts."""
    entries = unpack_body(span.body)
    upper = span.first + len(entries)
    if not span.first <= span.lower <= span.upper <= upper:
        raise FrameError(f"a body of [{span.first}, {upper}) cannot hold [{span.lower}, {span.upper}) of {span.peer}")
    if (span.lower, span.upper) != (span.first, upper):
        entries = entries[span.lower - span.first : span.upper - span.first]
    return Range(span.peer, span.incarnation, span.lower, entries)


def unpack_body(body: bytes | memoryview) -> tuple[Entry, ...]:
    """All entries of a body."""
    thing = decode(body)
    if not isinstance(thing, Range):
        raise FrameError(f"a body holds a range, and this is a {type(thing).__name__}")
    return thing.entries


def unpack_spans(spans: Sequence[contract.Span]) -> tuple[Range, ...]:
    """The ranges of several replicas' spans; what another one brings already is not looked into."""
    ranges: list[Range] = []
    known: tuple[PeerId, Incarnation] | None = None
    upper = Index(0)
    for span in sorted(spans, key=lambda span: (span.peer, span.incarnation, span.lower, -span.upper)):
        if (span.peer, span.incarnation) != known:
            known, upper = (span.peer, span.incarnation), span.lower
        if span.upper > upper:
            ranges.append(unpack_span(span))
            upper = span.upper
    return tuple(ranges)


def _pack_spans(spans: tuple[contract.Span, ...], names: Names) -> list[WireSpan]:
    return [
        (names.number(span.peer), span.incarnation, span.lower, span.upper, span.first, names.put_aside(span.body))
        for span in spans
    ]


def _unpack_spans(wire: list[WireSpan], names: Names) -> tuple[contract.Span, ...]:
    return tuple([_unpack_wire_span(piece, names) for piece in wire])


def _unpack_wire_span(wire: WireSpan, names: Names) -> contract.Span:
    peer, incarnation, lower, upper, first, number = wire
    if not first <= lower <= upper:
        raise FrameError(f"a span whose ends are out of order: {first}, {lower}, {upper}")
    return contract.Span(
        PeerId(names.peers[peer]), Incarnation(incarnation), Index(lower), Index(upper), Index(first),
        names.blobs[number], names.lengths[number],
    )  # fmt: skip


# Everything that is said, one pair of functions per kind.


def _pack_message(message: Message, names: Names) -> list[Any]:
    hello = message.hello
    return [
        names.number(message.sender), message.sender_incarnation, names.number(message.receiver),
        message.receiver_incarnation, message.round, message.number, message.acknowledged,
        None if hello is None else [hello.node, hello.replayable, hello.begun], message.first_call,
        names.put_all(message.calls), message.first_reply, names.put_all(message.replies), message.covered,
        message.released,
        _pack_batch(message.batch, names, message.sender, message.receiver if message.spares_payloads else NOBODY),
        _pack_parcels(message.parcels, names), message.parcels_covered,
    ]  # fmt: skip


def _unpack_message(wire: Any, names: Names) -> Message:
    (sender, sender_incarnation, receiver, receiver_incarnation, round_, number, acknowledged, hello, first_call, calls,
     first_reply, replies, covered, released, batch, parcels, parcels_covered) = wire  # fmt: skip
    member = None if hello is None else Member(PeerId(names.peers[sender]), NodeId(hello[0]), *hello[1:])
    return Message(
        PeerId(names.peers[sender]), sender_incarnation, PeerId(names.peers[receiver]), receiver_incarnation, round_,
        number, acknowledged, member, first_call, names.take_all(calls), first_reply, names.take_all(replies), covered,
        released,
        _unpack_batch(batch, names), _unpack_parcels(parcels, names), parcels_covered,
    )  # fmt: skip


def _pack_parcels(parcels: Sequence[Parcel], names: Names) -> Any:
    return [(number, stream, names.put(value)) for number, stream, value in parcels] if parcels else ()


def _unpack_parcels(wire: Any, names: Names) -> tuple[Parcel, ...]:
    return tuple([Parcel(number, stream, names.take(value)) for number, stream, value in wire]) if wire else ()


def _pack_asked(event: GatherAsked, names: Names) -> list[Any]:
    return [event.round, names.pack(event.dead), event.coordinator]


def _unpack_asked(wire: Any, names: Names) -> GatherAsked:
    return GatherAsked(Round(wire[0]), names.unpack(wire[1]), wire[2])


def _pack_answered(event: GatherAnswered, names: Names) -> list[Any]:
    return [
        names.number(event.peer), event.incarnation, event.round, names.pack(event.dead), names.pack(event.ignored),
        _pack_ranges(event.ranges, names), names.pack(event.needs), names.pack(event.committed),
    ]  # fmt: skip


def _unpack_answered(wire: Any, names: Names) -> GatherAnswered:
    peer, incarnation, round_, dead, ignored, ranges, needs, committed = wire
    return GatherAnswered(
        PeerId(names.peers[peer]), incarnation, round_, names.unpack(dead), names.unpack(ignored),
        _unpack_ranges(ranges, names), names.unpack(needs), names.unpack(committed),
    )  # fmt: skip


def _pack_decided(event: Decided, names: Names) -> list[Any]:
    decision = event.decision
    beginnings = [(names.number(b.peer), b.incarnation, b.lower) for b in decision.beginnings]
    return [decision.round, beginnings, [names.number(peer) for peer in decision.gone], decision.writer]


def _unpack_decided(wire: Any, names: Names) -> Decided:
    round_, beginnings, gone, writer = wire
    begun = tuple(Beginning(PeerId(names.peers[b[0]]), b[1], b[2]) for b in beginnings)
    return Decided(Decision(round_, begun, tuple(PeerId(names.peers[peer]) for peer in gone), writer))


def _pack_suspected(event: Suspected, names: Names) -> list[Any]:
    return [names.number(event.peer), event.incarnation]


def _unpack_suspected(wire: Any, names: Names) -> Suspected:
    return Suspected(PeerId(names.peers[wire[0]]), wire[1])


def _pack_append(request: contract.Append, names: Names) -> list[Any]:
    segments = [(names.number(peer), pairs) for peer, pairs in request.segments]
    watch = [names.number(peer) for peer in request.watch]
    asker = None if request.asker is None else (names.number(request.asker[0]), request.asker[1])
    bases = names.pack(request.bases)
    return [_pack_spans(request.spans, names), segments, bases, watch, asker, request.settling]


def _unpack_append(wire: Any, names: Names) -> contract.Append:
    spans, segments, bases, watch, asked, settling = wire
    asker = None if asked is None else (PeerId(names.peers[asked[0]]), asked[1])
    named = tuple((PeerId(names.peers[peer]), _unpack_segments(pairs)) for peer, pairs in segments)
    watched = tuple(PeerId(names.peers[peer]) for peer in watch)
    return contract.Append(_unpack_spans(spans, names), named, names.unpack(bases), watched, settling, asker)


def _unpack_segments(pairs: Any) -> tuple[tuple[Incarnation, Index], ...]:
    return tuple((Incarnation(incarnation), Index(began)) for incarnation, began in pairs)


def _pack_held(reply: contract.Held, names: Names) -> list[Any]:
    holdings = [(names.number(peer), incarnation, upper) for peer, incarnation, upper in reply.holdings]
    return [holdings, names.pack(reply.gaps), [names.number(peer) for peer in reply.refused]]


def _unpack_held(wire: Any, names: Names) -> contract.Held:
    holdings, gaps, refused = wire
    held = tuple((PeerId(names.peers[peer]), incarnation, upper) for peer, incarnation, upper in holdings)
    return contract.Held(held, names.unpack(gaps), tuple(PeerId(names.peers[peer]) for peer in refused))


def _pack_read(request: contract.Read, names: Names) -> list[Any]:
    return [names.number(request.peer), request.lower]


def _unpack_read(wire: Any, names: Names) -> contract.Read:
    return contract.Read(PeerId(names.peers[wire[0]]), wire[1])


def _pack_found(reply: contract.Found, names: Names) -> list[Any]:
    return [_pack_spans(reply.spans, names), names.pack(reply.bases), reply.more]


def _unpack_found(wire: Any, names: Names) -> contract.Found:
    return contract.Found(_unpack_spans(wire[0], names), names.unpack(wire[1]), wire[2])


def _pack_truncate(request: contract.Truncate, names: Names) -> list[Any]:
    return [names.number(request.peer), request.segments, request.below]


def _unpack_truncate(wire: Any, names: Names) -> contract.Truncate:
    return contract.Truncate(PeerId(names.peers[wire[0]]), _unpack_segments(wire[1]), wire[2])


def _pack_fence(request: contract.Fence, names: Names) -> list[Any]:
    return [names.pack(request.dead), names.pack(request.lowers)]


def _unpack_fence(wire: Any, names: Names) -> contract.Fence:
    return contract.Fence(names.unpack(wire[0]), names.unpack(wire[1]))


def _pack_checkpoint(checkpoint: Checkpoint, names: Names) -> Any:
    calls_to = [(names.number(peer), _whole_calls_to(calls)) for peer, calls in checkpoint.calls_to]
    calls_from = [(names.number(peer), _whole_calls_from(calls)) for peer, calls in checkpoint.calls_from]
    outputs = [(number, whole(value)) for number, value in checkpoint.outputs]
    return (
        names.number(checkpoint.peer), checkpoint.incarnation, checkpoint.upper, names.put(checkpoint.state),
        checkpoint.digest,
        calls_to, calls_from, outputs, checkpoint.next_output, checkpoint.final,
        [_pack_parcels_to(peer, parcels, names) for peer, parcels in checkpoint.parcels_to],
        [_pack_parcels_from(peer, parcels, names) for peer, parcels in checkpoint.parcels_from],
        _pack_tasks(checkpoint.tasks, names),
    )  # fmt: skip


def _whole_calls_to(calls: CallsTo) -> CallsTo:
    """Payloads as a checkpoint has them, in one piece."""
    results = tuple([(seqno, whole(result)) for seqno, result in calls.results])
    return calls._replace(payloads=tuple(map(whole, calls.payloads)), results=results)


def _whole_calls_from(calls: CallsFrom) -> CallsFrom:
    return calls._replace(replies=tuple(map(whole, calls.replies)))


def _unpack_checkpoint(wire: Any, names: Names) -> Checkpoint:
    (peer, incarnation, upper, state, digest, calls_to, calls_from, outputs, next_output, final, parcels_to,
     parcels_from, tasks) = wire  # fmt: skip
    to = tuple([(PeerId(names.peers[callee]), CallsTo(*calls)) for callee, calls in calls_to])
    from_ = tuple([(PeerId(names.peers[caller]), CallsFrom(*calls)) for caller, calls in calls_from])
    return Checkpoint(
        PeerId(names.peers[peer]), Incarnation(incarnation), Index(upper), names.take(state), digest, to, from_,
        tuple(outputs), next_output, final,
        tuple([_unpack_parcels_to(each, names) for each in parcels_to]),
        tuple([_unpack_parcels_from(each, names) for each in parcels_from]), _unpack_tasks(tasks, names),
    )  # fmt: skip


# Parcels and tasks, as checkpoints have them.


def _pack_ref(ref: Ref, names: Names) -> WireRef:
    return names.number(ref.peer), ref.number, ref.kind


def _unpack_ref(wire: Any, names: Names) -> Ref:
    return Ref(PeerId(names.peers[wire[0]]), wire[1], wire[2])


def _pack_sources(sources: Iterable[tuple[int, Ref]], names: Names) -> WireSources:
    return [(number, _pack_ref(source, names)) for number, source in sources]


def _unpack_sources(wire: Any, names: Names) -> tuple[tuple[int, Ref], ...]:
    return tuple([(number, _unpack_ref(source, names)) for number, source in wire])


def _pack_parcels_to(peer: PeerId, parcels: ParcelsTo, names: Names) -> Any:
    sources = _pack_sources(parcels.sources, names)
    return names.number(peer), parcels.floor, parcels.upper, _pack_parcels(parcels.filled, names), sources


def _unpack_parcels_to(wire: Any, names: Names) -> tuple[PeerId, ParcelsTo]:
    peer, floor, upper, filled, sources = wire
    parcels = ParcelsTo(floor, upper, _unpack_parcels(filled, names), _unpack_sources(sources, names))
    return PeerId(names.peers[peer]), parcels


def _pack_parcels_from(peer: PeerId, parcels: ParcelsFrom, names: Names) -> Any:
    kept = _pack_parcels(parcels.kept, names)
    return names.number(peer), parcels.frontier, parcels.early, kept, parcels.unwanted, parcels.streams


def _unpack_parcels_from(wire: Any, names: Names) -> tuple[PeerId, ParcelsFrom]:
    peer, frontier, early, kept, unwanted, streams = wire
    parcels = ParcelsFrom(frontier, early, _unpack_parcels(kept, names), unwanted, streams)
    return PeerId(names.peers[peer]), parcels


def _pack_tasks(tasks: Tasks, names: Names) -> Any:
    waiting = [
        (number, names.put(task.payload), task.first, task.passed, task.awaited, task.wanted)
        for number, task in tasks.waiting
    ]
    return tasks.submitted, waiting, _pack_sources(tasks.placed, names)


def _unpack_tasks(wire: Any, names: Names) -> Tasks:
    submitted, waiting, placed = wire
    tasks = tuple([(number, Task(names.take(payload), *rest)) for number, payload, *rest in waiting])
    return Tasks(submitted, tasks, _unpack_sources(placed, names))


def _pack_put(request: contract.PutCheckpoint, names: Names) -> Any:
    return _pack_checkpoint(request.checkpoint, names), request.copied


def _unpack_put(wire: Any, names: Names) -> contract.PutCheckpoint:
    return contract.PutCheckpoint(_unpack_checkpoint(wire[0], names), wire[1])


def _pack_loaded(reply: contract.Loaded, names: Names) -> Any:
    return None if reply.checkpoint is None else _pack_checkpoint(reply.checkpoint, names)


def _unpack_loaded(wire: Any, names: Names) -> contract.Loaded:
    return contract.Loaded(None if wire is None else _unpack_checkpoint(wire, names))


def _pack_stored(reply: contract.Stored, _: Names) -> list[Any]:
    return [reply.stored, reply.missing]


def _unpack_stored(wire: Any, _: Names) -> contract.Stored:
    return contract.Stored(wire[0], wire[1])


def _pack_get(request: contract.GetCheckpoint, names: Names) -> list[Any]:
    return [names.number(request.peer)]


def _unpack_get(wire: Any, names: Names) -> contract.GetCheckpoint:
    return contract.GetCheckpoint(PeerId(names.peers[wire[0]]))


def _pack_chunks(chunks: tuple[contract.Chunk, ...], names: Names) -> list[tuple[bytes, int]]:
    return [(chunk.digest, names.put_aside(chunk.body)) for chunk in chunks]


def _unpack_chunks(wire: Any, names: Names) -> tuple[contract.Chunk, ...]:
    return tuple([contract.Chunk(digest, names.blobs[at], names.lengths[at]) for digest, at in wire])


def _pack_put_chunks(request: contract.PutChunks, names: Names) -> Any:
    return names.number(request.peer), _pack_chunks(request.chunks, names)


def _unpack_put_chunks(wire: Any, names: Names) -> contract.PutChunks:
    return contract.PutChunks(PeerId(names.peers[wire[0]]), _unpack_chunks(wire[1], names))


def _pack_get_chunks(request: contract.GetChunks, names: Names) -> Any:
    return names.number(request.peer), request.digests


def _unpack_get_chunks(wire: Any, names: Names) -> contract.GetChunks:
    return contract.GetChunks(PeerId(names.peers[wire[0]]), wire[1])


def _pack_found_chunks(reply: contract.Chunks, names: Names) -> Any:
    return (_pack_chunks(reply.chunks, names),)


def _unpack_found_chunks(wire: Any, names: Names) -> contract.Chunks:
    return contract.Chunks(_unpack_chunks(wire[0], names))


def _pack_forget(request: contract.Forget, names: Names) -> Any:
    return ([names.number(peer) for peer in request.peers],)


def _unpack_forget(wire: Any, names: Names) -> contract.Forget:
    return contract.Forget(tuple([PeerId(names.peers[peer]) for peer in wire[0]]))


def _pack_seal(request: contract.Seal, _: Names) -> Any:
    return (request.epoch,)


def _unpack_seal(wire: Any, _: Names) -> contract.Seal:
    return contract.Seal(Epoch(wire[0]))


def _pack_list(request: contract.List, names: Names) -> Any:
    return (names.number(request.after),)


def _unpack_list(wire: Any, names: Names) -> contract.List:
    return contract.List(PeerId(names.peers[wire[0]]))


def _pack_item(item: contract.Item, names: Names) -> Any:
    checkpoints = [_pack_checkpoint(checkpoint, names) for checkpoint in item.checkpoints]
    peer = names.number(item.peer)
    return peer, item.base, item.upper, item.last_writer, item.segments, item.fenced, checkpoints, item.body_bytes


def _unpack_item(wire: Any, names: Names) -> contract.Item:
    peer, base, upper, last_writer, segments, fenced, checkpoints, body_bytes = wire
    return contract.Item(
        PeerId(names.peers[peer]), Index(base), Index(upper), Incarnation(last_writer), _unpack_segments(segments),
        Incarnation(fenced),
        tuple([_unpack_checkpoint(checkpoint, names) for checkpoint in checkpoints]), body_bytes,
    )  # fmt: skip


def _pack_inventory(reply: contract.Inventory, names: Names) -> Any:
    return reply.epoch, [_pack_item(item, names) for item in reply.items], reply.more


def _unpack_inventory(wire: Any, names: Names) -> contract.Inventory:
    epoch, items, more = wire
    return contract.Inventory(Epoch(epoch), tuple([_unpack_item(item, names) for item in items]), more)


def _pack_elsewhere(reply: contract.Elsewhere, _: Names) -> Any:
    return reply.epoch, reply.sealed


def _unpack_elsewhere(wire: Any, _: Names) -> contract.Elsewhere:
    return contract.Elsewhere(Epoch(wire[0]), wire[1])


Pairs = list[N]
Peers = list[N]
WireSegments = list[tuple[N, N]]
WireChunks = list[tuple[bytes, N]]
_KINDS: list[tuple[type, Any, Any, Any]] = [
    (
        Message,
        _pack_message,
        _unpack_message,
        tuple[
            N,
            N,
            N,
            N,
            N,
            int,
            N,
            tuple[str, bool, N | None] | None,
            N,
            tuple[Blob, ...],
            N,
            tuple[Blob, ...],
            N,
            N,
            WireBatch | None,
            WireParcels,
            N,
        ],
    ),
    (GatherAsked, _pack_asked, _unpack_asked, tuple[N, Pairs, str]),
    (
        GatherAnswered,
        _pack_answered,
        _unpack_answered,
        tuple[N, N, N, Pairs, Pairs, list[WireRange], Pairs, Pairs],
    ),
    (Decided, _pack_decided, _unpack_decided, tuple[N, list[tuple[N, N, N]], Peers, str]),
    (Suspected, _pack_suspected, _unpack_suspected, tuple[N, N]),
    (
        contract.Append,
        _pack_append,
        _unpack_append,
        tuple[list[WireSpan], list[tuple[N, WireSegments]], Pairs, Peers, tuple[N, N] | None, bool],
    ),
    (contract.Held, _pack_held, _unpack_held, tuple[list[tuple[N, N, N]], Pairs, Peers]),
    (contract.Read, _pack_read, _unpack_read, tuple[N, N]),
    (contract.Found, _pack_found, _unpack_found, tuple[list[WireSpan], Pairs, bool]),
    (contract.Truncate, _pack_truncate, _unpack_truncate, tuple[N, list[tuple[N, N]], N]),
    (contract.Fence, _pack_fence, _unpack_fence, tuple[Pairs, Pairs]),
    (contract.PutCheckpoint, _pack_put, _unpack_put, tuple[WireCheckpoint, bool]),
    (contract.Stored, _pack_stored, _unpack_stored, tuple[bool, tuple[bytes, ...]]),
    (contract.GetCheckpoint, _pack_get, _unpack_get, tuple[N]),
    (contract.Loaded, _pack_loaded, _unpack_loaded, WireCheckpoint | None),
    (Range, _pack_range, _unpack_range, WireRange),
    (contract.PutChunks, _pack_put_chunks, _unpack_put_chunks, tuple[N, WireChunks]),
    (contract.GetChunks, _pack_get_chunks, _unpack_get_chunks, tuple[N, tuple[bytes, ...]]),
    (contract.Chunks, _pack_found_chunks, _unpack_found_chunks, tuple[WireChunks]),
    (contract.Forget, _pack_forget, _unpack_forget, tuple[Peers]),
    (contract.Seal, _pack_seal, _unpack_seal, tuple[N]),
    (contract.List, _pack_list, _unpack_list, tuple[N]),
    (
        contract.Inventory,
        _pack_inventory,
        _unpack_inventory,
        tuple[N, list[tuple[N, N, N, N, WireSegments, N, list[WireCheckpoint], N]], bool],
    ),
    (contract.Elsewhere, _pack_elsewhere, _unpack_elsewhere, tuple[N, bool]),
]
_PACK = {kind: (number, pack) for number, (kind, pack, _, _) in enumerate(_KINDS)}
_UNPACK = [(unpack, msgspec.msgpack.Decoder(wire).decode) for _, _, unpack, wire in _KINDS]
_SPAN = _PACK[Range][0]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[N, list[str], msgspec.Raw]).decode
_UNDECODABLE = (msgspec.MsgspecError, ValueError, IndexError, StopIteration, RecursionError, OverflowError)
_decode_with_blobs = msgspec.msgpack.Decoder(tuple[N, list[str], msgspec.Raw, list[N]]).decode


def encode(thing: object) -> bytes:
    """The frame of anything in the table above, in one piece."""
    frame = encode_in_pieces(thing)
    return frame if isinstance(frame, bytes) else b"".join(frame)


def encode_in_pieces(thing: object) -> bytes | tuple[bytes, ...]:
    """The frame of anything in the table above; in several pieces where it has large blobs, which are not copied."""
    number, pack = _PACK[type(thing)]
    names = Names()
    return _put_together(number, names, pack(thing, names))


def _put_together(number: int, names: Names, fields: Any) -> bytes | tuple[bytes, ...]:
    if not names.blobs:
        body = _encode((number, names.peers, fields))
        return bytes((VERSION,)) + crc32(body).to_bytes(4, "big") + body
    pieces: list[bytes] = []
    lengths: list[int] = []
    for blob in names.blobs:
        own = blob if isinstance(blob, tuple) else pieces_of(blob) if isinstance(blob, Rope) else (blob,)
        pieces.extend(own)
        lengths.append(sum(map(len, own)))
    body = _encode((number, names.peers, fields, lengths))
    header = bytes((VERSION_WITH_BLOBS,)) + crc32(body).to_bytes(4, "big") + len(body).to_bytes(4, "big")
    return header + body, *pieces


def _cut(behind: memoryview, lengths: list[int]) -> list[memoryview]:
    """The blobs behind a body."""
    if sum(lengths) != len(behind):
        raise FrameError(f"{len(behind)} bytes of blobs where {sum(lengths)} were announced")
    blobs = []
    lower = 0
    for length in lengths:
        blobs.append(behind[lower : lower + length])
        lower += length
    return blobs


def _cut_rope(frame: bytes, end: int, lengths: list[int]) -> list[bytes]:
    """The blobs behind a body, of which parts lie elsewhere."""
    try:
        return cut(frame, end, lengths)
    except ValueError as error:
        raise FrameError(str(error)) from error


def _look_into(frame: bytes | memoryview) -> tuple[int, list[str], msgspec.Raw, list[int], int]:
    """Kind, peers, fields, lengths of the blobs, and where in the frame these begin, if they are not elsewhere."""
    if len(frame) < HEADER_BYTES:
        raise FrameError(f"a frame of {len(frame)} bytes is shorter than its header")
    if frame[0] not in (VERSION, VERSION_WITH_BLOBS):
        raise FrameError(f"format version {frame[0]} is not known here, only {VERSION}: update the older side")
    body = memoryview(frame)[HEADER_BYTES:]
    end = len(frame)
    if frame[0] == VERSION_WITH_BLOBS:
        end = HEADER_BYTES + LENGTH_BYTES + int.from_bytes(body[:LENGTH_BYTES], "big")
        body = body[LENGTH_BYTES : end - HEADER_BYTES]
    if crc32(body) != int.from_bytes(frame[1:HEADER_BYTES], "big"):
        raise FrameError("the checksum does not match: the frame was cut short or changed on its way")
    try:
        if frame[0] == VERSION:
            number, peers, fields = _decode(body)
            return number, peers, fields, [], end
        number, peers, fields, lengths = _decode_with_blobs(body)
        return number, peers, fields, lengths, end
    except _UNDECODABLE as error:
        raise FrameError(f"a body that does not decode: {error}") from error


def decode(frame: bytes | memoryview) -> Any:
    """What a frame says, or a `FrameError` that says what is wrong with it."""
    number, peers, fields, lengths, end = _look_into(frame)
    blobs: list[Any] = []
    if not isinstance(frame, memoryview) and type(frame) is not bytes:
        blobs = _cut_rope(frame, end, lengths)
    elif lengths or end < len(frame):
        blobs = [bytes(blob) for blob in _cut(memoryview(frame)[end:], lengths)]
    return _complete(number, peers, fields, lengths, blobs)


def _complete(number: int, peers: list[str], fields: msgspec.Raw, lengths: list[int], blobs: list[Any]) -> Any:
    try:
        unpack, decode_fields = _UNPACK[number]
        return unpack(decode_fields(fields), Names(peers, blobs, lengths))
    except _UNDECODABLE as error:
        raise FrameError(f"a body that does not decode: {error}") from error


class Opened(NamedTuple):
    """A frame whose checksum is good, in two: the head, whose fields nobody looked at yet, and the blobs behind it."""

    kind: type | None
    head: Any
    """Bytes, or a view of them; mypyc knows no views here."""
    behind: Any
    lengths: list[int]
    parts: tuple[int, list[str], msgspec.Raw]

    def blobs(self) -> list[memoryview]:
        """The blobs behind the head, not copied."""
        return _cut(self.behind, self.lengths)

    def complete(self, blobs: list[Any]) -> Any:
        """What the frame says, with what is given in place of its blobs."""
        number, peers, fields = self.parts
        return _complete(number, peers, fields, self.lengths, blobs)


def open_frame(frame: bytes | memoryview) -> Opened:
    """A frame in two, or a head whose blobs are elsewhere; the store puts them there."""
    number, peers, fields, lengths, end = _look_into(frame)
    kind = _KINDS[number][0] if number < len(_KINDS) else None
    return Opened(kind, frame[:end], memoryview(frame)[end:], lengths, (number, peers, fields))
