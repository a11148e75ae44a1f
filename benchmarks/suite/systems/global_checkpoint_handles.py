"""Handles and refs of the global-checkpoint system, in the shape of Ray's.

A handle is the name of an actor: it can be pickled, and whoever opens it calls through the process that it is in. A ref
belongs to the process that made the call. One that is passed on travels as its value, for which the sender waits.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from lineage_stash.on_ray import payloads


class RestoreFailed(RuntimeError):
    """An actor could not go back to the last complete checkpoint, so that nothing can be told of any call since."""


class Runtime(Protocol):
    """What a process offers to the handles in it."""

    def submit(self, callee: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Ref":
        """Call an actor."""

    def fetch(self, refs: Sequence["Ref"], timeout_s: float | None) -> None:
        """Wait until all have their replies; `TimeoutError` when that takes too long."""


_present: list[Runtime] = []


def adopt(runtime: Runtime | None) -> None:
    """Say whom the handles in this process call through from now on."""
    _present[:] = [] if runtime is None else [runtime]


def present() -> Runtime:
    """Whom the handles in this process call through."""
    if not _present:
        raise RuntimeError("handles of the global-checkpoint system work in its driver and in its actors only")
    return _present[0]


class Ref:
    """What a call will have returned."""

    __slots__ = ("reply",)

    def __init__(self) -> None:
        self.reply: bytes | None = None

    def get(self, timeout_s: float | None = None) -> Any:
        """Wait for the reply; its value, or raise what the call raised."""
        if self.reply is None:
            present().fetch([self], timeout_s)
        assert self.reply is not None, "it was fetched"
        return payloads.unpack_value(self.reply)

    def __reduce__(self) -> Any:
        return _answered, (self.get(),)


def _answered(value: Any) -> Ref:
    ref = Ref()
    ref.reply = payloads.pack_value(value)
    return ref


def get(refs: Any, timeout_s: float | None = None) -> Any:
    """The value of a ref, or those of a list of refs, in the driver or in an actor."""
    if isinstance(refs, Ref):
        return refs.get(timeout_s)
    missing = [ref for ref in refs if ref.reply is None]
    if missing:
        present().fetch(missing, timeout_s)
    return [ref.get() for ref in refs]


def pack_call(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """A call as bytes; refs among its arguments stand for their values, as in Ray."""
    for value in (*args, *kwargs.values()):
        if type(value) is Ref:
            args = tuple([_value_of(each) for each in args])
            kwargs = {name: _value_of(each) for name, each in kwargs.items()}
            break
    return payloads.pack_call(method, args, kwargs)


def _value_of(argument: Any) -> Any:
    return argument.get() if type(argument) is Ref else argument


class Method:
    """A method of an actor."""

    __slots__ = ("_actor", "_method")

    def __init__(self, actor: str, method: str) -> None:
        self._actor = actor
        self._method = method

    def remote(self, *args: Any, **kwargs: Any) -> Ref:
        """Call it."""
        return present().submit(self._actor, self._method, args, kwargs)


class Handle:
    """An actor, to be called."""

    __slots__ = ("_actor",)

    def __init__(self, actor: str) -> None:
        self._actor = actor

    def __getattr__(self, method: str) -> Method:
        if method.startswith("__"):
            raise AttributeError(method)
        return Method(self._actor, method)

    def __repr__(self) -> str:
        return f"<Handle {self._actor}>"

    def __reduce__(self) -> Any:
        return Handle, (self._actor,)
