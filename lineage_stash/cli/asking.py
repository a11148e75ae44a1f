"""Asking a process as its peers would: whether it answers is the only proof that it is up.

We introduce ourselves with no name, so that nobody keeps a link to us or takes our leaving for a death. Nothing that is
asked here changes anything: the coordinator tells where it stands, a replica looks for a checkpoint that nobody has.
"""

import json
import time
from typing import NamedTuple

from lineage_stash import codec
from lineage_stash.cli.cluster import FAILURES
from lineage_stash.core.ids import PeerId
from lineage_stash.on_ray.links import Kind
from lineage_stash.on_ray.mail import inquire
from lineage_stash.on_ray.process import tls_of_ray
from lineage_stash.on_ray.registry import RAY_SCHEME
from lineage_stash.store.contract import GetCheckpoint
from lineage_stash.wire.connection import Connection
from lineage_stash.wire.loop import Loop

ANSWER_WITHIN_S = 5.0
"""What a busy process is given by its peers too, before they wonder."""

NOBODY = PeerId("stash")
NUMBER = (1).to_bytes(8, "little")


class NoAnswer(Exception):
    """Why there was none."""


class Standing(NamedTuple):
    """What the coordinator says of itself, and how long it took to say so."""

    links: frozenset[str]
    spares: int
    phase: str
    took_ms: float


def ask_coordinator(address: str, secret: bytes) -> Standing:
    """Where the coordinator stands."""
    body, took_ms = ask(address, secret, Kind.CONTROL, json.dumps({"status": 1}).encode())
    said = json.loads(body)["status"]
    return Standing(frozenset(said["links"]), said["spares"], said["phase"], took_ms)


def ask_replica(address: str, secret: bytes) -> float:
    """How long a replica takes to answer, in milliseconds."""
    _, took_ms = ask(address, secret, Kind.ASK, NUMBER + codec.encode(GetCheckpoint(NOBODY)))
    return took_ms


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
    except (*FAILURES, ValueError) as error:
        raise NoAnswer(str(error).strip().rpartition("\n")[2] or f"no answer within {within_s:g} s") from error
    return answer, 1e3 * (time.monotonic() - began_at)
