"""Processes to ask: somebody who listens on a real socket, and replicas of a store that are real but for their disk."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lineage_stash import codec
from lineage_stash.core.batch import Range
from lineage_stash.core.checkpoint import CallsFrom, CallsTo, Checkpoint
from lineage_stash.core.entry import Ran
from lineage_stash.core.ids import FIRST_INCARNATION, Epoch, Index, PeerId, Seqno
from lineage_stash.on_ray.links import NUMBER_BYTES, TICKET, Kind
from lineage_stash.on_ray.registry import replica_name
from lineage_stash.store.bodies import Place
from lineage_stash.store.contract import Append, Found, PutCheckpoint, Reply
from lineage_stash.store.replica import FIRST_EPOCH, Replica
from lineage_stash.wire.connection import Connection
from lineage_stash.wire.loop import Loop
from tests.cli.planes import MemoryPlane

SECRET = b"s" * 32


@contextmanager
def listening(folder: Path, on_frame: Callable[[Connection, int, bytes], None]) -> Iterator[str]:
    """Somebody who listens, in a thread of its own, until the end."""
    ended = threading.Event()
    introductions: list[str | None] = []
    loop = Loop(SECRET, "somebody", on_frame=on_frame, on_open=lambda link: introductions.append(link.introduction),
                on_lost=lambda _link, _reason: None)  # fmt: skip

    def serve() -> None:
        while not ended.is_set():
            loop.poll(1.0)

    address = loop.listen(f"unix:{folder}/socket")
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield address
    finally:
        ended.set()
        loop.wake()
        thread.join()
        loop.close()
    assert not any(introductions), "we have no name, so that nobody keeps a link to us"


@contextmanager
def serving(folder: Path, replica: Replica) -> Iterator[str]:
    """A replica that answers as a real one does."""

    def answer(link: Connection, kind: int, body: bytes) -> None:
        assert kind == Kind.ASK
        _, epoch, _ = TICKET.unpack_from(body)
        reply = replica.handle(codec.decode(body[TICKET.size :]), Epoch(epoch))
        link.send(Kind.ANSWER, body[:NUMBER_BYTES] + codec.encode(_with_bodies(reply)))

    with listening(folder, answer) as address:
        yield address


def _with_bodies(reply: Reply) -> Reply:
    """An answer with what of it is in files."""
    if not isinstance(reply, Found):
        return reply
    return reply._replace(spans=tuple(
        span._replace(body=span.body.read()) if isinstance(span.body, Place) else span for span in reply.spans
    ))  # fmt: skip


class Store:
    """Replicas that listen, and are registered in a control plane; `write` puts something into all of them."""

    def __init__(self, folder: Path, plane: MemoryPlane, replicas: int) -> None:
        self.replicas = [Replica() for _ in range(replicas)]
        self._plane = plane
        self._folder = folder
        self._ends = [ExitStack() for _ in range(replicas)]

    def start(self) -> None:
        for number, replica in enumerate(self.replicas):
            folder = self._folder / replica_name(number)
            folder.mkdir()
            self._plane.listen(replica_name(number), self._ends[number].enter_context(serving(folder, replica)))

    def stop(self, *numbers: int) -> None:
        for number in numbers or range(len(self.replicas)):
            self._ends[number].close()

    def peers(self) -> list[list[str]]:
        return [list(replica.peers) for replica in self.replicas]

    def write(self, peer: str, *callers: str, payload: bytes | None = b"x" * 100, only: tuple[int, ...] = ()) -> None:
        """Have a log in which calls of these ran."""
        entries = tuple(Ran(PeerId(caller), Seqno(0), payload, 0, ()) for caller in callers)
        span = codec.pack_span(Range(PeerId(peer), FIRST_INCARNATION, Index(0), entries))
        body = span.body if isinstance(span.body, bytes) else b"".join(span.body)
        for number in only or range(len(self.replicas)):
            self.replicas[number].handle(Append((span._replace(body=body),), (), (), (), False), FIRST_EPOCH)

    def checkpoint(self, peer: str, upper: int = 0, *, called: dict[str, int] | None = None,
                   finished: dict[str, int] | None = None, final: bool = False) -> None:  # fmt: skip
        """Have a checkpoint of somebody who has called some, and has finished calls of others."""
        calls_to = tuple(
            (PeerId(callee), CallsTo(Seqno(0), Seqno(count), (), Seqno(count), (), ()))
            for callee, count in (called or {}).items()
        )
        calls_from = tuple(
            (PeerId(caller), CallsFrom(Seqno(count), Seqno(count), (), ()))
            for caller, count in (finished or {}).items()
        )
        made = Checkpoint(
            PeerId(peer), FIRST_INCARNATION, Index(upper), b"\0state", 0, calls_to, calls_from, (), 0, final
        )
        for replica in self.replicas:
            replica.handle(PutCheckpoint(made), FIRST_EPOCH)
            log = replica.logs.get(PeerId(peer))
            if log is not None:
                log.truncate(Index(upper))
