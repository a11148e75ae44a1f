"""Asking a process as its peers would: whether it answers is the only proof that it is up.

We introduce ourselves with no name, so that nobody keeps a link to us or takes our leaving for a death. All that is
asked here leaves things as they are, with one exception: `forget_at`.
"""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from lineage_stash import codec
from lineage_stash.cli.cluster import FAILURES
from lineage_stash.core.ids import Epoch, Index, PeerId
from lineage_stash.on_ray.links import NUMBER_BYTES, TICKET, Kind
from lineage_stash.on_ray.mail import inquire
from lineage_stash.on_ray.process import tls_of_ray
from lineage_stash.on_ray.registry import RAY_SCHEME
from lineage_stash.store.contract import (
    Elsewhere,
    Forget,
    Found,
    Inventory,
    Item,
    Level,
    List,
    Read,
    ReplicaId,
    Reply,
    Request,
    Span,
    Stored,
    Ticket,
)
from lineage_stash.store.replica import NO_EPOCH
from lineage_stash.wire.connection import Connection
from lineage_stash.wire.loop import Loop

ANSWER_WITHIN_S = 5.0
"""What a busy process is given by its peers too, before they wonder."""

BEFORE_ALL = PeerId("")
AFTER_ALL = PeerId(chr(0x10FFFF))
"""No name comes after it: a list from here on is empty, and as quick as any answer."""

FIRST_NUMBER = 1

Answer = TypeVar("Answer")


class NoAnswer(Exception):
    """Why there was none."""


class Standing(NamedTuple):
    """What the coordinator says of itself, and how long it took to say so."""

    links: frozenset[str]
    spares: int
    phase: str
    took_ms: float
    ahead_s: float | None = None
    """By how much its clock is ahead of this machine's; None of a coordinator that does not say."""


def ask_coordinator(address: str, secret: bytes) -> Standing:
    """Where the coordinator stands."""
    body, took_ms = ask(address, secret, Kind.CONTROL, json.dumps({"status": 1}).encode())
    answered_at = time.time()
    said = json.loads(body)["status"]
    ahead_s = said["now"] - (answered_at - took_ms / 2e3) if "now" in said else None
    return Standing(frozenset(said["links"]), said["spares"], said["phase"], took_ms, ahead_s)


# replicas


def of_each(replicas: tuple[ReplicaId, ...], ask: Callable[[ReplicaId], Answer]) -> dict[ReplicaId, Answer]:
    """Ask all replicas at once, so that several that are silent take no longer than one."""
    with ThreadPoolExecutor(max_workers=max(1, len(replicas))) as pool:
        return dict(zip(replicas, pool.map(ask, replicas), strict=True))


def time_replica(address: str, secret: bytes) -> float:
    """How long a replica takes to answer, in milliseconds."""
    _, took_ms = ask_replica(address, secret, List(AFTER_ALL))
    return took_ms


def list_replica(address: str, secret: bytes) -> Iterator[Item]:
    """All that a replica has, peer by peer."""
    after, more = BEFORE_ALL, True
    while more:
        reply, _ = ask_replica(address, secret, List(after))
        if not isinstance(reply, Inventory):
            raise _unexpected(reply)
        yield from reply.items
        more = reply.more and bool(reply.items)
        after = reply.items[-1].peer if more else AFTER_ALL


def read_log(address: str, secret: bytes, peer: PeerId, lower: Index) -> Iterator[Span]:
    """What a replica has of a log, from an index on; raises if that is not there any more."""
    for page in read_pages(address, secret, peer, lower):
        yield from page


def read_pages(address: str, secret: bytes, peer: PeerId, lower: Index) -> Iterator[tuple[Span, ...]]:
    """The same as it comes: a page at a time, and the next one when it is asked for."""
    more = True
    while more:
        reply, _ = ask_replica(address, secret, Read(peer, lower))
        if not isinstance(reply, Found):
            raise _unexpected(reply)
        if any(base > lower for _, base in reply.bases):
            raise NoAnswer(f"the log of {peer} was truncated meanwhile: do it again")
        yield reply.spans
        more = reply.more and bool(reply.spans)
        lower = reply.spans[-1].upper if more else lower


def forget_at(address: str, secret: bytes, peers: tuple[PeerId, ...], epoch: Epoch) -> None:
    """Have a replica of an epoch delete all that it has of some peers; on its disk too when this returns."""
    reply, _ = ask_replica(address, secret, Forget(peers), epoch)
    if not isinstance(reply, Stored):
        raise _unexpected(reply)


def ask_replica(address: str, secret: bytes, request: Request, epoch: Epoch = NO_EPOCH, *,
                within_s: float = ANSWER_WITHIN_S) -> tuple[Reply, float]:  # fmt: skip
    """Ask a replica for something: its answer, and the milliseconds that it took."""
    ticket = TICKET.pack(*Ticket(FIRST_NUMBER, epoch, Level.DISK))
    body, took_ms = ask(address, secret, Kind.ASK, ticket + codec.encode(request), within_s=within_s)
    try:
        reply: Reply = codec.decode(body[NUMBER_BYTES:])
    except codec.FrameError as error:
        raise NoAnswer(f"its answer cannot be read: {error}") from error
    return reply, took_ms


def _unexpected(reply: Reply) -> NoAnswer:
    if isinstance(reply, Elsewhere):
        return NoAnswer(f"it has gone on to epoch {reply.epoch}{', which is sealed' if reply.sealed else ''}")
    return NoAnswer(f"it answered with a {type(reply).__name__}")


# one frame, one answer


def ask(
    address: str, secret: bytes, kind: int, body: bytes, *, within_s: float = ANSWER_WITHIN_S
) -> tuple[bytes, float]:
    """Say one frame to whoever listens at an address: its answer, and the milliseconds from our saying it."""
    if address.startswith(RAY_SCHEME):
        return _inquire(address.removeprefix(RAY_SCHEME), kind, body, within_s)
    answers: list[tuple[bytes, float]] = []
    losses: list[str] = []
    began_at = time.monotonic()
    deadline = began_at + within_s

    def speak(connection: Connection) -> None:
        nonlocal began_at
        began_at = time.monotonic()
        connection.send(kind, body)

    def hear(_: Connection, __: int, answer: bytes) -> None:
        answers.append((answer, 1e3 * (time.monotonic() - began_at)))

    loop = Loop(secret, "", on_frame=hear, on_open=speak, on_lost=lambda _, reason: losses.append(reason),
                tls=tls_of_ray())  # fmt: skip
    try:
        loop.connect(address)
        while not answers and not losses and (left_s := deadline - time.monotonic()) > 0:
            loop.poll(left_s)
    finally:
        loop.close()
    if answers:
        return answers[0]
    raise NoAnswer(losses[0] if losses else f"no answer within {within_s:g} s")


def _inquire(actor: str, kind: int, body: bytes, within_s: float) -> tuple[bytes, float]:
    """Where nobody listens, the same by a call of the Ray actor."""
    began_at = time.monotonic()
    try:
        answer = inquire(actor, kind, body, within_s=within_s)
    except AttributeError as error:
        raise NoAnswer("it is a script, which has a mailbox and takes no questions") from error
    except (*FAILURES, ValueError) as error:
        raise NoAnswer(str(error).strip().rpartition("\n")[2] or f"no answer within {within_s:g} s") from error
    return answer, 1e3 * (time.monotonic() - began_at)
