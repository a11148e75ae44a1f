"""However a stream is cut, the same frames come out of it, and no length above the bound is waited for."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage_stash.wire.frames import HEADER_BYTES, MAX_FRAME_BYTES, FrameReader, FrameTooLarge, header
from tests.wire.sides import frame, quick

frames = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=60)), max_size=12)


def stream_of(wanted: list[tuple[int, bytes]]) -> bytes:
    return b"".join(frame(kind, body) for kind, body in wanted)


def chunks_of(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[lower:upper] for lower, upper in pairwise(edges)]


cuts = st.lists(st.integers(0, 1000), max_size=20)


@quick
@given(frames, cuts)
def test_any_cut_of_the_stream_gives_the_same_frames(wanted: list[tuple[int, bytes]], cuts: list[int]) -> None:
    reader = FrameReader()
    for chunk in chunks_of(stream_of(wanted), cuts):
        reader.feed(chunk)
    assert list(reader.frames) == wanted
    assert reader.missing == reader.buffered_bytes == 0


@quick
@given(frames, cuts)
def test_receiving_in_place_gives_the_same_frames(wanted: list[tuple[int, bytes]], cuts: list[int]) -> None:
    reader = FrameReader()
    for chunk in chunks_of(stream_of(wanted), cuts):
        rest = chunk
        if reader.missing:
            count = min(reader.missing, len(rest))
            reader.space()[:count] = rest[:count]
            reader.filled(count)
            rest = rest[count:]
        reader.feed(rest)
    assert list(reader.frames) == wanted


@quick
@given(frames, cuts)
def test_frames_before_a_length_above_the_bound_come_out_however_it_is_cut(
    wanted: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    reader = FrameReader(max_frame_bytes=60)
    refusals = 0
    for chunk in chunks_of(stream_of(wanted) + header(0, 61) + b"more", cuts):
        try:
            reader.feed(chunk)
        except FrameTooLarge:
            refusals += 1
    assert list(reader.frames) == wanted
    assert refusals
    assert reader.buffered_bytes <= HEADER_BYTES


def test_reader_that_has_refused_refuses_what_is_good_too() -> None:
    reader = FrameReader(max_frame_bytes=60)
    for chunk in (frame(1, b"good") + header(1, 61), frame(2, b"good"), b""):
        with pytest.raises(FrameTooLarge):
            reader.feed(chunk)
    assert list(reader.frames) == [(1, b"good")]


def test_body_is_bytes_whether_it_came_whole_or_in_parts() -> None:
    reader = FrameReader()
    reader.feed(frame(1, b"whole") + frame(2, b"parts")[:-2])
    reader.feed(b"ts")
    assert [type(body) for _, body in reader.frames] == [bytes, bytes]


def test_large_body_in_place_is_not_copied() -> None:
    reader = FrameReader()
    reader.feed(header(7, 10_000_000))
    while reader.missing:
        room = reader.space()[:1_000_000]
        room[:] = b"x" * len(room)
        count = len(room)
        room.release()
        reader.filled(count)
    assert reader.frames.popleft() == (7, b"x" * 10_000_000)


def test_announced_gigabyte_costs_no_memory_before_it_arrives() -> None:
    readers = [FrameReader() for _ in range(64)]
    for reader in readers:
        reader.feed(header(1, MAX_FRAME_BYTES) + b"first bytes")
    assert {reader.buffered_bytes for reader in readers} == {len(b"first bytes")}


def test_header_of_a_body_above_the_bound_is_refused() -> None:
    header(1, MAX_FRAME_BYTES)
    with pytest.raises(FrameTooLarge):
        header(1, MAX_FRAME_BYTES + 1)
