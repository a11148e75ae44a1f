"""The program of an actor: the user's object, its calls, and copies of its state.

Rules:
- The constructor is the first call. If it raises, every later call fails and says so, as in Ray.
- A copy of the state is of the moment it was asked for. It is made by a forked child, which pays for the pickling;
  where that turned out to take less than a fork, in place.
- The child closes every descriptor it has inherited first thing: a killed parent must look dead at once.
- A class may say what its state is: `__ray_save__` and `__ray_restore__`. In a forked child they may not use Ray.
"""

import io
import os
import pickle
import struct
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cloudpickle

from lineage_stash.core import events
from lineage_stash.on_ray import payloads
from lineage_stash.wire.loop import Loop

CONSTRUCTOR = "__init__"
IN_PLACE_S = 0.002
"""A fork of a Ray worker takes about this long."""

THE_CLASS = "the actor's class"
REPORT = struct.Struct("<?d")


class StatePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles by value like cloudpickle, but names the actor's own class instead of copying it."""

    def __init__(self, file: io.BytesIO, cls: type) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.cls = cls

    def persistent_id(self, obj: object) -> str | None:
        """What is named and not copied."""
        return THE_CLASS if obj is self.cls else None


class StateUnpickler(pickle.Unpickler):
    """The other side of `StatePickler`."""

    def __init__(self, file: io.BytesIO, cls: type) -> None:
        super().__init__(file)
        self.cls = cls

    def persistent_load(self, name: str) -> type:
        """The class by its name."""
        if name != THE_CLASS:
            raise pickle.UnpicklingError(f"unknown name in a checkpoint: {name}")
        return self.cls


class ActorProgram:
    """One object, and how many actors it has created."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.instance: Any = None
        self.failure: str | None = None
        self.created = 0
        self._pickling_s: float | None = None

    # calls

    def run(self, payload: bytes) -> bytes:
        """Run a call; its reply, whether it returned or raised."""
        method = "?"
        try:
            method, args, kwargs = payloads.unpack_call(payload)
            if method == CONSTRUCTOR:
                self.instance = self.cls(*args, **kwargs)
                return payloads.pack_value(None)
            if self.failure is not None:
                return payloads.pack_death(self.failure)
            return payloads.pack_value(getattr(self.instance, method)(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it is the caller's to handle
            if method == CONSTRUCTOR:
                text = "".join(traceback.format_exception(error))
                self.failure = f"The actor died because of an error raised in its constructor:\n{text}"
                return payloads.pack_death(self.failure)
            return payloads.pack_error(f"{self.cls.__name__}.{method}", error)

    # state

    def _pack(self) -> bytes:
        file = io.BytesIO()
        saves = getattr(self.instance, "__ray_save__", None)
        state = saves() if saves is not None else self.instance
        StatePickler(file, self.cls).dump((saves is not None, state, self.failure, self.created))
        return file.getvalue()

    def restore(self, state: bytes) -> None:
        """Go on from a copy."""
        saved, value, self.failure, self.created = StateUnpickler(io.BytesIO(state), self.cls).load()
        if saved:
            self.instance = object.__new__(self.cls)
            self.instance.__ray_restore__(value)
        else:
            self.instance = value

    def capture(self, loop: Loop, feed: Callable[[object], None]) -> None:
        """Copy the state as it is now, and hand it over when it is pickled."""
        if self._pickling_s is not None and self._pickling_s < IN_PLACE_S:
            feed(self._capture_in_place())
        else:
            self._capture_in_child(loop, feed)

    def _capture_in_place(self) -> object:
        started = time.monotonic()
        try:
            captured: object = events.StateCaptured(self._pack())
        except Exception as error:  # noqa: BLE001 - the user's class may fail in any way
            self._report(error)
            captured = events.CaptureFailed()
        self._pickling_s = time.monotonic() - started
        return captured

    def _capture_in_child(self, loop: Loop, feed: Callable[[object], None]) -> None:
        copy = os.memfd_create("lineage_stash state")
        done, told = os.pipe()
        child = os.fork()
        if child == 0:
            self._be_the_child(copy, told)
        os.close(told)

        def on_done() -> None:
            loop.remove_reader(done)
            report = os.read(done, REPORT.size)
            os.close(done)
            _reap(child)
            captured, self._pickling_s = REPORT.unpack(report) if len(report) == REPORT.size else (False, None)
            with os.fdopen(copy, "rb") as file:
                file.seek(0)
                feed(events.StateCaptured(file.read()) if captured else events.CaptureFailed())

        loop.add_reader(done, on_done)

    def _be_the_child(self, copy: int, told: int) -> None:
        """Pickle, report and end; nothing of the parent's is touched, and nothing of Ray."""
        captured = False
        started = time.monotonic()
        try:
            _close_all_but(copy, told)
            with os.fdopen(copy, "wb", closefd=False) as file:
                file.write(self._pack())
            captured = True
        except Exception as error:  # noqa: BLE001 - the user's class may fail in any way
            self._report(error)
        finally:
            os.write(told, REPORT.pack(captured, time.monotonic() - started))
            os._exit(0)

    def _report(self, error: BaseException) -> None:
        print(
            f"lineage_stash: the state of {self.cls.__name__} cannot be copied, so that its log is kept instead and a "
            f"recovery replays all of it: {type(error).__name__}: {error}. Define __ray_save__ and __ray_restore__ to "
            "say what its state is.",
            flush=True,
        )


def _close_all_but(*kept: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in kept:
            with suppress(OSError):  # it was the one that the folder was read through
                os.close(fd)


def _reap(child: int) -> None:
    with suppress(ChildProcessError):  # somebody reaps all children of this process
        os.waitpid(child, 0)
