"""The clock of `datetime`: `now`, `utcnow` and `today`, for every name under which anybody has the classes.

The classes are written in C and refuse new attributes. Replacing them by subclasses would leave all names that were
bound before, and would put another type into results, pickles and `isinstance`. So the three methods are replaced in
the dictionaries of the classes themselves: results are of the same types as ever. What this needs of CPython is checked
when it is done (`docs/design/2026-11-16-capture.md`).
"""

import ctypes
import datetime
import gc
from collections.abc import Callable
from typing import Any

from lineage_stash.capture.here import Recorder, ask, here

PICKLED = 4
"""The protocol whose form of a moment is ten bytes, with the fold in it."""


def replace() -> Callable[[], None]:
    """Have the classes record what they read; the way back."""
    moments, days = _dictionary_of(datetime.datetime), _dictionary_of(datetime.date)
    before = [(moments, "now", moments["now"]), (moments, "utcnow", moments["utcnow"]), (days, "today", days["today"])]
    now, utcnow, today = (real for _, _, real in before)
    moments["now"], moments["utcnow"] = classmethod(_now(now, utcnow)), classmethod(_utcnow(now, utcnow))
    days["today"] = classmethod(_today(now, today))
    _notice()

    def put_back() -> None:
        for dictionary, name, real in before:
            dictionary[name] = real
        _notice()

    return put_back


def _dictionary_of(cls: type) -> dict[str, Any]:
    """The dictionary behind the read-only view that a class shows."""
    found = gc.get_referents(cls.__dict__)
    if len(found) != 1 or type(found[0]) is not dict or found[0].keys() != cls.__dict__.keys():
        raise RuntimeError(f"the dictionary of {cls} cannot be reached in this Python: its clock cannot be captured")
    return found[0]


def _notice() -> None:
    """Have the interpreter forget what it has cached of these classes and of all that inherit from them."""
    modified = ctypes.pythonapi.PyType_Modified
    modified.argtypes, modified.restype = [ctypes.py_object], None
    modified(datetime.datetime)
    modified(datetime.date)


def _read(recorder: Recorder, kind: str, real: Any) -> datetime.datetime:
    """The present moment, naive."""
    read = real.__get__(None, datetime.datetime)
    state = ask(recorder, kind, lambda: read().__reduce_ex__(PICKLED)[1][0])
    from_state: Callable[[bytes], datetime.datetime] = datetime.datetime  # type: ignore[assignment]
    return from_state(state)


def _as(cls: type[datetime.datetime], moment: datetime.datetime, tz: datetime.tzinfo | None) -> datetime.datetime:
    if cls is datetime.datetime:
        return moment.replace(tzinfo=tz)
    made = cls(*moment.timetuple()[:6], moment.microsecond, tz)
    return made.replace(fold=1) if moment.fold else made


def _now(now: Any, utcnow: Any) -> Callable[..., datetime.datetime]:
    def replaced(cls: type[datetime.datetime], tz: datetime.tzinfo | None = None) -> datetime.datetime:
        """Returns new datetime object representing current time local to tz."""
        recorder = here.recorder
        if recorder is None or not isinstance(tz, datetime.tzinfo | None):  # the real one says what is wrong
            real: datetime.datetime = now.__get__(None, cls)(tz)
            return real
        if tz is None:
            return _as(cls, _read(recorder, "datetime.now", now), None)
        return tz.fromutc(_as(cls, _read(recorder, "datetime.utcnow", utcnow), tz))

    return replaced


def _utcnow(_: Any, utcnow: Any) -> Callable[..., datetime.datetime]:
    def replaced(cls: type[datetime.datetime]) -> datetime.datetime:
        """Return a new datetime representing UTC day and time."""
        recorder = here.recorder
        if recorder is None:
            real: datetime.datetime = utcnow.__get__(None, cls)()
            return real
        return _as(cls, _read(recorder, "datetime.utcnow", utcnow), None)

    return replaced


def _today(now: Any, today: Any) -> Callable[..., datetime.date]:
    def replaced(cls: type[datetime.date]) -> datetime.date:
        """Current date or datetime."""
        recorder = here.recorder
        if recorder is None:
            real: datetime.date = today.__get__(None, cls)()
            return real
        moment = _read(recorder, "datetime.now", now)
        if issubclass(cls, datetime.datetime):
            return _as(cls, moment, None)
        return cls(moment.year, moment.month, moment.day)

    return replaced
