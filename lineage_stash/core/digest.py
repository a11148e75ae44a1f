"""Digests: what of a payload, a reply or a reading counts when a replay is compared with the first run.

Most bytes count as they are. *Opaque* ones may differ from run to run though they mean the same (a pickle depends on
which of its parts were one object): of those only the head counts, which whoever made them has put together for this.
Layout of an opaque payload: `OPAQUE`, one byte with the length of the head, the head, the rest.
"""

from zlib import crc32

from lineage_stash.core.handles import HANDLES, PARCELED, without_names
from lineage_stash.core.parcels import HEAD_BYTES

OPAQUE = 0xFF
HEAD_STARTS = 2


def digest(payload: bytes, start: int = 0) -> int:
    """A checksum of what counts of `payload`, continued from `start`."""
    if payload and payload[0] >= HANDLES:
        if payload[0] == PARCELED:
            return digest(payload[HEAD_BYTES:], start)
        if payload[0] == OPAQUE:
            return crc32(payload[1 : HEAD_STARTS + payload[1]] if len(payload) > 1 else b"", start)
        bare = without_names(payload)
        return crc32(payload, start) if bare is payload else digest(bare, start)
    return crc32(payload, start)
