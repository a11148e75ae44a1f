"""The program of an actor: the user's object, its calls, and copies of its state.

Rules:
- The constructor is the first call. If it raises, every later call fails and says so, as in Ray.
- A copy of the state is of the moment it was asked for. It is made by a forked child, which pays for the pickling;
  where that turned out to take less than a fork, or must, in place.
- A large state is cut into chunks by whoever copies it; those that the last copy had as well are not handed over.
- The child closes every descriptor it has inherited first thing: a killed parent must look dead at once.
- A class may say what its state is: `__ray_save__` and `__ray_restore__`. In a forked child they may not use Ray.
"""

import mmap
import os
import struct
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from lineage_stash.capture.belongings import Belongings
from lineage_stash.core import events
from lineage_stash.core.handles import actors_in
from lineage_stash.core.ids import PeerId
from lineage_stash.on_ray import payloads
from lineage_stash.on_ray.lending import begin_borrowing, end_borrowing
from lineage_stash.on_ray.methods import CONSTRUCTOR, STREAMING
from lineage_stash.on_ray.pickling import pickle_state, unpickle_state
from lineage_stash.on_ray.refs import saving
from lineage_stash.on_ray.runtime import Reply, Runtime
from lineage_stash.on_ray.telling import warn
from lineage_stash.on_ray.upgrading import (
    FIRST_VERSION,
    UPGRADE,
    attributes_of,
    upgrade_object,
    upgrade_state,
    version_of,
)
from lineage_stash.store.chunks import DIGEST_BYTES
from lineage_stash.store.states import Buffer, digests_of_state, pack_state
from lineage_stash.wire.loop import Loop

IN_PLACE_S = 0.002
"""A fork of a Ray worker takes about this long."""

PICKLE = b"\x80"
"""What a pickle begins with."""

DIGEST_CHARACTERS = 32

REPORT = struct.Struct("<?d")
LENGTH = struct.Struct("<Q")
LONGEST_REASON = 2048
"""What fits into a pipe at once, together with the report."""

Captured = Callable[[object, Mapping[bytes, Buffer]], None]
"""What to do with the event that a state was captured, and with those of its chunks that the last one did not have."""


class ActorExit(SystemExit):
    """The running method wants its actor to end."""


def end_actor(_: object = None) -> None:
    """End the actor after this call, which fails, as those do that it has not begun."""
    raise ActorExit("exit_actor() was called")


GENERIC: dict[str, Callable[..., Any]] = {
    "__ray_ready__": lambda _: True,
    "__ray_call__": lambda instance, fn, *args, **kwargs: fn(instance, *args, **kwargs),
    "__ray_terminate__": end_actor,
}
"""What every actor can be asked for, whatever its class, as in Ray."""


def _yield_all(runtime: Runtime, items: Iterable[Any]) -> int:
    """Give the caller each item as it comes; how many there were."""
    count = 0
    for item in items:
        runtime.yield_item(item)
        count += 1
    return count


class ActorProgram:
    """One object, and how many actors it has created."""

    is_of_tasks = False

    expected_pickling_s: float | None = None
    """How long the first copy of the state may take; None where nobody can know."""

    def __init__(
        self, cls: type, runtime: Runtime, digest: str = "", load: Callable[[str], type] | None = None
    ) -> None:
        self.cls = cls
        self.runtime = runtime
        self.digest = digest
        self.load = load
        """Finds a class by its digest."""
        self.replaced = ""
        """Why nothing may be replayed, if the code has changed since the checkpoint."""
        self.instance: Any = None
        self.failure: str | None = None
        self.exit: bytes | None = None
        """Its last words, if the last call has ended the actor."""
        self.created = 0
        self.belongings = Belongings()
        self._pickling_s = self.expected_pickling_s
        self.failed_captures = 0
        self._has_reported = False
        """Whether it was said that the state cannot be copied."""
        self._last_chunks: frozenset[bytes] = frozenset()

    # calls

    def run(self, payload: bytes, caller: PeerId) -> Reply:
        """Run a call; its reply, whether it returned or raised, and the refs in it."""
        begin_borrowing()
        reply, passed = self._run(payload, caller)
        return end_borrowing(reply, self.runtime.awaits_answer), passed

    def _run(self, payload: bytes, caller: PeerId) -> Reply:
        method, runtime = "", self.runtime
        try:
            spelled, args, kwargs = runtime.open_call(payload, caller)
            method, returns = payloads.returns_of(spelled)
            if method == CONSTRUCTOR:
                self.instance = self.cls(*args, **kwargs)
                return payloads.pack_value(None), ()
            if self.failure is not None:
                return payloads.pack_death(self.failure), ()
            value = self.function(method)(*args, **kwargs)
            if returns == STREAMING:
                value, returns = _yield_all(runtime, value), 1
            return runtime.pack_result(value, returns)
        except SystemExit as error:
            self.exit = payloads.pack_death(f"The actor {self.cls.__name__} is dead: {_describe_exit(method, error)}.")
            return self.exit, ()
        except BaseException as error:  # noqa: BLE001 - it is the caller's to handle
            if method == CONSTRUCTOR:
                text = "".join(traceback.format_exception(error))
                self.failure = f"The actor died because of an error raised in its creation task:\n{text}"
                return payloads.pack_death(self.failure), ()
            runtime.holdings.touch(actors_in(payload))  # they may not have been opened
            return payloads.pack_error(self.title(method or _method_of(payload)), error), ()

    def function(self, method: str) -> Callable[..., Any]:
        """What is run for a method."""
        if method == UPGRADE:
            return self._upgrade
        if method in GENERIC:
            return partial(GENERIC[method], self.instance)
        found: Callable[..., Any] = getattr(self.instance, method)
        return found

    def title(self, method: str) -> str:
        """What a method is called in errors."""
        return f"{self.cls.__name__}.{method}"

    def _upgrade(self, digest: str) -> None:
        """Go on with another class."""
        if digest == self.digest:
            return
        assert self.load is not None, "only actors have code that can be replaced"
        cls = self.load(digest)
        self.instance = upgrade_object(self.instance, cls)
        self.cls, self.digest = cls, digest
        self.runtime.peer.durability.want_checkpoint()

    # state

    def _pack(self) -> bytes:
        saves = getattr(self.instance, "__ray_save__", None)
        state = saves() if saves is not None else self.instance
        with saving(self.runtime):
            parts = saves is not None, state, self.failure, self.created, self.belongings.pack(), version_of(self.cls)
            return self.digest.encode() + pickle_state(parts, self.cls)

    def restore(self, state: bytes) -> None:
        """Go on from a copy, with the code that it is of."""
        if state[:1] != PICKLE:
            digest, state = state[:DIGEST_CHARACTERS].decode(), state[DIGEST_CHARACTERS:]
            if digest != self.digest and self.load is not None:
                self.cls, self.digest = self.load(digest), digest
        saved, value, self.failure, self.created, belongings, *rest = unpickle_state(state, self.cls)
        version = rest[0] if rest else FIRST_VERSION
        self.belongings.restore(belongings)
        if version != version_of(self.cls):
            self.replaced = f"version {version!r} of its state, and {version_of(self.cls)!r} of its code"
            self.instance = upgrade_state(value if saved else attributes_of(value), self.cls, version, saved=saved)
        elif saved:
            self.instance = object.__new__(self.cls)
            self.instance.__ray_restore__(value)
        else:
            self.instance = value

    def note_restored(self, state: bytes) -> None:
        """Which chunks the store has already."""
        self._last_chunks = frozenset(digests_of_state(state))

    def capture(self, loop: Loop, captured: Captured) -> None:
        """Copy the state as it is now, and hand it over when it is pickled."""
        if self._pickling_s is not None and self._pickling_s < IN_PLACE_S:
            self._capture_in_place(captured)
        else:
            self._capture_in_child(loop, captured)

    def _pack_new(self) -> tuple[bytes, dict[bytes, Buffer]]:
        """The state as a checkpoint has it, and the chunks that the last one did not have."""
        state, chunks = pack_state(self._pack())
        return state, {digest: chunk for digest, chunk in chunks.items() if digest not in self._last_chunks}

    def _capture_in_place(self, captured: Captured) -> None:
        started = time.monotonic()
        try:
            state, chunks = self._pack_new()
        except Exception as error:  # noqa: BLE001 - the user's class may fail in any way
            self._report(in_words(error))
            captured(events.CaptureFailed(), {})
            return
        self._pickling_s = time.monotonic() - started
        self.note_restored(state)
        captured(events.StateCaptured(state), chunks)

    def _capture_in_child(self, loop: Loop, captured: Captured) -> None:
        copy = os.memfd_create("lineage_stash state")
        done, told = os.pipe()
        child = os.fork()
        if child == 0:
            self._be_the_child(copy, told)
        os.close(told)

        def on_done() -> None:
            loop.remove_reader(done)
            report = os.read(done, REPORT.size + LONGEST_REASON)
            os.close(done)
            _reap(child)
            is_whole = len(report) >= REPORT.size
            done_well, self._pickling_s = REPORT.unpack_from(report) if is_whole else (False, None)
            if not done_well:
                self._report(report[REPORT.size :].decode(errors="replace") or "the process that copied it has died")
                os.close(copy)
                captured(events.CaptureFailed(), {})
                return
            state, chunks = _read_copy(copy)
            self.note_restored(state)
            captured(events.StateCaptured(state), chunks)

        loop.add_reader(done, on_done)

    def _be_the_child(self, copy: int, told: int) -> None:
        """Pickle, report and end; nothing of the parent's is touched, and nothing of Ray."""
        why = "it was ended"
        started = time.monotonic()
        try:
            _close_all_but(copy, told)
            _write_copy(copy, *self._pack_new())
            why = ""
        except Exception as error:  # noqa: BLE001 - the user's class may fail in any way
            why = in_words(error)
        finally:
            os.write(told, REPORT.pack(not why, time.monotonic() - started) + why.encode()[:LONGEST_REASON])
            os._exit(0)

    def _report(self, why: str) -> None:
        self.failed_captures += 1
        if self._has_reported:
            return
        self._has_reported = True
        warn(
            "no checkpoint",
            f"the state of {self.cls.__name__} cannot be copied, so that its log is kept instead and a recovery "
            f"replays all of it: {why}. Define __ray_save__ and __ray_restore__ to say what its state is.",
            peer=self.runtime.id, why=why,
        )  # fmt: skip


def in_words(error: BaseException) -> str:
    """What went wrong, in a line."""
    return f"{type(error).__name__}: {error}"


def _method_of(payload: bytes) -> str:
    """The method of a call whose arguments could not be opened."""
    return payloads.returns_of(payloads.name_of(payload))[0]


def _describe_exit(method: str, error: SystemExit) -> str:
    how = error.code if isinstance(error, ActorExit) else f"it exited with {error.code!r}"
    return f"{how} in {method}()"


def _write_copy(copy: int, state: bytes, chunks: dict[bytes, Buffer]) -> None:
    """The state, and after it each chunk behind its digest and its length."""
    with os.fdopen(copy, "wb", closefd=False) as file:
        file.write(LENGTH.pack(len(state)) + state)
        for digest, chunk in chunks.items():
            file.write(digest + LENGTH.pack(len(chunk)))
            file.write(chunk)


def _read_copy(copy: int) -> tuple[bytes, dict[bytes, Buffer]]:
    """What `_write_copy` wrote; the chunks stay where they are until somebody sends them."""
    content = memoryview(mmap.mmap(copy, 0, access=mmap.ACCESS_READ))
    os.close(copy)
    at = LENGTH.size + LENGTH.unpack_from(content)[0]
    state = bytes(content[LENGTH.size : at])
    chunks: dict[bytes, Buffer] = {}
    while at < len(content):
        digest = bytes(content[at : at + DIGEST_BYTES])
        lower = at + DIGEST_BYTES + LENGTH.size
        (length,) = LENGTH.unpack_from(content, at + DIGEST_BYTES)
        chunks[digest] = content[lower : lower + length]
        at = lower + length
    return state, chunks


def _close_all_but(*kept: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in kept:
            with suppress(OSError):  # it was the one that the folder was read through
                os.close(fd)


def _reap(child: int) -> None:
    with suppress(ChildProcessError):  # somebody reaps all children of this process
        os.waitpid(child, 0)
