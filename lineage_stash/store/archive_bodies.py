"""Bodies of an archive: in memory until they are committed, then in objects, of which the last ones are at hand.

What it guarantees: a body that is read is the one that was written, whoever has written to the place since. One that
is not there, or not the same, is damaged; one that cannot be reached is not, and may be asked for again.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from lineage_stash import codec
from lineage_stash.core.ids import Epoch
from lineage_stash.store.archive_faults import ArchiveDamaged, ArchivedBodyDamaged, BodyUnreachable
from lineage_stash.store.bodies import Place
from lineage_stash.store.contract import Append, PutChunks, Request
from lineage_stash.store.groups import Buffer, Kind
from lineage_stash.store.objects import Objects
from lineage_stash.store.requests import WITH_BODIES
from lineage_stash.store.sealed import Body, Label, Record, Recovered, Sealer, Unsealed

CACHED_BYTES = 64 * 1024 * 1024
"""A recovery reads what was written last; this much of it needs no request to the place."""
LARGEST_CACHED_BYTES = 16 * 1024 * 1024
"""Objects up to here are fetched whole: their bodies are small, and most often read one after the other."""


class Stored(NamedTuple):
    """An object that is there."""

    name: str
    size: int


class Cache:
    """The content of the objects used last; several threads may use it."""

    def __init__(self) -> None:
        self._contents: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, name: str) -> bytes | None:
        """The content of an object, if it is at hand."""
        with self._lock:
            content = self._contents.get(name)
            if content is not None:
                self._contents.move_to_end(name)
            return content

    def put(self, name: str, content: bytes) -> None:
        """Keep the content of an object, and let go of others for that."""
        with self._lock:
            self._bytes += len(content) - len(self._contents.pop(name, b""))
            self._contents[name] = content
            while self._bytes > CACHED_BYTES:
                _, dropped = self._contents.popitem(last=False)
                self._bytes -= len(dropped)

    def drop(self, name: str) -> None:
        """Let go of an object."""
        with self._lock:
            self._bytes -= len(self._contents.pop(name, b""))


class Vault:
    """Sealed objects in their place."""

    def __init__(self, objects: Objects, sealer: Sealer) -> None:
        self.objects = objects
        self.sealer = sealer
        self._cache = Cache()

    def put(self, label: Label, records: Sequence[Record]) -> tuple[Stored, list[int]]:
        """Make an object of records durable; where it is, and where in it the bodies are."""
        pieces, offsets = self.sealer.seal(label, records)
        size = sum(map(len, pieces))
        if size <= LARGEST_CACHED_BYTES:
            content = b"".join(pieces)
            self._cache.put(label.name, content)
            pieces = [content]
        self.objects.put(label.name, pieces)
        return Stored(label.name, size), offsets

    def open(self, stored: Stored) -> Unsealed:
        """What is in an object, without its bodies."""

        def read(offset: int, length: int) -> bytes:
            content = self.objects.read(stored.name, offset, length)
            if len(content) == stored.size <= LARGEST_CACHED_BYTES:
                self._cache.put(stored.name, content)
            return content

        return self.sealer.unseal(stored.name, stored.size, read)

    def read_body(self, stored: Stored, offset: int, length: int, digest: bytes) -> bytes:
        """A body, if it is what was written."""
        for _ in range(2):
            try:
                content = self._fetch(stored, offset, length)
            except FileNotFoundError as error:
                raise ArchivedBodyDamaged(stored.name, offset, "the object is not there") from error
            except OSError as error:
                raise BodyUnreachable(stored.name, offset, str(error)) from error
            if self.sealer.digest(content) == digest:
                return content
            # What is at hand may be from before a good copy was put back.
            self._cache.drop(stored.name)
        raise ArchivedBodyDamaged(stored.name, offset, "it is not what was written")

    def _fetch(self, stored: Stored, offset: int, length: int) -> bytes:
        if stored.size > LARGEST_CACHED_BYTES:
            return self.objects.read(stored.name, offset, length)
        content = self._cache.get(stored.name)
        if content is None:
            content = self.objects.read(stored.name, 0, stored.size)
            self._cache.put(stored.name, content)
        return content[offset : offset + length]


class ArchivedBody:
    """One body. Whoever holds it follows it wherever it is moved."""

    __slots__ = ("_vault", "digest", "length", "where")

    def __init__(self, vault: Vault, where: Buffer | tuple[Stored, int], length: int, digest: bytes = b"") -> None:
        # One value, so that a compaction's thread changes it at once and no reader sees half of it.
        self.where = where
        self.length = length
        self.digest = digest
        self._vault = vault

    def __repr__(self) -> str:
        where = self.where
        if isinstance(where, tuple):
            return f"ArchivedBody({where[0].name}, {where[1]}, {self.length})"
        return f"ArchivedBody({self.length} bytes in memory)"

    def read(self) -> Buffer:
        """The body."""
        where = self.where
        return self._vault.read_body(*where, self.length, self.digest) if isinstance(where, tuple) else where

    def add_up(self) -> Body:
        """The body as it is to be written, now with its digest."""
        assert not isinstance(self.where, tuple), f"{self!r} is written"
        self.digest = self._vault.sealer.digest(self.where)
        return Body(self.where, self.digest)


# Requests whose bodies are in the archive.


def with_archived_bodies(request: Request, places: Sequence[Place], vault: Vault) -> tuple[Request, list[ArchivedBody]]:
    """A request that came in, with bodies that can be moved to the archive, and these bodies."""
    bodies = [ArchivedBody(vault, place.read(), place.length) for place in places]
    ours = {id(place): body for place, body in zip(places, bodies, strict=True)}
    if isinstance(request, Append):
        request = request._replace(spans=tuple([span._replace(body=ours[id(span.body)]) for span in request.spans]))
    elif isinstance(request, PutChunks):
        request = request._replace(chunks=tuple([each._replace(body=ours[id(each.body)]) for each in request.chunks]))
    return request, bodies


def recovered_request(vault: Vault, stored: Stored, record: Recovered) -> Request:
    """A request as it was written, its bodies in the archive."""
    bodies = [ArchivedBody(vault, (stored, spot.offset), spot.length, spot.digest) for spot in record.spots]
    try:
        opened = codec.open_frame(record.head)
        if opened.lengths != [body.length for body in bodies]:
            raise codec.FrameError("its bodies are not as long as it says")
        kept = bodies if opened.kind in WITH_BODIES else [bytes(body.read()) for body in bodies]
        request: Request = opened.complete(list(kept))
    except BodyUnreachable as error:
        raise OSError(str(error)) from error
    except (codec.FrameError, ArchivedBodyDamaged) as error:
        raise ArchiveDamaged(stored.name, f"a request in it cannot be read: {error}") from error
    return request


def record_of(request: Request, epoch: Epoch, vault: Vault) -> tuple[Record, list[ArchivedBody]]:
    """A request whose bodies are in the archive, as it is to be written once more, and its bodies."""
    moved: list[ArchivedBody] = []
    if isinstance(request, Append):
        moved = [span.body for span in request.spans]
        request = request._replace(spans=tuple([span._replace(body=span.body.read()) for span in request.spans]))
    elif isinstance(request, PutChunks):
        moved = [chunk.body for chunk in request.chunks]
        request = request._replace(chunks=tuple([chunk._replace(body=chunk.body.read()) for chunk in request.chunks]))
    frame = codec.encode_in_pieces(request)
    if isinstance(frame, bytes):
        return Record(Kind.REQUEST, epoch, frame), []
    head, *blobs = frame
    if not moved:  # the state machine keeps the bytes of these itself
        moved = [ArchivedBody(vault, blob, len(blob), vault.sealer.digest(blob)) for blob in blobs]
    written = [Body(blob, body.digest) for blob, body in zip(blobs, moved, strict=True)]
    return Record(Kind.REQUEST, epoch, head, written), moved
