"""Compaction of an archive: the live state is written to objects of its own, beside the replica, which goes on.

Rules:
- The state is that of one moment, after one group. A manifest makes all of its objects count at once, and is written
  after them.
- Bodies lead to the new objects only after that. Nothing is removed here.
- A body is checked on the way and keeps its digest. One that is damaged ends the compaction: all stays as it is.
"""

from collections.abc import Generator, Iterator

from lineage_stash.store.archive_bodies import ArchivedBody, Stored, record_of
from lineage_stash.store.archive_chain import Chain, State
from lineage_stash.store.archive_names import Claim, Name
from lineage_stash.store.compaction import MOVES_AT_A_STRETCH, state_requests
from lineage_stash.store.groups import Kind
from lineage_stash.store.replica import Replica
from lineage_stash.store.sealed import Record

PART_BYTES = 8 * 1024 * 1024
"""About how large an object is: small enough to be fetched whole, large enough for that to be worth a request."""


class StateWriting:
    """One state, on its way into the archive."""

    def __init__(self, index: Replica, chain: Chain, *, promised: bool) -> None:
        self.state: State | None = None
        """The state, once everything is in it and every body leads there."""
        self.successor: Claim | None = None
        """Who has taken over meanwhile."""
        self._index = index
        self._chain = chain
        self._name = Name(chain.number, chain.owner)
        self._follows = chain.last
        self._promised = promised
        self._parts: list[Stored] = []
        self._moved: list[tuple[ArchivedBody, tuple[Stored, int]]] = []

    def steps(self) -> Generator[None, None, None]:
        """Write the objects and the manifest, and have the bodies lead there."""
        for records, bodies in self._portions():
            yield
            self._put_part(records, bodies)
        yield
        chain, name = self._chain, self._name.manifest()
        chain.vault.put(chain.label(name, previous=self._follows, parts=len(self._parts)), [])
        yield
        self.successor = chain.successor()
        if self.successor is None:
            yield from self._move()
            self.state = State(self._name, self._follows, tuple(self._parts))

    def _portions(self) -> Iterator[tuple[list[Record], list[ArchivedBody]]]:
        """The state as records, about as many as fit into an object at a time, with their bodies."""
        records = [Record(Kind.PROMISED)] if self._promised else []
        bodies: list[ArchivedBody] = []
        portion_bytes = 0
        for request in state_requests(self._index):
            record, moved = record_of(request, self._index.epoch, self._chain.vault)
            records.append(record)
            bodies += moved
            portion_bytes += len(record.head) + sum([len(body.content) for body in record.bodies])
            if portion_bytes >= PART_BYTES:
                yield records, bodies
                records, bodies, portion_bytes = [], [], 0
        yield records, bodies

    def _put_part(self, records: list[Record], bodies: list[ArchivedBody]) -> None:
        chain = self._chain
        stored, offsets = chain.vault.put(chain.label(self._name.part(len(self._parts))), records)
        self._parts.append(stored)
        self._moved += [(body, (stored, offset)) for body, offset in zip(bodies, offsets, strict=True)]

    def _move(self) -> Iterator[None]:
        for at in range(0, len(self._moved), MOVES_AT_A_STRETCH):
            yield
            for body, where in self._moved[at : at + MOVES_AT_A_STRETCH]:
                body.where = where
