"""Stand-ins for the clocks of `time` and `os`.

What converts a given time is left alone; what converts the present one (`localtime()`, `strftime(format)` and so on)
records the whole answer, because the next life may run where the time zone is another.
"""

import os
import time
from collections.abc import Callable
from typing import Any

from lineage_stash.capture.here import ask, here
from lineage_stash.capture.stand_ins import Clock, Computed, StandIn, SteadyClock

STEADY = ("monotonic", "perf_counter", "process_time", "thread_time")
STRUCT_FIELDS = 11
"""Of a `struct_time`, with the zone and its offset, which do not count as items."""


def stand_ins() -> list[StandIn]:
    """For every function that reads a clock."""
    local, universal = _Moment("localtime", time.localtime), _Moment("gmtime", time.gmtime)
    steady = [
        SteadyClock("time", name, getattr(time, name), getattr(time, f"{clock}_ns"))
        for clock in STEADY
        for name in (clock, f"{clock}_ns")
    ]
    return [
        Clock("time", "time", time.time),
        Clock("time", "time_ns", time.time_ns),
        *steady,
        StandIn("time", "clock_gettime", time.clock_gettime),
        StandIn("time", "clock_gettime_ns", time.clock_gettime_ns),
        Computed("time", "localtime", time.localtime, local),
        Computed("time", "gmtime", time.gmtime, universal),
        Computed("time", "ctime", time.ctime, _ctime_of(local, time.ctime, time.asctime)),
        Computed("time", "asctime", time.asctime, _asctime_of(local, time.asctime)),
        Computed("time", "strftime", time.strftime, _strftime_of(local, time.strftime)),
        Computed("os", "times", os.times, _times_of(os.times)),
    ]


class _Moment:
    """The present moment as a `struct_time`."""

    def __init__(self, name: str, real: Callable[..., time.struct_time]) -> None:
        self.kind = f"time.{name}"
        self.real = real

    def __call__(self, seconds: float | None = None, /) -> time.struct_time:
        recorder = here.recorder
        if seconds is not None or recorder is None:
            return self.real(seconds)
        return time.struct_time(ask(recorder, self.kind, self._read))

    def _read(self) -> tuple[Any, ...]:
        now = self.real()
        return (*now, now.tm_zone, now.tm_gmtoff)


def _ctime_of(moment: _Moment, ctime: Callable[[float], str], asctime: Callable[..., str]) -> Callable[..., str]:
    return lambda seconds=None, /: asctime(moment()) if seconds is None else ctime(seconds)


def _asctime_of(moment: _Moment, asctime: Callable[..., str]) -> Callable[..., str]:
    return lambda *told: asctime(*told) if told else asctime(moment())


def _strftime_of(moment: _Moment, strftime: Callable[..., str]) -> Callable[..., str]:
    return lambda format, *told: strftime(format, *told) if told else strftime(format, moment())  # noqa: A006


def _times_of(times: Callable[[], os.times_result]) -> Callable[[], os.times_result]:
    def read() -> os.times_result:
        recorder = here.recorder
        assert recorder is not None, "it is asked only while a call runs"
        return os.times_result(ask(recorder, "os.times", lambda: tuple(times())))

    return read
