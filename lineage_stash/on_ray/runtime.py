"""The runtime of one peer: what the user's code can ask for, as events. Implements `Executor` and `Outside`.

Rules:
- The machine's answers are taken under the lock that the question was asked under.
- A thread that has to wait does it on the sockets.
- What a ref's reply was is kept in the ref once it was asked for, so that it can be asked for again.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ray.exceptions import GetTimeoutError

from lineage_stash.core import effects, events
from lineage_stash.core.ids import PeerId, Ref
from lineage_stash.core.peer import Peer
from lineage_stash.on_ray import payloads
from lineage_stash.on_ray.process import Process
from lineage_stash.on_ray.spool import FileSpool
from lineage_stash.shell import Shell

NOTHING = object()
FOR_EVER_S = 1e9


class ObjectRef:
    """A claim on the result of a call, as in Ray: `get` it, `wait` for it, pass it as an argument."""

    __slots__ = ("__weakref__", "_reply", "_runtime", "ref")

    def __init__(self, runtime: "Runtime", ref: Ref) -> None:
        self.ref = ref
        self._runtime = runtime
        self._reply: bytes | None = None

    def __repr__(self) -> str:
        return f"ObjectRef({self.ref.callee}#{self.ref.seqno})"

    def __hash__(self) -> int:
        return hash(self.ref)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and other.ref == self.ref

    def __del__(self) -> None:
        if self._reply is None:
            self._runtime.dropped.append(self.ref)

    def __reduce__(self) -> Any:
        return self._runtime.reduce_ref(self)


class Runtime(ABC):
    """One per process: the driver's, or that of the actor that lives here."""

    id: PeerId
    peer: Peer
    namespace: str
    """Where names are looked for that come without one."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.spool = FileSpool()
        self.dropped: deque[Ref] = deque()
        self._answer: object = NOTHING
        self._orders: dict[type, Callable[[Any], None]] = {
            effects.Resume: self._resume,
            effects.RunMain: lambda _: None,
        }

    def live(self, peer: Peer) -> None:
        """Begin to act for a peer."""
        self.peer = peer
        process = self.process
        assert process.store is not None
        process.shell = Shell(peer, transport=process.links, membership=process.registry, outside=self, executor=self,
                              store=process.store)  # fmt: skip

    @property
    def shell(self) -> Shell:
        """The shell of the machine."""
        assert self.process.shell is not None
        return self.process.shell

    # Executor

    def carry_out(self, effect: effects.Effect) -> None:
        """Take an order of the machine."""
        self._orders[type(effect)](effect)

    def _resume(self, effect: effects.Resume) -> None:
        self._answer = effect.answer

    @abstractmethod
    def stop(self, reason: str) -> None:
        """The machine has stopped."""

    # Outside

    def take_reading(self, kind: str) -> bytes | None:
        """A driver's readings go through no machine; an actor overrides this."""
        raise AssertionError(kind)

    def release(self, peer: PeerId, number: int, value: bytes) -> None:
        """There is no sink yet."""
        raise AssertionError(f"{peer} emitted output {number} of {len(value)} bytes, but there is no sink")

    def report(self, kind: str, text: str) -> None:
        """Tell people."""
        print(f"lineage_stash: {kind}: {text}", flush=True)

    # what the user's code asks for

    def submit(self, callee: PeerId, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ObjectRef:
        """Call a method of an actor."""
        payload = self.pack(method, args, kwargs)
        return ObjectRef(self, self._ask(events.CallSubmitted(callee, payload)))

    def pack(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """A call as bytes, with the values of the refs among its arguments."""
        for value in args:
            if type(value) is ObjectRef:
                args = tuple(self.get_one(each) if type(each) is ObjectRef else each for each in args)
                break
        if kwargs:
            kwargs = {
                name: self.get_one(each) if type(each) is ObjectRef else each for name, each in kwargs.items()
            }  # fmt: skip
        return payloads.pack_call(method, args, kwargs)

    def _ask(self, event: object) -> Any:
        """Tell the machine something, and wait for its answer."""
        with self.process.lock:
            self.process.turns += 1
            if self.dropped:
                self._let_go()
            self._answer = NOTHING
            self.shell.feed(event)
            answer = self._answer
        while answer is NOTHING:
            self.process.wait()
            answer = self._answer
        return answer

    def _let_go(self) -> None:
        refs = tuple(self.dropped.popleft() for _ in range(len(self.dropped)))
        self.shell.feed(events.RefsDropped(refs))

    def get_one(self, ref: ObjectRef, timeout_s: float | None = None) -> Any:
        """The value of a ref; raises what the call raised."""
        if ref._reply is None:
            self.fetch((ref,), timeout_s)
        assert ref._reply is not None
        return payloads.unpack_value(ref._reply)

    def get_all(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> list[Any]:
        """The values of several refs."""
        missing = {id(ref): ref for ref in refs if ref._reply is None}
        if missing:
            self.fetch(tuple(missing.values()), timeout_s)
        return [payloads.unpack_value(ref._reply) for ref in refs if ref._reply is not None]

    @abstractmethod
    def fetch(self, refs: tuple[ObjectRef, ...], timeout_s: float | None) -> None:
        """Wait until the replies to all of `refs` are here, and keep them in the refs."""

    @abstractmethod
    def wait_for(self, refs: list[ObjectRef], count: int, timeout_s: float | None) -> list[int]:
        """Wait until so many have come or time is up; the positions of those that have."""

    @abstractmethod
    def next_created(self) -> int:
        """The number of the next actor that this peer creates; the same in a replay."""

    @abstractmethod
    def observe(self, read: Callable[[], Any]) -> Any:
        """Ask the outside world once, however often this is replayed."""

    def reduce_ref(self, ref: ObjectRef) -> Any:
        """A ref cannot leave its process yet."""
        raise TypeError(
            f"{ref!r} cannot be passed inside another object: pass it as an argument of its own (it is then resolved), "
            "or get() it first"
        )


def read_now(read: Callable[[], Any]) -> bytes:
    """What the outside world says, or how it failed."""
    try:
        return payloads.pack_value(read())
    except Exception as error:  # noqa: BLE001 - whatever it was, it is the outcome
        return payloads.pack_error(getattr(read, "__qualname__", repr(read)), error)


def timed_out(refs: int, timeout_s: float | None) -> GetTimeoutError:
    """What Ray raises."""
    return GetTimeoutError(f"Get timed out: {refs} result(s) had not come after {timeout_s} s.")


def deadline_after(timeout_s: float | None) -> float:
    """When time is up."""
    return time.monotonic() + (FOR_EVER_S if timeout_s is None else timeout_s)
