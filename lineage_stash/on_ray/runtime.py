"""The runtime of one peer: what the user's code can ask for, as events. Implements `Executor` and `Outside`.

Rules:
- The machine's answers are taken under the lock that the question was asked under.
- A thread that has to wait does it on the sockets.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import ray
from ray.exceptions import GetTimeoutError

from lineage_stash.core import effects, events
from lineage_stash.core.events import Passed
from lineage_stash.core.handles import name_actors
from lineage_stash.core.ids import OF_PARCEL, PeerId, Ref
from lineage_stash.core.parcels import unwrap
from lineage_stash.core.peer import Peer
from lineage_stash.core.tuples import maker
from lineage_stash.on_ray import payloads
from lineage_stash.on_ray.cancelling import Cancelling
from lineage_stash.on_ray.dispatcher import Dispatcher
from lineage_stash.on_ray.holdings import Holdings
from lineage_stash.on_ray.lending import Hold, Tie, bare, settle
from lineage_stash.on_ray.links import Link
from lineage_stash.on_ray.methods import STREAMING, Methods
from lineage_stash.on_ray.process import Process
from lineage_stash.on_ray.refs import WHOLE, Argument, ObjectRef, ObjectRefGenerator, opening, passing
from lineage_stash.on_ray.spool import FileSpool
from lineage_stash.on_ray.tally import Tally
from lineage_stash.on_ray.telling import tell
from lineage_stash.on_ray.tracing import trace_submissions
from lineage_stash.on_ray.vitals import PeerVitals
from lineage_stash.shell import Shell

_call_submitted = maker(events.CallSubmitted)

NOTHING = object()
FOR_EVER_S = 1e9

MOST_WAITERS = 64
"""Futures that are waited for at once; further ones wait for one of these."""


Reply = tuple[bytes, tuple[Passed, ...]]
"""What a call answers, and the refs in it."""


def _passed(found: list[ObjectRef]) -> tuple[Passed, ...]:
    """What the peer needs to pass on these refs."""
    return tuple([ref.to_pass() for ref in found]) if found else ()


class Runtime(ABC):
    """One per process: the driver's, or that of the actor that lives here."""

    id: PeerId
    peer: Peer
    vitals: PeerVitals
    namespace: str
    """Where names are looked for that come without one."""
    placement = ""
    """The options that this peer itself was placed by."""
    has_left = False
    """Whether this is the runtime of a session that has ended."""
    unreferenced: deque[PeerId] | None = None
    """Actors that this peer has created and nobody can call any more, where it has to see to their end."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.spool = FileSpool()
        self.dropped: deque[tuple[Ref, bool]] = deque()
        """Refs that nobody has any more, and whether their values were opened."""
        self.in_result: list[Hold] = []
        """Whose handles are in the result that was packed last, until the peer has it."""
        self.dispatcher = Dispatcher(self)
        self.cancelling = Cancelling(self)
        self.holdings = Holdings(self)
        self._answer: object = NOTHING
        self._orders: dict[type, Callable[[Any], None]] = {
            effects.Resume: self._resume,
            effects.RunMain: lambda _: None,
            effects.OfferTask: lambda effect: self.dispatcher.offer(effect.task),
        }

    def live(self, peer: Peer) -> None:
        """Begin to act for a peer."""
        self.peer = peer
        process = self.process
        assert process.store is not None
        process.shell = Shell(peer, transport=process.links, membership=process.registry, outside=self, executor=self,
                              store=process.store)  # fmt: skip
        process.tally = Tally(peer, process.shell)
        trace_submissions(self)
        self.vitals = PeerVitals(peer, process.shell, self.spool, process.lock, *self.title)
        process.publish(self.vitals)
        process.on_message = self._on_message
        process.on_arrival = self.dispatcher.on_arrival
        process.on_ticked = self.on_ticked
        self.holdings.begin()

    def handles_at_hand(self) -> Iterable[PeerId]:
        """The actors whose handles are in what the program is about to open."""
        return ()

    def _on_message(self, _: Link, body: bytes) -> None:
        self.shell.on_frame(body)
        if self.dispatcher.runners:
            self.dispatcher.on_message()

    def on_ticked(self) -> None:
        """Some time has passed."""
        self.vitals.on_ticked()
        self.dispatcher.on_ticked()
        self.cancelling.on_ticked()
        self.holdings.on_ticked()

    @property
    def title(self) -> tuple[str, str]:
        """What metrics call this peer: what it is, and who."""
        return "driver", self.id

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
        tell(kind, f"{kind}: {text}", logging.ERROR, peer=self.id)

    # what the user's code asks for

    @cached_property
    def waiters(self) -> ThreadPoolExecutor:
        """Threads that wait for values on behalf of futures."""
        return ThreadPoolExecutor(MOST_WAITERS, "stash waiter")

    def submit(self, callee: PeerId, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ObjectRef:
        """Call a method of an actor."""
        lent: list[Tie] = []
        packed = self.pack(method, args, kwargs, lent)
        self.prepare_submission(packed[0], callee)
        ref = ObjectRef(self, self._ask(_call_submitted((callee, *packed))))
        if lent:
            ref.lent = lent
        return ref

    def submit_for(self, callee: PeerId, method: str, args: tuple[Any, ...], kwargs: dict[str, Any],
                   returns: int | str) -> Any:  # fmt: skip
        """Call a method that returns no value, several values, or a stream of them."""
        return self.divide(self.submit(callee, payloads.spell(method, returns), args, kwargs), returns)

    def submit_task(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], returns: int | str) -> Any:
        """Have a function run wherever there is room."""
        lent: list[Tie] = []
        payload, _, passed, awaited = self.pack(payloads.spell(function, returns), args, kwargs, lent)
        self.prepare_submission(payload, None)
        ref = ObjectRef(self, self._ask(events.TaskSubmitted(payload, True, passed, awaited)))
        ref.lent = lent
        return self.divide(ref, returns)

    def about_to(self, what: str) -> None:
        """The user's code is about to do something that others will see; a script that can be resumed logs that."""
        assert what

    @abstractmethod
    def prepare_submission(self, payload: bytes, callee: PeerId | None) -> None:
        """Make room for a call."""

    def divide(self, ref: ObjectRef, returns: int | str) -> Any:
        """What a call gives to its caller: a ref, several, none, or a stream of them."""
        if returns == 1:
            return ref
        if returns == STREAMING:
            return ObjectRefGenerator(ref)
        assert isinstance(returns, int), f"{returns} is not a number of values"
        return [ObjectRef(self, ref.ref, None, "", part, ref) for part in range(returns)] if returns else None

    def pack(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any],
             lent: list[Tie] | None = None) -> tuple[bytes, bool, tuple[Passed, ...], int]:  # fmt: skip
        """A call as bytes; whether its reply is wanted; the refs in it, and how many of them are arguments.

        The handles in it are added to `lent`; without one they are given away.
        """
        plain = payloads.pack_plain_call(method, args, kwargs)
        if plain is not None:
            return plain, True, (), 0
        found: list[ObjectRef] = []
        for value in args:
            if type(value) is ObjectRef:
                args = tuple([self._stand_in(each, found) for each in args])
                break
        if kwargs:
            kwargs = {name: self._stand_in(each, found) for name, each in kwargs.items()}
        awaited = len(found)
        with passing(found, lent) as actors:
            payload = payloads.pack_call(method, args, kwargs)
        return name_actors(payload, actors), True, _passed(found), awaited

    def _stand_in(self, value: Any, found: list[ObjectRef]) -> Any:
        if type(value) is not ObjectRef:
            return value
        found.append(value.claim)
        return Argument(len(found) - 1, value._part)

    def put(self, value: Any) -> ObjectRef:
        """Put a value aside, as it is now."""
        found: list[ObjectRef] = []
        with passing(found) as actors:
            reply = payloads.pack_value(value)
        reply = name_actors(reply, actors)
        if found:
            return ObjectRef(self, self._ask(events.ValuePut(reply, _passed(found))))
        return ObjectRef(self, None, reply, f"{self.id}:put:{self.next_created()}")

    def put_into_ray(self, ref: ObjectRef) -> Any:
        """A ref of Ray's own with the same value, or that fails as this one does."""
        reply = bare(unwrap(self._reply_of(ref))[0])
        if payloads.is_error(reply):
            return _raise_in_ray.remote(reply)
        return ray.put(self.get_one(ref))

    def restore_tie(self, peer: PeerId, class_name: str, methods: Methods) -> Tie:
        """What a handle in a state holds on to; an actor overrides this where it has created the other one."""
        return Tie(peer, class_name, methods)

    # running a call

    def open_call(self, wrapped: bytes, caller: PeerId) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The method and the arguments of a call, with the values of those that were refs."""
        payload, first, count = unwrap(wrapped)
        if not count:
            return payloads.unpack_call(payload)
        with opening(self, caller, first, []):
            method, args, kwargs = payloads.unpack_call(payload)
        stand_ins = [each for each in (*args, *kwargs.values()) if type(each) is Argument]
        if not stand_ins:
            return method, args, kwargs
        refs = {each.position: ObjectRef(self, Ref(caller, first + each.position, OF_PARCEL)) for each in stand_ins}
        self.fetch(tuple(refs.values()), None)

        def value_of(each: Any) -> Any:
            return self._open(refs[each.position], each.part) if type(each) is Argument else each

        return method, tuple([value_of(each) for each in args]), {name: value_of(each) for name, each in kwargs.items()}

    def pack_result(self, value: Any, returns: int | str) -> Reply:
        """What a call returned, as one value or as several."""
        if returns == 1:
            plain = payloads.pack_plain_value(value)
            if plain is not None:
                return plain, ()
        found: list[ObjectRef] = []
        with passing(found) as actors:
            if returns in (0, 1):
                reply = payloads.pack_value(value if returns else None)
            else:
                assert isinstance(returns, int), "a stream was taken apart by whoever ran it"
                reply = payloads.pack_parts([payloads.pack_value(each) for each in _several(value, returns)])
        if actors:
            self.in_result = [Hold(actor) for actor in actors]
        return name_actors(reply, actors), _passed(found)

    def yield_item(self, value: Any) -> None:
        """Give the caller an item before the call is finished."""
        self._ask(events.ItemYielded(*self.pack_result(value, 1)))

    def _ask(self, event: object) -> Any:
        """Tell the machine something, and wait for its answer."""
        with self.process.lock:
            self.process.turns += 1
            if self.dropped:
                self._let_go()
            self._answer = NOTHING
            self.shell.feed(event)
            answer = self._answer
        if answer is NOTHING:
            began = time.monotonic()
            while answer is NOTHING:
                self.wait(began)
                answer = self._answer
        return answer

    def wait(self, _began: float) -> None:
        """Wait on the sockets for what was asked for at that time."""
        self.process.wait()

    def _let_go(self, but: tuple[Passed, ...] = ()) -> None:
        dropped = [self.dropped.popleft() for _ in range(len(self.dropped))]
        if but:
            self.dropped.extend([each for each in dropped if each[0] in but])
            dropped = [each for each in dropped if each[0] not in but]
        unopened = tuple([ref for ref, opened in dropped if not opened])
        self.shell.feed(events.RefsDropped(unopened, tuple([ref for ref, opened in dropped if opened])))

    def on_dropped(self, ref: Ref, reply: bytes | None, inner: list[ObjectRef] | None) -> None:
        """Nobody has this ref any more; those inside its value that somebody has found go their own ways."""
        self.dropped.append((ref, inner is not None))
        if inner is not None and reply is not None:
            _, first, count = unwrap(reply)
            found = {each.ref.number: each.ref.peer for each in inner if each.ref is not None}
            giver = next(iter(found.values()), None)
            if giver is not None:
                rest = [Ref(giver, number, OF_PARCEL) for number in range(first, first + count) if number not in found]
                self.dropped.extend([(each, False) for each in rest])

    def get_one(self, ref: ObjectRef, timeout_s: float | None = None) -> Any:
        """The value of a ref; raises what the call raised."""
        claim = ref.claim
        if claim._reply is None:
            self.fetch((claim,), timeout_s)
        return self._open(claim, ref._part)

    def get_all(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> list[Any]:
        """The values of several refs."""
        claims = [ref if ref._whole is None else ref._whole for ref in refs]
        missing = {id(claim): claim for claim in claims if claim._reply is None}
        if missing:
            self.fetch(tuple(missing.values()), timeout_s)
        return [self._open(claim, ref._part) for claim, ref in zip(claims, refs, strict=True)]

    def _reply_of(self, ref: ObjectRef) -> bytes:
        claim = ref.claim
        if claim._reply is None:
            self.fetch((claim,), None)
        assert claim._reply is not None, "it was fetched"
        return claim._reply

    def has_failed(self, ref: ObjectRef) -> bool:
        """Whether a call has raised something."""
        return payloads.is_error(bare(unwrap(self._reply_of(ref))[0]))

    def _open(self, claim: ObjectRef, part: int) -> Any:
        """The value in a reply that is here; the refs in it are the same however often it is opened."""
        reply = claim._reply
        assert reply is not None, "only what is here can be opened"
        if part == WHOLE and not claim.lent and payloads.is_plain(reply):
            return payloads.unpack_plain(reply)
        inner, first, count = unwrap(reply)
        if claim.lent:
            settle(claim.lent, inner)
            claim.lent = None
        inner = bare(inner)
        if not count:
            return payloads.unpack_value(inner if part == WHOLE else payloads.part_of(inner, part))
        if claim._inner is None:
            claim._inner = []
        with opening(self, self._giver_of(claim), first, claim._inner):
            return payloads.unpack_value(payloads.part_of(inner, part))

    def awaits_answer(self, callee: PeerId) -> bool:
        """Whether an actor has not answered all calls that it got from here."""
        counterpart = self.peer.counterparts.get(callee)
        return counterpart is not None and counterpart.owes_answers

    def _giver_of(self, claim: ObjectRef) -> PeerId:
        """Who has numbered the parcels that a reply refers to."""
        assert claim.ref is not None, "what has refs in it is known to the peer"
        return self.peer.program.values.giver_of(claim.ref)

    @abstractmethod
    def fetch(self, refs: tuple[ObjectRef, ...], timeout_s: float | None) -> None:
        """Wait until the replies to all of `refs` are here, and keep them in the refs."""

    @abstractmethod
    def wait_for(self, refs: list[ObjectRef], count: int, timeout_s: float | None) -> list[int]:
        """Wait until so many have come or time is up; the positions of those that have."""

    @abstractmethod
    def commit(self) -> None:
        """Wait until all that this peer depends on is committed."""

    @abstractmethod
    def next_item(self, ref: ObjectRef, position: int) -> Ref | None:
        """Wait for an item of a stream; None if there is no such."""

    @abstractmethod
    def next_created(self) -> int:
        """The number of the next thing that this peer makes: an actor, a value, an effect; the same in a replay."""

    @abstractmethod
    def observe(self, read: Callable[[], Any]) -> Any:
        """Ask the outside world once, however often this is replayed."""


@ray.remote(num_cpus=0, max_retries=0)  # type: ignore[untyped-decorator]
def _raise_in_ray(reply: bytes) -> None:
    """A task of Ray's that fails as a call has failed."""
    payloads.unpack_value(reply)


def _several(value: Any, count: int) -> Sequence[Any]:
    if not isinstance(value, list | tuple) and not hasattr(value, "__iter__"):
        raise ValueError(f"the call should have returned {count} values, but returned one {type(value).__name__}")
    values = list(value)
    if len(values) != count:
        raise ValueError(f"the call should have returned {count} values, but returned {len(values)}")
    return values


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
