"""Whether this thread is running a call of the user, and who records what that call reads.

Rules:
- Capture is a matter of one thread: every other thread of the process sees the real world.
- Whoever leaves the user's code for the library's pauses it; a reading that is under way is never itself recorded.
- A forked child records nothing: its parent's log is not its own.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from lineage_stash.capture import readings
from lineage_stash.capture.belongings import Belongings


class Recorder(Protocol):
    """Whose call it is: a life of an actor, or a tape in a test."""

    @property
    def id(self) -> str:
        """Who it is, in every life."""

    @property
    def belongings(self) -> Belongings:
        """What is the actor's own."""

    def read(self, kind: str, take: Callable[[], bytes]) -> bytes:
        """What was read in the first run, or what `take` reads now if this is it; ends if the log has another kind."""

    def observe(self, read: Callable[[], Any]) -> Any:
        """The same for whatever the user asks for."""

    def commit(self) -> None:
        """Wait until all that was recorded, and all that it depends on, is committed."""

    def next_created(self) -> int:
        """One more than the last time; the same in a replay."""


class Here(threading.local):
    """One per thread."""

    recorder: Recorder | None = None
    importing = False
    observing = False


here = Here()


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Run the user's code: what it reads is the recorder's."""
    outer, here.recorder = here.recorder, recorder
    try:
        yield
    finally:
        here.recorder = outer


@contextmanager
def paused() -> Iterator[None]:
    """Run the library's code: it sees the real world."""
    outer, here.recorder = here.recorder, None
    try:
        yield
    finally:
        here.recorder = outer


@contextmanager
def observing() -> Iterator[None]:
    """Make an observation: what is observed within it is a part of it, and not recorded by itself."""
    here.observing = True
    try:
        yield
    finally:
        here.observing = False


def ask(recorder: Recorder, kind: str, take: Callable[[], Any]) -> Any:
    """What `take` gave in the first run; it gives plain scalars, or tuples of them, or raises."""
    here.recorder = None
    try:
        prefix = readings.PREFIXES[kind]
        return readings.unpack(recorder.read(kind, lambda: readings.pack(prefix, take)))
    finally:
        here.recorder = recorder


def _forget() -> None:
    here.recorder = None


os.register_at_fork(after_in_child=_forget)
