"""Values: what the refs of one peer stand for, who else waits for them, and the tasks that have no runner yet.

Rules:
- A ref is a claim of this peer alone: on the reply to a call, on a parcel, or on the result of a task, which becomes
  the reply to a call once a runner is found.
- Passing a ref on numbers a parcel for the receiver at once. When the value comes, all that wait for it get it, whether
  or not this peer's program still has the ref. A value that comes with refs in it has these passed on too.
- What a peer puts aside is a parcel for itself; so are the arguments of its tasks, until these have a runner.
- A task is offered for assignment when the values among its arguments are here, and never before the replay's end: what
  was assigned in the first run is assigned again from the log, in the order in which it was.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from lineage_stash.core.checkpoint import Task, Tasks
from lineage_stash.core.counterpart import Counterpart
from lineage_stash.core.digest import OPAQUE
from lineage_stash.core.effects import Effect, OfferTask
from lineage_stash.core.events import Passed
from lineage_stash.core.handles import actors_in, names_actors
from lineage_stash.core.ids import CANCELLED, NOBODY, OF_CALL, OF_PARCEL, OF_TASK, PeerId, Ref, Seqno
from lineage_stash.core.parcels import NO_STREAM, ORPHANED, Parcel, is_parceled, unwrap, wrap
from lineage_stash.core.tuples import maker

CANCELLATION = bytes((OPAQUE, 1)) + b"x"
"""The reply to a call that was cancelled."""

_ref = maker(Ref)

Target = tuple[PeerId, int]
"""Who waits for a value: a parcel for a peer, or one of nobody's tasks, by its number."""


class Unnumbered(NamedTuple):
    """A value with refs in it that came in a replay, and had not been forwarded where the log ends."""

    receiver: Counterpart
    number: int
    giver: PeerId
    value: bytes


class Values:
    """Everything that one peer's refs lead to."""

    def __init__(self, me: PeerId, counterpart: Callable[[PeerId], Counterpart], stir: Callable[[Counterpart], None],
                 emit: Callable[[Effect], None],
                 log_forwarded: Callable[[PeerId, int, int, int], None]) -> None:  # fmt: skip
        self.me = me
        self.counterpart = counterpart
        self.stir = stir
        self.emit = emit
        self.log_forwarded = log_forwarded
        self.targets: dict[Ref, list[Target]] = {}
        self.submitted = 0
        self.waiting: dict[int, Task] = {}
        self.placed: dict[int, Ref] = {}
        self.replaying = False
        self._numbered: dict[tuple[PeerId, int], int] = {}
        """In a replay: from which number on the refs inside a forwarded parcel were numbered."""
        self._unnumbered: list[Unnumbered] = []
        self.touched: dict[PeerId, None] = {}
        """Actors whose handles were in what was taken, dropped or forwarded, until somebody notes them."""
        self._plans: dict[PeerId, deque[int]] = {}
        self._runners: dict[int, PeerId] = {}

    # what refs stand for

    def find(self, ref: Ref) -> bytes | None:
        """The value of a ref, if it is here."""
        if ref.kind == OF_TASK:
            placed = self.placed.get(ref.number)
            return None if placed is None else self.find(placed)
        counterpart = self.counterpart(ref.peer)
        if ref.kind == OF_CALL:
            return counterpart.outbox.results.get(Seqno(ref.number))
        parcel = counterpart.incoming.kept.get(ref.number)
        if parcel is not None:
            return parcel.value
        return ORPHANED if counterpart.incoming.orphaned else None

    def is_ready(self, ref: Ref) -> bool:
        """Whether the value of a ref is here."""
        if ref.kind == OF_CALL:
            return Seqno(ref.number) in self.counterpart(ref.peer).outbox.results
        return self.find(ref) is not None

    def take(self, ref: Ref) -> bytes:
        """The value of a ref that is ready: the program's from here on, unless it is a parcel or has refs in it."""
        if ref.kind == OF_CALL:
            results = self.counterpart(ref.peer).outbox.results
            value = results[Seqno(ref.number)]
            if not is_parceled(value):
                del results[Seqno(ref.number)]
            self._touch(value)
            return value
        if ref.kind == OF_TASK:
            value = self.take(self.placed[ref.number])
            if not is_parceled(value):
                del self.placed[ref.number]
            return value
        found = self.find(ref)
        assert found is not None, f"{ref} is not ready"
        return found

    def drop(self, ref: Ref, opened: bool = False) -> None:
        """The program will not ask for this value; whoever has opened it has the refs in it."""
        if ref.kind == OF_CALL:
            counterpart = self.counterpart(ref.peer)
            reply = counterpart.outbox.drop(Seqno(ref.number))
            for item in counterpart.incoming.drop_stream(Seqno(ref.number)):
                self._touch(item)
            if not opened:
                self._drop_inner(counterpart, reply)
        elif ref.kind == OF_PARCEL:
            counterpart = self.counterpart(ref.peer)
            value = counterpart.incoming.drop(ref.number)
            if not opened:
                self._drop_inner(counterpart, value)
        elif ref.number in self.waiting:
            self.waiting[ref.number] = self.waiting[ref.number]._replace(wanted=False)
        elif ref.number in self.placed:
            self.drop(self.placed.pop(ref.number), opened)

    def _drop_inner(self, counterpart: Counterpart, value: bytes | None) -> None:
        """Nobody will look into a value, and so nobody will ask for the parcels that it refers to."""
        if value is not None:
            self._touch(value)
        if value is not None and is_parceled(value):
            _, first, count = unwrap(value)
            for number in range(first, first + count):
                self._drop_inner(counterpart, counterpart.incoming.drop(number))

    def _touch(self, value: bytes) -> None:
        """Note whose handles were here for a moment at least."""
        if names_actors(value):
            self.touched.update(dict.fromkeys(actors_in(value)))

    def next_item(self, ref: Ref, position: int) -> tuple[bool, Ref | None]:
        """Whether it is known if a stream has such an item, and the ref of it if it has."""
        if ref.kind == OF_TASK:
            placed = self.placed.get(ref.number)
            return (False, None) if placed is None else self.next_item(placed, position)
        counterpart = self.counterpart(ref.peer)
        number = counterpart.incoming.item(Seqno(ref.number), position)
        if number is not None:
            return True, Ref(ref.peer, number, OF_PARCEL)
        return counterpart.outbox.answered > ref.number, None

    # passing refs on

    def pass_on(self, receiver: Counterpart, payload: bytes, passed: tuple[Passed, ...]) -> tuple[bytes, int]:
        """The payload as it travels, and the number of the first of its parcels."""
        first = receiver.outgoing.add(len(passed))
        for position, what in enumerate(passed):
            self._pass(receiver, first + position, what)
        return wrap(payload, first, len(passed)), first

    def put(self, value: bytes, passed: tuple[Passed, ...]) -> Ref:
        """Put a value aside that has refs in it."""
        own = self.counterpart(self.me)
        number = own.outgoing.add()
        self._deliver(own, number, self.pass_on(own, value, passed)[0])
        return Ref(self.me, number, OF_PARCEL)

    def _pass(self, receiver: Counterpart, number: int, what: Passed) -> None:
        """Fill a parcel, now or when the value comes."""
        if isinstance(what, bytes):
            self._deliver(receiver, number, what)
            return
        value = self.find(what)
        if value is not None:
            self._fill(receiver, number, self.giver_of(what), value)
        else:
            receiver.outgoing.sources[number] = what
            self._watch(what, (receiver.peer, number))

    def giver_of(self, ref: Ref) -> PeerId:
        """Who has numbered the parcels that a value refers to."""
        return self.placed[ref.number].peer if ref.kind == OF_TASK else ref.peer

    def _watch(self, source: Ref, target: Target) -> None:
        if source.kind == OF_TASK:
            source = self.placed.get(source.number, source)
        self.targets.setdefault(source, []).append(target)

    def _fill(self, receiver: Counterpart, number: int, giver: PeerId, value: bytes) -> None:
        """The value of a parcel is here; the refs in it, if any, are passed on with it."""
        if not is_parceled(value):
            self._deliver(receiver, number, value)
            return
        first = self._numbered.pop((receiver.peer, number), None)
        if first is None and self.replaying:
            self._unnumbered.append(Unnumbered(receiver, number, giver, value))
            return
        inner, theirs, count = unwrap(value)
        if first is None:
            first = receiver.outgoing.add(count)
            self.log_forwarded(receiver.peer, number, first, count)
        for position in range(count):
            self._pass(receiver, first + position, Ref(giver, theirs + position, OF_PARCEL))
        self._deliver(receiver, number, wrap(inner, first, count))

    def _deliver(self, receiver: Counterpart, number: int, value: bytes) -> None:
        """Let a parcel go; one for this peer itself has come."""
        self._touch(value)
        if receiver.peer == self.me:
            receiver.outgoing.sources.pop(number, None)
            self.on_parcels(receiver, (Parcel(number, NO_STREAM, value),))
        else:
            receiver.outgoing.fill(number, value)
            receiver.release_held()
            self.stir(receiver)

    # values that come

    def on_value(self, ref: Ref, value: bytes) -> None:
        """A value has come: all who wait for it get it."""
        for peer, number in self.targets.pop(ref, ()):
            if peer != NOBODY:
                self._fill(self.counterpart(peer), number, ref.peer, value)
            elif number in self.waiting and number not in self._runners:
                self.offer(number)

    def on_replies(self, counterpart: Counterpart, first: Seqno, replies: tuple[bytes, ...]) -> None:
        """Replies have come, of which some may have come before."""
        outbox = counterpart.outbox
        known = outbox.answered
        outbox.accept_replies(first, replies)
        if self.targets:
            for position in range(known - first, len(replies)):
                self.on_value(Ref(counterpart.peer, first + position), replies[position])
        if outbox.discarded:
            for reply in outbox.discarded:
                self._drop_inner(counterpart, reply)
            outbox.discarded.clear()

    def fail_rest(self, counterpart: Counterpart, last_words: bytes) -> None:
        """The callee answers no more."""
        first = counterpart.outbox.answered
        counterpart.outbox.fail_rest(last_words)
        for seqno in range(first, counterpart.outbox.answered):
            self.on_value(Ref(counterpart.peer, seqno), last_words)

    def on_parcels(self, giver: Counterpart, parcels: tuple[Parcel, ...]) -> list[Parcel]:
        """Parcels have come; those that had not come before."""
        fresh = [parcel for parcel in parcels if giver.incoming.accept(parcel)]
        for parcel in fresh:  # of which some may be unwanted by now, and not be kept
            self._touch(parcel.value)
        if self.targets:
            for parcel in fresh:
                self.on_value(Ref(giver.peer, parcel.number, OF_PARCEL), parcel.value)
        return fresh

    def orphan(self, giver: Counterpart) -> None:
        """The giver is gone for good: what it has not given it never will."""
        giver.incoming.orphaned = True
        for ref in [ref for ref in self.targets if ref.kind == OF_PARCEL and ref.peer == giver.peer]:
            self.on_value(ref, ORPHANED)

    # tasks

    def submit_task(self, payload: bytes, wanted: bool, passed: tuple[Passed, ...], awaited: int) -> Ref:
        """Number a task, put its arguments aside, and have it wait for them and for its runner."""
        number = self.submitted
        self.submitted = number + 1
        first = self.pass_on(self.counterpart(self.me), payload, passed)[1] if passed else 0
        self.waiting[number] = Task(payload, first, len(passed), awaited, wanted)
        self._watch_arguments(number)
        runner = self._runners.get(number)
        if runner is not None:
            self._follow_plan(runner)
        else:
            self.offer(number)
        return Ref(NOBODY, number, OF_TASK)

    def _arguments(self, task: Task) -> tuple[Ref, ...]:
        return tuple([Ref(self.me, number, OF_PARCEL) for number in range(task.first, task.first + task.passed)])

    def _watch_arguments(self, number: int) -> None:
        task = self.waiting[number]
        for ref in self._arguments(task)[: task.awaited]:
            if not self.is_ready(ref):
                self._watch(ref, (NOBODY, number))

    def offer(self, number: int) -> None:
        """Have a runner found for a task, if its arguments are here."""
        task = self.waiting[number]
        if not self.replaying and all(self.is_ready(ref) for ref in self._arguments(task)[: task.awaited]):
            self.emit(OfferTask(number))

    def place(self, number: int, runner: PeerId) -> None:
        """A task becomes a call of its runner, or, where it was cancelled, of nobody, who needs no arguments."""
        task = self.waiting.pop(number)
        counterpart = self.counterpart(runner)
        arguments = self._arguments(task)
        passed = () if runner == CANCELLED else arguments
        ref = self.submit(counterpart, task.payload, task.wanted, passed, task.awaited)
        for argument in arguments:
            self.drop(argument)
        if task.wanted:
            self.placed[number] = ref
        for target in self.targets.pop(Ref(NOBODY, number, OF_TASK), ()):
            self._watch(ref, target)
        if counterpart.outbox.last_words is not None:
            self.on_value(ref, counterpart.outbox.last_words)
        self.stir(counterpart)

    def abandon_tasks(self) -> None:
        """Nobody will find runners any more: who was promised a result of a task that has none will never have it."""
        numbers = list(self.waiting)
        self.waiting.clear()
        for number in numbers:
            self.on_value(Ref(NOBODY, number, OF_TASK), ORPHANED)

    # replay

    def plan(self, number: int, runner: PeerId) -> None:
        """In the first run this task got this runner, after those that were planned before."""
        self._runners[number] = runner
        self._plans.setdefault(runner, deque()).append(number)

    def reserve(self, receiver: PeerId, number: int, first: int, count: int) -> None:
        """In the first run the refs inside this parcel got these numbers."""
        self._numbered[(receiver, number)] = first
        outgoing = self.counterpart(receiver).outgoing
        outgoing.taken[first] = count
        outgoing.skip_taken()

    def is_planned(self, runner: PeerId) -> bool:
        """Whether this runner got a task in the first run that was not submitted again yet."""
        return bool(self._plans.get(runner))

    def begin_replay(self) -> None:
        """What was submitted before the checkpoint goes its way."""
        for runner in list(self._plans):
            self._follow_plan(runner)

    def _follow_plan(self, runner: PeerId) -> None:
        plan = self._plans[runner]
        while plan and plan[0] in self.waiting:
            number = plan.popleft()
            del self._runners[number]
            self.place(number, runner)

    def end_replay(self) -> None:
        """What has no numbers gets them, and what has no runner wants one."""
        self.replaying = False
        unnumbered, self._unnumbered = self._unnumbered, []
        for receiver, number, giver, value in unnumbered:
            self._fill(receiver, number, giver, value)
        for number in list(self.waiting):
            if number not in self._runners:
                self.offer(number)

    # calls

    def submit(self, callee: Counterpart, payload: bytes, wanted: bool, passed: tuple[Passed, ...],
               awaited: int) -> Ref:  # fmt: skip
        """Number a call, with parcels for the refs in it; one whose arguments are not here is held back."""
        if not passed:
            ref: Ref = _ref((callee.peer, callee.outbox.submit(payload, wanted), OF_CALL))
            return ref
        payload, first = self.pass_on(callee, payload, passed)
        seqno = callee.outbox.submit(payload, wanted)
        awaits = tuple([number for number in range(first, first + awaited) if not callee.outgoing.is_filled(number)])
        if awaits and callee.outbox.last_words is None:
            callee.outbox.held.append((seqno, awaits))
        return Ref(callee.peer, seqno)

    # checkpoint

    def capture(self) -> Tasks:
        """What a checkpoint remembers about tasks."""
        return Tasks(self.submitted, tuple(self.waiting.items()), tuple(self.placed.items()))

    def restore(self, tasks: Tasks, counterparts: list[Counterpart]) -> None:
        """Go on from the moment of a checkpoint; boxes are restored already, and have the sources in them."""
        self.submitted = tasks.submitted
        self.placed = dict(tasks.placed)
        self.waiting = dict(tasks.waiting)
        for receiver in counterparts:
            for number, source in receiver.outgoing.sources.items():
                self._watch(source, (receiver.peer, number))
        for number in self.waiting:
            self._watch_arguments(number)
