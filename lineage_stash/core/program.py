"""The program's side of a peer: which call runs next, and every nondeterministic answer, recorded or recalled.

Rules:
- One call at a time. In replay the next call is the one that the log names, and it waits for that one however many
  others are there; afterwards calls run in the order they came.
- Every nondeterministic answer is appended to the log or, in replay, recalled from it. A `get` is none: its value
  follows from the callee's log. The outcome of a `wait` is one.
- No new call runs, and nothing is appended, before the replay's end.
- Parcels by content and assignments are known from the beginning of a replay: nobody waited for the moment they came.
- A digest of all that was done goes into every entry; a replay whose digest differs is nondeterminism and stops.
- Appending waits only while the stash is at its cap, and then only for commits.
"""

from collections import deque
from collections.abc import Callable
from zlib import crc32

from lineage_stash.core.counterpart import Counterpart
from lineage_stash.core.digest import digest
from lineage_stash.core.effects import Effect, FinishReplay, ReportFault, Resume, RunCall, RunMain, TakeReading
from lineage_stash.core.entry import Assigned, Entry, Forwarded, Got, Ran, Read, Scripted, Waited
from lineage_stash.core.events import (
    CallSubmitted,
    CommitStarted,
    GetStarted,
    ItemYielded,
    NextStarted,
    Passed,
    TaskAssigned,
    TaskSubmitted,
    ValuePut,
    WaitStarted,
)
from lineage_stash.core.frontier import START, Frontier, covers
from lineage_stash.core.ids import OF_PARCEL, CallId, Index, PeerId, Ref, Seqno
from lineage_stash.core.lineage import Lineage
from lineage_stash.core.parcels import NO_STREAM, Parcel
from lineage_stash.core.tuples import maker
from lineage_stash.core.values import Values

MASK = 0xFFFFFFFF

_call_id, _ran, _run_call, _resume = maker(CallId), maker(Ran), maker(RunCall), maker(Resume)


class Program:
    """The running call, the script of a replay, and the digest of everything done."""

    def __init__(self, me: PeerId, lineage: Lineage, counterpart: Callable[[PeerId], Counterpart],
                 emit: Callable[[Effect], None], stir: Callable[[Counterpart], None], *, logs: bool, cap_bytes: int,
                 creator: PeerId | None = None) -> None:  # fmt: skip
        self.values = Values(me, counterpart, stir, emit, self._record_forwarded)
        self.stir = stir
        self.me = me
        self.lineage = lineage
        self.counterpart = counterpart
        self.emit = emit
        self.logs = logs
        self.cap_bytes = cap_bytes
        self.creator = creator
        self.script: deque[Scripted] = deque()
        self._skipped: deque[int] = deque()
        """How many entries that nobody follows lie before each one of the script."""
        self._remaining = 0
        """How many entries the log has that were not recalled yet."""
        self.has_run = False
        self.ran_at = START
        """Where in the log the running call, or the last one, begins."""
        self.replayed = 0
        self.digest = 0
        self.current: Counterpart | None = None
        self.busy = False
        self.leaving = False
        self.abandons_from: Index | None = None
        self.repeats = False
        self.strayed = False
        self.ready: deque[Counterpart] = deque()
        self.waiting: GetStarted | WaitStarted | NextStarted | CommitStarted | None = None
        self._wanted: Frontier = {}
        """What must be committed before the program goes on."""
        self._missing_at = 0
        """The first of the refs that are waited for which was not there when it was looked for."""
        self.wait_ended = False
        self.held_back: Callable[[], None] | None = None

    # choosing the next call

    def start_main(self) -> None:
        """Begin a driver's program."""
        self.busy = True
        self.emit(RunMain())

    def end_main(self) -> None:
        """A driver's program is over; a call that runs, in a replay for instance, goes on to its end."""
        self.busy = self.current is not None

    def run_next(self) -> bool:
        """Start the call that the log, or else the order of arrival, says is next; False if none can start now."""
        if self.busy or self.strayed or (self.leaving and not self._script_goes_on()):
            return False
        counterpart = self._next_scripted() if self.script else self._next_arrived()
        if counterpart is None:
            return False
        self._run(counterpart)
        return True

    def _next_scripted(self) -> Counterpart | None:
        entry = self.script[0]
        if not isinstance(entry, Ran):
            self._stray("the end of a call", _described(entry))
            return None
        counterpart = self.counterpart(entry.caller)
        if not counterpart.inbox.queue:
            return None
        counterpart.inbox.replayed_out_of_turn += 1
        return counterpart

    def _next_arrived(self) -> Counterpart | None:
        if self.creator is not None and not self.has_run:
            return self._first(self.counterpart(self.creator))
        while self.ready and not self.at_cap:
            counterpart = self.ready.popleft()
            if not counterpart.inbox.replayed_out_of_turn:
                return counterpart
            counterpart.inbox.replayed_out_of_turn -= 1
        return None

    def _first(self, creator: Counterpart) -> Counterpart | None:
        """The first call of all is the creator's, which constructs, whoever else's has come before."""
        if not creator.inbox.queue or self.at_cap:
            return None
        creator.inbox.replayed_out_of_turn += 1
        return creator

    def _run(self, counterpart: Counterpart) -> None:
        seqno, payload, counted = counterpart.inbox.start()
        self.busy = self.has_run = True
        self.current = counterpart
        self.repeats = bool(self.script)
        self.digest = (self.digest * 31 + counted) & MASK
        if self.script:
            entry = self.script[0]
            if not isinstance(entry, Ran) or entry.seqno != seqno or entry.digest != self.digest:
                call = CallId(counterpart.peer, self.me, seqno)
                self._stray(f"{call}, with other arguments or after other actions", _described(entry))
                return
            self.ran_at = Index(self.position + self._skipped[0])
            self._recalled()
        else:
            self.ran_at = self.lineage.upper
            content = payload if counterpart.logged_by_content else None
            self.lineage.append(_ran((counterpart.peer, seqno, content, self.digest, self.lineage.take_unlogged())))
        self.emit(_run_call((_call_id((counterpart.peer, self.me, seqno)), payload)))

    def leave(self, abandons_from: Index | None) -> None:
        """Run nothing but what the script still has, up to where it is abandoned."""
        self.leaving = True
        self.abandons_from = abandons_from

    @property
    def last_call(self) -> Index:
        """Where in the log the last call of the script begins."""
        last, at = self.lineage.upper, self.position
        for entry, skipped in zip(self.script, self._skipped, strict=True):
            at = Index(at + skipped)
            if isinstance(entry, Ran):
                last = at
            at = Index(at + 1)
        return last

    def _script_goes_on(self) -> bool:
        if self.script and (self.abandons_from is None or self.position < self.abandons_from):
            return True
        if self.script:
            self.script.clear()
            self._end_replay()
        return False

    def yield_item(self, event: ItemYielded) -> None:
        """The running call has something for its caller already."""
        caller = self.current
        assert caller is not None, "a call yielded that was not running"
        self.digest = digest(event.value, self.digest)
        value = self.values.pass_on(caller, event.value, event.passed)[0] if event.passed else event.value
        caller.outgoing.fill(caller.outgoing.add(), value, Seqno(caller.inbox.started))
        self.stir(caller)
        self.emit(Resume(None))

    def finish(self, reply: bytes, passed: tuple[Passed, ...]) -> Counterpart:
        """The running call has a reply; return whose call it was."""
        caller = self.current
        assert caller is not None, "a call finished that was not running"
        self.digest = digest(reply, self.digest)
        caller.inbox.finish(self.values.pass_on(caller, reply, passed)[0] if passed else reply)
        self.current = None
        self.busy = False
        return caller

    # record or recall

    @property
    def is_blocked(self) -> bool:
        """Whether the program waits for somebody."""
        return self.waiting is not None or (bool(self.script) and not self.busy)

    @property
    def is_replaying(self) -> bool:
        """Whether something is still to be done again, the running call included."""
        return bool(self.script) or (self.busy and self.repeats)

    @property
    def at_cap(self) -> bool:
        """Whether appending must wait for commits."""
        return self.lineage.stash.bytes >= self.cap_bytes

    def submit(self, event: CallSubmitted) -> None:
        """Number the call and put it into the outbox."""
        if self.at_cap and not self.script:
            self.held_back = lambda: self.submit(event)
            return
        callee, payload, wanted, passed, awaited = event
        self.digest = digest(payload, self.digest)
        self.emit(_resume((self.values.submit(self.counterpart(callee), payload, wanted, passed, awaited),)))

    def submit_task(self, event: TaskSubmitted) -> None:
        """Number the task, and have a runner found for it."""
        if self.at_cap and not self.script:
            self.held_back = lambda: self.submit_task(event)
            return
        self.digest = digest(event.payload, self.digest)
        self.emit(Resume(self.values.submit_task(*event)))

    def assign(self, event: TaskAssigned) -> None:
        """Record which runner a task gets; one that has one already keeps it."""
        if event.task not in self.values.waiting or self.script:
            return
        if self.logs:
            self.lineage.append(Assigned(event.task, event.runner, self.digest, self.lineage.take_unlogged()))
        self.values.place(event.task, event.runner)

    def put(self, event: ValuePut) -> None:
        """Put a value aside; what is in it follows from the log."""
        self.digest = digest(event.value, self.digest)
        self.emit(Resume(self.values.put(event.value, event.passed)))

    def _record_forwarded(self, receiver: PeerId, number: int, first: int, count: int) -> None:
        if self.logs:
            needs = self.lineage.take_unlogged()
            self.lineage.append(Forwarded(receiver, number, first, count, self.digest, needs))

    def record_parcels(self, giver: Counterpart, parcels: list[Parcel]) -> None:
        """Log by content what came from a giver that nobody can run again."""
        for number, _, value in parcels:
            self.lineage.append(Got(giver.peer, number, value, self.digest, self.lineage.take_unlogged()))

    def read(self, kind: str) -> None:
        """Recall what the outside world said, or have it asked."""
        if self.script:
            entry = self.script[0]
            if not isinstance(entry, Read) or entry.digest != self.digest:
                self._stray(f"a read of {kind}", _described(entry, self.digest))
                return
            self._recalled()
            self._resume_read(entry.value)
        elif self.at_cap and self.logs:
            self.held_back = lambda: self.read(kind)
        else:
            self.emit(TakeReading(kind))

    def record_reading(self, value: bytes) -> None:
        """Log what the outside world said, then tell the program."""
        if self.logs:
            self.lineage.append(Read(value, self.digest, self.lineage.take_unlogged()))
        self._resume_read(value)

    def _resume_read(self, value: bytes) -> None:
        self.digest = digest(value, self.digest)
        self.emit(Resume(value))

    def wait_for_commit(self, event: CommitStarted) -> None:
        """Go on when all that the program depends on at this moment is committed; when that is, is no choice.

        What comes before an entry of the script is committed: a round commits what it lets survive.
        """
        self._wanted = {} if self.script else dict(self.lineage.needs)
        self.waiting = event
        self.try_resume()

    def wait(self, event: GetStarted | WaitStarted | NextStarted) -> None:
        """Go on when the values are there; a wait's outcome is recorded or recalled."""
        self.waiting = event
        self.wait_ended = False
        self._missing_at = 0
        self.try_resume()

    def end_wait(self) -> None:
        """Take what is ready now as the outcome of the wait; in replay the log has the outcome already."""
        self.wait_ended = True
        self.try_resume()

    def try_resume(self) -> None:
        """See whether what the program waits for has come."""
        if self.held_back is not None and not self.at_cap:
            held_back, self.held_back = self.held_back, None
            held_back()
        waiting = self.waiting
        if waiting is None:
            return
        if isinstance(waiting, GetStarted):
            self._try_get(waiting.refs)
        elif isinstance(waiting, NextStarted):
            self._try_next(waiting)
        elif isinstance(waiting, CommitStarted):
            if covers(self.lineage.committed, self._wanted.items()):
                self.waiting = None
                self.emit(Resume(None))
        else:
            self._try_wait(waiting)

    def _try_get(self, refs: tuple[Ref, ...]) -> None:
        """Look where the last look ended: what was there stays there while the program waits."""
        values = self.values
        while self._missing_at < len(refs):
            if not values.is_ready(refs[self._missing_at]):
                return
            self._missing_at += 1
        self.waiting = None
        self.emit(Resume(tuple([values.take(ref) for ref in refs])))

    def _try_next(self, waiting: NextStarted) -> None:
        known, item = self.values.next_item(waiting.ref, waiting.position)
        if known:
            self.waiting = None
            self.emit(Resume(item))

    def _try_wait(self, waiting: WaitStarted) -> None:
        if self.script:
            entry = self.script[0]
            if not isinstance(entry, Waited) or entry.digest != self.digest:
                self._stray("a wait", _described(entry, self.digest))
            elif all(self.values.is_ready(waiting.refs[position]) for position in entry.ready):
                self._recalled()
                self._resume_wait(entry.ready)
            return
        ready = tuple(position for position, ref in enumerate(waiting.refs) if self.values.is_ready(ref))
        if len(ready) >= waiting.at_least or self.wait_ended:
            if self.logs:
                self.lineage.append(Waited(ready, self.digest, self.lineage.take_unlogged()))
            self._resume_wait(ready)

    def _resume_wait(self, ready: tuple[int, ...]) -> None:
        self.waiting = None
        self.digest = crc32(repr(ready).encode(), self.digest)
        self.emit(Resume(ready))

    @property
    def awaited_givers(self) -> list[PeerId]:
        """From whom the program waits for parcels."""
        waiting = self.waiting
        if waiting is None or isinstance(waiting, CommitStarted):
            return []
        refs = (waiting.ref,) if isinstance(waiting, NextStarted) else waiting.refs
        return list({ref.peer: None for ref in refs if ref.kind == OF_PARCEL and not self.values.is_ready(ref)})

    # replay

    def begin_replay(self, entries: tuple[Entry, ...]) -> None:
        """Follow `entries`; the payloads that they hold by content count as received."""
        self.values.replaying = True
        self._remaining = len(entries)
        skipped = 0
        for entry in entries:
            skipped += 1
            if isinstance(entry, Assigned):
                self.values.plan(entry.task, entry.runner)
            elif isinstance(entry, Forwarded):
                self.values.reserve(entry.receiver, entry.number, entry.first, entry.refs)
            elif isinstance(entry, Got):
                self._receive_again(entry)
            else:
                self.script.append(entry)
                self._skipped.append(skipped - 1)
                skipped = 0
                if isinstance(entry, Ran) and entry.payload is not None:
                    counterpart = self.counterpart(entry.caller)
                    counterpart.logged_by_content = True
                    counterpart.inbox.accept(entry.seqno, (entry.payload,))
                    self.ready.append(counterpart)
        self.values.begin_replay()
        if not self.script:
            self._end_replay()

    def _receive_again(self, entry: Got) -> None:
        giver = self.counterpart(entry.giver)
        giver.logged_by_content = True
        self.values.on_parcels(giver, (Parcel(entry.number, NO_STREAM, entry.value),))

    def _end_replay(self) -> None:
        self._skipped.clear()
        self._remaining = 0
        self.values.end_replay()
        self.emit(FinishReplay(self.replayed))

    @property
    def position(self) -> Index:
        """The index of the entry that comes next, written or recalled."""
        return Index(self.lineage.upper - self._remaining)

    @property
    def missing_caller(self) -> PeerId | None:
        """Whose call the replay waits for."""
        if self.busy or not self.script or not isinstance(self.script[0], Ran):
            return None
        return self.script[0].caller

    def _recalled(self) -> None:
        self.script.popleft()
        self._remaining -= 1 + self._skipped.popleft()
        self.replayed += 1
        if not self.script:
            self._end_replay()

    def _stray(self, did: str, logged: str) -> None:
        """The program did not do again what it had done: going on would contradict what others saw."""
        self.strayed = True
        text = f"{self.me} strayed from its log at index {self.position}: it came to {did}, where the log has {logged}"
        self.emit(ReportFault("nondeterminism", text))


def _described(entry: Scripted, digest: int | None = None) -> str:
    """An entry for people; with the digest of a replay, whether the two had come to it in the same way."""
    if isinstance(entry, Ran):
        return f"call #{entry.seqno} of {entry.caller}"
    text = "a read" if isinstance(entry, Read) else f"a wait for {len(entry.ready)} that had come"
    return text if digest is None or entry.digest == digest else f"{text}, after other actions"
