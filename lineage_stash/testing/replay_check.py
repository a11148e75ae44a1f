"""Checks in a test whether a class can be replayed: runs it, replays it from its log, and compares. No cluster needed.

The first run records what is captured by itself (clocks, draws) and what is observed. Replays recall that, in the same
process: what a module or the operating system remembers between runs goes on, the addresses of objects are others, and
`disturb` may change whatever else. Replies, errors, readings and state must come out the same after every call.
Calls of other actors are not made here: pass objects that answer in their place.
"""

import hashlib
import io
import pickle
import random
import reprlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import cloudpickle

from lineage_stash.capture import install, readings
from lineage_stash.capture.belongings import Belongings
from lineage_stash.capture.here import observing, paused, recording

Calls = Iterable[tuple[Any, ...]]
"""Each a method's name, its arguments and its keyword arguments; the latter two may be left out."""

Scenario = Callable[[Any], object]
"""Is given something that looks like an instance, and calls its methods."""

CONSTRUCTOR = "__init__"
STIRRED_SIZES = range(16, 513, 16)
STIRRED_OBJECTS = 1000


class ReplayDiffers(AssertionError):
    """A replay did not do what the first run had done; says in which call, and both versions."""

    def __init__(self, call: str, what: str, first: str, replay: str) -> None:
        super().__init__(f"{call} cannot be replayed: {what} differs. First run: {first}. Replay: {replay}.")
        self.call, self.what, self.first, self.replay = call, what, first, replay


class _Call(NamedTuple):
    method: str
    arguments: bytes


class _Outcome(NamedTuple):
    """What is compared of one call."""

    reply: bytes
    shown: str
    state: dict[str, tuple[bytes, str]]


def replay_check(cls: Any, calls: Calls | Scenario, *, args: tuple[Any, ...] = (),
                 kwargs: dict[str, Any] | None = None, replays: int = 2,
                 disturb: Callable[[], object] | None = None) -> list[Any]:  # fmt: skip
    """Run `calls` on a new instance of `cls`, replay them, and raise `ReplayDiffers` at the first difference.

    `args` and `kwargs` are the constructor's; `disturb` is called before each replay, to change what a replay must not
    depend on (the environment, a file). Returns the replies of the first run, errors as they were raised.
    """
    plain = getattr(cls, "_cls", cls)
    with _installed(plain):
        first = _Run(plain, _Tape())
        replies = first.follow(args, kwargs or {}, calls)
        runs = [first]  # kept, so that objects of the next one lie elsewhere
        for number in range(replays):
            if disturb is not None:
                disturb()
            stirred = _stir(number)
            runs.append(_Run(plain, _Tape(first.tape.log)))
            runs[-1].repeat(first)
            del stirred
    return replies


@contextmanager
def _installed(cls: type) -> Iterator[None]:
    was_installed = install.is_installed()
    install.install()
    install.cover(cls)
    try:
        yield
    finally:
        if not was_installed:
            install.uninstall()


def _stir(seed: int) -> list[bytes]:
    """Have the next objects lie in another order than those of the last run; to be kept meanwhile."""
    draw = random.Random(seed)
    stirred = [bytes(size - 8) for size in STIRRED_SIZES for _ in range(STIRRED_OBJECTS)]
    draw.shuffle(stirred)
    del stirred[len(stirred) // 2 :]
    return stirred


class _Tape:
    """A recorder without a cluster: readings by call."""

    id = "replay_check"

    def __init__(self, log: list[list[bytes]] | None = None) -> None:
        self.log: list[list[bytes]] = [] if log is None else log
        self.records = log is None
        self.belongings = Belongings()
        self.number = -1
        self.position = 0
        self.call = ""
        self.created = 0

    def begin(self, call: str) -> None:
        self.number += 1
        self.position = 0
        self.call = call
        if self.records:
            self.log.append([])

    def end(self) -> None:
        left = self.log[self.number][self.position :]
        if left:
            self._stray("the end of the call", f"a read of {readings.kind_of(left[0])}")

    def read(self, kind: str, take: Callable[[], bytes]) -> bytes:
        log = self.log[self.number]
        if self.records:
            log.append(take())
        elif self.position == len(log):
            self._stray(f"a read of {kind}", "the end of the call")
        elif readings.kind_of(log[self.position]) != kind:
            self._stray(f"a read of {kind}", f"a read of {readings.kind_of(log[self.position])}")
        self.position += 1
        return log[self.position - 1]

    def observe(self, read: Callable[[], Any]) -> Any:
        with paused():
            said = self.read(readings.OBSERVED, lambda: b"\0" + _observed(read))
            error, value = pickle.loads(memoryview(said)[1:])
            if error is not None:
                raise error
            return value

    def commit(self) -> None:
        """There is nobody to wait for."""

    def next_created(self) -> int:
        self.created += 1
        return self.created

    def _stray(self, did: str, logged: str) -> NoReturn:
        raise ReplayDiffers(self.call, "what it read", logged, did)


def _observed(read: Callable[[], Any]) -> bytes:
    try:
        with observing():
            return cloudpickle.dumps((None, read()))  # type: ignore[no-any-return]
    except Exception as error:  # noqa: BLE001 - whatever it was, it is the outcome
        return cloudpickle.dumps((error, None))  # type: ignore[no-any-return]


class _Run:
    """One instance, what was called, and what came of it."""

    def __init__(self, cls: type, tape: _Tape) -> None:
        self.cls = cls
        self.tape = tape
        self.instance: Any = None
        self.calls: list[_Call] = []
        self.outcomes: list[_Outcome] = []

    def follow(self, args: tuple[Any, ...], kwargs: dict[str, Any], calls: Calls | Scenario) -> list[Any]:
        """The first run."""
        self._construct(_Call(CONSTRUCTOR, cloudpickle.dumps((args, kwargs))))
        replies: list[Any] = []
        if callable(calls):
            calls(_Stage(self, replies))
        else:
            for method, *given in calls:
                args = given[0] if given else ()
                replies.append(self.run(method, args, given[1] if len(given) > 1 else {}))
        return replies

    def repeat(self, first: "_Run") -> None:
        """A replay; raises at the first difference."""
        for number, (call, expected) in enumerate(zip(first.calls, first.outcomes, strict=True)):
            if number == 0:
                self._construct(call)
            else:
                self._run(call)
            _compare(self.tape.call, expected, self.outcomes[-1])

    def run(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method; its reply, or the error that it raised."""
        return self._run(_Call(method, cloudpickle.dumps((args, kwargs))))

    def _construct(self, call: _Call) -> None:
        self._begin(call)
        with recording(self.tape):
            args, kwargs = pickle.loads(call.arguments)
            self.instance = self.cls(*args, **kwargs)
        self._end(None)

    def _run(self, call: _Call) -> Any:
        self._begin(call)
        reply: Any
        try:
            with recording(self.tape):
                args, kwargs = pickle.loads(call.arguments)
                reply = getattr(self.instance, call.method)(*args, **kwargs)
        except ReplayDiffers:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was, it is the outcome
            reply = error
        self._end(reply)
        return reply

    def _begin(self, call: _Call) -> None:
        self.tape.begin(f"{self.cls.__name__}.{call.method}() (call {len(self.calls)})")
        self.calls.append(call)

    def _end(self, reply: Any) -> None:
        self.tape.end()
        raised = isinstance(reply, Exception)
        compared = repr((type(reply).__qualname__, str(reply))).encode() if raised else _canonical(reply, self.cls)
        self.outcomes.append(_Outcome(compared, reprlib.repr(reply), self._state()))

    def _state(self) -> dict[str, tuple[bytes, str]]:
        """Each part of the state: a digest to compare, and how it looks."""
        saves = getattr(self.instance, "__ray_save__", None)
        parts = {"__ray_save__()": saves()} if saves is not None else getattr(self.instance, "__dict__", {})
        found = {f"self.{name}": value for name, value in parts.items()}
        found["the state of random"] = self.tape.belongings.pack()
        return {name: (_digest(value, self.cls), reprlib.repr(value)) for name, value in found.items()}


class _Stage:
    """Looks like an instance; its methods run one by one, recorded."""

    def __init__(self, run: _Run, replies: list[Any]) -> None:
        self._run = run
        self._replies = replies

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> Any:
            reply = self._run.run(name, args, kwargs)
            self._replies.append(reply)
            if isinstance(reply, Exception):
                raise reply
            return reply

        return method


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, cls: type) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.cls = cls

    def persistent_id(self, obj: object) -> str | None:
        return "the class" if obj is self.cls else None


def _canonical(value: Any, cls: type) -> bytes:
    """A pickle that does not depend on which equal parts are one object, unless there are cycles."""
    for fast in (True, False):
        file = io.BytesIO()
        pickler = _Pickler(file, cls)
        pickler.fast = fast
        try:
            pickler.dump(value)
        except (ValueError, RecursionError):  # a cycle
            if not fast:
                raise
        else:
            return file.getvalue()
    raise AssertionError("a pickle is made or an error is raised")


def _digest(value: Any, cls: type) -> bytes:
    """Of a part of the state; of one that cannot be pickled, nothing but that."""
    try:
        return hashlib.blake2b(_canonical(value, cls), digest_size=16).digest()
    except Exception:  # noqa: BLE001 - the user's class may fail in any way
        return b""


def _compare(call: str, first: _Outcome, replay: _Outcome) -> None:
    if first.reply != replay.reply:
        raise ReplayDiffers(call, "its reply", first.shown, replay.shown)
    for part in sorted(first.state.keys() | replay.state.keys()):
        before, after = first.state.get(part, (b"", "nothing")), replay.state.get(part, (b"", "nothing"))
        if before[0] != after[0]:
            raise ReplayDiffers(call, f"{part} after it", before[1], after[1])
