"""Bytes: the only file that knows the format of what crosses a process boundary.

A frame is one byte of version, four bytes of checksum, and a msgpack body `[kind, peers, fields…]`. Peer ids are
spelled once per frame, in `peers`, and are numbers everywhere else. Entries travel in columns: runs of calls from one
caller are `(kind, caller, first seqno, count)`, digests are four bytes each, needs are listed only where they grew. So
an entry of a run costs a few bytes. An unknown version, a wrong checksum and a body that does not decode are refused
with a `FrameError` before anything is looked at; nothing here unpickles.
"""

from array import array
from typing import Any
from zlib import crc32

import msgspec

from lineage_stash.core.batch import EMPTY, Batch, Range
from lineage_stash.core.channel import Message
from lineage_stash.core.checkpoint import CallsFrom, CallsTo, Checkpoint
from lineage_stash.core.entry import Entry, Ran, Read, Waited
from lineage_stash.core.events import Decided, GatherAnswered, GatherAsked, Suspected
from lineage_stash.core.history import Beginning, Decision
from lineage_stash.core.ids import Incarnation, Index, Member, NodeId, PeerId, Round, Seqno
from lineage_stash.store import contract

VERSION = 1
HEADER_BYTES = 5

RAN, RAN_WITH_CONTENT, READ, WAITED = range(4)

WireRange = tuple[int, int, int, list[int], bytes, list[int], list[bytes]]


class FrameError(ValueError):
    """Bytes that are not a frame of this version."""


class Names:
    """The peer ids of one frame, in order of first use."""

    def __init__(self, peers: list[str] | None = None) -> None:
        self.peers: list[str] = peers if peers is not None else []
        self._numbers: dict[str, int] = {}

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


def _pack_range(piece: Range, names: Names) -> WireRange:
    runs: list[int] = []
    digests = array("I")
    needs: list[int] = []
    blobs: list[bytes] = []
    run = (-1, -1, -1)
    count = 0
    for position, entry in enumerate(piece.entries):
        kind, caller, seqno = _kind_of(entry, names, blobs)
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
    return names.number(piece.peer), piece.incarnation, piece.lower, runs, digests.tobytes(), needs, blobs


def _kind_of(entry: Entry, names: Names, blobs: list[bytes]) -> tuple[int, int, int]:
    if isinstance(entry, Ran):
        if entry.payload is None:
            return RAN, names.number(entry.caller), entry.seqno
        blobs.append(entry.payload)
        return RAN_WITH_CONTENT, names.number(entry.caller), entry.seqno
    if isinstance(entry, Read):
        blobs.append(entry.value)
        return READ, 0, 0
    blobs.append(msgspec.msgpack.encode(entry.ready))
    return WAITED, 0, 0


def _unpack_range(wire: WireRange, names: Names) -> Range:
    peer, incarnation, lower, runs, packed, flat_needs, blobs = wire
    digests = array("I", packed)
    needs: dict[int, list[tuple[PeerId, Index]]] = {}
    for at in range(0, len(flat_needs), 3):
        position, needed, upper = flat_needs[at : at + 3]
        needs.setdefault(position, []).append((PeerId(names.peers[needed]), Index(upper)))
    remaining = iter(blobs)
    entries: list[Entry] = []
    for at in range(0, len(runs), 4):
        kind, caller, first, count = runs[at : at + 4]
        for offset in range(count):
            position = len(entries)
            own_needs = tuple(needs.get(position, ()))
            digest = digests[position]
            if kind in (RAN, RAN_WITH_CONTENT):
                content = next(remaining) if kind == RAN_WITH_CONTENT else None
                seqno = Seqno(first + offset)
                entries.append(Ran(PeerId(names.peers[caller]), seqno, content, digest, own_needs))
            elif kind == READ:
                entries.append(Read(next(remaining), digest, own_needs))
            else:
                ready = msgspec.msgpack.decode(next(remaining), type=tuple[int, ...])
                entries.append(Waited(ready, digest, own_needs))
    if len(entries) != len(digests):
        raise FrameError("a range whose columns differ in length")
    return Range(PeerId(names.peers[peer]), Incarnation(incarnation), Index(lower), tuple(entries))


def _pack_ranges(ranges: tuple[Range, ...], names: Names) -> list[WireRange]:
    return [_pack_range(piece, names) for piece in ranges]


def _unpack_ranges(wire: list[WireRange], names: Names) -> tuple[Range, ...]:
    return tuple([_unpack_range(piece, names) for piece in wire])


def _pack_batch(batch: Batch, names: Names) -> list[Any]:
    if not batch.ranges and not batch.needs and not batch.committed:
        return []
    return [_pack_ranges(batch.ranges, names), names.pack(batch.needs), names.pack(batch.committed)]


def _unpack_batch(wire: list[Any], names: Names) -> Batch:
    if not wire:
        return EMPTY
    ranges, needs, committed = wire
    return Batch(_unpack_ranges(ranges, names), names.unpack(needs), names.unpack(committed))


# Everything that is said, one pair of functions per kind.


def _pack_message(message: Message, names: Names) -> list[Any]:
    hello = message.hello
    return [
        names.number(message.sender), message.sender_incarnation, names.number(message.receiver),
        message.receiver_incarnation, message.round, message.number, message.acknowledged,
        None if hello is None else [hello.node, hello.replayable], message.first_call, message.calls,
        message.first_reply, message.replies, message.covered, message.released, _pack_batch(message.batch, names),
    ]  # fmt: skip


def _unpack_message(wire: list[Any], names: Names) -> Message:
    (sender, sender_incarnation, receiver, receiver_incarnation, round_, number, acknowledged, hello, first_call, calls,
     first_reply, replies, covered, released, batch) = wire  # fmt: skip
    member = None if hello is None else Member(PeerId(names.peers[sender]), NodeId(hello[0]), hello[1])
    return Message(
        PeerId(names.peers[sender]), sender_incarnation, PeerId(names.peers[receiver]), receiver_incarnation, round_,
        number, acknowledged, member, first_call, tuple(calls), first_reply, tuple(replies), covered, released,
        _unpack_batch(batch, names),
    )  # fmt: skip


def _pack_asked(event: GatherAsked, names: Names) -> list[Any]:
    return [event.round, names.pack(event.dead), event.coordinator]


def _unpack_asked(wire: list[Any], names: Names) -> GatherAsked:
    return GatherAsked(Round(wire[0]), names.unpack(wire[1]), wire[2])


def _pack_answered(event: GatherAnswered, names: Names) -> list[Any]:
    return [
        names.number(event.peer), event.incarnation, event.round, names.pack(event.dead), names.pack(event.ignored),
        _pack_ranges(event.ranges, names), names.pack(event.needs), names.pack(event.committed),
    ]  # fmt: skip


def _unpack_answered(wire: list[Any], names: Names) -> GatherAnswered:
    peer, incarnation, round_, dead, ignored, ranges, needs, committed = wire
    return GatherAnswered(
        PeerId(names.peers[peer]), incarnation, round_, names.unpack(dead), names.unpack(ignored),
        _unpack_ranges(ranges, names), names.unpack(needs), names.unpack(committed),
    )  # fmt: skip


def _pack_decided(event: Decided, names: Names) -> list[Any]:
    decision = event.decision
    beginnings = [(names.number(b.peer), b.incarnation, b.lower) for b in decision.beginnings]
    return [decision.round, beginnings, [names.number(peer) for peer in decision.gone], decision.writer]


def _unpack_decided(wire: list[Any], names: Names) -> Decided:
    round_, beginnings, gone, writer = wire
    begun = tuple(Beginning(PeerId(names.peers[b[0]]), b[1], b[2]) for b in beginnings)
    return Decided(Decision(round_, begun, tuple(PeerId(names.peers[peer]) for peer in gone), writer))


def _pack_suspected(event: Suspected, names: Names) -> list[Any]:
    return [names.number(event.peer), event.incarnation]


def _unpack_suspected(wire: list[Any], names: Names) -> Suspected:
    return Suspected(PeerId(names.peers[wire[0]]), wire[1])


def _pack_append(request: contract.Append, names: Names) -> list[Any]:
    segments = [(names.number(peer), pairs) for peer, pairs in request.segments]
    watch = [names.number(peer) for peer in request.watch]
    return [_pack_ranges(request.ranges, names), segments, names.pack(request.bases), watch, request.settling]


def _unpack_append(wire: list[Any], names: Names) -> contract.Append:
    ranges, segments, bases, watch, settling = wire
    named = tuple((PeerId(names.peers[peer]), _unpack_segments(pairs)) for peer, pairs in segments)
    watched = tuple(PeerId(names.peers[peer]) for peer in watch)
    return contract.Append(_unpack_ranges(ranges, names), named, names.unpack(bases), watched, settling)


def _unpack_segments(pairs: list[list[int]]) -> tuple[tuple[Incarnation, Index], ...]:
    return tuple((Incarnation(incarnation), Index(began)) for incarnation, began in pairs)


def _pack_held(reply: contract.Held, names: Names) -> list[Any]:
    holdings = [(names.number(peer), incarnation, upper) for peer, incarnation, upper in reply.holdings]
    return [holdings, names.pack(reply.gaps), [names.number(peer) for peer in reply.refused]]


def _unpack_held(wire: list[Any], names: Names) -> contract.Held:
    holdings, gaps, refused = wire
    held = tuple((PeerId(names.peers[peer]), incarnation, upper) for peer, incarnation, upper in holdings)
    return contract.Held(held, names.unpack(gaps), tuple(PeerId(names.peers[peer]) for peer in refused))


def _pack_read(request: contract.Read, names: Names) -> list[Any]:
    return [names.number(request.peer), request.lower]


def _unpack_read(wire: list[Any], names: Names) -> contract.Read:
    return contract.Read(PeerId(names.peers[wire[0]]), wire[1])


def _pack_found(reply: contract.Found, names: Names) -> list[Any]:
    return [_pack_ranges(reply.ranges, names), names.pack(reply.bases)]


def _unpack_found(wire: list[Any], names: Names) -> contract.Found:
    return contract.Found(_unpack_ranges(wire[0], names), names.unpack(wire[1]))


def _pack_truncate(request: contract.Truncate, names: Names) -> list[Any]:
    return [names.number(request.peer), request.segments, request.below]


def _unpack_truncate(wire: list[Any], names: Names) -> contract.Truncate:
    return contract.Truncate(PeerId(names.peers[wire[0]]), _unpack_segments(wire[1]), wire[2])


def _pack_fence(request: contract.Fence, names: Names) -> list[Any]:
    return [names.pack(request.dead), names.pack(request.lowers)]


def _unpack_fence(wire: list[Any], names: Names) -> contract.Fence:
    return contract.Fence(names.unpack(wire[0]), names.unpack(wire[1]))


def _pack_checkpoint(checkpoint: Checkpoint | None, names: Names) -> list[Any]:
    if checkpoint is None:
        return []
    calls_to = [(names.number(peer), calls) for peer, calls in checkpoint.calls_to]
    calls_from = [(names.number(peer), calls) for peer, calls in checkpoint.calls_from]
    return [
        names.number(checkpoint.peer), checkpoint.incarnation, checkpoint.upper, checkpoint.state, checkpoint.digest,
        calls_to, calls_from, checkpoint.outputs, checkpoint.next_output, checkpoint.final,
    ]  # fmt: skip


def _unpack_checkpoint(wire: list[Any], names: Names) -> Checkpoint | None:
    if not wire:
        return None
    peer, incarnation, index, state, digest, calls_to, calls_from, outputs, next_output, final = wire
    to = tuple((PeerId(names.peers[peer]), msgspec.convert(calls, CallsTo)) for peer, calls in calls_to)
    from_ = tuple((PeerId(names.peers[peer]), msgspec.convert(calls, CallsFrom)) for peer, calls in calls_from)
    outs = tuple((number, value) for number, value in outputs)
    return Checkpoint(PeerId(names.peers[peer]), incarnation, index, state, digest, to, from_, outs, next_output, final)


def _pack_put(request: contract.PutCheckpoint, names: Names) -> list[Any]:
    return _pack_checkpoint(request.checkpoint, names)


def _unpack_put(wire: list[Any], names: Names) -> contract.PutCheckpoint:
    checkpoint = _unpack_checkpoint(wire, names)
    if checkpoint is None:
        raise FrameError("a request to store no checkpoint")
    return contract.PutCheckpoint(checkpoint)


def _pack_loaded(reply: contract.Loaded, names: Names) -> list[Any]:
    return _pack_checkpoint(reply.checkpoint, names)


def _unpack_loaded(wire: list[Any], names: Names) -> contract.Loaded:
    return contract.Loaded(_unpack_checkpoint(wire, names))


def _pack_stored(reply: contract.Stored, _: Names) -> list[Any]:
    return [reply.stored]


def _unpack_stored(wire: list[Any], _: Names) -> contract.Stored:
    return contract.Stored(wire[0])


def _pack_get(request: contract.GetCheckpoint, names: Names) -> list[Any]:
    return [names.number(request.peer)]


def _unpack_get(wire: list[Any], names: Names) -> contract.GetCheckpoint:
    return contract.GetCheckpoint(PeerId(names.peers[wire[0]]))


_KINDS: list[tuple[type, Any, Any]] = [
    (Message, _pack_message, _unpack_message),
    (GatherAsked, _pack_asked, _unpack_asked),
    (GatherAnswered, _pack_answered, _unpack_answered),
    (Decided, _pack_decided, _unpack_decided),
    (Suspected, _pack_suspected, _unpack_suspected),
    (contract.Append, _pack_append, _unpack_append),
    (contract.Held, _pack_held, _unpack_held),
    (contract.Read, _pack_read, _unpack_read),
    (contract.Found, _pack_found, _unpack_found),
    (contract.Truncate, _pack_truncate, _unpack_truncate),
    (contract.Fence, _pack_fence, _unpack_fence),
    (contract.PutCheckpoint, _pack_put, _unpack_put),
    (contract.Stored, _pack_stored, _unpack_stored),
    (contract.GetCheckpoint, _pack_get, _unpack_get),
    (contract.Loaded, _pack_loaded, _unpack_loaded),
]
_PACK = {kind: (number, pack) for number, (kind, pack, _) in enumerate(_KINDS)}
_UNPACK = [unpack for _, _, unpack in _KINDS]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def encode(thing: object) -> bytes:
    """The frame of anything in the table above."""
    number, pack = _PACK[type(thing)]
    names = Names()
    fields = pack(thing, names)
    body = _encode([number, names.peers, fields])
    return bytes((VERSION,)) + crc32(body).to_bytes(4, "big") + body


def decode(frame: bytes) -> Any:
    """What a frame says, or a `FrameError` that says what is wrong with it."""
    if len(frame) < HEADER_BYTES:
        raise FrameError(f"a frame of {len(frame)} bytes is shorter than its header")
    if frame[0] != VERSION:
        raise FrameError(f"format version {frame[0]} is not known here, only {VERSION}: update the older side")
    body = memoryview(frame)[HEADER_BYTES:]
    if crc32(body) != int.from_bytes(frame[1:HEADER_BYTES], "big"):
        raise FrameError("the checksum does not match: the frame was cut short or changed on its way")
    try:
        number, peers, fields = _decode(body)
        return _UNPACK[number](fields, Names(peers))
    except (ValueError, TypeError, IndexError, KeyError, StopIteration) as error:
        raise FrameError(f"a body that does not decode: {error}") from error
