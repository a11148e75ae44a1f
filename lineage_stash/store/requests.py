"""Requests and answers of a replica on a disk: bodies are places, as far as the state machine is concerned."""

from typing import Any, NamedTuple, assert_never, get_args
from zlib import crc32

from lineage_stash import codec
from lineage_stash.core.checkpoint import age
from lineage_stash.core.ids import Epoch, PeerId
from lineage_stash.store.bodies import Place
from lineage_stash.store.chunks import ContentUnreadable
from lineage_stash.store.contract import (
    Append,
    Chunks,
    Fence,
    Forget,
    Found,
    GetCheckpoint,
    GetChunks,
    List,
    PutCheckpoint,
    PutChunks,
    Read,
    Reply,
    Request,
    Seal,
    Truncate,
)
from lineage_stash.store.faults import BodyDamaged, StoreDamaged
from lineage_stash.store.files import OpenFile
from lineage_stash.store.groups import Body, Group, Kind, Record, Recovered
from lineage_stash.store.replica import Replica
from lineage_stash.store.states import digests_in

REQUESTS: tuple[type, ...] = get_args(Request)
WITH_BODIES = (Append, PutChunks)
"""Whose blobs the state machine keeps without looking at them."""

Frame = bytes | tuple[bytes, ...]


class Arrived(NamedTuple):
    """A request, and what of it would have to be written."""

    request: Request
    head: bytes | memoryview
    places: list[Place]


def read_frame(frame: bytes | memoryview) -> Arrived:
    """A request that came in, its bodies in memory; a `FrameError` if it is none."""
    opened = codec.open_frame(frame)
    if opened.kind not in REQUESTS:
        name = "thing of an unknown kind" if opened.kind is None else opened.kind.__name__
        raise codec.FrameError(f"a store answers requests, and this is a {name}")
    places = [Place(blob, len(blob)) for blob in opened.blobs()]
    request: Request = opened.complete(_as_kept(opened.kind, places))
    if isinstance(request, PutCheckpoint):
        _check_manifest(request)
    return Arrived(request, opened.head, places)


def _check_manifest(request: PutCheckpoint) -> None:
    """Refuse what the state machine cannot look into: once it is written, it would be in the way of every opening."""
    try:
        digests_in(request.checkpoint)
    except ContentUnreadable as error:
        raise codec.FrameError(f"a checkpoint whose chunks cannot be told: {error}") from error


def read_record(file: OpenFile, group: Group, record: Recovered) -> Request:
    """A request as it was written, its bodies in the file; what cannot be read is damage."""
    places = [Place((file, spot.offset), spot.length, spot.checksum) for spot in record.spots]
    try:
        opened = codec.open_frame(record.head)
        if opened.lengths != [place.length for place in places]:
            raise codec.FrameError("its bodies are not as long as it says")
        request: Request = opened.complete(_as_kept(opened.kind, places))
    except (codec.FrameError, BodyDamaged) as error:
        raise StoreDamaged(file.path, group.lower, f"a request in it cannot be read: {error}") from error
    return request


def _as_kept(kind: type | None, places: list[Place]) -> list[Any]:
    """What the state machine keeps of a request's blobs: places, or the bytes of a checkpoint."""
    return list(places) if kind in WITH_BODIES else [bytes(place.read()) for place in places]


def make_record(request: Request, epoch: Epoch) -> tuple[Record, list[Place]]:
    """A request whose bodies are places, as it is to be written, and these places."""
    places: list[Place] = []
    if isinstance(request, Append):
        places = [span.body for span in request.spans]
        request = request._replace(spans=tuple([span._replace(body=span.body.read()) for span in request.spans]))
    elif isinstance(request, PutChunks):
        places = [chunk.body for chunk in request.chunks]
        request = request._replace(chunks=tuple([chunk._replace(body=chunk.body.read()) for chunk in request.chunks]))
    frame = codec.encode_in_pieces(request)
    if isinstance(frame, bytes):
        return Record(Kind.REQUEST, epoch, frame), []
    head, *blobs = frame
    checksums = [place.checksum for place in places] or [crc32(blob) for blob in blobs]
    return Record(Kind.REQUEST, epoch, head, list(map(Body, blobs, checksums))), places


def encode_reply(reply: Reply) -> Frame:
    """An answer with its bodies; raises `BodyDamaged` if one cannot be read."""
    if isinstance(reply, Found):
        reply = reply._replace(spans=tuple([span._replace(body=span.body.read()) for span in reply.spans]))
    elif isinstance(reply, Chunks):
        reply = reply._replace(chunks=tuple([chunk._replace(body=chunk.body.read()) for chunk in reply.chunks]))
    return codec.encode_in_pieces(reply)


def touched(replica: Replica, request: Request) -> tuple[Any, ...]:
    """What tells whether a request changed the state, compared before and after it."""
    return replica.epoch, replica.sealed, _touched(replica, request)


def _touched(replica: Replica, request: Request) -> Any:
    match request:
        case Append():
            named = [span.peer for span in request.spans]
            named += [peer for peer, _ in request.segments] + [peer for peer, _ in request.bases]
            return [_extent(replica, peer) for peer in named]
        case Truncate():
            return _extent(replica, request.peer)
        case Fence():
            return [replica.fenced.get(peer) for peer, _ in request.dead]
        case PutCheckpoint():
            peer = request.checkpoint.peer
            return [age(checkpoint) for checkpoint in replica.checkpoints.get(peer, ())], _chunks(replica, peer)
        case PutChunks():
            return _chunks(replica, request.peer)
        case Forget():
            return [_is_known(replica, peer) for peer in request.peers]
        case Read() | GetCheckpoint() | GetChunks() | Seal() | List():
            return ()
        case _:
            assert_never(request)


def _extent(replica: Replica, peer: PeerId) -> tuple[Any, ...] | None:
    # Entries are dropped only with new segments or a new base, so equal ends then mean equal entries.
    log = replica.logs.get(peer)
    return None if log is None else (log.base, log.upper, log.segments)


def _chunks(replica: Replica, peer: PeerId) -> int:
    return len(replica.chunks.get(peer, ()))


def _is_known(replica: Replica, peer: PeerId) -> bool:
    return any(peer in known for known in (replica.logs, replica.fenced, replica.checkpoints, replica.chunks))
