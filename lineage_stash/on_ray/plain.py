"""Calls of plain Ray from inside a recovered actor or task: effects on the outside, logged as `observe` logs them.

Rules:
- Only where the user's call runs, in its thread; anywhere else, and inside `observe`, Ray is as it was.
- That a call was submitted is logged, and so is what `get` and `wait` said of it. A replay submits nothing that its log
  has, and recalls what was said.
- A process takes the results with it that it had not got: Ray keeps them with whoever submitted the call. Where a
  replay has come to its end without them, the call is made again when its result is asked for. So such calls are made
  at least once, as is one whose process dies before its entry has left it.
- A ref that comes from a checkpoint says of itself that its result is lost, because nobody knows the call any more.
"""

import asyncio
import copyreg
import inspect
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial, wraps
from typing import Any

import ray
from ray.exceptions import OwnerDiedError

from lineage_stash.capture import install
from lineage_stash.capture.here import here
from lineage_stash.capture.stand_ins import StandIn
from lineage_stash.on_ray.refs import is_passing, is_saving
from lineage_stash.on_ray.telling import tell

STREAMS = ("streaming", "dynamic")


class PlainRefLost(OwnerDiedError):  # type: ignore[misc]
    """The result of a plain call went with the process that had asked for it."""

    def __init__(self, ref: str) -> None:
        super().__init__("", None, "")
        self.ref = ref

    def __str__(self) -> str:
        return (
            f"The result of a call of plain Ray ({self.ref}) was lost: the process that had made the call died before "
            "it got the result. Make the call again, get() results in the method that makes the call, or make the "
            "called class or function a recovered one."
        )

    def __reduce__(self) -> Any:
        return PlainRefLost, (self.ref,)


class PlainRef(ray.ObjectRef):  # type: ignore[misc]
    """A ref of Ray's as a recovered program has it: the same in a replay, where there may be nothing behind it."""

    real: Any = None
    """Ray's own, where this process has it."""
    call: Callable[[], Any] | None = None
    """Makes the call again, where a replay has passed by it."""

    def resolve(self) -> Any:
        """Ray's own; the call is made again if need be."""
        if self.real is None:
            if self.call is None:
                raise PlainRefLost(self.hex())
            tell("made again", f"plain: the call behind {self!r} is made again: its result was lost")
            self.real, self.call = self.call(), None
        return self.real

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ray.ObjectRef) and other.binary() == self.binary()

    def __hash__(self) -> int:
        return hash(self.binary())

    def __reduce__(self) -> Any:
        if is_passing() or is_saving() or (here.observing and not _ray.is_called):
            return _reduce(self)
        return _same, (self.resolve(),)

    def future(self) -> "Future[Any]":
        """A future that has the value already: nothing else runs while a call waits."""
        done: Future[Any] = Future()
        try:
            done.set_result(ray.get(self))
        except Exception as error:  # noqa: BLE001 - it is for whoever asks the future
            done.set_exception(error)
        return done

    def as_future(self, _internal: bool = False) -> Any:
        """The same for asyncio."""
        return asyncio.wrap_future(self.future())

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()
        return ray.get(self)


class _Ray(threading.local):
    """Whether this thread has called Ray: what is pickled then is Ray's business."""

    is_called = False


_ray = _Ray()


def call_ray(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call one of Ray's own functions; the refs in its arguments are pickled as Ray needs them."""
    outer, _ray.is_called = _ray.is_called, True
    try:
        return function(*args, **kwargs)
    finally:
        _ray.is_called = outer


def _same(ref: Any) -> Any:
    return ref


_observed: dict[str, Any] = {}
"""Refs inside an answer of Ray's, from when it is logged until the next one."""


def _open_ref(name: str) -> PlainRef:
    """A ref that was in an answer, or in a checkpoint."""
    return make_ref(name, _observed.get(name))


def make_ref(name: str, real: Any = None, call: Callable[[], Any] | None = None) -> PlainRef:
    """A ref by its id in hex, and what is known of it."""
    ref = PlainRef(bytes.fromhex(name), skip_adding_local_ref=True)
    ref.real, ref.call = real, call
    return ref


def _reduce(ref: Any) -> Any:
    """Pickle a ref of Ray's own: a pickle that is not Ray's does not say who has the value."""
    if is_passing():
        raise TypeError(
            f"{ref!r} is a ref of plain Ray, which a recovered call cannot have in its arguments or results: it would "
            "be lost with the process that has made it. Pass its value, ray.get(ref), instead."
        )
    if here.observing and not is_saving() and not _ray.is_called:
        _observed[ref.hex()] = ref.resolve() if isinstance(ref, PlainRef) else ref
        return _open_ref, (ref.hex(),)
    return (_open_ref, (ref.hex(),)) if is_saving() else ray.ObjectRef.__reduce__(ref)


def keep_refs_apart() -> None:
    """Have pickles say what becomes of Ray's refs; Ray's own pickler has a table of its own, and is not affected."""
    copyreg.pickle(ray.ObjectRef, _reduce)


# effects


def _submit(submission: Callable[[], Any]) -> Any:
    """Submit something, or know from the log that it was; refs that stand for the results."""
    recorder = here.recorder
    assert recorder is not None, "only a running call is recorded"
    made: list[Any] = []

    def submit() -> Any:
        made.append(submission())
        return [ref.hex() for ref in made[0]] if isinstance(made[0], list) else made[0] and _id_of(made[0])

    said = recorder.observe(submit)
    if not isinstance(said, list):
        return said and make_ref(said, *(made or (None, submission)))
    again: list[Any] = []

    def part(at: int) -> Any:
        if not again:
            again.extend(submission())
        return again[at]

    return [
        make_ref(name, made[0][at]) if made else make_ref(name, None, partial(part, at)) for at, name in enumerate(said)
    ]


def _id_of(ref: Any) -> str:
    if not isinstance(ref, ray.ObjectRef):
        raise NotImplementedError(NO_STREAMS)
    name: str = ref.hex()
    return name


NO_STREAMS = (
    "streams of plain Ray are not recorded inside a recovered actor or task: have the function return a list, make it "
    "a recovered one, or read the whole stream inside lineage_stash.observe(...)"
)


def _resolved(value: Any) -> Any:
    return value.resolve() if isinstance(value, PlainRef) else value


def _is_stream(called: Any, options: dict[str, Any]) -> bool:
    returns = options.get("num_returns") or getattr(called, "_num_returns", None)
    return returns in STREAMS or (returns is None and inspect.isgeneratorfunction(getattr(called, "_function", None)))


def _call_resolved(real: Callable[..., Any], called: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
    """Call `_remote` with Ray's own refs among the arguments."""
    named = {name: _resolved(value) for name, value in (kwargs or {}).items()}
    return call_ray(real, called, [_resolved(value) for value in args or ()], named, **options)


def _recorded_submission(real: Callable[..., Any]) -> Callable[..., Any]:
    """In the place of `_remote` of a method or a function."""

    @wraps(real)
    def _remote(self: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        if here.recorder is None:
            return call_ray(real, self, args, kwargs, **options)
        if _is_stream(self, options):
            raise NotImplementedError(NO_STREAMS)
        return _submit(lambda: _call_resolved(real, self, args, kwargs, options))

    return _remote


def _recorded_creation(real: Callable[..., Any]) -> Callable[..., Any]:
    """In the place of `_remote` of a class: the handle is logged."""

    @wraps(real)
    def _remote(self: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        if here.recorder is None:
            return call_ray(real, self, args, kwargs, **options)
        return here.recorder.observe(lambda: _call_resolved(real, self, args, kwargs, options))

    return _remote


class Verb(StandIn):
    """In the place of one of Ray's functions; what it says of refs, or of anything else, is logged."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = here.recorder
        if recorder is None:
            return call_ray(self.real, *args, **kwargs)
        _observed.clear()
        return recorder.observe(lambda: call_ray(self.real, *map(self._given, args), **kwargs))

    def _given(self, value: Any) -> Any:
        return [_resolved(each) for each in value] if isinstance(value, list) else _resolved(value)


class Put(Verb):
    """Like a call: in a replay the value is put again when somebody asks for it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if here.recorder is None:
            return call_ray(self.real, *args, **kwargs)
        return _submit(lambda: call_ray(self.real, *args, **kwargs))


class Wait(Verb):
    """Which of the refs had come is logged by position."""

    def __call__(self, refs: Any, **kwargs: Any) -> Any:
        recorder = here.recorder
        if recorder is None or not isinstance(refs, list):
            return self.real(refs, **kwargs)

        def wait() -> list[int]:
            real = [_resolved(ref) for ref in refs]
            return [real.index(ref) for ref in self.real(real, **kwargs)[0]]

        ready = recorder.observe(wait)
        return [refs[at] for at in ready], [ref for at, ref in enumerate(refs) if at not in ready]


class Cancel(Verb):
    """What nobody has any more need not be cancelled."""

    def _given(self, value: Any) -> Any:
        return value.real or value if isinstance(value, PlainRef) else value


VERBS: tuple[tuple[str, type[Verb]], ...] = (
    ("get", Verb), ("wait", Wait), ("put", Put), ("kill", Verb), ("cancel", Cancel), ("get_actor", Verb),
)  # fmt: skip


def record_plain_ray() -> None:
    """Put the stand-ins in their places, in a process where capture is; again is nothing."""
    if isinstance(ray.get, Verb):
        return
    keep_refs_apart()
    for name, verb in VERBS:
        install.add(ray, name, verb("ray", name, getattr(ray, name)))
    install.add(ray.actor.ActorMethod, "_remote", _recorded_submission(ray.actor.ActorMethod._remote))
    install.add(
        ray.remote_function.RemoteFunction, "_remote", _recorded_submission(ray.remote_function.RemoteFunction._remote)
    )
    install.add(ray.actor.ActorClass, "_remote", _recorded_creation(ray.actor.ActorClass._remote))
