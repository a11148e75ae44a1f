"""Links: frames to peers, to the coordinator and to replicas over the wire. Implements the `Transport` port.

Rules:
- A destination is looked up in the registry when it is first spoken to; until it has come up, frames for it wait, up
  to a bound. A link that was lost is looked up again.
- Streams neither lose nor repeat: a request to a replica that is under way on a live link is not sent again.
- A replica that is away, or does not read, gets no more than a few requests: the store repeats what it still wants.
- Nor does anybody else who does not read, a stopped process for example, get more than so many bytes: frames for it are
  dropped, and sent again by the machines if they are still wanted.
- Once a new life of a peer is spoken to, links to its former ones are closed: one that was only stopped keeps its link.
- A link that breaks, and a destination that refuses connections, is told to whoever watches: that is how a death is
  noticed.
"""

from collections import deque
from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Protocol

from lineage_stash.on_ray.registry import COORDINATOR, REPLICAS, Place, Registry, replica_name
from lineage_stash.ports import Frame
from lineage_stash.store.contract import ReplicaId, Ticket
from lineage_stash.wire.connection import Connection
from lineage_stash.wire.loop import Loop

LOOK_UP_AGAIN_S = 0.02
LOOK_UP_SLOWLY_S = 0.25
QUICK_LOOK_UPS = 150
MOST_LOOK_UPS = 400
"""A process takes about a second to start: look often for so long, then less often, and then not until it is spoken to
again: it may be one that will never be back."""

MOST_WAITING_FRAMES = 4096
"""Frames kept for a destination that has not come up; what is dropped is sent again by the machines."""


def pause_before(look_up: int) -> float:
    """How long to wait before looking for a destination for the n-th time, in seconds."""
    return LOOK_UP_AGAIN_S if look_up < QUICK_LOOK_UPS else LOOK_UP_SLOWLY_S


MOST_WAITING_REQUESTS = 4
MOST_QUEUED_BYTES = 16 * 1024 * 1024
"""Requests kept for a replica that has not come up, and bytes for one that does not read. The rest is asked again if it
is still wanted, and copied from the others if it is not: a replica that is away must cost no memory."""

MOST_UNREAD_BYTES = 64 * 1024 * 1024
"""Bytes queued for anybody else who does not read: some times what the machines send before they wait for an answer."""

FORGOTTEN = "not needed any more"
"""Why a link was lost that nobody is to be told of."""

TICKET = Struct("<QIB")
"""Number, epoch and level: what goes before a request to a replica."""

NUMBER_BYTES = 8
"""The number goes before its answer."""


class Kind(IntEnum):
    """What a frame on the wire is."""

    MESSAGE = 1
    ASK = 2
    ANSWER = 3
    CONTROL = 4
    PING = 5


class Link(Protocol):
    """Where a frame came from, and how to answer there."""

    introduction: str | None

    def send(self, kind: int, body: Frame) -> None:
        """Send a frame; a link that was lost sends nothing."""


class Waiting:
    """Frames for a destination that is being looked up."""

    def __init__(self) -> None:
        self.frames: deque[tuple[int, bytes | tuple[bytes, ...]]] = deque(maxlen=MOST_WAITING_FRAMES)
        self.look_ups = 0


class Links:
    """Open links by address, and what waits for those that are not."""

    def __init__(self, loop: Loop, registry: Registry, node: str, on_dead: Callable[[str, str], None]) -> None:
        self.loop = loop
        self.registry = registry
        self.node = node
        self.on_dead = on_dead
        self.open: dict[str, Connection] = {}
        self._begun: dict[Connection, str] = {}
        self._waiting: dict[str, Waiting] = {}
        self._asked: dict[tuple[int, int], Connection | None] = {}

    def close(self) -> None:
        """End all connections."""
        self.loop.close()

    # out

    def send(self, address: str, frame: Frame) -> None:
        """Bring a frame of the protocol to an address."""
        self.say(address, Kind.MESSAGE, frame)

    def say(self, address: str, kind: int, body: bytes | tuple[bytes, ...]) -> None:
        """Send on the open link, or look for one."""
        link = self.open.get(address)
        if link is not None:
            if link.queued_bytes <= MOST_UNREAD_BYTES:
                link.send(kind, body)
            return
        waiting = self._waiting.get(address)
        if waiting is None:
            waiting = self._await(address)
        waiting.frames.append((kind, body))

    def ask_replica(self, replica: ReplicaId, ticket: Ticket, frame: Frame) -> None:
        """Bring a request to a replica, unless it is under way."""
        address = replica_name(replica)
        link = self.open.get(address)
        asked = (replica, ticket.number)
        if link is not None:
            is_enough = self._asked.get(asked) is link or link.queued_bytes > MOST_QUEUED_BYTES
        else:
            waiting = self._waiting.get(address)
            is_enough = waiting is not None and (
                asked in self._asked or len(waiting.frames) >= MOST_WAITING_REQUESTS
            )  # fmt: skip
        if is_enough:
            return
        self._asked[asked] = link
        pieces = frame if isinstance(frame, tuple) else (frame,)
        self.say(address, Kind.ASK, (TICKET.pack(*ticket), *pieces))

    def answered(self, replica: int, number: int) -> None:
        """A replica has answered."""
        self._asked.pop((replica, number), None)

    # finding a destination

    def reach(self, address: str) -> None:
        """Have a link to an address, without anything to say yet."""
        if address not in self.open and address not in self._waiting:
            self._await(address)

    def _await(self, address: str) -> Waiting:
        waiting = self._waiting[address] = Waiting()
        self._forget_former(address)
        self._look_up(address)
        return waiting

    def _forget_former(self, address: str) -> None:
        """A peer lives one life at a time: whatever is kept for its former ones is not wanted."""
        peer, at, incarnation = address.rpartition("@")
        if not at or incarnation == "0":
            return
        for other in (*self.open, *self._waiting):
            whose, _, former = other.rpartition("@")
            if whose == peer and int(former) < int(incarnation):
                self.forget(other)

    def forget(self, address: str) -> None:
        """Nothing will be said there again."""
        self._waiting.pop(address, None)
        link = self.open.pop(address, None)
        if link is not None:
            link.close(FORGOTTEN)

    def _look_up(self, address: str) -> None:
        def action() -> Place | None:
            where = self.registry.coordinator_address() if address == COORDINATOR else address
            return None if where is None else self.registry.place_of(where)

        self.registry.ask(action, lambda place: self._found(address, place), lambda: self._found(address, None))

    def _found(self, address: str, place: Place | None) -> None:
        waiting = self._waiting.get(address)
        if waiting is None or address in self.open:
            return
        if place is None:
            self._look_up_later(address, waiting)
            return
        connection = self.loop.connect(place.address_from(self.node))
        self._begun[connection] = address

    def _look_up_later(self, address: str, waiting: Waiting) -> None:
        waiting.look_ups += 1
        if waiting.look_ups > MOST_LOOK_UPS and "@" in address:
            del self._waiting[address]
            return
        delay_s = pause_before(waiting.look_ups)
        self.loop.later(delay_s, lambda: self._look_up(address) if address in self._waiting else None)

    # what the loop says

    def on_open(self, connection: Connection) -> None:
        """A link is open: what waited for it leaves."""
        address = self._begun.get(connection) or connection.introduction or ""
        if not address:
            return
        if address not in self.open:
            self.open[address] = connection
            self._forget_former(address)
        waiting = self._waiting.pop(address, None)
        if waiting is not None:
            for kind, body in waiting.frames:
                connection.send(kind, body)
            for key in [key for key, link in self._asked.items() if link is None and replica_name(key[0]) == address]:
                self._asked[key] = connection

    def on_lost(self, connection: Connection, reason: str) -> None:
        """A link is over."""
        begun = self._begun.pop(connection, None)
        address = begun or connection.introduction or ""
        if self.open.get(address) is connection:
            del self.open[address]
        if address.startswith(REPLICAS):
            self._asked = {key: link for key, link in self._asked.items() if link is not connection}
        waiting = self._waiting.get(address)
        if waiting is not None and begun is not None:
            self._look_up_later(address, waiting)
        if address and address not in self.open and reason != FORGOTTEN:
            self.on_dead(address, reason)
