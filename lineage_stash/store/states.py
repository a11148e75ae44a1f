"""The state in a checkpoint: the bytes themselves where they are few, otherwise a manifest of chunks.

Whoever takes a checkpoint packs; whoever restores one unpacks, after the chunks were fetched. The store only asks which
chunks a state refers to.
"""

from collections.abc import Callable, Mapping, Sequence

from lineage_stash.core.checkpoint import Checkpoint
from lineage_stash.store.chunks import Manifest, join, split

INLINE = b"\x00"
IN_CHUNKS = b"\x01"
INLINE_BYTES = 64 * 1024
"""Up to here a state is sent whole: one request and no questions."""

Buffer = bytes | memoryview


def pack_state(content: Buffer, *, inline_bytes: int = INLINE_BYTES,
               cut: Callable[[Buffer], Sequence[Buffer]] = split) -> tuple[bytes, dict[bytes, Buffer]]:  # fmt: skip
    """What to put into a checkpoint, and the chunks that it refers to by their digests."""
    if len(content) <= inline_bytes:
        return INLINE + content, {}
    pieces = cut(content)
    manifest = Manifest.of(pieces)
    return IN_CHUNKS + manifest.pack(), dict(zip(manifest.digests, pieces, strict=True))


def digests_in(checkpoint: Checkpoint) -> tuple[bytes, ...]:
    """The digests of the chunks that a checkpoint refers to; a record has last words in place of a state."""
    return () if checkpoint.final else digests_of_state(checkpoint.state)


def digests_of_state(state: bytes) -> tuple[bytes, ...]:
    """The digests of the chunks that a state refers to."""
    return Manifest.unpack(state[1:]).digests if state[:1] == IN_CHUNKS else ()


def unpack_state(state: bytes, chunks: Mapping[bytes, Buffer]) -> bytes:
    """The content; raises if a chunk is missing or is not what it was."""
    if state[:1] == IN_CHUNKS:
        return join(Manifest.unpack(state[1:]), chunks)
    return state[1:]
