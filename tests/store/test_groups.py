"""Groups are read back as they were packed, from wherever they are kept, or not at all."""

from zlib import crc32

import pytest

from lineage_stash.store.groups import (
    HEADER,
    Body,
    Kind,
    Read,
    Record,
    bodies_are_good,
    find_header,
    group_bytes,
    pack_confirmation,
    pack_group,
    read_group,
    read_header,
)

SEED, OFFSET = 7, 100


def body(content: bytes) -> Body:
    return Body(content, crc32(content))


RECORDS = (
    Record(Kind.REQUEST, 3, b"head", (body(b"first body"), body(b""), body(b"third"))),
    Record(Kind.PROMISED),
    Record(Kind.REQUEST, 4, memoryview(b"another head"), (body(b"last"),)),
)


def kept(content: bytes, offset: int = OFFSET) -> Read:
    """A way to read content that begins at an offset."""
    return lambda lower, length: content[lower - offset : lower - offset + length]


def packed() -> bytes:
    pieces, _ = pack_group(RECORDS, SEED, OFFSET, 555)
    return b"".join(pieces)


def test_group_is_read_back_with_its_bodies_where_they_were_said_to_be() -> None:
    content = packed()
    _, offsets = pack_group(RECORDS, SEED, OFFSET, 555)
    assert len(content) == group_bytes(RECORDS)
    header = read_header(kept(content), SEED, OFFSET)
    assert header is not None
    assert (header.length, header.group_bytes) == (555, len(content))
    group = read_group(kept(content), header, OFFSET)
    assert group is not None
    assert (group.lower, group.upper) == (OFFSET, OFFSET + len(content))
    assert [(record.kind, record.epoch, record.head) for record in group.records] == [
        (record.kind, record.epoch, bytes(record.head)) for record in RECORDS
    ]
    spots = [spot for record in group.records for spot in record.spots]
    assert [spot.offset for spot in spots] == offsets
    assert [kept(content)(spot.offset, spot.length) for spot in spots] == [b"first body", b"", b"third", b"last"]
    assert bodies_are_good(kept(content), group)


@pytest.mark.parametrize("at", range(len(packed())))
def test_changed_bit_makes_the_header_the_heads_or_the_bodies_bad(at: int) -> None:
    content = packed()
    changed = content[:at] + bytes((content[at] ^ 1 << at % 8,)) + content[at + 1 :]
    header = read_header(kept(changed), SEED, OFFSET)
    group = None if header is None else read_group(kept(changed), header, OFFSET)
    assert group is None or not bodies_are_good(kept(changed), group)
    assert (header is None) == (at < HEADER.size)


@pytest.mark.parametrize(("seed", "offset"), [(SEED + 1, OFFSET), (SEED, OFFSET + 1)])
def test_group_of_another_file_or_another_offset_is_none(seed: int, offset: int) -> None:
    assert read_header(kept(packed(), offset), seed, offset) is None
    assert find_header(b"before" + packed(), seed, offset - 6) is None


def test_header_is_found_behind_other_bytes_and_a_confirmation_has_nothing_in_it() -> None:
    content = b"\xf5grp" * 20 + pack_confirmation(SEED, OFFSET + 80, 0)
    assert find_header(content, SEED, OFFSET) == OFFSET + 80
    header = read_header(kept(content), SEED, OFFSET + 80)
    assert header is not None
    assert header.group_bytes == HEADER.size
