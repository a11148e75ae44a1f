"""A recorder of the simplest kind: a list, first written and then read."""

from collections.abc import Callable
from typing import Any

from lineage_stash.capture import readings
from lineage_stash.capture.belongings import Belongings
from lineage_stash.capture.here import paused, recording


class Strayed(Exception):
    """What a life would end with."""


class Tape:
    def __init__(self, log: list[bytes] | None = None) -> None:
        self.records = log is None
        self.log = [] if log is None else list(log)
        self.kinds: list[str] = []
        self.belongings = Belongings()

    def read(self, kind: str, take: Callable[[], bytes]) -> bytes:
        self.kinds.append(kind)
        if not self.records:
            logged = readings.kind_of(self.log[0])
            if logged != kind:
                raise Strayed(f"a read of {kind} where the log has {logged}")
            return self.log.pop(0)
        self.log.append(take())
        return self.log[-1]

    def observe(self, read: Callable[[], Any]) -> Any:
        with paused():
            return read()


def record(function: Callable[[], Any]) -> tuple[Any, Tape]:
    """What a function gives in a first run, and the tape of it."""
    tape = Tape()
    with recording(tape):
        return function(), tape


def repeat(function: Callable[[], Any], first: Tape) -> Any:
    """What it gives in a replay, which must read all of the log and no more."""
    tape = Tape(first.log)
    with recording(tape):
        again = function()
    assert tape.log == [], "the replay read less than the first run"
    assert tape.kinds == first.kinds
    return again


def is_captured(function: Callable[[], Any]) -> bool:
    """Whether a replay gives again what a function gave, all of which came through the log."""
    first, tape = record(function)
    assert len(tape.log) > 0, "nothing was read"
    return bool(repeat(function, tape) == first)
