"""Snapshots of the global-checkpoint system: the state of one actor, copied, written and read back.

Rules:
- A copy is of the moment it was asked for. Small states are pickled in place; one that takes longer than a fork is
  pickled, written and synced by a forked child, so that the actor goes on at once.
- One that fails, be it in the child, is told with the reason, and the next one is tried all the same.
- A snapshot has its final name only when it is on the disk. Writing never holds up the actor: a thread does it.
- The state of an object is what it pickles by: `__getstate__` and `__setstate__` count.
"""

import os
import pickle
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import cloudpickle

from lineage_stash.wire.loop import Loop

IN_PLACE_S = 0.002
"""A fork of a Ray worker takes about this long."""

REPORT = struct.Struct("<dQ")
"""What a child says of a snapshot: how long the pickling took, and the bytes; behind it, why it failed if it did."""

LONGEST_REPORT_BYTES = 4096
"""What a pipe takes whole."""

Saved = Callable[[int, int, str], None]
"""Told of a snapshot that is on the disk, or is not: its checkpoint, how many bytes it is, and why it failed."""


def pack_state(instance: object) -> bytes:
    """The state of an object as bytes."""
    state = instance.__getstate__()
    if type(instance).__module__ != "__main__":
        with suppress(pickle.PicklingError, AttributeError, TypeError):
            return pickle.dumps(state, protocol=pickle.HIGHEST_PROTOCOL)
    return bytes(cloudpickle.dumps(state, protocol=pickle.HIGHEST_PROTOCOL))


def unpack_state(kind: type, content: bytes) -> Any:
    """An object of a class with this state."""
    state = pickle.loads(content)
    instance: Any = object.__new__(kind)
    if hasattr(instance, "__setstate__"):
        instance.__setstate__(state)
        return instance
    plain, slots = state if isinstance(state, tuple) else (state, None)
    for name, value in {**(plain or {}), **(slots or {})}.items():
        setattr(instance, name, value)
    return instance


def write(path: Path, content: bytes) -> None:
    """Put bytes on the disk, whole or not at all."""
    partial = path.with_suffix(".partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    except OSError:
        partial.unlink(missing_ok=True)  # a full disk is not to stay full of this
        raise
    finally:
        os.close(descriptor)
    partial.rename(path)


def reason(error: Exception) -> str:
    """What is said of a snapshot that failed."""
    return f"{type(error).__name__}: {error}"


class Snapshots:
    """Copies of one actor's state, in a folder."""

    def __init__(self, folder: Path, actor: str, delay_s: float, loop: Loop, on_saved: Saved) -> None:
        self._stem = "".join(letter if letter.isalnum() else f"_{ord(letter):x}_" for letter in actor)
        self._folder = folder
        self._delay_s = delay_s
        self._loop = loop
        self._on_saved = on_saved
        self._pickling_s: float | None = None
        self._to_write: SimpleQueue[tuple[int, bytes, int]] = SimpleQueue()
        threading.Thread(target=self._write_all, name="snapshots", daemon=True).start()

    def path(self, checkpoint: int) -> Path:
        """Where a snapshot is."""
        return self._folder / f"{self._stem}-{checkpoint}.state"

    def read(self, kind: type, checkpoint: int) -> Any:
        """The object as it was; to pickle it will take about as long as this."""
        content = self.path(checkpoint).read_bytes()
        started = time.monotonic()
        instance = unpack_state(kind, content)
        if self._pickling_s is None:
            self._pickling_s = time.monotonic() - started
        return instance

    def take(self, instance: object, checkpoint: int, completed: int) -> None:
        """Copy the state as it is now; those older than the last complete checkpoint are removed later."""
        try:
            if self._pickling_s is not None and self._pickling_s >= IN_PLACE_S:
                self._take_in_child(instance, checkpoint, completed)
                return
            started = time.monotonic()
            content = pack_state(instance)
            self._pickling_s = time.monotonic() - started
            self._to_write.put((checkpoint, content, completed))
        except Exception as error:  # noqa: BLE001 - the user's state may fail in any way
            self._decline(checkpoint, reason(error))

    def _decline(self, checkpoint: int, why: str) -> None:
        self._loop.post(lambda: self._on_saved(checkpoint, 0, why))

    def _write_all(self) -> None:
        while True:
            checkpoint, content, completed = self._to_write.get()
            try:
                write(self.path(checkpoint), content)
            except OSError as error:
                self._decline(checkpoint, reason(error))
            else:
                self._finish(checkpoint, len(content), completed)

    def _finish(self, checkpoint: int, size: int, completed: int) -> None:
        if self._delay_s:
            time.sleep(self._delay_s)  # a store that is farther away than this disk
        self._loop.post(lambda: self._on_saved(checkpoint, size, ""))
        for path in self._folder.glob(f"{self._stem}-*.state"):
            if int(path.stem.rpartition("-")[2]) < completed:
                path.unlink(missing_ok=True)

    def _take_in_child(self, instance: object, checkpoint: int, completed: int) -> None:
        done, told = os.pipe()
        child = os.fork()
        if child == 0:
            self._be_the_child(instance, checkpoint, told)
        os.close(told)

        def wait_for_child() -> None:
            report = os.read(done, LONGEST_REPORT_BYTES)
            os.close(done)
            with suppress(ChildProcessError):  # somebody reaps all children of this process
                os.waitpid(child, 0)
            if len(report) < REPORT.size:
                self._decline(checkpoint, "the child that was to write it died")
                return
            self._pickling_s, size = REPORT.unpack_from(report)
            why = report[REPORT.size :].decode(errors="replace")
            if why:
                self._decline(checkpoint, why)
            else:
                self._finish(checkpoint, size, completed)

        threading.Thread(target=wait_for_child, name="snapshot", daemon=True).start()

    def _be_the_child(self, instance: object, checkpoint: int, told: int) -> None:
        """Pickle, write, report and end; a killed parent must look dead at once, so nothing of it is kept open."""
        why, pickling_s, size = "it ended early", IN_PLACE_S, 0
        try:
            for name in os.listdir("/proc/self/fd"):
                if int(name) > 2 and int(name) != told:
                    with suppress(OSError):  # it was the one that the folder was read through
                        os.close(int(name))
            started = time.monotonic()
            content = pack_state(instance)
            pickling_s, size = time.monotonic() - started, len(content)
            write(self.path(checkpoint), content)
            why = ""
        except Exception as error:  # noqa: BLE001 - the user's state may fail in any way
            why = reason(error)
        finally:
            os.write(told, (REPORT.pack(pickling_s, size) + why.encode())[:LONGEST_REPORT_BYTES])
            os._exit(0)
