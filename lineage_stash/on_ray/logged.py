"""A runtime whose answers are logged: what an actor's code, or that of a script that can be resumed, can ask for.

Rules:
- What was nondeterministic in the first run is recalled in every other: which refs had come, whether time was up, what
  the clock, a draw or the outside world said.
- Where the user's code leaves its own for the library's, capture pauses.
- One thread asks, one question at a time: of several there would be no order to log.
"""

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from lineage_stash.capture import readings
from lineage_stash.capture.belongings import Belongings
from lineage_stash.capture.here import here, observing, paused
from lineage_stash.core import events
from lineage_stash.core.entry import Read
from lineage_stash.core.handles import names_actors
from lineage_stash.core.ids import Ref
from lineage_stash.on_ray import payloads
from lineage_stash.on_ray.process import TICK_S
from lineage_stash.on_ray.refs import ObjectRef
from lineage_stash.on_ray.runtime import NOTHING, Runtime, deadline_after, read_now, timed_out


class LoggedRuntime(Runtime):
    """Records or recalls; implements `capture.here.Recorder`."""

    _reading_wanted = False
    _quick: Callable[[], bytes] | None = None

    @property
    @abstractmethod
    def belongings(self) -> Belongings:
        """What capture keeps of this peer."""

    def _ask(self, event: object) -> Any:
        recorder, here.recorder = here.recorder, None
        try:
            return super()._ask(event)
        finally:
            here.recorder = recorder

    def wait_until(self, _began: float, deadline: float) -> None:
        """Wait on the sockets for what was asked for at that time, for a tick, or until time is up."""
        self.process.wait(min(TICK_S, max(0.0, deadline - time.monotonic())))

    def fetch(self, refs: tuple[ObjectRef, ...], timeout_s: float | None) -> None:
        """Wait for replies; whether a time-out struck is a determinant and is logged."""
        wanted = tuple([ref.ref for ref in refs if ref.ref is not None])
        if timeout_s is not None:
            ready = self.wait_for(list(refs), len(refs), timeout_s)
            if len(ready) < len(refs):
                raise timed_out(len(refs) - len(ready), timeout_s)
        for claim, reply in zip(refs, self._ask(events.GetStarted(wanted)), strict=True):
            claim._reply = reply
            if names_actors(reply):
                claim.hold_on()

    def commit(self) -> None:
        """When that is so is no determinant: whatever is repeated is committed."""
        self._ask(events.CommitStarted())

    def next_item(self, ref: ObjectRef, position: int) -> Ref | None:
        """Wait for an item of a stream; whether there is one follows from the log of whoever makes it."""
        assert ref.ref is not None, "a stream is the reply to a call"
        item: Ref | None = self._ask(events.NextStarted(ref.ref, position))
        return item

    def wait_for(self, refs: list[ObjectRef], count: int, timeout_s: float | None) -> list[int]:
        """Which had come is a determinant and is logged."""
        with paused():
            return self._wait_for(refs, count, timeout_s)

    def _wait_for(self, refs: list[ObjectRef], count: int, timeout_s: float | None) -> list[int]:
        claims = [ref.claim for ref in refs]
        come = [position for position, claim in enumerate(claims) if claim._reply is not None]
        if len(come) >= count:
            return come
        left = [position for position, claim in enumerate(claims) if claim._reply is None]
        wanted = tuple([claim.ref for claim in claims if claim._reply is None and claim.ref is not None])
        waited = events.WaitStarted(wanted, count - len(come))
        deadline = deadline_after(timeout_s)
        with self.process.lock:
            self._answer = NOTHING
            self.shell.feed(waited)
            if self._answer is NOTHING and timeout_s is not None and timeout_s <= 0:
                self.shell.feed(events.WaitTimedOut())
        began = time.monotonic()
        while self._answer is NOTHING:
            self.wait_until(began, deadline)
            with self.process.lock:
                if self._answer is NOTHING and time.monotonic() >= deadline:
                    self.shell.feed(events.WaitTimedOut())
                    deadline = deadline_after(None)
        ready: Any = self._answer
        return sorted(come + [left[position] for position in ready])

    def observe(self, read: Callable[[], Any]) -> Any:
        """Ask the outside world in the first run, and recall what it said in every other."""
        with paused():
            began = time.monotonic()
            reading = self._read(readings.OBSERVED)
            while reading is NOTHING:
                if self._reading_wanted:
                    self._reading_wanted = False
                    with observing():
                        value = read_now(read)
                    with self.process.lock:
                        self.shell.feed(events.ReadingTaken(value))
                else:
                    self.wait(began)
                reading = self._answer
            return payloads.unpack_value(reading)

    def read(self, kind: str, take: Callable[[], bytes]) -> bytes:
        """The same for a function that is captured by itself; it is quick, so that it is called where the lock is."""
        self._quick = take
        began = time.monotonic()
        reading = self._read(kind)
        while reading is NOTHING:
            self.wait(began)
            reading = self._answer
        self._quick = None
        said: bytes = reading
        return said

    def _read(self, kind: str) -> Any:
        program = self.peer.program
        with self.process.lock:
            self._answer = NOTHING
            self._reading_wanted = False
            if program.script and isinstance(program.script[0], Read):
                logged = readings.kind_of(program.script[0].value)
                if logged != kind:
                    program._stray(f"a read of {kind}", readings.action_in(program.script[0].value) or "a read")
            self.shell.feed(events.Lingered() if program.strayed else events.ReadStarted(kind))
            return self._answer

    def take_reading(self, kind: str) -> bytes | None:
        """What takes a while is left to the thread that asked, which takes the reading without the lock."""
        assert kind
        if self._quick is not None:
            return self._quick()
        self._reading_wanted = True
        return None
