"""Content in chunks that are named by what they contain, so that a large state that changed little uploads little.

`split` cuts content where the content itself says so, a `Manifest` names the chunks in order, and `join` puts them
together. What it guarantees: `join` returns the bytes that were split, or raises and says which chunk is to blame.

Rules:
- Where a chunk ends depends on nothing but the bytes since the cut before it. So after a change the cuts soon fall
  where they fell before, and from there on every chunk is one that is known already.
- How content is cut may change from release to release: a manifest says what its chunks are, and `join` never cuts.
  Such a change costs one full upload and nothing else.
- A chunk that is taken for another is a wrong state. So its name is all of a SHA-256, and is checked when it is used.
- Bytes from outside are checked before anything is made of them; nothing is made as large as a number in them says.

Left to others: where chunks and manifests are kept, and which of them are needed no more. Not promised: that little is
uploaded where a little has changed in every chunk (measured in `docs/design/2026-11-16-checkpoint-chunks.md`).
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from numpy import uint32
    from numpy.typing import NDArray

SHORTEST_BYTES = 16 * 1024
LONGEST_BYTES = 48 * 1024
"""Some 33 KB on average: chunks of half the size double a manifest, of twice the size what a changed byte costs."""

FOLDS = ((5, 167), (10, 59), (20, 109), (40, 211), (80, 37))
"""Distances, and factors that are odd: in each step a byte becomes itself times the factor plus the byte so far behind.

Five times a power of two, so that the few bytes that are not zero in an array of small numbers meet different ones.
"""
WORD_BYTES = 4
SPREAD = 0x9E3779B1
"""Odd, with bits that look random: the high bits of a word times this depend on all of the word."""
WORDS = (LONGEST_BYTES - SHORTEST_BYTES - sum([distance for distance, _ in FOLDS])) // WORD_BYTES - 1
"""How many words lie one after the other where a chunk may end; one less than fit, because they are also shifted."""
EARLY_BYTES = 256
"""In a run that repeats itself within so many bytes, the greatest hash comes as early as this."""

MAGIC = b"lin-chks"
FORMAT = 1
HEADER = struct.Struct(">8sIIQ")
"""Magic, format, number of chunks, length of the content."""
DIGEST_BYTES = 32
LENGTH_BYTES = 4


class ContentUnreadable(Exception):
    """Content cannot be put together from what is there; each way in which that happens has a class of its own."""


class ManifestDamaged(ContentUnreadable):
    """These bytes are no manifest that was ever packed."""

    def __init__(self, finding: str) -> None:
        super().__init__(f"the manifest is damaged: {finding}")


class ChunkMissing(ContentUnreadable):
    """A chunk that the manifest names is not there."""

    def __init__(self, number: int, digest: bytes) -> None:
        super().__init__(f"chunk {number} is missing; its SHA-256 is {digest.hex()}")
        self.number = number
        self.digest = digest


class ChunkDamaged(ContentUnreadable):
    """What is kept under a chunk's name is not that chunk."""

    def __init__(self, number: int, digest: bytes, finding: str) -> None:
        super().__init__(f"chunk {number} is damaged: {finding}; its SHA-256 should be {digest.hex()}")
        self.number = number
        self.digest = digest


class Manifest(NamedTuple):
    """The chunks of a content in order, its length, and a digest over all of these and so over the content."""

    digests: tuple[bytes, ...]
    lengths: tuple[int, ...]
    total_bytes: int
    digest: bytes

    @classmethod
    def of(cls, chunks: Sequence[bytes | memoryview]) -> Self:
        """The manifest of the content that these chunks are."""
        lengths = tuple([len(chunk) for chunk in chunks])
        unsigned = cls(tuple([digest_of(chunk) for chunk in chunks]), lengths, sum(lengths), b"")
        return unsigned._replace(digest=_digest_over(unsigned))

    def pack(self) -> bytes:
        """As bytes: a header, the digest over all, the chunks' digests, their lengths."""
        return b"".join([_pack_header(self), self.digest, *self.digests, _pack_lengths(self.lengths)])

    @classmethod
    def unpack(cls, packed: bytes | memoryview) -> Self:
        """What was packed; anything else raises `ManifestDamaged`."""
        packed = bytes(packed)
        if len(packed) < HEADER.size + DIGEST_BYTES:
            raise ManifestDamaged(f"{len(packed)} bytes are too few for one")
        magic, written_format, count, total_bytes = HEADER.unpack_from(packed)
        if (magic, written_format) != (MAGIC, FORMAT):
            raise ManifestDamaged(f"it does not begin with {MAGIC!r} and format {FORMAT}")
        names = HEADER.size + DIGEST_BYTES
        lengths = names + count * DIGEST_BYTES
        if len(packed) != lengths + count * LENGTH_BYTES:
            raise ManifestDamaged(f"{len(packed)} bytes are not what {count} chunks take")
        manifest = cls(
            tuple([packed[at : at + DIGEST_BYTES] for at in range(names, lengths, DIGEST_BYTES)]),
            struct.unpack_from(f">{count}I", packed, lengths),
            total_bytes,
            packed[HEADER.size : names],
        )
        manifest.verify()
        return manifest

    def verify(self) -> None:
        """Raise `ManifestDamaged` unless its parts agree with each other."""
        if len(self.digests) != len(self.lengths) or sum(self.lengths) != self.total_bytes:
            raise ManifestDamaged(f"its chunks do not add up to {self.total_bytes} bytes")
        if self.digest != _digest_over(self):
            raise ManifestDamaged("its digest is not the digest of what it says")


def split(content: bytes | memoryview) -> list[memoryview]:
    """The chunks of a content in order: views that keep all of it in memory, and none if it is empty."""
    whole = memoryview(content).cast("B")
    if len(whole) <= LONGEST_BYTES:
        return [whole] if len(whole) else []
    return [whole[lower:upper] for lower, upper in pairwise([0, *_cuts(whole), len(whole)])]


def digest_of(chunk: bytes | memoryview) -> bytes:
    """The name of a chunk."""
    return sha256(chunk).digest()


def join(manifest: Manifest, chunks: Mapping[bytes, bytes | memoryview]) -> bytes:
    """The content, from chunks by their digests."""
    # The digest over all covers the digests of the chunks, so with these the whole is checked without a second pass.
    manifest.verify()
    content = BytesIO()
    for number, (digest, length) in enumerate(zip(manifest.digests, manifest.lengths, strict=True)):
        chunk = chunks.get(digest)
        if chunk is None:
            raise ChunkMissing(number, digest)
        if len(chunk) != length:
            raise ChunkDamaged(number, digest, f"it has {len(chunk)} bytes instead of {length}")
        if digest_of(chunk) != digest:
            raise ChunkDamaged(number, digest, "its bytes are not those that were stored")
        content.write(chunk)
    return content.getvalue()


def _cuts(whole: memoryview) -> Iterator[int]:
    """Where all chunks but the last end: within the bounds, before the bytes of which the hash is greatest.

    A hash that has to reach some mark would leave no such place in content with few different hashes.
    """
    import numpy as np  # not above: most states are one chunk, and loading this takes longer than storing them

    content = np.frombuffer(whole, np.uint8)
    shifted = np.empty((WORD_BYTES, WORDS * WORD_BYTES), np.uint8)
    hashes = shifted.view("<u4")
    cut = 0
    while len(content) - cut > LONGEST_BYTES:
        folded = content[cut + SHORTEST_BYTES : cut + LONGEST_BYTES]
        for distance, factor in FOLDS:
            behind = folded[distance:]
            folded = folded[:-distance] * factor
            folded += behind
        # There is a word at every offset, but words that overlap cannot be multiplied fast.
        for shift in range(WORD_BYTES):
            shifted[shift] = folded[shift : shift + WORDS * WORD_BYTES]
        hashes *= SPREAD
        cut += SHORTEST_BYTES + _place_of_greatest(hashes)
        yield cut


def _place_of_greatest(hashes: "NDArray[uint32]") -> int:
    """The first place with the greatest hash, or in a run, where that comes early, a late one."""
    words: list[int] = hashes.argmax(axis=1).tolist()
    found = [(int(hashes[shift, word]), word * WORD_BYTES + shift) for shift, word in enumerate(words)]
    greatest, _ = max(found)
    first = min([place for top, place in found if top == greatest])
    if first >= EARLY_BYTES:
        return first
    # It may be a run, of zeros or of anything short, where one place is as good as another: fewer and longer chunks.
    shift, word = divmod(int((hashes == greatest).ravel().nonzero()[0][-1]), WORDS)
    return word * WORD_BYTES + shift


def _digest_over(manifest: Manifest) -> bytes:
    return sha256(b"".join([_pack_header(manifest), *manifest.digests, _pack_lengths(manifest.lengths)])).digest()


def _pack_header(manifest: Manifest) -> bytes:
    return HEADER.pack(MAGIC, FORMAT, len(manifest.digests), manifest.total_bytes)


def _pack_lengths(lengths: Sequence[int]) -> bytes:
    return struct.pack(f">{len(lengths)}I", *lengths)
