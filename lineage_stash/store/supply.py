"""Supplies: the chunks that one replica lacks of one checkpoint, a page at a time."""

from collections.abc import Mapping
from typing import NamedTuple

from lineage_stash.core.ids import PeerId
from lineage_stash.store.contract import PAGE_BYTES, Chunk, PutChunks, ReplicaId


class Supply(NamedTuple):
    """What is still to be brought to `replica`, so that it can take the request numbered `asked`."""

    replica: ReplicaId
    asked: int
    peer: PeerId
    missing: tuple[bytes, ...]
    fetching: bool
    """Whether the others were asked for them."""
    ticks: int


def page_of(supply: Supply, at_hand: Mapping[bytes, bytes | memoryview]) -> tuple[PutChunks | None, tuple[bytes, ...]]:
    """As many of the chunks as are at hand and fit into a page, and what is missing then."""
    page: list[Chunk] = []
    left: list[bytes] = []
    page_bytes = 0
    for digest in supply.missing:
        body = at_hand.get(digest) if page_bytes < PAGE_BYTES else None
        if body is None:
            left.append(digest)
        else:
            page.append(Chunk(digest, body, len(body)))
            page_bytes += len(body)
    return (PutChunks(supply.peer, tuple(page)) if page else None), tuple(left)
