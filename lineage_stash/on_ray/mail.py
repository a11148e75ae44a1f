"""Mail: the same frames as Ray actor calls, where nodes cannot connect to one another. Implements the `Transport` port.

Rules:
- Nobody listens: whoever is a Ray actor is called at `deliver`, and a driver, which is none, has a `Mailbox` that is.
- One delivery at a time is under way to a destination. Frames that come up meanwhile travel together in the next one.
- A delivery names the address that it is for and answers with the token of the process that took it in: nobody gets
  what was meant for another life, and a process that Ray has restarted is not taken for the one before.
- A delivery that fails because the actor died is a death. Since that shows only when something is delivered, every
  destination that nothing was delivered to for a while is sent a ping.
- What may have been delivered may be delivered again.

Who may call the actors of the cluster may send mail: that is Ray's to guard, as is what travels.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar, NamedTuple

import msgspec
import ray
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError

from lineage_stash.on_ray.creation import RAY_NAMESPACE
from lineage_stash.on_ray.links import MOST_LOOK_UPS, MOST_WAITING_FRAMES, TICKET, Kind, Link, pause_before
from lineage_stash.on_ray.registry import COORDINATOR, REPLICAS, Registry, own_node, replica_name
from lineage_stash.ports import Frame, in_one_piece
from lineage_stash.store.contract import ReplicaId, Ticket
from lineage_stash.wire.loop import Loop

PING_S = 0.5
"""How long the coordinator leaves a process alone: a death is noticed so much later than over a connection."""

SELDOM_PING_S = 2.0
"""How long all others do. They notice with it that a callee has left for good while they wait for its answer."""

GOODBYE_S = 0.5
"""How long a process that ends waits for its last words to arrive."""

INQUIRY_S = 5.0
MOST_KEPT_BYTES = 64 * 1024 * 1024
"""What a mailbox takes in before it is emptied; then deliveries wait, and what is to be sent gathers at the senders."""

NOT_HERE = b""
"""What a delivery to somebody else answers."""

Letter = tuple[int, bytes]


class Delivery(NamedTuple):
    """What one call carries."""

    to: str
    sender: str
    sender_actor: str
    letters: list[Letter]


UNAVAILABLE_S = 10.0
"""How long Ray may say that an actor is out of reach for the moment before it counts as dead."""


class Found(NamedTuple):
    """Who a destination is now; `handle` is None where its actor is dead."""

    address: str
    handle: Any


_decoder = msgspec.msgpack.Decoder(Delivery)
_encoder = msgspec.msgpack.Encoder()


class Correspondent:
    """Somebody who is written to, or who has written: what a connection is on the wire."""

    def __init__(self, mail: "Mail", address: str, actor: str = "") -> None:
        self.introduction: str | None = address
        self.address = address
        self.actor = actor
        self.lives_at = address
        """The same, except for the coordinator, which is written to by its well-known name."""
        self.handle: Any = None
        self.token = NOT_HERE
        self.letters: deque[Letter] = deque()
        self.under_way: list[Letter] = []
        self.receipt: Any = None
        self.delivered_at = 0.0
        self.is_sought = False
        self.look_ups = 0
        self.unavailable_since = 0.0
        self._mail = mail

    @property
    def is_restarted(self) -> bool:
        """Whether Ray restarts it under the same name, so that it is worth waiting for."""
        return self.address == COORDINATOR or self.address.startswith(REPLICAS)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way there."""
        return not self.letters and self.receipt is None

    def send(self, kind: int, body: Frame) -> None:
        """Write to it; one that was lost gets nothing."""
        self._mail.post_to(self, kind, body)


class Mail:
    """Who is corresponded with, and what waits for them."""

    here: ClassVar["Mail | None"] = None
    """That of the actor that this process is."""

    def __init__(self, loop: Loop, registry: Registry, token: str, actor: str, *, ping_s: float,
                 on_frame: Callable[[Link, int, bytes], None], on_arrival: Callable[[str], None],
                 on_dead: Callable[[str, str], None], on_cut_off: Callable[[str], None]) -> None:  # fmt: skip
        self.loop = loop
        self.registry = registry
        self.token = token.encode()
        self.open: dict[str, Correspondent] = {}
        self.on_dead = on_dead
        self._on_frame = on_frame
        self._on_arrival = on_arrival
        self._on_cut_off = on_cut_off
        self._known: dict[str, Correspondent] = {}
        self._asked: set[tuple[int, int]] = set()
        self._ping_s = ping_s
        self._mailbox: Any = None
        self.actor = actor
        if actor:
            Mail.here = self
        else:
            self.actor = f"mailbox {loop.introduction}"
            self._mailbox = start_mailbox(self.actor, self.token)
            self._collect()
        loop.later(ping_s, self._ping_all)

    def close(self) -> None:
        """Let the last words leave, and end everything."""
        for correspondent in self._known.values():
            if correspondent.receipt is None:
                self._deliver(correspondent)
        receipts = [each.receipt for each in self._known.values() if each.receipt is not None]
        if receipts:
            ray.wait(receipts, num_returns=len(receipts), timeout=GOODBYE_S)
        self.loop.close()
        if self._mailbox is not None:
            ray.kill(self._mailbox)

    # out

    def send(self, address: str, frame: Frame) -> None:
        """Bring a frame of the protocol to an address."""
        self.say(address, Kind.MESSAGE, frame)

    def say(self, address: str, kind: int, body: Frame) -> None:
        """Write to an address, and look for it if it is not known."""
        self.post_to(self._known.get(address) or self._begin(address), kind, body)

    def post_to(self, correspondent: Correspondent, kind: int, body: Frame) -> None:
        """Have a frame delivered, at once or with those that come next."""
        if self._known.get(correspondent.address) is not correspondent:
            return
        letters = correspondent.letters
        if len(letters) >= MOST_WAITING_FRAMES:
            if correspondent.address not in self.open:
                letters.popleft()
            elif kind == Kind.MESSAGE:
                return  # it does not take in what is delivered; if it ever does, the machines send this again
        letters.append((int(kind), in_one_piece(body)))
        self._deliver(correspondent)

    def ask_replica(self, replica: ReplicaId, ticket: Ticket, frame: Frame) -> None:
        """Bring a request to a replica; if it is under way, see instead whether the replica is still the same."""
        address = replica_name(replica)
        if (replica, ticket.number) in self._asked:
            self.reach(address)
            return
        self._asked.add((replica, ticket.number))
        self.say(address, Kind.ASK, TICKET.pack(*ticket) + in_one_piece(frame))

    def answered(self, replica: int, number: int) -> None:
        """A replica has answered."""
        self._asked.discard((replica, number))

    def reach(self, address: str) -> None:
        """See whether anybody is there, without anything to say yet."""
        correspondent = self._known.get(address) or self._begin(address)
        if correspondent.is_idle:
            correspondent.send(Kind.PING, b"")

    def forget(self, address: str) -> None:
        """Nothing will be said there again."""
        self._known.pop(address, None)
        self.open.pop(address, None)

    def _ping_all(self) -> None:
        self.loop.later(self._ping_s, self._ping_all)
        before = time.monotonic() - self._ping_s
        for address in [address for address, each in self.open.items() if each.delivered_at < before]:
            self.reach(address)

    # finding a destination

    def _begin(self, address: str, actor: str = "") -> Correspondent:
        correspondent = self._known[address] = Correspondent(self, address, actor)
        return correspondent

    def _look_up(self, correspondent: Correspondent) -> None:
        correspondent.is_sought = True
        self.registry.ask(partial(self._find, correspondent.address, correspondent.actor),
                          partial(self._found, correspondent))  # fmt: skip

    def _find(self, address: str, actor: str) -> Found | None:
        """In the registry's thread: the Ray actor that stands for an address; None if it has not come up."""
        try:
            where = self.registry.coordinator_address() if address == COORDINATOR else address
            place = None if where is None or actor else self.registry.place_of(where)
            if where is None or not (actor or place):
                return None
            return Found(where, ray.get_actor(place.actor if place else actor, namespace=RAY_NAMESPACE))
        except ValueError:
            return Found(address, None)
        except (RayError, OSError, RuntimeError):
            return None  # the GCS did not answer

    def _found(self, correspondent: Correspondent, found: Found | None) -> None:
        if self._known.get(correspondent.address) is not correspondent:
            return
        correspondent.is_sought = False
        if found is None:
            self._look_up_later(correspondent)
        elif found.handle is None:
            self._lose(correspondent, "its Ray actor is gone")
        else:
            correspondent.lives_at, correspondent.handle = found
            self._deliver(correspondent)

    def _look_up_later(self, correspondent: Correspondent) -> None:
        correspondent.handle = None
        correspondent.is_sought = True
        correspondent.look_ups += 1
        if correspondent.look_ups > MOST_LOOK_UPS and "@" in correspondent.address:
            self._give_up(correspondent)
            return
        self.loop.later(pause_before(correspondent.look_ups), partial(self._look_up, correspondent))

    def _give_up(self, correspondent: Correspondent) -> None:
        was_open = correspondent.address in self.open
        self.forget(correspondent.address)
        if was_open:
            self.on_dead(correspondent.address, "its Ray actor cannot be reached")

    # delivering

    def _deliver(self, correspondent: Correspondent) -> None:
        """Send what has gathered, unless a delivery is under way."""
        if correspondent.receipt is not None or not correspondent.letters:
            return
        if correspondent.handle is None:
            if not correspondent.is_sought:
                self._look_up(correspondent)
            return
        correspondent.under_way = list(correspondent.letters)
        correspondent.letters.clear()
        delivery = Delivery(correspondent.lives_at, self.loop.introduction, self.actor, correspondent.under_way)
        receipt = correspondent.receipt = correspondent.handle.deliver.remote(_encoder.encode(delivery))
        self._when_done(receipt, partial(self._delivered, correspondent))

    def _when_done(self, ref: Any, then: Callable[[Future[Any]], None]) -> None:
        ref.future().add_done_callback(lambda done: self.loop.post(partial(then, done)))

    def _delivered(self, correspondent: Correspondent, receipt: Future[bytes]) -> None:
        correspondent.receipt = None
        if self._known.get(correspondent.address) is not correspondent:
            return
        error = receipt.exception()
        if error is None:
            self._signed_for(correspondent, receipt.result())
        elif isinstance(error, RayTaskError) or not isinstance(error, RayError):
            raise error
        elif isinstance(error, ActorUnavailableError) and not correspondent.is_restarted and self._bears(correspondent):
            correspondent.letters.extendleft(reversed(correspondent.under_way))
            self._look_up_later(correspondent)
        else:
            self._lose(correspondent, "its Ray actor died")

    def _bears(self, correspondent: Correspondent) -> bool:
        """Whether one that cannot be reached now may still be alive."""
        if not correspondent.unavailable_since:
            correspondent.unavailable_since = time.monotonic()
        return time.monotonic() - correspondent.unavailable_since < UNAVAILABLE_S

    def _signed_for(self, correspondent: Correspondent, token: bytes) -> None:
        if token == NOT_HERE:
            self._lose(correspondent, "its Ray actor is somebody else now")
        elif correspondent.token not in (NOT_HERE, token):
            correspondent.under_way = []
            self._lose(correspondent, "its Ray actor was restarted")
        else:
            correspondent.token = token
            correspondent.look_ups = 0
            correspondent.unavailable_since = 0.0
            correspondent.delivered_at = time.monotonic()
            self._open(correspondent)
            self._deliver(correspondent)

    def _open(self, correspondent: Correspondent) -> None:
        if correspondent.address not in self.open:
            self.open[correspondent.address] = correspondent
            self._on_arrival(correspondent.address)

    def _lose(self, correspondent: Correspondent, reason: str) -> None:
        """It is not there any more; one that will be back is looked for, and gets what it has not got yet."""
        address = correspondent.address
        self.forget(address)
        if correspondent.is_restarted:
            self._asked = {key for key in self._asked if replica_name(key[0]) != address}
            following = self._known[address] = Correspondent(self, address)
            following.letters.extend((*correspondent.under_way, *correspondent.letters))
            following.look_ups = correspondent.look_ups
            self._look_up_later(following)
        self.on_dead(address, reason)

    # in

    def take_in(self, packed: bytes) -> bytes:
        """From any thread: have a delivery read, if it is for this process; the receipt."""
        delivery = _decoder.decode(packed)
        if delivery.to != self.loop.introduction:
            return NOT_HERE
        self.loop.post(partial(self._read, delivery))
        return self.token

    def _read(self, delivery: Delivery) -> None:
        correspondent = self._known.get(delivery.sender) or self._begin(delivery.sender, delivery.sender_actor)
        self._open(correspondent)
        self._read_letters(correspondent, deque(delivery.letters))

    def _read_letters(self, correspondent: Correspondent, letters: deque[Letter]) -> None:
        """As on the wire, one that raises is not repeated, and those behind it are left to the next turn."""
        try:
            while letters:
                self._on_frame(correspondent, *letters.popleft())
        finally:
            if letters:
                self.loop.post(partial(self._read_letters, correspondent, letters))

    def _collect(self) -> None:
        """Ask the mailbox for what has come, which it answers when something has."""
        self._when_done(self._mailbox.take.remote(), self._collected)

    def _collected(self, taken: Future[list[bytes]]) -> None:
        if taken.exception() is not None:
            self._on_cut_off("its mailbox is gone")
            return
        self._collect()
        for packed in taken.result():
            self._read(_decoder.decode(packed))

    def inquire(self, kind: int, body: bytes) -> bytes:
        """From any thread: what this process answers to somebody who has no address."""
        inquiry = Inquiry()
        self.loop.post(partial(self._on_frame, inquiry, kind, body))
        return inquiry.answer.result(INQUIRY_S)


class Inquiry:
    """Somebody who asks once, and gets the answer at the door."""

    def __init__(self) -> None:
        self.introduction: str | None = None
        self.answer: Future[bytes] = Future()

    def send(self, kind: int, body: Frame) -> None:
        """Take the first answer."""
        assert kind in (Kind.ANSWER, Kind.CONTROL)
        if not self.answer.done():
            self.answer.set_result(in_one_piece(body))


class Addressee:
    """What Ray calls, of an actor that has a process of the system in it."""

    def deliver(self, packed: bytes) -> bytes:
        """Take in a delivery; the receipt."""
        return NOT_HERE if Mail.here is None else Mail.here.take_in(packed)

    def inquire(self, kind: int, body: bytes) -> bytes:
        """Answer somebody who only looks."""
        if Mail.here is None:
            raise LookupError("it has not come up")
        return Mail.here.inquire(kind, body)


class Mailbox:
    """Stands for a driver. One thread of it takes in, the other one hands out."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._changed = threading.Condition()

    def deliver(self, packed: bytes) -> bytes:
        """Keep a delivery until it is taken; the receipt."""
        with self._changed:
            self._changed.wait_for(lambda: self._kept_bytes <= MOST_KEPT_BYTES)
            self._kept.append(packed)
            self._kept_bytes += len(packed)
            self._changed.notify_all()
        return self._token

    def take(self) -> list[bytes]:
        """What has come, once something has."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._kept))
            kept, self._kept = self._kept, []
            self._kept_bytes = 0
            self._changed.notify_all()
        return kept


def start_mailbox(name: str, token: bytes) -> Any:
    """Start the mailbox of a driver on its node; it ends with the driver."""
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(own_node(), soft=False)
    return ray.remote(Mailbox).options(
        name=name, namespace=RAY_NAMESPACE, num_cpus=0, scheduling_strategy=here, max_concurrency=2,
    ).remote(token)  # fmt: skip


def inquire(actor: str, kind: int, body: bytes, *, within_s: float) -> bytes:
    """Ask a process by its Ray actor, without being one that can be written to."""
    answer: bytes = ray.get(
        ray.get_actor(actor, namespace=RAY_NAMESPACE).inquire.remote(int(kind), body), timeout=within_s
    )
    return answer
