"""Refs as users see them: claims on values, as in Ray.

Rules:
- What a ref's value was is kept in the ref once it was asked for, so that it can be asked for again.
- A ref inside a call, a result or a value that is put aside is passed on: the receiver gets a ref of its own for the
  same value, equal to this one. Whoever packs and opens such things says so for the time it takes.
- The refs inside a value live as long as the ref of the value: it may be opened again.
- A ref inside an actor's state is saved as it is, because the peer's checkpoint has what it claims.
"""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lineage_stash.core.events import Passed
from lineage_stash.core.handles import actors_in, names_actors
from lineage_stash.core.ids import OF_PARCEL, PeerId, Ref
from lineage_stash.core.parcels import is_parceled
from lineage_stash.on_ray.lending import Hold, Tie, give_away, packing

if TYPE_CHECKING:
    from lineage_stash.on_ray.runtime import Runtime

WHOLE = -1
"""The part of a ref that stands for all that a call returned."""

ID_BYTES = 28
"""How long Ray's ids of objects are."""


class _Doing(threading.local):
    """What this thread is doing with refs."""

    passing: "list[ObjectRef] | None" = None
    """The refs inside what is being packed for somebody, so far."""
    opening: "Opening | None" = None
    saving: "Runtime | None" = None
    """Whose state is being saved or restored."""


class Opening:
    """What is being opened: who gave it, the number of its first parcel, and the refs that were found in it."""

    def __init__(self, runtime: "Runtime", giver: PeerId, first: int, found: "list[ObjectRef]") -> None:
        self.runtime = runtime
        self.giver = giver
        self.first = first
        self.found = found

    def find(self, position: int, name: str, part: int) -> "ObjectRef":
        """The ref at a position: the one that was found there before, or a new one."""
        ref = Ref(self.giver, self.first + position, OF_PARCEL)
        for before in self.found:
            if before.ref == ref and before._part == part:
                return before
        found = ObjectRef(self.runtime, ref, None, name, part)
        self.found.append(found)
        return found


_doing = _Doing()


class ObjectRef:
    """A claim on the result of a call, as in Ray: `get` it, `wait` for it, pass it on."""

    __slots__ = ("__weakref__", "_holds", "_inner", "_name", "_part", "_reply", "_runtime", "_whole", "lent", "ref")

    def __init__(self, runtime: "Runtime", ref: Ref | None, reply: bytes | None = None, name: str = "",
                 part: int = WHOLE, whole: "ObjectRef | None" = None) -> None:  # fmt: skip
        self.ref = ref
        """What the peer calls it; nothing where the value is known and nobody else has to know it."""
        self._runtime = runtime
        self._reply = reply
        self._name = name
        self._part = part
        self._whole = whole
        """The claim on all values of the same call, where this is one of several."""
        self._inner: list[ObjectRef] | None = None
        self.lent: list[Tie] | None = None
        """The handles in the call, until it is known what became of them."""
        if reply is not None and names_actors(reply):
            self.hold_on()

    def hold_on(self) -> None:
        """Note whose handles are in the value, for as long as this ref is there."""
        assert self._reply is not None, "only what is here can be looked at"
        self._holds = [Hold(actor) for actor in actors_in(self._reply)]

    @property
    def claim(self) -> "ObjectRef":
        """The ref that has the reply, or will have it."""
        return self if self._whole is None else self._whole

    @property
    def name(self) -> str:
        """The same for all refs of one value, and for no others."""
        if not self._name:
            claim = self.claim
            assert claim.ref is not None, "a value that was put aside has a name from the beginning"
            peer, number, kind = claim.ref
            self._name = f"{self._runtime.id}:{kind}:{peer}:{number}:{self._part}"
        return self._name

    def __repr__(self) -> str:
        return f"ObjectRef({self.hex()})"

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and other.name == self.name

    def binary(self) -> bytes:
        """An id as Ray's are, made of this ref's own."""
        return hashlib.sha256(self.name.encode()).digest()[:ID_BYTES]

    def hex(self) -> str:
        """The id in hex."""
        return self.binary().hex()

    def is_nil(self) -> bool:
        """Whether it stands for nothing: it never does."""
        return False

    def __del__(self) -> None:
        if is_parceled is None:
            return  # type: ignore[unreachable]  # not where an interpreter ends, which has cleared its modules
        if self.lent:
            give_away(self.lent)
        ref = self.ref
        if ref is not None and self._whole is None and self._is_known_to_peer:
            self._runtime.on_dropped(ref, self._reply, self._inner)

    @property
    def _is_known_to_peer(self) -> bool:
        """Whether the peer has the value, or will have it: a plain reply that was taken is here alone."""
        ref, reply = self.ref, self._reply
        return ref is not None and (reply is None or ref.kind == OF_PARCEL or is_parceled(reply))

    def check_session(self) -> None:
        """Raise if the value was not here when the script left the cluster that it was to come from."""
        if self._runtime.has_left and self.claim._reply is None:
            raise ValueError(
                f"{self!r} is from a session that has ended: this script has called shutdown() since, and the value "
                "had not been got before. get() values before shutdown(), or make the call again."
            )

    def to_pass(self) -> Passed:
        """What the peer needs to pass this on."""
        if self._is_known_to_peer:
            if self._runtime.has_left:
                raise ValueError(f"{self!r} is from a session that has ended, and cannot be passed on: pass its value")
            assert self.ref is not None, "what the peer knows has a ref"
            return self.ref
        assert self._reply is not None, "what the peer does not know is here"
        return self._reply

    def __reduce__(self) -> Any:
        if _doing.passing is not None:
            _doing.passing.append(self.claim)
            return _given, (len(_doing.passing) - 1, self.name, self._part)
        if _doing.saving is not None:
            if self._whole is not None:
                return _restored_part, (self._whole, self.name, self._part)
            return _restored, (self.ref and tuple(self.ref), self._reply, self.name, self._part)
        raise TypeError(
            f"{self!r} can be pickled only as a part of a call, of a result or of an actor's state, where it is known "
            "who will have it: pass it to whoever needs it, or get() its value and pickle that"
        )

    # as in asyncio, concurrent.futures and Ray

    def future(self) -> "Future[Any]":
        """A future that has the value when it comes."""
        return self._runtime.waiters.submit(self._runtime.get_one, self)

    def as_future(self) -> "asyncio.Future[Any]":
        """A future of the loop that runs in this thread."""
        return asyncio.wrap_future(self.future())

    def __await__(self) -> Generator[Any, None, Any]:
        return self.as_future().__await__()

    def as_ray(self) -> Any:
        """A ref of Ray's own, for whoever needs one; waits for the value, which Ray then has a copy of."""
        return self._runtime.put_into_ray(self)


def _given(position: int, name: str, part: int) -> ObjectRef:
    """A ref that somebody has passed on."""
    opening = _doing.opening
    if opening is None:
        raise RuntimeError("a ref was passed on in something that is not a call or a result")
    return opening.find(position, name, part)


def _restored(ref: tuple[PeerId, int, int] | None, reply: bytes | None, name: str, part: int) -> ObjectRef:
    assert _doing.saving is not None, "a state is opened by the actor that it belongs to"
    return ObjectRef(_doing.saving, ref and Ref(*ref), reply, name, part)


def _restored_part(whole: ObjectRef, name: str, part: int) -> ObjectRef:
    assert _doing.saving is not None, "a state is opened by the actor that it belongs to"
    return ObjectRef(_doing.saving, whole.ref, None, name, part, whole)


def is_passing() -> bool:
    """Whether this thread packs something for somebody else."""
    return _doing.passing is not None


def is_saving() -> bool:
    """Whether this thread saves or restores a state."""
    return _doing.saving is not None


@contextmanager
def passing(refs: list[ObjectRef], lent: list[Tie] | None = None) -> Iterator[dict[PeerId, None]]:
    """Whatever is pickled here is for somebody else: the refs in it are added to `refs`, what it lends to `lent`.

    Gives the actors whose handles are in it.
    """
    before, _doing.passing = _doing.passing, refs
    try:
        with packing(lent) as actors:
            yield actors
    finally:
        _doing.passing = before


@contextmanager
def opening(runtime: "Runtime", giver: PeerId, first: int, found: list[ObjectRef]) -> Iterator[None]:
    """Whatever is unpickled here came from `giver`; the refs in it are looked for in `found`, and added to it."""
    before, _doing.opening = _doing.opening, Opening(runtime, giver, first, found)
    try:
        yield
    finally:
        _doing.opening = before


@contextmanager
def saving(runtime: "Runtime") -> Iterator[None]:
    """Whatever is pickled or unpickled here is the state of this actor."""
    before, _doing.saving = _doing.saving, runtime
    try:
        yield
    finally:
        _doing.saving = before


def saved_runtime() -> "Runtime | None":
    """Whose state is being saved or restored in this thread, if any is."""
    return _doing.saving


class Argument:
    """Stands, in a call, for the value of a ref that was an argument itself."""

    __slots__ = ("part", "position")

    def __init__(self, position: int, part: int) -> None:
        self.position = position
        self.part = part

    def __reduce__(self) -> Any:
        return Argument, (self.position, self.part)


class ObjectRefGenerator:
    """The results of a generator, one ref each, as they come."""

    def __init__(self, ref: ObjectRef) -> None:
        self._ref = ref
        self._position = 0
        self._failed = False

    def __iter__(self) -> "ObjectRefGenerator":
        return self

    def __next__(self) -> ObjectRef:
        runtime = self._ref._runtime
        assert self._ref.ref is not None, "a stream is the reply to a call"
        item = None if self._failed else runtime.next_item(self._ref, self._position)
        if item is not None:
            self._position += 1
            return ObjectRef(runtime, item, None, f"{self._ref.name}/{self._position}")
        if not self._failed and runtime.has_failed(self._ref):
            self._failed = True
            return self._ref
        raise StopIteration

    def __aiter__(self) -> AsyncIterator[ObjectRef]:
        return self

    async def __anext__(self) -> ObjectRef:
        waiters = self._ref._runtime.waiters
        item = await asyncio.wrap_future(waiters.submit(next, self, None))
        if item is None:
            raise StopAsyncIteration
        return item

    def completed(self) -> ObjectRef:
        """A ref that is ready when all results have come."""
        return self._ref

    def __reduce__(self) -> Any:
        raise TypeError("the results of a generator belong to whoever called it: pass on single refs of it instead")
