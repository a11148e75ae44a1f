"""Everything that crosses a boundary comes back as it was, costs few bytes, and anything else is a `FrameError`."""

from typing import Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lineage_stash import codec
from lineage_stash.codec import FrameError, decode, encode, pack_span, unpack_body, unpack_span, unpack_spans
from lineage_stash.core.batch import EMPTY, Batch, Range
from lineage_stash.core.channel import UNNUMBERED, Channel, Message
from lineage_stash.core.checkpoint import CallsFrom, CallsTo, Checkpoint, Task, Tasks
from lineage_stash.core.entry import Ran
from lineage_stash.core.events import Decided, GatherAnswered, GatherAsked, Suspected
from lineage_stash.core.frontier import START
from lineage_stash.core.history import Beginning, Decision, History
from lineage_stash.core.ids import (
    FIRST_INCARNATION,
    OF_CALL,
    OF_PARCEL,
    OF_TASK,
    Epoch,
    Incarnation,
    Index,
    Member,
    PeerId,
    Ref,
    Round,
    Seqno,
)
from lineage_stash.core.lineage import Lineage
from lineage_stash.core.parcels import Parcel, ParcelsFrom, ParcelsTo
from lineage_stash.store import contract
from tests.core.builders import A, B, C, blobs, digests, entries, log_of, numbers, piece, quick, ran, said

names = st.sampled_from(("a", "b", "driver of run 17", "ünïcode", ""))
dead = st.lists(st.tuples(names, numbers), max_size=4).map(tuple)
frontier = dead
many_names = st.lists(names, max_size=4).map(tuple)
a_range = st.builds(Range, names, numbers, numbers, st.lists(entries, max_size=6).map(tuple))
ranges = st.lists(a_range, max_size=3).map(tuple)
batches = st.builds(Batch, ranges, frontier, frontier)
payloads = st.lists(blobs, max_size=4).map(tuple)
segments = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=3).map(tuple)
results = st.lists(st.tuples(numbers, blobs), max_size=3).map(tuple)
some_numbers = st.lists(numbers, max_size=3).map(tuple)
held = st.lists(st.tuples(numbers, some_numbers), max_size=2).map(tuple)
calls_to = st.builds(CallsTo, numbers, numbers, payloads, numbers, results, some_numbers, held)
refs = st.builds(Ref, names, numbers, st.sampled_from((OF_CALL, OF_PARCEL, OF_TASK)))
parcels = st.lists(st.builds(Parcel, numbers, numbers, blobs), max_size=3).map(tuple)
sources = st.lists(st.tuples(numbers, refs), max_size=3).map(tuple)
parcels_to = st.builds(ParcelsTo, numbers, numbers, parcels, sources)
parcels_from = st.builds(ParcelsFrom, numbers, some_numbers, parcels, some_numbers, held)
a_task = st.builds(Task, blobs, numbers, numbers, numbers, st.booleans())
tasks = st.builds(Tasks, numbers, st.lists(st.tuples(numbers, a_task), max_size=2).map(tuple), sources)
calls_from = st.builds(CallsFrom, numbers, numbers, payloads, st.lists(digests, max_size=3).map(tuple))
checkpoints = st.builds(
    Checkpoint, names, numbers, numbers, blobs, digests,
    st.lists(st.tuples(names, calls_to), max_size=2).map(tuple),
    st.lists(st.tuples(names, calls_from), max_size=2).map(tuple),
    results, numbers, st.booleans(),
    st.lists(st.tuples(names, parcels_to), max_size=2).map(tuple),
    st.lists(st.tuples(names, parcels_from), max_size=2).map(tuple), tasks,
)  # fmt: skip


@st.composite
def any_span(draw: st.DrawFn) -> contract.Span:
    """What a replica is given: the store never looks into a body."""
    first, lower, upper = sorted(draw(st.tuples(numbers, numbers, numbers)))
    body = draw(blobs)
    return contract.Span(draw(names), draw(numbers), lower, upper, first, body, len(body))


spans = st.lists(any_span() | a_range.map(lambda piece: in_one_piece(pack_span(piece))), max_size=3).map(tuple)
chunks = st.lists(
    st.builds(lambda digest, body: contract.Chunk(digest, body, len(body)), blobs, blobs), max_size=3
).map(tuple)  # fmt: skip
many_digests = st.lists(blobs, max_size=3).map(tuple)
items = st.builds(
    contract.Item, names, numbers, numbers, numbers, segments, numbers, st.lists(checkpoints, max_size=2).map(tuple),
    numbers,
)  # fmt: skip


def in_one_piece(span: contract.Span) -> contract.Span:
    """A span as it comes out of a network."""
    return span if isinstance(span.body, bytes) else span._replace(body=b"".join(span.body))


@st.composite
def messages(draw: st.DrawFn) -> Message:
    sender = draw(names)
    hello = draw(st.none() | st.builds(Member, st.just(sender), names, st.booleans(), st.none() | numbers))
    return Message(
        sender, draw(numbers), draw(names), draw(numbers), draw(numbers), draw(numbers | st.just(UNNUMBERED)),
        draw(numbers), hello, draw(numbers), draw(payloads), draw(numbers), draw(payloads), draw(numbers),
        draw(numbers), draw(batches), draw(parcels), draw(numbers),
    )  # fmt: skip


decisions = st.builds(
    Decision, numbers, st.lists(st.builds(Beginning, names, numbers, numbers), max_size=3).map(tuple), many_names, names
)
holdings = st.lists(st.tuples(names, numbers, numbers), max_size=3).map(tuple)

EVERY_KIND: dict[type, st.SearchStrategy[Any]] = {
    Message: messages(),
    GatherAsked: st.builds(GatherAsked, numbers, dead, names),
    GatherAnswered: st.builds(GatherAnswered, names, numbers, numbers, dead, dead, ranges, frontier, frontier),
    Decided: st.builds(Decided, decisions),
    Suspected: st.builds(Suspected, names, numbers),
    contract.Append: st.builds(
        contract.Append, spans, st.lists(st.tuples(names, segments), max_size=2).map(tuple), frontier, many_names,
        st.booleans(), st.none() | st.tuples(names, numbers),
    ),
    contract.Held: st.builds(contract.Held, holdings, frontier, many_names),
    contract.Read: st.builds(contract.Read, names, numbers),
    contract.Found: st.builds(contract.Found, spans, frontier, st.booleans()),
    contract.Truncate: st.builds(contract.Truncate, names, segments, numbers),
    contract.Fence: st.builds(contract.Fence, dead, frontier),
    contract.PutCheckpoint: st.builds(contract.PutCheckpoint, checkpoints, st.booleans()),
    contract.Stored: st.builds(contract.Stored, st.booleans(), many_digests),
    contract.GetCheckpoint: st.builds(contract.GetCheckpoint, names),
    contract.Loaded: st.builds(contract.Loaded, st.none() | checkpoints),
    Range: a_range,
    contract.PutChunks: st.builds(contract.PutChunks, names, chunks),
    contract.GetChunks: st.builds(contract.GetChunks, names, many_digests),
    contract.Chunks: st.builds(contract.Chunks, chunks),
    contract.Forget: st.builds(contract.Forget, many_names),
    contract.Seal: st.builds(contract.Seal, numbers),
    contract.List: st.builds(contract.List, names),
    contract.Inventory: st.builds(contract.Inventory, numbers, st.lists(items, max_size=3).map(tuple), st.booleans()),
    contract.Elsewhere: st.builds(contract.Elsewhere, numbers, st.booleans()),
}  # fmt: skip
anything = st.one_of(*EVERY_KIND.values())


def typed(thing: Any) -> Any:
    """A thing with the type of every tuple in it: named tuples equal bare ones, and a list is no tuple."""
    if isinstance(thing, tuple | list):
        return type(thing), [typed(part) for part in thing]
    return type(thing), thing


def frame_of(body: bytes, behind: bytes | None = None) -> bytes:
    """A frame whose checksum is right, whatever its body and whatever follows it."""
    checksum = crc32(body).to_bytes(4, "big")
    if behind is None:
        return bytes((codec.VERSION,)) + checksum + body
    return bytes((codec.VERSION_WITH_BLOBS,)) + checksum + len(body).to_bytes(4, "big") + body + behind


def parted(frame: bytes) -> tuple[bytes, bytes | None]:
    """The body of a frame, and what follows it, if the frame says that something does."""
    if frame[0] == codec.VERSION:
        return frame[codec.HEADER_BYTES :], None
    begin = codec.HEADER_BYTES + codec.LENGTH_BYTES
    end = begin + int.from_bytes(frame[codec.HEADER_BYTES : begin], "big")
    return frame[begin:end], frame[end:]


def refusal_of(frame: bytes) -> str | None:
    """Why a frame is refused, None if it is not; any other exception than a `FrameError` fails the test."""
    try:
        decode(frame)
    except FrameError as error:
        return str(error)
    return None


def small_message(batch: Batch = EMPTY) -> Message:
    return Message(
        A, Incarnation(1), B, Incarnation(2), Round(3), 4, 5, None, Seqno(6), (b"call",), Seqno(7), (b"reply",),
        Seqno(8), Seqno(9), batch,
    )  # fmt: skip


# round trips


def test_every_kind_that_the_codec_knows_is_tested_here() -> None:
    assert list(EVERY_KIND) == [kind for kind, *_ in codec._KINDS]


@pytest.mark.parametrize("kind", EVERY_KIND, ids=lambda kind: kind.__name__)
@quick
@given(data=st.data())
def test_whatever_is_encoded_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    thing = data.draw(EVERY_KIND[kind])
    back = decode(encode(thing))
    assert back == thing
    assert typed(back) == typed(thing)


def test_a_payload_goes_to_everybody_but_to_the_caller_that_has_it() -> None:
    piece = Range(A, Incarnation(1), Index(0), (Ran(B, Seqno(0), b"payload", 7, ()),))
    to_the_caller = small_message(Batch((piece,), (), ()))
    to_one_that_has_it = to_the_caller._replace(spares_payloads=True)
    to_another = to_one_that_has_it._replace(receiver=PeerId("c"))
    assert decode(encode(to_the_caller)) == to_the_caller
    assert decode(encode(to_another)).batch == to_another.batch
    assert decode(encode(to_one_that_has_it)).batch.ranges[0].entries[0].payload is None


@quick
@given(anything)
def test_same_thing_is_always_the_same_bytes(thing: Any) -> None:
    assert encode(thing) == encode(decode(encode(thing)))


@quick
@given(anything)
def test_frame_in_a_larger_buffer_is_read_in_place(thing: Any) -> None:
    frame = encode(thing)
    assert decode(memoryview(b"before" + frame + b"after")[6 : 6 + len(frame)]) == thing  # type: ignore[arg-type]
    assert decode(memoryview(bytearray(frame))) == thing


def test_gap_between_seqnos_starts_another_run() -> None:
    log = (ran(0), ran(1), ran(3), ran(4, caller=B), ran(5), *log_of("x", "y"), ran(6, payload=b"by content"))
    thing = piece(C, 7, log)
    assert decode(encode(thing)) == thing


# spans


def span_of(body: object, lower: int, upper: int, first: int = 0) -> contract.Span:
    return contract.Span(A, FIRST_INCARNATION, Index(lower), Index(upper), Index(first), body, 0)


@quick
@given(a_range)
def test_packed_range_says_what_it_holds_and_comes_back(whole: Range) -> None:
    span = pack_span(whole)
    assert span[:5] == (whole.peer, whole.incarnation, whole.lower, whole.upper, whole.lower)
    assert span.body_bytes == len(in_one_piece(span).body)
    assert typed(unpack_span(in_one_piece(span))) == typed(whole)
    assert unpack_body(in_one_piece(span).body) == whole.entries


@pytest.mark.parametrize(("lower", "upper"), [(7, 10), (8, 10), (7, 9), (8, 9), (8, 8)])
def test_part_of_a_body_that_counts_is_all_that_comes_back(lower: int, upper: int) -> None:
    log = log_of("x", "y", "z")
    part = pack_span(piece(C, 7, log))._replace(lower=Index(lower), upper=Index(upper))
    assert unpack_span(part) == piece(C, lower, log[lower - 7 : upper - 7])


@pytest.mark.parametrize(("first", "lower", "upper"), [(0, 0, 4), (0, 2, 1), (3, 2, 4), (2, 2, 6)])
def test_span_that_claims_what_its_body_lacks_is_refused(first: int, lower: int, upper: int) -> None:
    body = pack_span(piece(A, 0, log_of("x", "y", "z"))).body
    with pytest.raises(FrameError, match="cannot hold"):
        unpack_span(span_of(body, lower, upper, first))


def test_body_that_is_another_kind_of_frame_is_refused() -> None:
    with pytest.raises(FrameError, match="a body holds a range, and this is a Message"):
        unpack_span(span_of(encode(small_message()), 0, 1))


@quick
@given(any_span(), st.integers(0, 2**40))
def test_span_whose_ends_are_out_of_order_is_refused(span: contract.Span, by: int) -> None:
    for turned in (span._replace(lower=span.upper + 1 + by), span._replace(first=span.lower + 1 + by)):
        assert "out of order" in (refusal_of(encode(contract.Found((turned,), ()))) or "")
    assert refusal_of(encode(contract.Found((span._replace(first=span.lower, upper=span.lower),), ()))) is None


def test_what_another_replica_has_brought_is_not_looked_into_again() -> None:
    log = log_of("x", "y", "z")
    whole, tail = pack_span(piece(A, 0, log)), pack_span(piece(A, 2, log[2:]))
    unreadable = whole._replace(upper=Index(2), body=b"never looked at")
    assert unpack_spans([tail, unreadable, whole]) == (piece(A, 0, log),)
    longer = pack_span(piece(A, 1, log_of("y", "z", "w")))
    assert unpack_spans([longer, tail, whole]) == (piece(A, 0, log), piece(A, 1, log_of("y", "z", "w")))


def test_spans_of_different_lives_are_all_looked_into() -> None:
    first, second = piece(A, 0, log_of("x", "y")), piece(A, 0, log_of("z"), incarnation=1)
    other = piece(B, 0, log_of("w"))
    assert unpack_spans([pack_span(other), pack_span(second), pack_span(first)]) == (first, second, other)


def test_flush_copies_no_large_blob_on_its_way_to_the_store() -> None:
    large = bytes(codec.LARGE_BYTES)
    whole = piece(A, 0, (ran(0, payload=large), ran(1, payload=b"small"), said(large + b"x")))
    span = pack_span(whole)
    pieces = codec.encode_in_pieces(contract.Append((span, pack_span(piece(B, 0, log_of("x")))), (), (), (), False))
    assert isinstance(pieces, tuple)
    assert sum(piece is large for piece in pieces) == 1
    taken = decode(b"".join(pieces)).spans
    assert [unpack_span(found) for found in taken] == [whole, piece(B, 0, log_of("x"))]
    assert taken[0].body_bytes == span.body_bytes == len(taken[0].body)


def test_chunk_is_not_copied_on_its_way_to_the_store() -> None:
    body = memoryview(bytes(10))
    pieces = codec.encode_in_pieces(contract.PutChunks(A, (contract.Chunk(b"digest", body, 10),)))
    assert isinstance(pieces, tuple)
    assert pieces[1] is body
    assert decode(b"".join(pieces)) == contract.PutChunks(A, (contract.Chunk(b"digest", bytes(10), 10),))


# sizes


@pytest.mark.parametrize("first", [0, 2**20, 2**33])
@pytest.mark.parametrize("growing", [False, True], ids=["needs that stand", "needs that grow"])
def test_execution_order_entry_costs_at_most_16_bytes(first: int, growing: bool) -> None:
    count = 1000
    log = tuple(
        Ran(B, Seqno(first + n), None, n * 2654435761 % 2**32, ((A, Index(60_000 + n)),) if growing else ())
        for n in range(count)
    )
    whole = len(encode(small_message(Batch((piece(C, first, log),), (), ()))))
    empty = len(encode(small_message(Batch((piece(C, first, ()),), (), ()))))
    assert whole - empty <= 16 * count


def test_execution_order_entry_of_callers_in_turn_costs_at_most_16_bytes() -> None:
    count = 1000
    log = tuple(Ran((A, B)[n % 2], Seqno(n // 2), None, n * 2654435761 % 2**32, ()) for n in range(count))
    whole = len(encode(small_message(Batch((piece(C, 0, log),), (), ()))))
    assert whole - len(encode(small_message())) <= 16 * count


BATCH = Message._fields.index("batch")


def batch_bytes(batch: Batch) -> int:
    """What lineage costs in a message: the field, and what it adds to the rest of the frame."""
    without = msgspec.msgpack.decode(encode(small_message())[codec.HEADER_BYTES :])
    empty_field = len(msgspec.msgpack.encode(without[2][BATCH]))
    return len(encode(small_message(batch))) - len(encode(small_message())) + empty_field


def test_message_whose_receiver_lacks_nothing_spends_at_most_32_bytes_on_lineage() -> None:
    lineage, channel = Lineage(A, History()), Channel(FIRST_INCARNATION)
    for seqno in range(1000):
        lineage.append(ran(seqno, caller=B))
    assert batch_bytes(lineage.batch_for(channel, B, None)) > 32
    assert batch_bytes(lineage.batch_for(channel, B, None)) <= 32
    lineage.commit(((A, Index(1000)),))
    news = lineage.batch_for(channel, B, None)
    assert news == Batch((), (), ((A, 1000),))
    assert batch_bytes(news) <= 32


def test_large_blobs_come_back_and_are_not_copied_into_the_frame() -> None:
    large = bytes(codec.LARGE_BYTES)
    piece = Range(A, Incarnation(1), Index(0), (Ran(B, Seqno(0), large, 7, ()), Ran(B, Seqno(1), b"small", 7, ())))
    message = small_message(Batch((piece,), (), ()))._replace(receiver=PeerId("c"), calls=(b"x", large, large + b"y"))
    pieces = codec.encode_in_pieces(message)
    assert isinstance(pieces, tuple)
    assert sum(piece is large for piece in pieces) == 2
    assert decode(b"".join(pieces)) == decode(encode(message)) == message


def test_blobs_of_another_length_than_announced_are_refused() -> None:
    frame = encode(small_message()._replace(calls=(bytes(codec.LARGE_BYTES),)))
    assert "announced" in (refusal_of(frame[:-1]) or "")
    assert "announced" in (refusal_of(frame + b"x") or "")


# what is not a frame


@quick
@given(anything, st.integers(0, 255).filter(lambda version: version not in (codec.VERSION, codec.VERSION_WITH_BLOBS)))
def test_unknown_version_is_refused_before_the_body_is_looked_at(thing: Any, version: int) -> None:
    frame = bytearray(encode(thing))
    frame[0] = version
    assert "version" in (refusal_of(bytes(frame)) or "")
    assert "version" in (refusal_of(bytes(frame[:5]) + b"garbage") or "")


SAMPLES = [
    small_message(Batch((piece(C, 5, (ran(0), ran(1), ran(2), *log_of("x", "y"))),), ((A, Index(3)),), ((B, START),))),
    Decided(Decision(Round(3), (Beginning(A, Incarnation(1), Index(17)),), (B,), "coordinator")),
    contract.PutCheckpoint(
        Checkpoint(A, FIRST_INCARNATION, Index(9), b"state", 77,
                   ((B, CallsTo(Seqno(1), Seqno(3), (b"x", b"y"), Seqno(2), ((Seqno(1), b"r"),), (Seqno(2),))),),
                   ((C, CallsFrom(Seqno(2), Seqno(1), (b"r",), (5,))),), ((0, b"out"),), 1, False)
    ),
    piece(C, 5, (ran(0), ran(1, payload=b"by content"), *log_of("x", "y"))),
    contract.Inventory(Epoch(3), (contract.Item(A, START, Index(9), FIRST_INCARNATION, ((FIRST_INCARNATION, START),),
                                                Incarnation(1), (), 17),), True),
    contract.Elsewhere(Epoch(4), True),
]  # fmt: skip
WITH_BODIES = [
    contract.Append((pack_span(piece(C, 5, log_of("x", "y"))),), ((C, ((FIRST_INCARNATION, START),)),), (), (A,), True),
    contract.PutChunks(A, (contract.Chunk(b"digest", b"body", 4), contract.Chunk(b"other", b"", 0))),
]


@pytest.mark.parametrize("thing", [*SAMPLES, *WITH_BODIES], ids=lambda thing: type(thing).__name__)
def test_frame_cut_short_anywhere_is_refused(thing: Any) -> None:
    frame = encode(thing)
    assert [end for end in range(len(frame)) if refusal_of(frame[:end]) is None] == []


@pytest.mark.parametrize("thing", SAMPLES, ids=lambda thing: type(thing).__name__)
def test_frame_with_any_one_bit_flipped_is_refused(thing: Any) -> None:
    frame = encode(thing)
    for at in range(len(frame)):
        for bit in range(8):
            changed = bytearray(frame)
            changed[at] ^= 1 << bit
            assert refusal_of(bytes(changed)) is not None


@pytest.mark.parametrize("thing", WITH_BODIES, ids=lambda thing: type(thing).__name__)
def test_frame_with_any_one_bit_flipped_before_its_bodies_is_refused(thing: Any) -> None:
    """Bodies have checksums of their own: a span's is a frame, a chunk is named by its digest."""
    frame = encode(thing)
    _, behind = parted(frame)
    assert behind
    for at in range(len(frame) - len(behind)):
        for bit in range(8):
            changed = bytearray(frame)
            changed[at] ^= 1 << bit
            assert refusal_of(bytes(changed)) is not None


@pytest.mark.parametrize("thing", [*SAMPLES, *WITH_BODIES], ids=lambda thing: type(thing).__name__)
def test_frame_with_bytes_after_its_end_is_refused(thing: Any) -> None:
    body, behind = parted(encode(thing))
    assert refusal_of(encode(thing) + b"\0") is not None
    assert refusal_of(frame_of(body + b"\0", behind)) is not None


def test_body_behind_a_frame_that_the_frame_does_not_have_is_refused() -> None:
    body, behind = parted(encode(WITH_BODIES[1]))
    number, peers, fields, lengths = msgspec.msgpack.decode(body)
    fields[1][0][1] = len(lengths)
    assert behind is not None
    assert refusal_of(frame_of(msgspec.msgpack.encode([number, peers, fields, lengths]), behind)) is not None
    fields[1][0][1] = -1
    assert refusal_of(frame_of(msgspec.msgpack.encode([number, peers, fields, lengths]), behind)) is not None


@quick
@given(st.binary(max_size=60))
@example(b"")
@example(bytes((codec.VERSION,)))
def test_garbage_is_refused(garbage: bytes) -> None:
    assert refusal_of(garbage) is not None


@quick
@given(st.binary(max_size=60))
def test_garbage_with_a_right_checksum_raises_nothing_but_a_frame_error(garbage: bytes) -> None:
    refusal_of(frame_of(garbage))


scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.integers(-2, 4) | st.floats()
    | st.text(max_size=3) | st.binary(max_size=9)
)  # fmt: skip
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=6) | st.dictionaries(st.integers(-2, 4) | st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=20,
)


@quick
@given(st.integers(-20, 20) | scalars, trees, trees)
@example(0, [], {})
@example(1, ["a"], [0, {"a": 1, "b": 2}, "x"])
@example(15, ["a"], [0, 0, 0, [0, 0, 0, 2**62], b"", [], []])
@example(15, ["a"], [0, 0, 0, [3, 0, 0, 1], b"\0\0\0\0", [], [b"\xff"]])
@example(15, ["a"], [0, 0, 0, [1, 0, 0, 1], b"\0\0\0\0", [], []])
@example(5, ["a"], [[[0, 0, 0, 1, 0, 0]], [], [], [], None, False])
@example(16, ["a"], [0, [[b"digest", 0]]])
def test_body_of_another_shape_is_refused_and_nothing_else_is_raised(number: Any, peers: Any, fields: Any) -> None:
    refusal_of(frame_of(msgspec.msgpack.encode([number, peers, fields])))
    refusal_of(frame_of(msgspec.msgpack.encode([number, peers, fields, [3, 4]]), b"bodies."))


def parts_of(tree: Any, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    inner = (
        [found for at, part in enumerate(tree) for found in parts_of(part, (*path, at))] if type(tree) is list else []
    )
    return [path, *inner]


def with_part(tree: Any, path: tuple[int, ...], part: Any) -> Any:
    if not path:
        return part
    return [with_part(old, path[1:], part) if at == path[0] else old for at, old in enumerate(tree)]


@quick
@given(anything, st.data())
def test_body_with_one_part_replaced_is_decoded_or_refused_and_nothing_else_is_raised(
    thing: Any, data: st.DataObject
) -> None:
    body, behind = parted(encode(thing))
    tree = msgspec.msgpack.decode(body)
    path = data.draw(st.sampled_from(parts_of(tree)))
    changed = with_part(tree, path, data.draw(scalars | trees))
    refusal_of(frame_of(msgspec.msgpack.encode(changed), behind))


@quick
@given(anything, st.data())
def test_body_with_one_byte_replaced_is_decoded_or_refused_and_nothing_else_is_raised(
    thing: Any, data: st.DataObject
) -> None:
    intact, behind = parted(encode(thing))
    body = bytearray(intact)
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    refusal_of(frame_of(bytes(body), behind))


def test_body_that_is_nested_too_deep_is_refused() -> None:
    assert refusal_of(frame_of(b"\x93\x00\x90" + b"\x91" * 5000)) is not None


def test_body_with_digests_that_are_no_bytes_is_refused() -> None:
    fields = [0, 0, 0, [0, 0, 0, 1], b"\0\0\0\0", [], []]
    assert refusal_of(frame_of(msgspec.msgpack.encode([15, ["a"], fields]))) is None
    fields[4] = [2**40]
    assert refusal_of(frame_of(msgspec.msgpack.encode([15, ["a"], fields]))) is not None
