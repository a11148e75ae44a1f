"""A process of the system: one loop, its links, the registry, and the machine that lives in it.

Rules:
- One lock guards all of it. Nobody holds it while waiting for the network or while the user's code runs.
- Whoever has nothing else to do waits on the sockets itself and acts on what comes, where it came: no hand-over between
  threads on the way of a call. While the user's code keeps the owner away, the steward, a second thread, does it.
- A tick is the machines' only clock.
"""

import json
import os
import secrets
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

from lineage_stash import codec
from lineage_stash.core.events import FlushDue, Suspected
from lineage_stash.core.ids import Incarnation, PeerId
from lineage_stash.core.peer import Peer
from lineage_stash.core.policy import Policy
from lineage_stash.on_ray import payloads
from lineage_stash.on_ray.answers import LOOK, answer
from lineage_stash.on_ray.control_plane import ControlPlane
from lineage_stash.on_ray.links import NUMBER_BYTES, Kind, Link, Links
from lineage_stash.on_ray.mail import SELDOM_PING_S, Mail
from lineage_stash.on_ray.metrics import Source, publisher
from lineage_stash.on_ray.registry import COORDINATOR, REPLICAS, Place, Registry, own_node
from lineage_stash.on_ray.tally import Tally
from lineage_stash.on_ray.telling import log
from lineage_stash.shell import Shell, address_of
from lineage_stash.store.quorum import Quorum
from lineage_stash.wire.connection import Connection
from lineage_stash.wire.loop import Loop
from lineage_stash.wire.tls import TlsContexts, contexts_from_files

TICK_S = 0.05
"""Half the time in which people notice a delay; a tick costs some 20 µs."""

QUIET_TICK_S = 0.25
"""The same for a process in which nothing goes on; the first frame that comes brings back the others."""

AWAY_S = 0.005
"""How long the owner may be away before the steward takes over: longer than most calls, shorter than a round."""

AWAKE_S = 150e-6
"""After something happened, how long to look for more before sleeping: on a virtual machine to be woken up takes half
as long as a whole call. What sleeps already stays asleep, so that an idle process costs nothing."""

DEAD_AFTER_MS = 10_000
"""A machine that acknowledges nothing for so long is gone. An interpreter that is kept from reading is taken for one
too, once its buffers are full, so this is longer than extensions hold on to it."""

ATTENDED_S = 0.02
"""How often to look whether the owner is still there, while it is."""

LOOKS_BEFORE_REST = 25
REST_S = 1.0
"""After so many looks the steward of an actor rests, and is roused by the next call; to be sure, it looks so often."""

STEWARD_TURN_S = 0.5
MOST_EARLY_FRAMES = 1024
"""Frames kept while a life is being restored; more are sent again by the machines."""

SECRET_BYTES = 32

FLUSH_S = 0.01
"""How long entries wait for company on their way to the store; nobody waits for them, so that this costs no latency."""

POLICY = Policy(
    resend_after_ticks=40, patience_ticks=100, flushes_at_once=False, checkpoint_every_bytes=16 * 1024 * 1024
)
"""Streams lose nothing, so what is not acknowledged is repeated only after 2 s; a busy process has 5 s to answer."""

TRANSPORT = "transport"
"""The fact in the control plane that says how the processes of this cluster talk."""

WIRE = "wire"
MAIL = "ray"


def split_address(address: str) -> tuple[PeerId, Incarnation] | None:
    """The peer and the incarnation that live at an address, if it is one of a peer's."""
    peer, at, incarnation = address.rpartition("@")
    return (PeerId(peer), Incarnation(int(incarnation))) if at else None


def tls_of_ray() -> TlsContexts | None:
    """Where Ray encrypts its connections, so do we, with the same certificates."""
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    names = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
    certificate, key, authority = (os.environ[name] for name in names)
    return contexts_from_files(certificate, key, authority)


def socket_folder() -> Path:
    """Where this user's processes have their sockets; those that dead processes left are removed."""
    folder = Path(tempfile.gettempdir()) / f"lineage_stash-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not this user's alone: remove it, or chmod 700 it")
    for left in folder.glob("*.sock"):
        if not Path(f"/proc/{left.name.partition('-')[0]}").exists():
            left.unlink(missing_ok=True)
    return folder


class Process:
    """Listens, ticks, and hands frames to the shell of the machine that lives here.

    `actor` is the name of the Ray actor that this process is; `ping_s` counts where deaths must be asked for.
    """

    def __init__(self, introduction: str, *, actor: str = "", ping_s: float = SELDOM_PING_S,
                 on_control: Callable[[Link, dict[str, Any]], None] | None = None,
                 on_dead: Callable[[str, str], None] | None = None) -> None:  # fmt: skip
        self.token = secrets.token_hex(6)
        self.lock = threading.RLock()
        self.plane = ControlPlane()
        self.node = own_node()
        secret = self.plane.put_if_absent("secret", secrets.token_bytes(SECRET_BYTES))
        self.loop = Loop(secret, introduction, on_frame=self._on_frame, on_open=self._on_open, on_lost=self._on_lost,
                         tls=tls_of_ray(), lock=self.lock, dead_after_ms=DEAD_AFTER_MS)  # fmt: skip
        self.registry = Registry(self.plane, self.loop.post, self.token)
        self.registry.on_replaced = self._cut_off
        self.links: Links | Mail
        if (self.plane.get(TRANSPORT) or WIRE.encode()).decode() == MAIL:
            self.links = Mail(self.loop, self.registry, self.token, actor, ping_s=ping_s, on_frame=self._on_frame,
                              on_arrival=self._arrived, on_dead=on_dead or self._report_death,
                              on_cut_off=self._cut_off)  # fmt: skip
            self.place = Place(self.node, "", "", os.getpid(), self.links.actor)
            self.awake_s = 0.0  # Ray's own threads need the core that this would keep busy
        else:
            self.links = Links(self.loop, self.registry, self.node, on_dead or self._report_death)
            self.place = self._listen(actor)
            self.awake_s = AWAKE_S
        self.shell: Shell | None = None
        self.tally: Tally | None = None
        self._published: Source | None = None
        self._early: deque[bytes] = deque(maxlen=MOST_EARLY_FRAMES)
        self.store: Quorum | None = None
        self.on_control = on_control
        self.on_look: Callable[[Link, dict[str, Any]], None] | None = None
        self.on_message: Callable[[Link, bytes], None] = self._give_to_shell
        self.on_arrival: Callable[[str], None] | None = None
        self.on_ask: Callable[[Link, bytes], None] | None = None
        self.on_ticked: Callable[[], None] | None = None
        self.on_reply: Callable[[int, Any], bool] | None = None
        self.on_cut_off: Callable[[str], None] | None = None
        self.has_unflushed: Callable[[], bool] = lambda: False
        self.has_call: Callable[[], bool] = lambda: False
        """Whether there is a call that the owner has not begun."""
        self.is_quiet: Callable[[], bool] = lambda: False
        self.flush_due_at = 0.0
        self.closed = False
        self.turns = 0
        self._stewarded = False
        self._steward_rests = False
        self._roused = threading.Event()
        self._is_lively = False
        self._ticks_seldom = False
        self._next_tick = self.loop.later(TICK_S, self._tick)

    def _listen(self, actor: str) -> Place:
        folder = socket_folder()
        unix = self.loop.listen(f"unix:{folder}/{os.getpid()}-{self.token}.sock")
        tcp = self.loop.listen(f"tcp:{ray.util.get_node_ip_address()}:0")
        return Place(self.node, unix, tcp, os.getpid(), actor)

    def close(self) -> None:
        """Leave the network."""
        self.closed = True
        if self._published is not None:
            publisher.remove(self._published)
        with self.lock:
            self.links.close()
        self.registry.close()  # not under the lock: its thread may be about to post an answer

    def publish(self, source: Source) -> None:
        """Have what this process says of itself in Ray's metrics until it leaves."""
        self._published = source
        publisher.add(source)

    # time

    def _tick(self) -> None:
        if self.closed:
            return
        self._ticks_seldom = self.is_quiet()
        self._next_tick = self.loop.later(QUIET_TICK_S if self._ticks_seldom else TICK_S, self._tick)
        if self.shell is not None and not self.shell.stopped:
            self.shell.tick()
        elif self.store is not None:
            self.store.on_ticked()
        if self.on_ticked is not None:
            self.on_ticked()

    def _tick_often(self) -> None:
        """Something happens: wait no longer for the next tick than others do."""
        self._ticks_seldom = False
        self._next_tick.cancel()
        self._next_tick = self.loop.later(TICK_S, self._tick)

    def wait(self, timeout_s: float = TICK_S) -> None:
        """Wait on the sockets, and act on what comes."""
        self.turns += 1
        if self._stewarded:
            self._stewarded = False
            self.loop.wake()
        has_waited = self.has_unflushed()
        self._is_lively = self._turn(timeout_s, self.awake_s if self._is_lively else 0.0)
        if has_waited and not self.has_call():  # a call goes first: its caller waits, and nobody waits for the store
            self.flush_if_due()

    def _turn(self, timeout_s: float, awake_s: float) -> bool:
        return self.loop.poll(min(timeout_s, FLUSH_S) if self.has_unflushed() else timeout_s, awake_s)

    def flush_if_due(self) -> None:
        """Send what was appended to the store, if that has waited for company long enough."""
        if self.shell is None or not self.has_unflushed():
            return
        now = time.monotonic()
        if now >= self.flush_due_at:
            self.flush_due_at = now + FLUSH_S
            with self.lock:
                self.shell.feed(FlushDue())

    def start_steward(self, *, rests: bool = False) -> None:
        """Have a second thread look after the network whenever the owner is away.

        One that rests must be roused before the owner goes away for long.
        """
        threading.Thread(target=self._steward, args=(rests,), name="stash steward", daemon=True).start()

    def rouse_steward(self) -> None:
        """The owner is about to go away."""
        if self._steward_rests:
            self._steward_rests = False
            self._roused.set()

    def _steward(self, rests: bool) -> None:
        pause = threading.Event()
        seen, looks = -1, 0
        while not self.closed:
            pause.wait(AWAY_S if seen == self.turns else ATTENDED_S)
            if self.turns != seen or self.is_attended:
                seen = -1 if self.is_attended else self.turns
                looks = looks + 1 if seen < 0 else 0
                if rests and looks >= LOOKS_BEFORE_REST:
                    self._rest()
                continue
            self._stewarded = True
            while self._is_needed(seen):
                self._keep_house()
            self.loop.wake()  # the owner, who is back, does not know yet what this thread has done since

    def _rest(self) -> None:
        self._roused.clear()
        self._steward_rests = True
        if self.is_attended:  # an owner that goes away from here on sees that there is somebody to rouse
            self._roused.wait(REST_S)
        self._steward_rests = False

    def _keep_house(self) -> None:
        try:
            self._turn(STEWARD_TURN_S, 0.0)
            self.flush_if_due()
        except (ValueError, OSError):
            if not self.closed:
                raise  # otherwise the loop was closed under this thread, which ends next

    def _is_needed(self, seen: int) -> bool:
        return self._stewarded and not self.closed and self.turns == seen

    @property
    def is_attended(self) -> bool:
        """Whether the owner waits on the sockets itself."""
        return self.loop.sleepers > 0

    # in

    def _on_frame(self, link: Link, kind: int, body: bytes) -> None:
        if self._ticks_seldom:
            self._tick_often()
        try:
            if kind == Kind.MESSAGE:
                self.on_message(link, body)
            elif kind == Kind.ANSWER:
                self._on_answer(link, body)
            elif kind == Kind.ASK and self.on_ask is not None:
                self.on_ask(link, body)
            elif kind == Kind.CONTROL:
                self._on_said(link, json.loads(body))
        except codec.FrameError as error:
            log.warning("dropped a frame from %s: %s", link.introduction, error)

    def _on_said(self, link: Link, said: dict[str, Any]) -> None:
        if "tally" in said and self.tally is not None:
            link.send(Kind.CONTROL, json.dumps({"tally": self.tally.now()}).encode())
        elif "look" in said and self.on_look is not None:
            self.on_look(link, said)
        elif LOOK in said and self.shell is not None and isinstance(self.shell.machine, Peer):
            link.send(Kind.CONTROL, json.dumps(answer(self.shell.machine, self.shell.level, said)).encode())
        elif self.on_control is not None:
            self.on_control(link, said)

    def _give_to_shell(self, _: Link, body: bytes) -> None:
        if self.shell is not None:
            self.shell.on_frame(body)
        else:
            self._early.append(body)

    def open_mail(self) -> None:
        """Take in what came before the machine was there."""
        assert self.shell is not None
        while self._early:
            self.shell.on_frame(self._early.popleft())

    def _on_answer(self, link: Link, body: bytes) -> None:
        assert link.introduction is not None, "nobody answers before he has introduced himself"
        replica = int(link.introduction.removeprefix(REPLICAS))
        number = int.from_bytes(body[:NUMBER_BYTES], "little")
        self.links.answered(replica, number)
        reply = codec.decode(memoryview(body)[NUMBER_BYTES:])
        if self.on_reply is not None and self.on_reply(number, reply):
            return
        if self.store is not None:
            self.store.on_reply(replica, number, reply)

    def _on_open(self, connection: Connection) -> None:
        assert isinstance(self.links, Links), "mail has no connections"
        self.links.on_open(connection)
        if connection.introduction:
            self._arrived(connection.introduction)

    def _on_lost(self, connection: Connection, reason: str) -> None:
        assert isinstance(self.links, Links), "mail has no connections"
        self.links.on_lost(connection, reason)

    def _arrived(self, address: str) -> None:
        if self.on_arrival is not None:
            self.on_arrival(address)

    def _cut_off(self, reason: str) -> None:
        if self.on_cut_off is not None and not self.closed:
            self.on_cut_off(reason)

    def _report_death(self, address: str, _: str) -> None:
        """Tell the coordinator, which judges; and look whether the peer has left for good."""
        lost = split_address(address)
        if lost is None:
            if address == COORDINATOR and not self.closed:
                self.links.reach(COORDINATOR)
            return
        self.links.send(COORDINATOR, codec.encode(Suspected(*lost)))
        if self.shell is not None:
            self.shell.look_up_departure(lost[0])

    # out

    def kill(self, actor: PeerId, reason: str) -> None:
        """Put it on record that an actor is not wanted any more, and tell its present life."""
        last_words = payloads.pack_death(f"The actor {actor} is dead: {reason}.")
        self.registry.note_killed(actor, last_words)
        with self.lock:
            assert self.shell is not None
            self.control(address_of(actor, self.shell.machine.history.incarnation(actor)), kill=last_words.hex())

    def control(self, address: str, **said: Any) -> None:
        """Say something that is not part of the protocol."""
        self.links.say(address, Kind.CONTROL, json.dumps(said).encode())
