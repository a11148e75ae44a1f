"""The host: the Ray actor process that an incarnation of an actor lives in.

Rules:
- The user's methods run in one long-running method, one after the other, where their calls arrived. Ray does not run
  that method again after a restart, and is not asked to: the next incarnation is a new process, or a spare.
- A process lives one life: when its machine stops, it ends.
- A replay that strays from its log is a program that is not deterministic: its actor is given up, with an error that
  says where; what it had not answered fails.
- A call that ends its actor (`exit_actor`, `sys.exit`) does so again in a replay: the log needs no word about it.
- The last call of a replay, which may be the one that killed the process, is noted while it runs again. After so many
  lives that died in it the actor leaves instead, with an error that names the call.
"""

import os
import secrets
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import ray
from ray.actor import exit_actor

from lineage_stash.capture import install, readings
from lineage_stash.capture.belongings import Belongings
from lineage_stash.capture.here import here
from lineage_stash.core import effects, events
from lineage_stash.core.entry import Ran, Read, content_bytes
from lineage_stash.core.frontier import START
from lineage_stash.core.handles import actors_in
from lineage_stash.core.ids import FIRST_INCARNATION, Incarnation, Member, PeerId
from lineage_stash.core.peer import Peer
from lineage_stash.core.tuples import maker
from lineage_stash.core.values import CANCELLATION
from lineage_stash.on_ray import garbage, payloads
from lineage_stash.on_ray.cancelling import CancelledCalls
from lineage_stash.on_ray.control_plane import ControlPlaneAway
from lineage_stash.on_ray.creation import Creation, load_recorded_class
from lineage_stash.on_ray.dropped_actors import DroppedActors
from lineage_stash.on_ray.errors import UpgradeRefused
from lineage_stash.on_ray.groups import creation_for_next_life
from lineage_stash.on_ray.lending import Tie
from lineage_stash.on_ray.levels import default_level, parse_level
from lineage_stash.on_ray.limits import within_limits
from lineage_stash.on_ray.links import Link
from lineage_stash.on_ray.logged import LoggedRuntime
from lineage_stash.on_ray.mail import Addressee
from lineage_stash.on_ray.methods import Methods
from lineage_stash.on_ray.plain import record_plain_ray
from lineage_stash.on_ray.preparing import LOOK_S as PREPARE_S
from lineage_stash.on_ray.preparing import Prepared
from lineage_stash.on_ray.present import adopt
from lineage_stash.on_ray.process import POLICY, Process, split_address
from lineage_stash.on_ray.program import ActorProgram
from lineage_stash.on_ray.refs import saving
from lineage_stash.on_ray.registry import COORDINATOR
from lineage_stash.on_ray.resting import rest_in_ray
from lineage_stash.on_ray.runner import TaskProgram
from lineage_stash.on_ray.runtime import Reply
from lineage_stash.on_ray.telling import tell_crash
from lineage_stash.on_ray.tracing import trace_executions
from lineage_stash.restoring import NoLife, restore
from lineage_stash.shell import address_of, open_store
from lineage_stash.store.contract import Level
from lineage_stash.store.states import Buffer, unpack_state

_call_finished = maker(events.CallFinished)

CAREFUL_CALLS = 64
"""New calls of a recovered life that are sent to the store before they run."""

REACH_S = 2.0
"""How often a runner sees to it that it has a link to its caller."""

GIVE_BACK_S = 0.01
"""How long a task waits before it gives its CPU back: longer than small calls take."""

IDLE_S = 1.0
"""How long to wait for the next call before looking whether this life is over; ticks and frames end the wait."""

TASKS = "tasks"

LOOK_S = 0.001
"""While calls follow one another, how often to look at the network and let replies leave."""


class Host(Addressee):
    """What Ray sees: a constructor that returns at once, and one method that runs for a whole life."""

    def __init__(self, address: str | None) -> None:
        self.address = address
        self._begun = threading.Lock()

    def run(self) -> None:
        """Live the life that this process was started for, or wait to be given one; whoever asks again is too late."""
        if not self._begun.acquire(blocking=False):
            return
        try:
            self._live()
        except Exception:  # noqa: BLE001 - whatever it was, this life is over
            tell_crash(f"the process of {self.address or 'a spare'}")
            os._exit(1)  # an idle process with open links would look alive

    def _live(self) -> None:
        install.install()
        record_plain_ray()
        address = self.address
        actor = ray.get_runtime_context().get_actor_name()
        process = Process(address or f"spare-{secrets.token_hex(4)}", actor=actor)
        garbage.spare_what_is_imported()
        prepared = Prepared(process.plane)
        if address is None:
            address = wait_for_assignment(process, prepared)
        lived = split_address(address)
        assert lived is not None, f"{address} is not an address of an actor"
        Life(process, *lived, prepared).run()


def wait_for_assignment(process: Process, prepared: Prepared) -> str:
    """Offer this process to the coordinator until it says whose life to live, and prepare for it."""
    assigned: list[str] = []
    process.on_control = lambda _, said: assigned.append(said["take"]) if "take" in said else None
    process.is_quiet = lambda: True  # a spare has no machine that would need its ticks
    spare = process.loop.introduction
    process.registry.settle_in(spare, process.place)
    process.links.reach(COORDINATOR)
    look_at = 0.0
    while not assigned:
        process.wait(PREPARE_S)
        if not assigned and time.monotonic() > look_at:
            prepared.prepare_more()
            look_at = time.monotonic() + PREPARE_S
    with process.lock:
        process.links.forget(COORDINATOR)
    process.is_quiet = lambda: False
    process.registry.ask(partial(process.plane.delete, f"places/{spare}"))
    return assigned[0]


def _amounts(peer: Peer) -> dict[str, int]:
    """What a replay has before it."""
    script = peer.program.script
    calls = sum([isinstance(entry, Ran) for entry in script])
    return {"replayed_calls": calls, "replayed_bytes": sum(map(content_bytes, script))}


class Life(LoggedRuntime):
    """One incarnation of one actor."""

    def __init__(
        self, process: Process, peer: PeerId, incarnation: Incarnation, prepared: Prepared | None = None
    ) -> None:
        super().__init__(process)
        self.prepared = prepared or Prepared(process.plane)
        self.id = peer
        self.incarnation = incarnation
        self.began_at = time.monotonic()
        self.restored_at = 0.0
        self.call: effects.RunCall | None = None
        self.latest: effects.RunCall | None = None
        self.last_call = START
        self.over: str | None = None
        self.looked_at = 0.0
        self.recalled = False
        self.fault = ""
        self.careful_calls = CAREFUL_CALLS
        self.amounts: dict[str, int] = {}
        """How much there was to catch up with."""
        self.is_task = False
        self.reached_at = 0.0
        self.cancelled = CancelledCalls(self)
        self.dropped_actors = DroppedActors(self)
        self.unreferenced = self.dropped_actors.dropped
        self.program: ActorProgram
        self.creation: Creation
        process.on_control = self._on_control
        self._executions = trace_executions(self)
        self._orders |= {
            effects.RunCall: self._order_call,
            effects.RestoreState: self._restore_state,
            effects.CaptureState: lambda _: self.program.capture(process.loop, self._on_captured),
            effects.FinishReplay: self._finish_replay,
        }

    # beginning

    def run(self, *, is_task: bool = False) -> None:
        """Begin, execute calls until the machine stops, and end the process, or the task of Ray's that hosts it."""
        adopt(self)
        self.is_task = is_task
        if self._begin():
            self.process.start_steward(rests=not is_task)
            while self.over is None:
                call = self.call
                if call is not None:
                    self._execute(call)
                elif is_task and self.peer.durability.retiring:
                    rest_in_ray()  # others have still to answer, and may need what Ray has given to this one
                else:
                    self.process.wait(IDLE_S)
        self.process.close()
        if not is_task:
            exit_actor()

    def _begin(self) -> bool:
        process = self.process
        address = address_of(self.id, self.incarnation)
        creation = creation_for_next_life(process.registry, self.id)
        if creation is None or not process.registry.claim(address):
            return False
        self.creation = creation
        self.namespace, self.placement = creation.namespace, creation.placement
        process.loop.introduction = address
        member = Member(self.id, process.node, True)
        process.registry.settle_in(address, process.place)
        history, ignored = process.registry.register(member)
        process.links.reach(COORDINATOR)
        policy = within_limits(POLICY, process.plane)._replace(checkpoint_every_entries=creation.checkpoint_every)
        replica_set = self.prepared.replica_set or process.registry.present_set()
        process.store = open_store(replica_set, history, process.links, process.registry)
        self.program = self._make_program(creation)
        if self._executions is not None:
            self.program.run = self._executions.wrap(self.program.run)  # type: ignore[assignment]
        found: list[Peer | NoLife] = []
        creator = PeerId(creation.creator)
        with process.lock:
            if self.incarnation == FIRST_INCARNATION and history.incarnation(self.id) == FIRST_INCARNATION:
                found.append(Peer(member, self.incarnation, history, policy, ignored=ignored, creator=creator,
                                  spool=self.spool.verbs))  # fmt: skip
            else:
                restore(member, self.incarnation, history, policy, process.store, ignored, found.append, creator,
                        self.spool.verbs)  # fmt: skip
        while not found:
            process.wait()
        return self._enter(found[0])

    def on_ticked(self) -> None:
        """A runner looks for its caller, whichever life that lives, because it may have been forgotten."""
        super().on_ticked()
        self.dropped_actors.on_ticked()
        if isinstance(self.program, TaskProgram):
            now = time.monotonic()
            if now - self.reached_at > REACH_S:
                self.reached_at = now
                caller = PeerId(self.creation.creator)
                self.process.links.reach(address_of(caller, self.peer.history.incarnation(caller)))

    def wait(self, began: float) -> None:
        """Wait on the sockets; what waits longer, in a task of Ray's, gives back what Ray has given to it."""
        if self.is_task and time.monotonic() - began > GIVE_BACK_S:
            rest_in_ray()
        else:
            super().wait(began)

    def wait_until(self, began: float, deadline: float) -> None:
        """The same until time is up."""
        if self.is_task and time.monotonic() - began > GIVE_BACK_S:
            rest_in_ray(max(0.0, deadline - time.monotonic()))
        else:
            super().wait_until(began, deadline)

    def _make_program(self, creation: Creation) -> ActorProgram:
        if not creation.class_digest:
            return TaskProgram(self)
        digest = creation.class_digest
        try:
            cls = self._load_class(digest)
        except ControlPlaneAway:
            raise
        except Exception as error:
            if self.incarnation != FIRST_INCARNATION:
                raise  # it was loaded once, and may be again, elsewhere
            self._note_unloadable(creation, error)
            cls = object
        return ActorProgram(cls, self, digest, self._load_class)

    def _note_unloadable(self, creation: Creation, error: Exception) -> None:
        """No process would fare better: the actor is dead before it has begun, and says why."""
        where = "".join(traceback.format_exception(error))
        self.process.registry.note_killed(self.id, payloads.pack_death(
            f"The actor {creation.class_name} ({self.id}) is dead: the process that was to run it could not load its "
            f"class ({type(error).__name__}: {error}). The modules that it needs must be where workers find them: have "
            "init(runtime_env={'working_dir': '.'}) or 'py_modules' bring them, or install them on every node.\n"
            f"{where}"
        ))  # fmt: skip

    def _load_class(self, digest: str) -> type:
        return self.prepared.class_of(digest) or load_recorded_class(self.process.plane, digest)

    def _enter(self, peer: Peer | NoLife) -> bool:
        if isinstance(peer, NoLife):
            if peer is NoLife.RETIRED:
                self.process.registry.retire(self.id)
            return False
        if self.program.replaced and peer.program.script:
            raise UpgradeRefused(
                f"{self.id} cannot be recovered with this code ({self.program.replaced}): {len(peer.program.script)} "
                "entries of its log are still to be replayed with the former code. Bring that back; and upgrade "
                "with lineage_stash.upgrade(handle, NewClass), which keeps it."
            )
        self.restored_at = time.monotonic()
        self.last_call = peer.program.last_call
        self.amounts |= _amounts(peer)
        durability = peer.durability
        self.process.has_unflushed = lambda: durability.has_unflushed
        self.process.has_call = lambda: self.call is not None and self.call is not self.latest
        self.process.is_quiet = lambda: peer.is_quiet
        last_words = self.process.registry.last_words_of(self.id)
        with self.process.lock:
            self.live(peer)
            self.shell.level = self._level()
            if last_words is not None:
                strayed = self.process.plane.get(f"strayed/{self.id}") is not None
                self.shell.feed(events.KillAsked(last_words, START if strayed else None))
            elif self._dies_again():
                self.shell.feed(events.KillAsked(self._fatal_call(), peer.program.last_call))
            else:
                self.shell.feed(events.Lingered())
            self.process.open_mail()
        return True

    def _level(self) -> Level:
        own = self.creation.durability
        return parse_level(own) if own else default_level(self.process.plane)

    def _on_control(self, _: Link, said: dict[str, Any]) -> None:
        if "kill" in said and self.process.shell is not None:
            self.shell.feed(events.KillAsked(bytes.fromhex(said["kill"])))
        elif "retire" in said and self.process.shell is not None:
            self.shell.feed(events.RetireAsked())
        elif "cancel" in said and self.process.shell is not None:
            self.cancelled.on_asked(PeerId(said["caller"]), said["cancel"])
        elif said.get("crash") == self.incarnation:
            os._exit(1)  # the next life goes on from here

    def stop(self, reason: str) -> None:
        """The machine has stopped: so does the process, even from within a call that does not end."""
        self.over = reason
        if self.fault:
            self.process.plane.put(f"strayed/{self.id}", b"1")
            self.process.registry.note_killed(self.id, payloads.pack_death(self.fault, strayed=True))
        if self.call is not None:
            self.process.close()
            os._exit(0)

    def report(self, kind: str, text: str) -> None:
        """Tell people; what makes going on impossible is also the last word to the callers."""
        super().report(kind, text)
        if kind == "nondeterminism" and self.peer.program.strayed:
            where = (
                f"in {payloads.name_of(self.latest.payload)}()" if self.latest is not None else "before its first call"
            )
            script = self.peer.program.script
            said = f" ({readings.kind_of(script[0].value)})" if script and isinstance(script[0], Read) else ""
            self.fault = (
                f"The actor {self.creation.class_name} ({self.id}) is dead: its replay did not do what its first run "
                f"had done, {where} or right after it. {text}{said}. Clocks and draws are captured; wrap whatever else "
                "may differ between runs (process ids, files, environment, services) in lineage_stash.observe(...); "
                "lineage_stash.testing.replay_check finds it in a test."
            )

    # state

    def handles_at_hand(self) -> Iterable[PeerId]:
        """Those in the call that runs."""
        return () if self.call is None else actors_in(self.call.payload)

    def restore_tie(self, peer: PeerId, class_name: str, methods: Methods) -> Tie:
        """The handle of an actor that this one has created, and that ends with its last handle here."""
        return self.dropped_actors.restore_tie(peer, class_name, methods)

    def _restore_state(self, effect: effects.RestoreState) -> None:
        assert self.process.store is not None
        with saving(self):
            content = unpack_state(effect.state, self.process.store.chunks)
            self.program.restore(content)
            self.amounts["restored_bytes"] = len(content)
        self.program.note_restored(effect.state)

    def _on_captured(self, event: object, chunks: Mapping[bytes, Buffer]) -> None:
        self.vitals.failed_checkpoints = self.program.failed_captures
        assert self.process.store is not None
        self.process.store.chunks = chunks
        self.shell.feed(event)

    # executing

    def _order_call(self, effect: effects.RunCall) -> None:
        self.call = effect

    def _execute(self, call: effects.RunCall) -> None:
        attempt = self._be_careful() if self.incarnation else None
        self.process.rouse_steward()
        self.latest = call
        here.recorder = self
        try:
            if (self.cancelled.calls or self.peer.program.script) and self.cancelled.answers(call):
                finished: Reply = CANCELLATION, ()
                self.holdings.touch(actors_in(call.payload))
            else:
                finished = self.program.run(call.payload, call.call.caller)
        finally:
            here.recorder = None
        if attempt is not None:
            self.process.plane.delete(attempt)
        now = time.monotonic()
        with self.process.lock:
            self.call = None
            self.process.turns += 1
            if self.program.exit is not None:
                self.shell.feed(events.KillAsked(self.program.exit))  # first, so that no other call begins
            if self.dropped:  # before the reply, after which there may be a checkpoint, that would have them again
                self._let_go(but=finished[1])
            self.shell.feed(_call_finished(finished))
            if self.in_result:
                self.in_result = []
            if self.dropped:  # what the reply has passed on
                self._let_go()
            if not self._has_call():
                self.process.flush_if_due()
            elif now - self.looked_at > LOOK_S:
                self.looked_at = now
                self.process.flush_if_due()
                self.shell.feed(events.Lingered())
                self.process.loop.poll(0)

    def _has_call(self) -> bool:
        return self.call is not None

    @property
    def title(self) -> tuple[str, str]:
        """What metrics call this peer; runners come and go, and are called by one name."""
        return (self.creation.class_name, self.id) if self.creation.class_digest else (TASKS, TASKS)

    def _finish_replay(self, effect: effects.FinishReplay) -> None:
        self.vitals.note_replayed()
        if self.incarnation and not self.recalled:
            self.recalled = True
            now = time.monotonic()
            self.process.control(
                COORDINATOR, recovered=address_of(self.id, self.incarnation), replayed=effect.replayed,
                restore_ms=1e3 * (self.restored_at - self.began_at), replay_ms=1e3 * (now - self.restored_at),
                pid=os.getpid(), **self.amounts,
            )  # fmt: skip

    # a call that kills its process every time

    def _attempts_key(self) -> str:
        """By where the call begins: the log may grow by what it reads before it dies."""
        return f"crashes/{self.id}/{self.last_call:012d}"

    def _be_careful(self) -> str | None:
        """Before a call that may be the one that killed a former life: the note of the attempt, if one was made.

        The last call of a replay is noted. The first new ones are sent to the store before they run, because one that
        kills its process at once is in no log otherwise, and would come as a new one to every life.
        """
        assert self.call is not None
        program = self.peer.program
        if program.repeats and program.script and type(program.script[0]) is Ran:
            return None  # the usual case in a long replay, where it has to be quick
        if program.repeats and not any(isinstance(entry, Ran) for entry in program.script):
            key = f"{self._attempts_key()}/{self.incarnation:08d}"
            self.process.plane.put(key, payloads.name_of(self.call.payload).encode())
            return key
        if not program.repeats and self.careful_calls:
            self.careful_calls -= 1
            with self.process.lock:
                self.shell.feed(events.FlushDue())
        return None

    def _dies_again(self) -> bool:
        attempts = self.process.plane.keys(f"{self._attempts_key()}/") if self.peer.program.script else []
        return len(attempts) >= self.creation.max_crashes

    def _fatal_call(self) -> bytes:
        attempts = self.process.plane.get_all(f"{self._attempts_key()}/")
        method, _ = payloads.returns_of(next(iter(attempts.values())).decode())
        died = f"its process died {len(attempts)} times in a row while running"
        if isinstance(self.program, TaskProgram):
            last_words = payloads.pack_crash(
                f"The task {self.program.title(method)}() failed: {died} it. It is not started again."
            )
        else:
            last_words = payloads.pack_death(
                f"The actor {self.creation.class_name} ({self.id}) is dead: {died} {method}(), at index "
                f"{self.peer.program.last_call} of its log. It is not started again."
            )
        self.process.registry.note_killed(self.id, last_words)
        return last_words

    # what the user's code asks for

    @property
    def belongings(self) -> Belongings:
        """What capture keeps of this actor."""
        return self.program.belongings

    def prepare_submission(self, payload: bytes, callee: PeerId | None) -> None:
        """The machine holds back what there is no room for."""

    def next_created(self) -> int:
        """Counted in the state, so that a replay gives the same numbers."""
        self.program.created += 1
        return self.program.created
