"""A driver that can be resumed: a script that was given a run id, and that replays when it is started again under it.

Rules:
- Its id is made of the run id, so that its calls, its actors and its tasks have the same names in every life.
- Only its user starts it again. Until then it is away: its actors live on, and log by content what it has sent them.
- It logs what it does, before it does it, as well as what it is told. So a script that has changed stops before it does
  anything that its first run had not done.
- It is one thread, the one that called `init`: two would have no order that could be logged.
- A run that has come to its end is finished for good; one that ended with an error, or was killed, can be resumed.
"""

import json
import logging
import random
import re
import signal
import sys
import threading
import time
from secrets import token_hex
from typing import Any

import ray

from lineage_stash.capture import install, numpy_draws, readings
from lineage_stash.capture.belongings import Belongings
from lineage_stash.capture.here import here, paused
from lineage_stash.core import effects, events
from lineage_stash.core.digest import digest
from lineage_stash.core.entry import Read, Scripted
from lineage_stash.core.frontier import START
from lineage_stash.core.history import History
from lineage_stash.core.ids import FIRST_INCARNATION, Member, PeerId
from lineage_stash.core.peer import Peer
from lineage_stash.on_ray import payloads
from lineage_stash.on_ray.driver import DRIVERS, Driver
from lineage_stash.on_ray.errors import NondeterminismError, RunFinishedError, RunInUseError
from lineage_stash.on_ray.functions import read_function
from lineage_stash.on_ray.limits import within_limits
from lineage_stash.on_ray.logged import LoggedRuntime
from lineage_stash.on_ray.process import POLICY, TICK_S, Process
from lineage_stash.on_ray.refs import ObjectRef
from lineage_stash.on_ray.registry import COORDINATOR
from lineage_stash.on_ray.runtime import NOTHING, deadline_after
from lineage_stash.on_ray.telling import tell
from lineage_stash.ports import Dead
from lineage_stash.restoring import NoLife, restore
from lineage_stash.shell import address_of

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

ABANDONED_S = 10.0
"""How long a life that was claimed may not be there before the coordinator is asked to look: a script can be reached
moments after its claim, unless it died in between."""

TAKE_OVER_S = 60.0
"""How long to wait for the end of a former life; it is decided in well under a second where a store answers."""

LONGEST_WORD = 40
_SCALARS = (int, float, bool, str, bytes, type(None))


def peer_of(run_id: str) -> PeerId:
    """The driver of a run."""
    if not RUN_ID.fullmatch(run_id):
        raise ValueError(
            f"run_id={run_id!r}: a run id is up to 100 letters, digits, dots, dashes and underscores, and begins with "
            "a letter or a digit"
        )
    return PeerId(f"{DRIVERS}{run_id}")


class ResumableDriver(LoggedRuntime, Driver):
    """The runtime of a script that has a run id."""

    def __init__(self, peer: PeerId, process: Process) -> None:
        super().__init__(peer, process)
        self.fault = ""
        self.was_told_to_end = False
        self.started_at = time.monotonic()
        self._belongings = Belongings()
        self._thread = threading.get_ident()
        self._orders |= {effects.FinishReplay: self._finish_replay}

    @property
    def run_id(self) -> str:
        """What the user calls this run."""
        return self.id.removeprefix(DRIVERS)

    # beginning

    @classmethod
    def resume(cls, run_id: str) -> "ResumableDriver":
        """Begin a run, or go on with it."""
        peer = peer_of(run_id)
        install.install()
        driver = cls(peer, Process(f"script-{token_hex(4)}"))
        try:
            driver._begin(events.MainStarted())
            driver._notice_termination()
            driver._recall_beginning()
        except BaseException:
            driver.process.close()
            raise
        return driver

    @classmethod
    def abandon(cls, run_id: str) -> None:
        """Finish a run that is not to be resumed: its actors end, as after the end of its script."""
        driver = cls(peer_of(run_id), Process(f"script-{token_hex(4)}"))
        try:
            if driver.process.registry.begun_life(driver.id) is None:
                raise ValueError(f"there is no run {run_id!r} that could be resumed: see stash runs")
            driver._begin(events.KillAsked(payloads.pack_death(f"The run {run_id!r} was abandoned."), START))
            deadline = deadline_after(TAKE_OVER_S)
            while driver.stopped is None and time.monotonic() < deadline:
                driver.process.wait()
            if driver.stopped is None:
                raise RuntimeError(f"the run {run_id!r} could not be abandoned: the store does not answer")
        finally:
            driver.process.close()

    def _begin(self, first: object) -> None:
        process = self.process
        member, history, ignored = self._take_life()
        assert member.begun is not None
        address = address_of(self.id, member.begun)
        with process.lock:
            process.links.forget(COORDINATOR)  # who knows this process by another address
        process.loop.introduction = address
        process.registry.settle_in(address, process.place)
        self._open_store(history)
        peer = self._restore(member, history, ignored)
        self._note_run()
        durability = peer.durability
        process.has_unflushed = lambda: durability.has_unflushed
        self._enter(peer, first)

    def _take_life(self) -> tuple[Member, History, Dead]:
        """Claim the life that this process is to live; it may first have to be decided where the former one ended."""
        registry, deadline = self.process.registry, deadline_after(TAKE_OVER_S)
        while True:
            if registry.has_finished(self.id):
                raise self._finished()
            begun, present = registry.begun_life(self.id), registry.read_history().incarnation(self.id)
            if begun is None and present > FIRST_INCARNATION:
                raise self._finished()  # and was removed, but for what was decided about it
            address = address_of(self.id, present)
            if begun is None or begun < present or not registry.is_claimed(address):
                member = Member(self.id, self.process.node, True, present)
                history, ignored = registry.register(member)
                if history.incarnation(self.id) == present and registry.claim(address):
                    return member, history, ignored
            else:
                self._look_for(address, deadline)

    def _look_for(self, address: str, deadline: float) -> None:
        """See whether a former life goes on; if nobody is there, have that noticed."""
        process = self.process
        with process.lock:
            process.links.reach(address)
            process.links.reach(COORDINATOR)
        now = time.monotonic()
        if address in process.links.open:
            raise RunInUseError(
                f"the run {self.run_id!r} is in use: another process lives it. Wait for its end, end it, or take "
                "another run id."
            )
        if now > deadline:
            raise RunInUseError(
                f"the run {self.run_id!r} is in use by a process that does not answer, and is not dead either: end "
                "it, or take another run id. See stash status."
            )
        if now - self.started_at > ABANDONED_S:
            self.started_at = now
            with process.lock:
                process.control(COORDINATOR, abandoned=address)
        process.wait()

    def _finished(self) -> RunFinishedError:
        return RunFinishedError(
            f"the run {self.run_id!r} has finished: its script came to its end. Take another run id for another run."
        )

    def _restore(self, member: Member, history: History, ignored: Dead) -> Peer:
        process = self.process
        assert member.begun is not None
        policy = within_limits(POLICY, process.plane)._replace(checkpoint_every_entries=None)
        if member.begun == FIRST_INCARNATION:
            return Peer(member, member.begun, history, policy, ignored=ignored, spool=self.spool.verbs)
        found: list[Peer | NoLife] = []
        assert process.store is not None
        with process.lock:
            restore(member, member.begun, history, policy, process.store, ignored, found.append,
                    spool=self.spool.verbs)  # fmt: skip
        while not found:
            process.wait()
        if found[0] is NoLife.RETIRED:
            process.registry.retire(self.id)
            raise self._finished()
        if isinstance(found[0], NoLife):
            raise RunInUseError(f"the run {self.run_id!r} was taken over while this script began: start it again.")
        return found[0]

    def _note_run(self) -> None:
        before = self.process.plane.get(f"runs/{self.id}")
        started_at = None if before is None else json.loads(before).get("started_at")
        super()._note_run()
        if started_at is not None:
            self.run |= {"started_at": started_at, "resumed_at": self.run["started_at"]}
            self.process.plane.put(f"runs/{self.id}", json.dumps(self.run).encode())

    def _notice_termination(self) -> None:
        """Whoever is told to end, by `ray job stop` for example, has not come to the end; Ray makes it an exit."""
        handler = signal.getsignal(signal.SIGTERM)
        if not callable(handler) or threading.current_thread() is not threading.main_thread():
            return

        def on_terminated(number: int, frame: Any) -> None:
            self.was_told_to_end = True
            handler(number, frame)

        signal.signal(signal.SIGTERM, on_terminated)

    def _recall_beginning(self) -> None:
        """What this process has in common with every other life of the run: a namespace, and how generators stand."""
        self.namespace, state, state_of_numpy = self.observe(_look_around)
        own = self._belongings.random = random.Random(0)
        own.setstate(state)
        if state_of_numpy is not None:
            self._belongings.numpy = sys.modules["numpy.random"].RandomState(0)
            self._belongings.numpy.set_state(state_of_numpy)
        here.recorder = self

    def _finish_replay(self, effect: effects.FinishReplay) -> None:
        self.vitals.note_replayed()
        if effect.replayed:
            tell("resumed", f"resumed the run {self.run_id!r}: {effect.replayed} entries of its log were replayed",
                 peer=self.id, run=self.run_id, replayed=effect.replayed)  # fmt: skip

    # what the script does and asks for

    @property
    def belongings(self) -> Belongings:
        """What capture keeps of this script."""
        return self._belongings

    def submit(self, callee: PeerId, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ObjectRef:
        """Call a method of an actor, unless the first run did something else here."""
        with paused():
            packed = self.pack(method, args, kwargs)
            name = payloads.returns_of(method)[0]
            self._do(f"call {callee.removeprefix(f'{self.id}/')}.{name}({_in_words(args, kwargs)})", packed[0])
            self.prepare_submission(packed[0], callee)
            return ObjectRef(self, self._ask(events.CallSubmitted(callee, *packed)))

    def submit_task(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], returns: int | str) -> Any:
        """Have a function run, unless the first run did something else here."""
        with paused():
            payload, _, passed, awaited = self.pack(payloads.spell(function, returns), args, kwargs)
            name = read_function(self.process.plane, function).name
            self._do(f"run {name}({_in_words(args, kwargs)})", payload)
            self.prepare_submission(payload, None)
            ref = ObjectRef(self, self._ask(events.TaskSubmitted(payload, True, passed, awaited)))
            return self.divide(ref, returns)

    def about_to(self, what: str) -> None:
        """Log what the script does next, or see that its first run did the same."""
        with paused():
            self._do(what.replace(f"{self.id}/", ""), b"")

    def _do(self, words: str, payload: bytes) -> None:
        self._check()
        action = readings.pack_action(words, digest(payload))
        head = readings.CHECKSUM_BYTES + 1
        with self.process.lock:
            program = self.peer.program
            reading = _reading_in(program.script[0]) if program.script else action
            logged = readings.action_in(reading)
            if logged is None or reading[:head] != action[:head] or _verb(logged) != _verb(words):
                program._stray(f"'{words}'", _described(program.script[0]))
                self.shell.feed(events.Lingered())
        self._check()
        self.read(readings.ACTION, lambda: action)

    def _ask(self, event: object) -> Any:
        self._check()
        return super()._ask(event)

    def observe(self, read: Any) -> Any:
        """Ask the outside world in the first run, and recall what it said in every other."""
        self._check()
        return super().observe(read)

    def _wait_for(self, refs: list[ObjectRef], count: int, timeout_s: float | None) -> list[int]:
        self._check()
        return super()._wait_for(refs, count, timeout_s)

    def wait_until(self, began: float, deadline: float) -> None:
        """Wait on the sockets, unless there is nothing to be waited for any more."""
        super().wait_until(began, deadline)
        if self._answer is NOTHING:
            self._check()

    def wait(self, _began: float) -> None:
        """The same without an end."""
        self.process.wait(TICK_S)
        if self._answer is NOTHING:
            self._check()

    def _check(self) -> None:
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                "a script with a run id makes its calls in one thread, the one that called init(): calls of several "
                "threads have no order that a resumed script could follow. Use wait(), or have tasks or actors do it."
            )
        if self.fault:
            raise NondeterminismError(error_msg=self.fault)
        super()._check()

    def report(self, kind: str, text: str) -> None:
        """Tell people; a replay that strays is the script's to hear of."""
        if kind != "nondeterminism" or not self.peer.program.strayed:
            super().report(kind, text)
            return
        script = self.peer.program.script
        said = f" ({_described(script[0])})" if script and "the log has a read" in text else ""
        hashes = "" if not sys.flags.hash_randomization else " Start it with PYTHONHASHSEED=0 if it goes through sets."
        self.fault = (
            f"The run {self.run_id!r} cannot be resumed by this script, which does not do what its first run had done. "
            f"{text}{said}. Nothing was changed: start the script as it was, or take another run id. Clocks and draws "
            f"are captured; wrap whatever else may differ in lineage_stash.observe(...).{hashes}"
        )

    # leaving

    def leave(self, actors: list[PeerId]) -> None:
        """Come to the end of the run; one whose first life went further than this is not at its end."""
        here.recorder = None
        if self.stopped is None and self.peer.program.script:
            with self.process.lock:
                self.peer.program._stray("its end", "more")
                self.shell.feed(events.Lingered())
            tell("nondeterminism", self.fault, logging.ERROR, peer=self.id, run=self.run_id)
        super().leave(actors)

    def step_out(self) -> None:
        """Go without an end: the run can be resumed."""
        here.recorder = None
        if self.stopped is not None:
            return
        self.stopped = "its script has ended without coming to its end"
        tell("not finished", f"the run {self.run_id!r} is not finished: start the script again with the same run id to "
             "go on", peer=self.id, run=self.run_id)  # fmt: skip


def _look_around() -> tuple[str, Any, Any]:
    state = sys.modules["numpy.random"].get_state() if numpy_draws.is_loaded() else None
    return ray.get_runtime_context().namespace, random.getstate(), state


def _in_words(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Arguments for people: what is short and plain as it is, of anything else the type."""
    named = [f"{name}={_in_word(value)}" for name, value in kwargs.items()]
    return ", ".join([*map(_in_word, args), *named])


def _in_word(value: object) -> str:
    text = repr(value) if type(value) in _SCALARS else type(value).__name__
    return text if len(text) <= LONGEST_WORD else f"{text[:LONGEST_WORD]}..."


def _reading_in(entry: Scripted) -> bytes:
    return entry.value if isinstance(entry, Read) else b""


def _described(entry: Scripted) -> str:
    """What the first run had come to."""
    if not isinstance(entry, Read):
        return "a wait"
    logged = readings.action_in(entry.value)
    return f"a read of {readings.kind_of(entry.value)}" if logged is None else f"'{logged}'"


def _verb(words: str) -> str:
    """What of an action must be the same; its arguments count by their checksum."""
    return words.partition("(")[0]
