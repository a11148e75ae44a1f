"""Everything that crosses a boundary comes back as it was, costs few bytes, and anything else is a `FrameError`."""

from typing import Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lineage_stash import codec
from lineage_stash.codec import FrameError, decode, encode
from lineage_stash.core.batch import EMPTY, Batch, Range
from lineage_stash.core.channel import UNNUMBERED, Channel, Message
from lineage_stash.core.checkpoint import CallsFrom, CallsTo, Checkpoint
from lineage_stash.core.entry import Entry, Ran
from lineage_stash.core.events import Decided, GatherAnswered, GatherAsked, Suspected
from lineage_stash.core.frontier import START
from lineage_stash.core.history import Beginning, Decision, History
from lineage_stash.core.ids import FIRST_INCARNATION, Incarnation, Index, Member, PeerId, Round, Seqno
from lineage_stash.core.lineage import Lineage
from lineage_stash.store import contract
from tests.core.builders import A, B, C, blobs, digests, entries, log_of, numbers, piece, quick, ran

names = st.sampled_from(("a", "b", "driver of run 17", "ünïcode", ""))
dead = st.lists(st.tuples(names, numbers), max_size=4).map(tuple)
frontier = dead
many_names = st.lists(names, max_size=4).map(tuple)
ranges = st.lists(
    st.builds(Range, names, numbers, numbers, st.lists(entries, max_size=6).map(tuple)), max_size=3
).map(tuple)  # fmt: skip
batches = st.builds(Batch, ranges, frontier, frontier)
payloads = st.lists(blobs, max_size=4).map(tuple)
segments = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=3).map(tuple)
results = st.lists(st.tuples(numbers, blobs), max_size=3).map(tuple)
calls_to = st.builds(CallsTo, numbers, numbers, payloads, numbers, results, st.lists(numbers, max_size=3).map(tuple))
calls_from = st.builds(CallsFrom, numbers, numbers, payloads, st.lists(digests, max_size=3).map(tuple))
checkpoints = st.builds(
    Checkpoint, names, numbers, numbers, blobs, digests,
    st.lists(st.tuples(names, calls_to), max_size=2).map(tuple),
    st.lists(st.tuples(names, calls_from), max_size=2).map(tuple),
    results, numbers, st.booleans(),
)  # fmt: skip


@st.composite
def messages(draw: st.DrawFn) -> Message:
    sender = draw(names)
    hello = draw(st.none() | st.builds(Member, st.just(sender), names, st.booleans()))
    return Message(
        sender, draw(numbers), draw(names), draw(numbers), draw(numbers), draw(numbers | st.just(UNNUMBERED)),
        draw(numbers), hello, draw(numbers), draw(payloads), draw(numbers), draw(payloads), draw(numbers),
        draw(numbers), draw(batches),
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
        contract.Append, ranges, st.lists(st.tuples(names, segments), max_size=2).map(tuple), frontier, many_names,
        st.booleans(), st.none() | st.tuples(names, numbers),
    ),
    contract.Held: st.builds(contract.Held, holdings, frontier, many_names),
    contract.Read: st.builds(contract.Read, names, numbers),
    contract.Found: st.builds(contract.Found, ranges, frontier),
    contract.Truncate: st.builds(contract.Truncate, names, segments, numbers),
    contract.Fence: st.builds(contract.Fence, dead, frontier),
    contract.PutCheckpoint: st.builds(contract.PutCheckpoint, checkpoints),
    contract.Stored: st.builds(contract.Stored, st.booleans()),
    contract.GetCheckpoint: st.builds(contract.GetCheckpoint, names),
    contract.Loaded: st.builds(contract.Loaded, st.none() | checkpoints),
}  # fmt: skip
anything = st.one_of(*EVERY_KIND.values())


def typed(thing: Any) -> Any:
    """A thing with the type of every tuple in it: named tuples equal bare ones, and a list is no tuple."""
    if isinstance(thing, tuple | list):
        return type(thing), [typed(part) for part in thing]
    return type(thing), thing


def frame_of(body: bytes) -> bytes:
    """A frame whose checksum is right, whatever its body."""
    return bytes((codec.VERSION,)) + crc32(body).to_bytes(4, "big") + body


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
    expected = without_payloads_of_the_receiver(thing) if isinstance(thing, Message) else thing
    assert back == expected
    assert typed(back) == typed(expected)


def without_payloads_of_the_receiver(message: Message) -> Message:
    """The receiver has the payloads of its own calls: the log of the sender that holds them leaves them out."""

    def left(piece: Range, entry: Entry) -> Entry:
        known = piece.peer == message.sender and isinstance(entry, Ran) and entry.caller == message.receiver
        return entry._replace(payload=None) if known else entry

    ranges = tuple(
        piece._replace(entries=tuple(left(piece, entry) for entry in piece.entries)) for piece in message.batch.ranges
    )
    return message._replace(batch=message.batch._replace(ranges=ranges))


def test_a_payload_goes_to_everybody_but_to_the_caller_that_has_it() -> None:
    piece = Range(A, Incarnation(1), Index(0), (Ran(B, Seqno(0), b"payload", 7, ()),))
    to_the_caller = small_message(Batch((piece,), (), ()))
    to_another = to_the_caller._replace(receiver=PeerId("c"))
    assert decode(encode(to_another)) == to_another
    assert decode(encode(to_the_caller)).batch.ranges[0].entries[0].payload is None


@quick
@given(anything)
def test_same_thing_is_always_the_same_bytes(thing: Any) -> None:
    assert encode(thing) == encode(decode(encode(thing)))


@quick
@given(anything)
def test_frame_in_a_larger_buffer_is_read_in_place(thing: Any) -> None:
    frame = encode(thing)
    assert decode(memoryview(b"before" + frame + b"after")[6 : 6 + len(frame)]) == thing  # type: ignore[arg-type]
    assert decode(bytearray(frame)) == thing  # type: ignore[arg-type]


def test_gap_between_seqnos_starts_another_run() -> None:
    log = (ran(0), ran(1), ran(3), ran(4, caller=B), ran(5), *log_of("x", "y"), ran(6, payload=b"by content"))
    thing = contract.Found((piece(C, 7, log),), ())
    assert decode(encode(thing)) == thing


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


def batch_bytes(batch: Batch) -> int:
    """What lineage costs in a message: the field, and what it adds to the rest of the frame."""
    without = msgspec.msgpack.decode(encode(small_message())[codec.HEADER_BYTES :])
    empty_field = len(msgspec.msgpack.encode(without[2][-1]))
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
]  # fmt: skip


@pytest.mark.parametrize("thing", SAMPLES, ids=lambda thing: type(thing).__name__)
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


@pytest.mark.parametrize("thing", SAMPLES, ids=lambda thing: type(thing).__name__)
def test_frame_with_bytes_after_its_end_is_refused(thing: Any) -> None:
    assert refusal_of(encode(thing) + b"\0") is not None
    assert refusal_of(frame_of(encode(thing)[codec.HEADER_BYTES :] + b"\0")) is not None


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
@example(5, ["a"], [[[0, 0, 0, [0, 0, 0, 2**62], b"", [], []]], [], [], [], False])
@example(5, ["a"], [[[0, 0, 0, [3, 0, 0, 1], b"\0\0\0\0", [], [b"\xff"]]], [], [], [], False])
@example(5, ["a"], [[[0, 0, 0, [1, 0, 0, 1], b"\0\0\0\0", [], []]], [], [], [], False])
def test_body_of_another_shape_is_refused_and_nothing_else_is_raised(number: Any, peers: Any, fields: Any) -> None:
    refusal_of(frame_of(msgspec.msgpack.encode([number, peers, fields])))


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
    tree = msgspec.msgpack.decode(encode(thing)[codec.HEADER_BYTES :])
    path = data.draw(st.sampled_from(parts_of(tree)))
    changed = with_part(tree, path, data.draw(scalars | trees))
    refusal_of(frame_of(msgspec.msgpack.encode(changed)))


@quick
@given(anything, st.data())
def test_body_with_one_byte_replaced_is_decoded_or_refused_and_nothing_else_is_raised(
    thing: Any, data: st.DataObject
) -> None:
    body = bytearray(encode(thing)[codec.HEADER_BYTES :])
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    refusal_of(frame_of(bytes(body)))


def test_body_that_is_nested_too_deep_is_refused() -> None:
    assert refusal_of(frame_of(b"\x93\x00\x90" + b"\x91" * 5000)) is not None


def test_body_with_digests_that_are_no_bytes_is_refused() -> None:
    fields = [[[0, 0, 0, [0, 0, 0, 1], [2**40], [], []]], []]
    assert refusal_of(frame_of(msgspec.msgpack.encode([8, ["a"], fields]))) is not None
