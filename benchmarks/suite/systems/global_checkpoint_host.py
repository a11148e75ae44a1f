"""The host: the Ray actor process that an actor of the global-checkpoint system lives in.

Rules:
- It starts empty, tells the driver where it is, and waits to be given an actor: every host is a spare first, and loads
  the classes of the actors there are while it waits.
- Calls run one after the other, in the order in which they came from each caller. A snapshot is taken between calls,
  where its place is among them; the barrier goes on to whoever this actor calls, behind what it has sent there.
- Of what the driver says before this host looks up, the last counts: a rollback that comes on the heels of an actor is
  where that actor begins.
- A rollback ends what runs here, unless it computes without waiting: that is ended when it returns.
- A host whose driver is gone ends.
"""

import os
import secrets
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle

from benchmarks.suite.systems.global_checkpoint_alignment import Alignment
from benchmarks.suite.systems.global_checkpoint_channel import Channel
from benchmarks.suite.systems.global_checkpoint_frames import Kind, Parcel, pack, pack_words, unpack, unpack_words
from benchmarks.suite.systems.global_checkpoint_handles import Ref, adopt, pack_call
from benchmarks.suite.systems.global_checkpoint_preparing import Prepared
from benchmarks.suite.systems.global_checkpoint_snapshots import Snapshots
from benchmarks.suite.systems.global_checkpoint_station import TURN_S, Station
from lineage_stash.on_ray import garbage, payloads
from lineage_stash.wire.connection import Connection

LOOK_S = 0.001
"""While calls follow one another, how often to look at the network and let replies leave."""

IDLE_S = 1.0
"""How long to wait for the next call before looking whether this life is over."""

FIND_S = 30.0
"""How long the place of an actor may be unknown: the driver tells everybody of every actor that it has made."""


class RolledBack(BaseException):
    """What runs here did not happen: not for the user's code to catch."""


class Settings(NamedTuple):
    """What every host of a run must know."""

    driver: str
    secret: bytes
    folder: str
    delay_s: float


class Inbound:
    """Whoever calls this actor over one connection, and what it has not been told yet."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.frames = 0
        self.owes = False
        self.first = 0
        self.replies: list[bytes] = []


class Outbound:
    """An actor that this one calls."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.channel = Channel(retains=False)


Step = Callable[[], None]


class Host:
    """What Ray sees: a constructor that returns at once, and one method that runs for a whole life."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def run(self) -> None:
        """Be a spare, then an actor."""
        try:
            life = Life(self._settings)
            garbage.spare_what_is_imported()
            life.run()
        except BaseException:  # noqa: BLE001 - whatever it was, this life is over
            traceback.print_exc()
        os._exit(1)  # an idle process with an open connection would look alive


class Life:
    """One actor in one process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = f"spare-{secrets.token_hex(4)}"
        self.station = Station(settings.secret, self.name, on_frame=self._on_frame, on_open=lambda _: None,
                               on_lost=self._on_lost)  # fmt: skip
        self.driver = self.station.loop.connect(settings.driver)
        self._say("here", address=self.station.address, pid=os.getpid())
        self._created: tuple[bytes, bytes] | None = None
        """The code of the class and the arguments of its constructor, once there is an actor here."""
        self.instance: Any = None
        self.prepared = Prepared()
        self.places: dict[str, str] = {}
        self.generation = 0
        self.epoch = 0
        """The last checkpoint for which a snapshot was taken: that of calls and replies which leave here."""
        self._completed = 0
        """The last complete checkpoint, as far as is known here: older snapshots are of no use."""
        self.snapshots: Snapshots
        self._alignment: Alignment[tuple[Inbound, Parcel]] = Alignment(0)
        self._inbound: dict[Connection, Inbound] = {}
        self._outbound: dict[str, Outbound] = {}
        self._steps: deque[Step] = deque()
        self._rollback: Step | None = None
        self._sent = self._executed = 0
        """Calls to and from other actors in this generation."""
        self._looked_at = 0.0
        self._topics: dict[str, Callable[..., None]] = {
            "prepare": self._on_prepare, "take": self._take, "places": self._learn_places,
            "barrier": self._on_barrier, "rollback": self._on_rollback, "probe": self._on_probe,
        }  # fmt: skip

    def run(self) -> None:
        """Do one step after the other, and wait where there is none."""
        adopt(self)
        garbage.look_seldom()
        while True:
            try:
                rollback, self._rollback = self._rollback, None
                if rollback is not None:
                    rollback()
                self._live()
            except RolledBack:
                assert self._rollback is not None, "only a rollback rolls back"

    def _live(self) -> None:
        while self._rollback is None:
            if self._steps:
                self._steps.popleft()()
                now = time.monotonic()
                if now - self._looked_at > LOOK_S:
                    self._look(now)
            else:
                self._let_replies_leave()
                self.station.wait(IDLE_S)

    def _look(self, now: float) -> None:
        self._looked_at = now
        self._let_replies_leave()
        self.station.loop.poll(0)

    # what comes

    def _on_frame(self, connection: Connection, kind: int, body: bytes) -> None:
        if kind == Kind.CALLS:
            self._on_calls(connection, unpack(body))
        elif kind == Kind.REPLIES:
            self._on_replies(connection, unpack(body))
        else:
            topic, said = unpack_words(body)
            self._topics[topic](connection, **said)

    def _on_calls(self, connection: Connection, parcel: Parcel) -> None:
        if parcel.generation != self.generation:
            return
        inbound = self._inbound.get(connection)
        if inbound is None:
            inbound = self._inbound[connection] = Inbound(connection)
        inbound.frames += 1
        inbound.owes = True
        for admitted in self._alignment.admit(parcel.epoch, (inbound, parcel)):
            self._admit(*admitted)

    def _admit(self, inbound: Inbound, parcel: Parcel) -> None:
        number = parcel.first
        for call in parcel.items:
            self._steps.append(lambda number=number, call=call: self._execute(inbound, number, call))  # type: ignore[misc]
            number += 1

    def _on_replies(self, connection: Connection, parcel: Parcel) -> None:
        if parcel.generation != self.generation:
            return
        for outbound in self._outbound.values():
            if outbound.connection is connection:
                outbound.channel.acknowledge(parcel.acknowledged)
                for _, ref, reply in outbound.channel.settle(parcel.first, parcel.items):
                    ref.reply = reply
                self._send_gathered(outbound)

    def _on_lost(self, connection: Connection, _: str) -> None:
        """Another actor's death is the driver's to judge, but without a driver there is nothing to live for."""
        if connection is self.driver:
            os._exit(0)
        self._inbound.pop(connection, None)

    # what the driver says

    def _say(self, topic: str, **said: Any) -> None:
        self.driver.send(Kind.WORDS, pack_words(topic, **said))

    def _on_prepare(self, _: Connection, *, code: bytes) -> None:
        self._steps.append(lambda: self.prepared.prepare(code))

    def _take(self, _: Connection, *, name: str, code: bytes, arguments: bytes, places: dict[str, str],
              generation: int, epoch: int, checkpoint: int | None) -> None:  # fmt: skip
        """Be this actor from now on."""
        self.name = name
        self.station.loop.introduction = name
        self.snapshots = Snapshots(Path(self.settings.folder), name, self.settings.delay_s, self.station.loop,
                                   self._on_saved)  # fmt: skip
        self.places = places
        self._created = code, arguments
        self._rollback = lambda: self._restore(generation, epoch, checkpoint)

    def _learn_places(self, _: Connection, *, places: dict[str, str]) -> None:
        self.places = places

    def _on_rollback(self, _: Connection, *, places: dict[str, str], generation: int, epoch: int,
                     checkpoint: int | None) -> None:  # fmt: skip
        self.places = places
        self._rollback = lambda: self._restore(generation, epoch, checkpoint)

    def _restore(self, generation: int, epoch: int, checkpoint: int | None) -> None:
        """Be as at a checkpoint, or as created."""
        began = time.monotonic()
        for outbound in self._outbound.values():
            outbound.connection.close("rolled back")
        self._outbound.clear()
        self._inbound.clear()
        self._steps.clear()
        self._alignment = Alignment(epoch)
        self.generation, self.epoch = generation, epoch
        self._sent = self._executed = 0
        self.instance = None  # what it was has not happened
        failure = ""
        try:
            self.instance = self._made_anew() if checkpoint is None else self._read(checkpoint)
        except Exception:  # noqa: BLE001 - the user's class may fail in any way
            failure = traceback.format_exc()
        self._say("restored", generation=generation, restore_ms=1e3 * (time.monotonic() - began), failure=failure)

    def _made_anew(self) -> Any:
        assert self._created is not None, "a spare has nothing to restore"
        code, arguments = self._created
        return self.prepared.class_of(code)(*cloudpickle.loads(arguments))

    def _read(self, checkpoint: int) -> Any:
        assert self._created is not None, "a spare has nothing to restore"
        return self.snapshots.read(self.prepared.class_of(self._created[0]), checkpoint)

    def _on_probe(self, _: Connection, *, generation: int, number: int) -> None:
        """Say, after all that has come, how many calls there were between actors."""

        def answer() -> None:
            self._say("counts", generation=generation, number=number, sent=self._sent, executed=self._executed)

        self._steps.append(answer)

    # checkpoints

    def _on_barrier(self, connection: Connection, *, generation: int, checkpoint: int, completed: int = 0,
                    inputs: Sequence[str] | None = None) -> None:  # fmt: skip
        if generation != self.generation:
            return
        self._completed = max(self._completed, completed)
        if inputs is not None:
            due = self._alignment.announce(checkpoint, inputs)
        else:
            due = self._alignment.pass_barrier(checkpoint, connection.introduction or "")
        for aligned, released in due:
            self._steps.append(lambda aligned=aligned: self._take_snapshot(aligned))  # type: ignore[misc]
            for inbound, parcel in released:
                self._admit(inbound, parcel)

    def _take_snapshot(self, checkpoint: int) -> None:
        self._let_replies_leave()
        for outbound in self._outbound.values():
            self._send_gathered(outbound, at_once=True)
            barrier = pack_words("barrier", generation=self.generation, checkpoint=checkpoint)
            outbound.connection.send(Kind.WORDS, barrier)
        self.epoch = checkpoint
        self.snapshots.take(self.instance, checkpoint, self._completed)

    def _on_saved(self, checkpoint: int, size: int, failure: str) -> None:
        self._say("saved", generation=self.generation, checkpoint=checkpoint, size=size, failure=failure)

    # calls

    def _execute(self, inbound: Inbound, number: int, call: bytes) -> None:
        method, args, kwargs = payloads.unpack_call(call)
        try:
            reply = payloads.pack_value(getattr(self.instance, method)(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the user's class may fail in any way
            reply = payloads.pack_error(method, error)
        if inbound.connection is not self.driver:
            self._executed += 1
        if not inbound.replies:
            inbound.first = number
        inbound.replies.append(reply)

    def _let_replies_leave(self) -> None:
        for inbound in self._inbound.values():
            if inbound.owes or inbound.replies:
                replies, inbound.replies, inbound.owes = inbound.replies, [], False
                parcel = Parcel(self.generation, self.epoch, inbound.frames, inbound.first, replies)
                inbound.connection.send(Kind.REPLIES, pack(parcel))

    def submit(self, callee: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ref:
        """Call another actor."""
        ref = Ref()
        call = pack_call(method, args, kwargs)
        outbound = self._outbound.get(callee) or self._reach(callee)
        outbound.channel.submit(call, ref)
        self._sent += 1
        if outbound.channel.has_room:
            self._send_gathered(outbound)
        return ref

    def _reach(self, callee: str) -> Outbound:
        """Connect to an actor, after telling the driver: a checkpoint under way does not know of this."""
        deadline = time.monotonic() + FIND_S
        while callee not in self.places:
            if time.monotonic() > deadline:
                raise LookupError(f"there is no actor {callee}")
            self._wait_in_call()
        self._say("calls", generation=self.generation, callee=callee)
        outbound = self._outbound[callee] = Outbound(self.station.loop.connect(self.places[callee]))
        return outbound

    def _send_gathered(self, outbound: Outbound, *, at_once: bool = False) -> None:
        channel = outbound.channel
        while channel.gathered and (at_once or channel.has_room):
            first, calls = channel.take()
            outbound.connection.send(Kind.CALLS, pack(Parcel(self.generation, self.epoch, 0, first, calls)))

    def fetch(self, refs: Sequence[Ref], timeout_s: float | None) -> None:
        """Wait for replies, in the middle of a call."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._let_replies_leave()  # whoever waits for one of them must not wait for us
        for ref in refs:
            while ref.reply is None:
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError(f"no reply within {timeout_s} s")
                self._wait_in_call()

    def _wait_in_call(self) -> None:
        self.station.wait(TURN_S)
        if self._rollback is not None:
            raise RolledBack
