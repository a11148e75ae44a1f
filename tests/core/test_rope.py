"""Ropes: however bytes are divided between here and elsewhere, they are the same bytes."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage_stash.core.rope import Rope, behind, cut, parts_of, pieces_of, put_before, rope, weigh, whole

pieces = st.lists(st.tuples(st.booleans(), st.binary(max_size=6)), max_size=8)


def made(divided: list[tuple[bool, bytes]]) -> bytes:
    """Bytes of which the marked pieces lie elsewhere."""
    here = b""
    parts = []
    for elsewhere, piece in divided:
        if elsewhere and piece:
            parts.append((len(here), memoryview(piece)))
        else:
            here += piece
    return rope(here, parts)


def joined(divided: list[tuple[bool, bytes]]) -> bytes:
    return b"".join(piece for _, piece in divided)


@given(pieces)
def test_a_rope_is_the_bytes_it_was_made_of(divided: list[tuple[bool, bytes]]) -> None:
    payload = made(divided)
    assert whole(payload) == b"".join(pieces_of(payload)) == joined(divided)
    assert weigh(payload) == len(joined(divided))
    assert pickle.loads(pickle.dumps(payload)) == joined(divided)
    assert type(payload) is (Rope if parts_of(payload) else bytes)


@given(st.binary(max_size=6), pieces)
def test_what_is_put_before_can_be_taken_away(head: bytes, divided: list[tuple[bool, bytes]]) -> None:
    payload = put_before(head, made(divided))
    assert whole(payload) == head + joined(divided)
    assert whole(behind(payload, len(head))) == joined(divided)


@given(st.binary(max_size=6), st.lists(pieces, max_size=5))
def test_blobs_behind_a_body_are_cut_out_as_they_were(body: bytes, blobs: list[list[tuple[bool, bytes]]]) -> None:
    frame = made([(False, body), *[piece for blob in blobs for piece in blob]])
    found = cut(frame, len(body), [len(joined(blob)) for blob in blobs])
    assert [whole(blob) for blob in found] == [joined(blob) for blob in blobs]
    assert sum(len(parts_of(blob)) for blob in found) == len(parts_of(frame))


@pytest.mark.parametrize("lengths", [[], [3], [7], [9], [4, 3], [2, 5], [8, 1]])
def test_lengths_that_do_not_fit_are_refused(lengths: list[int]) -> None:
    frame = made([(False, b"body"), (False, b"ab"), (True, b"cdef"), (False, b"gh")])
    with pytest.raises(ValueError, match="a frame"):
        cut(frame, 4, lengths)
