"""A life without a cluster: an actor's history is run again on this machine, and nothing of it is seen by anybody.

What it guarantees: the calls of a log run in their order, with the readings that the log has, in the machine that a
recovery would run them in, and are compared with the log by the same digests. What the actor says to others is dropped;
what others answered is asked of whoever supplies it. Nothing is written, started or sent.

It ends with the history, or before: where the code does something else than the log has, or where something is missing
that nobody has any more. Items of streams that this actor was reading are missing always: nobody is asked for them.
"""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, Protocol

from lineage_stash.capture import readings
from lineage_stash.capture.belongings import Belongings
from lineage_stash.capture.here import here
from lineage_stash.core import effects, events
from lineage_stash.core.checkpoint import Checkpoint
from lineage_stash.core.counterpart import Counterpart
from lineage_stash.core.entry import Entry, Ran, Read
from lineage_stash.core.events import GetStarted, NextStarted, WaitStarted
from lineage_stash.core.history import History
from lineage_stash.core.ids import OF_CALL, OF_PARCEL, OF_TASK, Incarnation, Member, NodeId, PeerId, Ref, Seqno
from lineage_stash.core.parcels import NO_STREAM, Parcel
from lineage_stash.core.peer import Peer
from lineage_stash.core.policy import Policy
from lineage_stash.core.values import CANCELLATION
from lineage_stash.on_ray.cancelling import CANCEL
from lineage_stash.on_ray.logged import LoggedRuntime
from lineage_stash.on_ray.program import ActorProgram
from lineage_stash.on_ray.refs import saving
from lineage_stash.on_ray.runtime import Reply
from lineage_stash.store.states import unpack_state

AGAIN = Incarnation(1)
"""Any life but the first one follows a log."""


class Supply(Protocol):
    """Where things come from that are not in the log of the actor itself."""

    def calls(self, caller: PeerId, lower: int, upper: int) -> dict[int, bytes]:
        """Payloads of calls to this actor."""

    def replies(self, callee: PeerId, lower: int, upper: int) -> dict[int, bytes]:
        """Replies to calls of this actor."""

    def parcels(self, giver: PeerId, lower: int, upper: int) -> dict[int, bytes]:
        """Values that were passed on to this actor."""

    def fact(self, key: str) -> bytes | None:
        """What a control plane knows: code above all."""


class Past(NamedTuple):
    """What is to be run again."""

    peer: PeerId
    checkpoint: Checkpoint | None
    chunks: dict[bytes, bytes]
    entries: tuple[Entry, ...]
    """From the checkpoint on."""


class Ended(NamedTuple):
    """Why a history was not run to its end; `kind` is strayed, missing or cut."""

    kind: str
    at: int
    text: str


class Outcome(NamedTuple):
    """What one call came to."""

    at: int
    """Where in the log it begins."""
    call: str
    payload: bytes
    reply: bytes | None
    """None of a call that the history ends in."""


class Halted(BaseException):
    """The user's code cannot go on; not an `Exception`, which it might handle."""


class _Facts:
    """In the place of the control plane: what it knows is looked up, what it is told stays here."""

    def __init__(self, supply: Supply) -> None:
        self._supply = supply
        self._own: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self._own.get(key) or self._supply.fact(key)

    def put(self, key: str, value: bytes) -> None:
        self._own[key] = value

    def put_if_absent(self, key: str, value: bytes) -> bytes:
        found = self.get(key)
        if found is None:
            self._own[key] = found = value
        return found

    def delete(self, key: str) -> None:
        self._own.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self._own if key.startswith(prefix))

    def get_all(self, prefix: str) -> dict[str, bytes]:
        return {key: self._own[key] for key in self.keys(prefix)}


class _Nobody:
    """In the place of the registry: everybody is there already, and nothing is ever heard."""

    def is_claimed(self, _: str) -> bool:
        return True

    def ask(self, *_: object) -> None:
        """Nobody answers."""


class _Process:
    """In the place of a process of the system: a lock, and nobody to talk to."""

    links = store = None
    node = NodeId("")

    def __init__(self, supply: Supply, halt: Callable[[], None]) -> None:
        self.lock = threading.RLock()
        self.turns = 0
        self.plane = _Facts(supply)
        self.registry = _Nobody()
        self.shell: Any = None
        self._halt = halt

    def wait(self, _: float = 0.0) -> None:
        self._halt()

    def control(self, *_: object, **__: object) -> None:
        """Nobody hears it."""

    def kill(self, *_: object) -> None:
        """Nobody dies of it."""


class _Shell:
    """Feeds the machine, and carries out what concerns the program."""

    def __init__(self, machine: Peer, orders: dict[type, Callable[[Any], None]]) -> None:
        self.machine = machine
        self._orders = orders
        self._queue: list[object] = []
        self._busy = False

    def feed(self, event: object) -> None:
        self._queue.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._queue:
                for effect in self.machine.handle(self._queue.pop(0)):
                    order = self._orders.get(type(effect))
                    if order is not None:
                        order(effect)
        finally:
            self._busy = False


class OfflineLife(LoggedRuntime):
    """One actor, from its checkpoint to the end of the history that is given."""

    def __init__(self, past: Past, cls: type, load: Callable[[str], type] | None, supply: Supply,
                 on_called: Callable[[Outcome, Any], None], digest: str = "") -> None:  # fmt: skip
        super().__init__(_Process(supply, self._on_waiting))  # type: ignore[arg-type]
        self.id = past.peer
        self.namespace = ""
        self.ended: Ended | None = None
        self.supply = supply
        self.past = past
        self.on_called = on_called
        self.program = ActorProgram(cls, self, digest, load)
        self.running: effects.RunCall | None = None
        self.numbered: dict[int, int] = {}
        """Of what is numbered in the state, actors, values and effects, where in the log it was."""
        self._fault = ""
        policy = Policy(checkpoint_every_entries=None)
        member = Member(past.peer, NodeId(""), True)
        self.peer = Peer(member, AGAIN, History(), policy, checkpoint=past.checkpoint, entries=past.entries,
                         spool=self.spool.verbs)  # fmt: skip
        self._orders |= {
            effects.RunCall: self._order_call,
            effects.RestoreState: self._restore_state,
            effects.ReportFault: self._note_fault,
            effects.TakeReading: lambda _: None,
            effects.OfferTask: lambda _: None,
        }
        self.process.shell = _Shell(self.peer, self._orders)  # type: ignore[assignment]
        self._take_in_calls()

    @property
    def position(self) -> int:
        """The index of the entry that comes next."""
        return self.peer.program.position

    def run(self) -> None:
        """Run everything that the history has; why it ended, if it did not come to its end, is in `ended`."""
        self.shell.feed(events.Lingered())
        while self.ended is None and self.running is not None:
            self._execute(self.running)
        program = self.peer.program
        if self.ended is None and program.strayed:
            self.ended = Ended("strayed", self.position, self._fault)
        elif self.ended is None and program.script:
            self.ended = self._missing_call(program.script[0])

    # calls

    def _order_call(self, effect: effects.RunCall) -> None:
        self.running = effect

    def _execute(self, call: effects.RunCall) -> None:
        at = int(self.peer.program.ran_at)
        here.recorder = self
        try:
            finished: Reply = (CANCELLATION, ()) if self._was_cancelled() else self.program.run(
                call.payload, call.call.caller
            )  # fmt: skip
        except Halted:
            finished = b"", ()
        finally:
            here.recorder = None
        if self.ended is not None:
            self.on_called(Outcome(at, str(call.call), call.payload, None), self.program.instance)
            return
        self.running = None
        with self.process.lock:
            self.shell.feed(events.CallFinished(*finished))
            if self.dropped:
                self._let_go()
        self.on_called(Outcome(at, str(call.call), call.payload, finished[0]), self.program.instance)

    def _was_cancelled(self) -> bool:
        script = self.peer.program.script
        if script and isinstance(script[0], Read) and readings.kind_of(script[0].value) == CANCEL:
            return bool(self.read(CANCEL, lambda: b""))
        return False

    def _take_in_calls(self) -> None:
        """Payloads that are not in the log, as far as somebody has them, in the order of their callers."""
        wanted: dict[PeerId, list[int]] = {}
        for entry in self.past.entries:
            if isinstance(entry, Ran) and entry.payload is None:
                wanted.setdefault(entry.caller, []).append(entry.seqno)
        for caller, seqnos in wanted.items():
            found = self.supply.calls(caller, min(seqnos), max(seqnos) + 1)
            inbox = self.peer.counterpart(caller).inbox
            for seqno in seqnos:
                if seqno not in found or seqno != inbox.received:
                    break
                inbox.accept(Seqno(seqno), (found[seqno],))

    def _missing_call(self, entry: Any) -> Ended:
        call = f"call #{entry.seqno} of {entry.caller}" if isinstance(entry, Ran) else "what comes next"
        return Ended("missing", self.position, f"nobody has the arguments of {call} any more: they are not in the log, "
                     "because its caller could be run again to make the call again")  # fmt: skip

    # what the program waits for

    def wait(self, _began: float) -> None:
        """Bring what is waited for, or end."""
        self._on_waiting()

    def wait_until(self, _began: float, _deadline: float) -> None:
        """The same."""
        self._on_waiting()

    def _on_waiting(self) -> None:
        program = self.peer.program
        if self.ended is not None:
            raise Halted
        if program.strayed:
            self._end("strayed", self._fault)
        waiting = program.waiting
        if waiting is None:
            self._end("cut", "the history ends here, in the middle of a call")
        if not isinstance(waiting, GetStarted | WaitStarted | NextStarted):
            self._end("cut", "the history ends here, where a commit is waited for")
        refs = (waiting.ref,) if isinstance(waiting, NextStarted) else waiting.refs
        brought = sum([self._bring(ref) for ref in refs if not program.values.is_ready(ref)])
        self.shell.feed(events.Lingered())
        if program.waiting is waiting and not brought:
            if not program.script:
                self._end("cut", "the history ends here, where something is waited for")
            missing = next((ref for ref in refs if not program.values.is_ready(ref)), refs[0])
            self._end("missing", f"nobody has {_in_words(missing)} any more")

    def _bring(self, ref: Ref) -> int:
        """Have the value of a ref, and all that come before it, if somebody has them; how many came."""
        values = self.peer.program.values
        if ref.kind == OF_TASK:
            placed = values.placed.get(ref.number)
            return 0 if placed is None else self._bring(placed)
        other = self.peer.counterpart(ref.peer)
        if ref.kind == OF_CALL:
            return self._bring_replies(other)
        return self._bring_parcels(other, ref.number, ref.number + 1)

    def _bring_replies(self, callee: Counterpart) -> int:
        outbox = callee.outbox
        found = self.supply.replies(callee.peer, outbox.answered, outbox.calls.upper)
        replies: list[bytes] = []
        while (seqno := outbox.answered + len(replies)) in found:
            replies.append(found[seqno])
        if replies:
            self.peer.program.values.on_replies(callee, outbox.answered, tuple(replies))
        return len(replies)

    def _bring_parcels(self, giver: Counterpart, lower: int, upper: int) -> int:
        found = self.supply.parcels(giver.peer, lower, upper)
        parcels = tuple(Parcel(number, NO_STREAM, value) for number, value in sorted(found.items()))
        return len(self.peer.program.values.on_parcels(giver, parcels))

    def _end(self, kind: str, text: str) -> NoReturn:
        self.ended = Ended(kind, self.position, text)
        raise Halted

    # what the machine and the user's code ask for

    def _restore_state(self, effect: effects.RestoreState) -> None:
        with saving(self):
            self.program.restore(unpack_state(effect.state, self.past.chunks))

    def _note_fault(self, effect: effects.ReportFault) -> None:
        self._fault = effect.text

    def _ask(self, event: object) -> Any:
        if self.ended is not None:
            raise Halted
        return super()._ask(event)

    @property
    def belongings(self) -> Belongings:
        """What capture keeps of this actor."""
        return self.program.belongings

    def next_created(self) -> int:
        """Counted in the state, as in the first run."""
        self.program.created += 1
        self.numbered[self.program.created] = self.position
        return self.program.created

    def prepare_submission(self, payload: bytes, callee: PeerId | None) -> None:
        """There is room: nothing is sent."""

    def take_reading(self, kind: str) -> bytes | None:
        """The log has all readings that there are."""
        assert kind
        return None

    def stop(self, reason: str) -> None:
        """The machine has stopped."""
        assert reason

    def report(self, kind: str, text: str) -> None:
        """Whoever runs this tells people."""
        assert kind
        self._fault = text


def _in_words(ref: Ref) -> str:
    if ref.kind == OF_PARCEL:
        return f"value {ref.number} of {ref.peer}"
    return (
        f"the result of task {ref.number}" if ref.kind == OF_TASK else f"the reply of {ref.peer} to call #{ref.number}"
    )
