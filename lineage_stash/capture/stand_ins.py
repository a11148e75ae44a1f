"""Stand-ins: callables in the place of functions, which record or recall while the user's call runs.

They behave like the builtin functions that they replace: they do not turn into methods when a class holds them, and
they are pickled by name, so that what was pickled here can be loaded where nothing is replaced.
"""

from collections.abc import Callable
from typing import Any

from lineage_stash.capture.here import ask, here

Function = Callable[..., Any]


class StandIn:
    """In the place of `module.name`; recorded as a reading of `kind`."""

    def __init__(self, module: str, name: str, real: Function, kind: str | None = None) -> None:
        self.__module__ = module
        self.__name__ = self.__qualname__ = name
        self.__doc__ = real.__doc__
        self.__wrapped__ = real
        self.real = real
        self.kind = kind or f"{module}.{name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = here.recorder
        if recorder is None:
            return self.real(*args, **kwargs)
        return ask(recorder, self.kind, lambda: self.real(*args, **kwargs))

    def __reduce__(self) -> str:
        return self.__name__

    def __repr__(self) -> str:
        return f"<captured function {self.__module__}.{self.__name__}>"


class Clock(StandIn):
    """A function that takes no argument and says a number."""

    def __call__(self) -> Any:
        recorder = here.recorder
        return self.real() if recorder is None else ask(recorder, self.kind, self.real)


class SteadyClock(StandIn):
    """A monotonic clock, in nanoseconds or in seconds; both forms read the same clock of the actor."""

    def __init__(self, module: str, name: str, real: Function, real_ns: Callable[[], int]) -> None:
        super().__init__(module, name, real, f"{module}.{name.removesuffix('_ns')}")
        self.real_ns = real_ns
        self.in_ns = name.endswith("_ns")

    def __call__(self) -> Any:
        recorder = here.recorder
        if recorder is None:
            return self.real()
        belongings, kind = recorder.belongings, self.kind
        now_ns = ask(recorder, kind, lambda: belongings.tick(kind, self.real_ns))
        belongings.clocks_ns[kind] = now_ns
        return now_ns if self.in_ns else now_ns / 1e9


class Computed(StandIn):
    """A function that reads the clock only if it is not told a time: then `compute` makes its answer of a reading."""

    def __init__(self, module: str, name: str, real: Function, compute: Callable[..., Any]) -> None:
        super().__init__(module, name, real)
        self.compute = compute

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if here.recorder is None:
            return self.real(*args, **kwargs)
        return self.compute(*args, **kwargs)
