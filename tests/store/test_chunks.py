"""What was split is joined again or the damage is named; a change makes few new chunks; the cuts are the same anywhere.

Contents are drawn as pieces that differ in how much they repeat themselves: what is hard for a cutter is not noise.
"""

import os
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from hashlib import shake_256
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import checkpoint_bytes
from lineage_stash.store import chunks
from lineage_stash.store.chunks import (
    LONGEST_BYTES,
    SHORTEST_BYTES,
    ChunkDamaged,
    ChunkMissing,
    ContentUnreadable,
    Manifest,
    ManifestDamaged,
    digest_of,
    join,
    split,
)

MEGABYTE = 1 << 20


def noise(length: int, seed: int = 0) -> bytes:
    """Bytes that look random and are the same in every release of Python."""
    return shake_256(seed.to_bytes(8, "big")).digest(length)


def narrow(content: bytes, values: int) -> bytes:
    """The same with few different bytes."""
    return content.translate(bytes([byte % values for byte in range(256)]))


def spaced(content: bytes, width: int) -> bytes:
    """The same as little-endian numbers of some width."""
    return b"".join([bytes([byte]) + bytes(width - 1) for byte in content])


def one_hot(content: bytes) -> bytes:
    """A row of ten 32-bit floats for every byte, of which one is 1.0."""
    rows = [bytes(4 * place) + b"\x00\x00\x80\x3f" + bytes(36 - 4 * place) for place in range(10)]
    return b"".join([rows[byte % 10] for byte in content])


def sparse(content: bytes) -> bytes:
    """Zeros, and a one after each stretch of up to 16 KB of them."""
    return b"".join([bytes(256 * (byte % 64 + 1)) + b"\x01" for byte in content])


CONTENTS = {
    "noise": noise(2 * MEGABYTE),
    "bytes of 0 and 1": narrow(noise(2 * MEGABYTE), 2),
    "64-bit numbers below 100": spaced(narrow(noise(MEGABYTE // 4), 100), 8),
    "32-bit numbers below 10": spaced(narrow(noise(MEGABYTE // 2), 10), 4),
    "rows with a single 1.0": one_hot(noise(MEGABYTE // 20)),
    "rare ones": sparse(noise(256)),
    "text": " ".join(str(number * number) for number in range(200_000)).encode(),
    "a pickle": pickle.dumps([(number, str(number * number)) for number in range(100_000)], protocol=5),
}

pieces = st.one_of(
    st.binary(max_size=1000),
    st.builds(noise, st.integers(0, 200_000), st.integers(0, 5)),
    st.builds(bytes, st.integers(0, 300_000)),
    st.builds(lambda unit, times: unit * times, st.binary(min_size=1, max_size=50), st.integers(0, 5000)),
)
contents = st.lists(pieces, max_size=5).map(b"".join)


def stored(content: bytes | memoryview) -> tuple[Manifest, dict[bytes, memoryview]]:
    """A manifest, and the chunks by their digests."""
    parts = split(content)
    manifest = Manifest.of(parts)
    return manifest, dict(zip(manifest.digests, parts, strict=True))


def new_chunks(before: bytes, after: bytes) -> int:
    """How many chunks of the one content the other has not."""
    return len(stored(after)[1].keys() - stored(before)[1].keys())


# splitting and joining


@given(contents)
def test_joined_chunks_are_the_content(content: bytes) -> None:
    manifest, parts = stored(content)
    assert join(manifest, parts) == content
    assert manifest.total_bytes == len(content)


@given(contents)
def test_chunks_keep_to_their_bounds_but_for_the_last(content: bytes) -> None:
    lengths = [len(part) for part in split(content)]
    assert all(SHORTEST_BYTES <= length <= LONGEST_BYTES for length in lengths[:-1])
    assert all(0 < length <= LONGEST_BYTES for length in lengths[-1:])


@given(contents, st.binary(max_size=100_000))
def test_what_follows_changes_only_the_last_chunks(content: bytes, more: bytes) -> None:
    before, after = split(content), split(content + more)
    assert before[:-1] == after[: len(before) - 1]


def test_empty_content_has_no_chunks() -> None:
    manifest, parts = stored(b"")
    assert parts == {}
    assert join(manifest, parts) == b""


@pytest.mark.parametrize("length", [1, SHORTEST_BYTES, LONGEST_BYTES - 1, LONGEST_BYTES])
def test_small_content_is_one_chunk(length: int) -> None:
    assert split(noise(length)) == [noise(length)]


@pytest.mark.parametrize("length", [LONGEST_BYTES + 1, LONGEST_BYTES + SHORTEST_BYTES, 3 * LONGEST_BYTES])
def test_larger_content_is_several_chunks(length: int) -> None:
    assert len(split(noise(length))) > 1
    assert b"".join(split(noise(length))) == noise(length)


def test_views_of_any_kind_of_item_are_split_as_their_bytes() -> None:
    content = noise(MEGABYTE)
    assert split(memoryview(bytearray(content)).cast("Q")) == split(content)


def test_chunks_are_views_and_not_copies() -> None:
    content = noise(MEGABYTE)
    assert all(part.obj is content for part in split(content))


# cuts


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda content, at: content[:at] + b"inserted" + content[at:], id="insertion"),
        pytest.param(lambda content, at: content[:at] + content[at + 13 :], id="deletion"),
        pytest.param(lambda content, at: content[:at] + b"replaced" + content[at + 8 :], id="replacement"),
    ],
)
def test_change_makes_few_new_chunks(name: str, change: Callable[[bytes, int], bytes]) -> None:
    content = CONTENTS[name]
    offsets = [0, 1, 1000, SHORTEST_BYTES, *range(50_000, len(content), len(content) // 8)]
    counts = [new_chunks(content, change(content, offset)) for offset in offsets]
    assert sum(counts) / len(counts) < 4
    assert max(counts) <= 10


@pytest.mark.parametrize("name", CONTENTS)
def test_chunks_are_of_middling_size_in_any_content(name: str) -> None:
    parts = split(CONTENTS[name])
    assert 20 * 1024 < len(CONTENTS[name]) / len(parts) < 44 * 1024


@pytest.mark.parametrize("unit", [b"\x00", b"\xff", b"ab", b"\x01\x00\x00\x00\x00\x00\x00\x00", noise(200)])
def test_run_is_cut_into_few_chunks_that_are_alike(unit: bytes) -> None:
    run = unit * (8 * MEGABYTE // len(unit))
    manifest = Manifest.of(split(run))
    assert len(manifest.digests) < 8 * MEGABYTE / (40 * 1024)
    assert len(set(manifest.digests)) <= len(unit) + 1


def test_run_that_grows_in_front_of_noise_leaves_the_noise_its_chunks() -> None:
    assert new_chunks(bytes(MEGABYTE) + noise(MEGABYTE), bytes(MEGABYTE + 999) + noise(MEGABYTE)) <= 5


PRINT_DIGEST = """
import sys
from hashlib import shake_256
from lineage_stash.store.chunks import Manifest, split
content = shake_256(bytes(8)).digest(1 << 20)
print(Manifest.of(split(content)).digest.hex())
"""


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONHASHSEED": "1"},
        {"PYTHONHASHSEED": "2", "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"},
    ],
)
def test_another_process_on_a_lesser_processor_cuts_alike(environment: dict[str, str]) -> None:
    printed = subprocess.run(
        [sys.executable, "-c", PRINT_DIGEST],
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    assert printed.strip() == Manifest.of(split(noise(MEGABYTE))).digest.hex()


def test_cuts_are_those_of_the_release_before() -> None:
    """If they are to change, so does this; every checkpoint is then uploaded in full once."""
    assert [len(part) for part in split(noise(256 * 1024))] == [32287, 39471, 25849, 46752, 46770, 27874, 43141]


def test_small_content_needs_no_numpy() -> None:
    program = (
        "import sys; from lineage_stash.store.chunks import LONGEST_BYTES, Manifest, join, split; "
        "parts = split(bytes(LONGEST_BYTES)); manifest = Manifest.unpack(Manifest.of(parts).pack()); "
        "join(manifest, dict(zip(manifest.digests, parts))); sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# manifests


@given(contents)
def test_manifest_survives_packing(content: bytes) -> None:
    manifest = Manifest.of(split(content))
    assert Manifest.unpack(manifest.pack()) == manifest
    assert Manifest.unpack(memoryview(manifest.pack())) == manifest


def test_manifest_takes_a_thousandth_of_the_content() -> None:
    content = noise(4 * MEGABYTE)
    assert len(Manifest.of(split(content)).pack()) < len(content) / 800


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda tail: chunks.MAGIC + bytes(3) + b"\x01" + tail))
def test_garbage_is_no_manifest(garbage: bytes) -> None:
    with pytest.raises(ManifestDamaged):
        Manifest.unpack(garbage)


@given(st.integers(0), st.integers(1, 255))
def test_manifest_with_any_byte_changed_is_refused(at: int, difference: int) -> None:
    packed = bytearray(Manifest.of(split(noise(200_000))).pack())
    packed[at % len(packed)] ^= difference
    with pytest.raises(ManifestDamaged):
        Manifest.unpack(bytes(packed))


@given(st.integers(0), st.binary(max_size=80))
def test_manifest_that_is_cut_short_or_goes_on_is_refused(upper: int, more: bytes) -> None:
    packed = Manifest.of(split(noise(200_000))).pack()
    spoilt = packed[: upper % len(packed)] + more
    with pytest.raises(ManifestDamaged):
        Manifest.unpack(spoilt)
    with pytest.raises(ManifestDamaged):
        Manifest.unpack(packed + b"\x00" + more)


def test_manifest_that_claims_to_be_huge_takes_no_memory() -> None:
    packed = chunks.HEADER.pack(chunks.MAGIC, chunks.FORMAT, 2**32 - 1, 2**64 - 1) + bytes(1000)
    tracemalloc.start()
    try:
        with pytest.raises(ManifestDamaged, match="4294967295 chunks"):
            Manifest.unpack(packed)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_manifest_of_another_format_is_refused_by_its_number() -> None:
    packed = Manifest.of([b"chunk"]).pack()
    later = packed.replace(chunks.HEADER.pack(chunks.MAGIC, 1, 1, 5), chunks.HEADER.pack(chunks.MAGIC, 2, 1, 5))
    with pytest.raises(ManifestDamaged, match="format 1"):
        Manifest.unpack(later)


# damage


@pytest.mark.parametrize("number", [0, 3, -1])
def test_missing_chunk_is_named(number: int) -> None:
    manifest, parts = stored(noise(MEGABYTE))
    del parts[manifest.digests[number]]
    with pytest.raises(ChunkMissing, match=manifest.digests[number].hex()) as raised:
        join(manifest, parts)
    assert raised.value.number == number % len(manifest.digests)
    assert raised.value.digest == manifest.digests[number]


@pytest.mark.parametrize("number", [0, 3, -1])
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda part: part[:-1], id="shorter"),
        pytest.param(lambda part: part + b"\x00", id="longer"),
        pytest.param(lambda part: b"", id="empty"),  # noqa: ARG005
        pytest.param(lambda part: part[:-1] + bytes([part[-1] ^ 1]), id="a bit"),
        pytest.param(lambda part: bytes(len(part)), id="zeros"),
    ],
)
def test_damaged_chunk_is_named(number: int, spoil: Callable[[bytes], bytes]) -> None:
    manifest, parts = stored(noise(MEGABYTE))
    digest = manifest.digests[number]
    spoilt: dict[bytes, bytes | memoryview] = {**parts, digest: spoil(bytes(parts[digest]))}
    with pytest.raises(ChunkDamaged, match=digest.hex()) as raised:
        join(manifest, spoilt)
    assert raised.value.number == number % len(manifest.digests)
    assert raised.value.digest == digest


def test_chunks_that_changed_places_are_damaged() -> None:
    manifest, parts = stored(noise(MEGABYTE))
    first, second = manifest.digests[:2]
    with pytest.raises(ChunkDamaged):
        join(manifest, {**parts, first: parts[second], second: parts[first]})


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda manifest: manifest._replace(digests=manifest.digests[::-1]), id="another order"),
        pytest.param(lambda manifest: manifest._replace(digests=manifest.digests[1:]), id="a digest less"),
        pytest.param(lambda manifest: manifest._replace(total_bytes=0), id="another length"),
        pytest.param(lambda manifest: manifest._replace(digest=bytes(32)), id="another digest"),
    ],
)
def test_manifest_that_contradicts_itself_joins_nothing(spoil: Callable[[Manifest], Manifest]) -> None:
    manifest, parts = stored(noise(MEGABYTE))
    with pytest.raises(ManifestDamaged):
        join(spoil(manifest), parts)


@settings(max_examples=50)
@given(contents, st.randoms(use_true_random=False))
def test_whatever_is_lost_or_spoilt_nothing_wrong_is_returned(content: bytes, draws: Random) -> None:
    manifest, parts = stored(content)
    kept = {digest: part for digest, part in parts.items() if draws.random() < 0.9}
    spoilt = {digest: bytes(len(part)) if draws.random() < 0.1 else part for digest, part in kept.items()}
    try:
        assert join(manifest, spoilt) == content
    except ContentUnreadable:
        assert any(digest not in spoilt or digest_of(spoilt[digest]) != digest for digest in manifest.digests)


# the benchmark


def test_pickle_without_frames_is_the_same_pickle() -> None:
    state = checkpoint_bytes.records(5000)
    packed = checkpoint_bytes.pickled(state, checkpoint_bytes.WithoutFrames())
    assert pickle.loads(packed) == state
    assert len(packed) < len(pickle.dumps(state, protocol=5))


def test_benchmark_measures_every_change_beside_its_bar(capsys: pytest.CaptureFixture[str]) -> None:
    figures = checkpoint_bytes.main(["--size-mb", "16"])
    assert len({figure[:2] for figure in figures}) == len(figures) == 11
    assert figures[0].share < checkpoint_bytes.BAR_SHARE < figures[3].share
    printed = capsys.readouterr().out
    assert [printed.count(word) for word in ("floats", "dict of records", "MB/s")] == [5, 4, 8]
