"""The driver of the global-checkpoint system: the source of all calls, and the judge of checkpoints and rollbacks.

Rules:
- Every so often it sends a barrier to every actor, behind the calls it has sent there. The checkpoint is complete when
  all actors have their snapshots on the disk; only then are the calls before it forgotten.
- Where actors call one another in a cycle, barriers would wait for one another. There the driver quiesces instead: it
  sends nothing until every call has ended, and then the barriers, behind which calls go on at once.
- An actor that calls another one for the first time while a checkpoint is under way spoils it: the next one counts.
- When any actor dies, all go back to the last complete checkpoint, and the driver sends again what it sent since. The
  state of every actor is then as if each call had run once. Replies that came before are dropped by number when they
  come again; they are the same where actors are deterministic and no two callers race.
- A checkpoint of which a snapshot fails, or that takes too long, is given up; the next one is begun when it is due.
- An actor that cannot go back ends the run: nothing is sent or saved any more, and whoever waits for a reply is told.
- Replies are given out at once, or, if `holds_output`, when a complete checkpoint covers them: then none is ever taken
  back.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from benchmarks.suite.systems.global_checkpoint_alignment import SOURCE, has_cycle, inputs_of
from benchmarks.suite.systems.global_checkpoint_channel import Channel
from benchmarks.suite.systems.global_checkpoint_frames import Kind, Parcel, pack, pack_words, unpack, unpack_words
from benchmarks.suite.systems.global_checkpoint_handles import Ref, RestoreFailed, pack_call
from benchmarks.suite.systems.global_checkpoint_rollback import Rollback
from benchmarks.suite.systems.global_checkpoint_station import TURN_S, Station
from lineage_stash.wire.connection import Connection

log = logging.getLogger("benchmarks.global_checkpoint")

MOST_RETAINED_BYTES = 512 * 1024 * 1024
"""Of calls that no complete checkpoint covers; whoever submits more waits for one."""

PROBE_S = 0.0005
"""How soon to ask again whether actors still call one another."""

NEW_SPARE_S = 1.0
"""A spare that was used is replaced so much later, and not before the rollback is over, so that its start does not
compete with the recovery."""

ATTEMPT_S = 60.0
"""How long a checkpoint may take before it is given up."""

ROOM_S = 300.0
"""How long whoever submits waits for a checkpoint that makes room, before that is an error."""

QUIESCE_S = 5.0
"""How long the source is quiet for a checkpoint before it gives that one up and goes on."""


def tell_failure(started: "Future[None]") -> None:
    """Say why Ray was not even asked for a host: whoever waits for it waits in vain."""
    error = None if started.cancelled() else started.exception()
    if error is not None:
        log.error("no host could be started: %s", error)


class Spare(NamedTuple):
    """A host that waits for an actor."""

    connection: Connection
    address: str
    pid: int


class Member:
    """An actor, and where it lives now."""

    def __init__(self, name: str, code: bytes, arguments: bytes, epoch: int) -> None:
        self.name = name
        self.code = code
        """Of its class, as bytes."""
        self.arguments = arguments
        """Those of its constructor, as bytes."""
        self.created_in = epoch
        """The last checkpoint that was begun before it was created."""
        self.channel = Channel(retains=True)
        self.position = 0
        """The first call that the last complete checkpoint does not cover."""
        self.host: Spare | None = None
        self.restored_in = -1
        """The generation that it has last restored its state for; before that, what is sent to it is lost."""
        self.failure: str | None = None
        """Why it could not be constructed; empty if it was; None before either."""


class Attempt:
    """A checkpoint under way."""

    def __init__(self, number: int, members: Sequence[Member]) -> None:
        self.number = number
        self.positions = {member.name: member.channel.next_number - len(member.channel.gathered) for member in members}
        self.missing = set(self.positions)
        self.began = time.monotonic()


class Held(NamedTuple):
    """A reply that no complete checkpoint covers."""

    epoch: int
    channel: Channel
    number: int
    ref: Ref
    reply: bytes


class Quiescing:
    """The source is quiet, until the actors are."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.number = 0
        """Of the probe under way; none before every call of the driver was answered."""
        self.counts: dict[str, tuple[int, int]] = {}
        self.before: int | None = None
        """How many calls there were between actors at the probe before, if all of them had ended."""


class Driver:
    """Submits calls, takes checkpoints, and rolls back."""

    def __init__(self, secret: bytes, *, interval_s: float, holds_output: bool, start_host: Callable[[], None]) -> None:
        self.members: dict[str, Member] = {}
        self.spares: deque[Spare] = deque()
        self.edges: set[tuple[str, str]] = set()
        self.generation = 0
        self.begun = 0
        """The last checkpoint that was begun."""
        self.completed = 0
        """The last one that is complete; 0 is as created."""
        self.snapshots = self.snapshot_bytes = self.calls = 0
        self.checkpoints: list[float] = []
        """How long each complete checkpoint took, in ms."""
        self.given_up: list[str] = []
        """Why the checkpoints that were begun and are not complete were given up, rollbacks and new edges apart."""
        self.rollbacks: list[Rollback] = []
        """Those that are over."""
        self.lost = ""
        """Why no more replies come, in a line and then at length; empty while they do."""
        self._interval_s = interval_s
        self._holds_output = holds_output
        self._held: list[Held] = []
        self._start_host = start_host
        self._starter = ThreadPoolExecutor(1, "global checkpoint hosts")
        """Has Ray start hosts: that takes milliseconds, for which nobody else should wait."""
        self._attempt: Attempt | None = None
        self._quiescing: Quiescing | None = None
        self._rollback: Rollback | None = None
        self._orphans: deque[Member] = deque()
        """Actors that wait for a host."""
        self._topics: dict[str, Callable[..., None]] = {
            "here": self._on_here, "restored": self._on_restored, "saved": self._on_saved, "calls": self._on_edge,
            "counts": self._on_counts,
        }  # fmt: skip
        self.station = Station(secret, SOURCE, on_frame=self._on_frame, on_open=lambda _: None, on_lost=self._on_lost)
        self.station.start_steward()
        self.station.loop.post(self._plan_checkpoint)

    # calls

    def submit(self, callee: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ref:
        """Call an actor."""
        ref = Ref()
        call = pack_call(method, args, kwargs)
        member = self.members[callee]
        channel = member.channel
        if channel.retained_bytes > MOST_RETAINED_BYTES:
            self._wait_for_room(channel)
        with self.station.lock:
            channel.submit(call, ref)
            self.calls += 1
            if channel.has_room and self._is_sending(member):
                self._send_gathered(member)
        return ref

    def _wait_for_room(self, channel: Channel) -> None:
        with self.station.lock:
            self._begin_checkpoint()
        deadline = time.monotonic() + ROOM_S
        while channel.retained_bytes > MOST_RETAINED_BYTES // 2 and not self.lost:
            if time.monotonic() > deadline:
                why = self.given_up[-1] if self.given_up else "none was given up"
                raise TimeoutError(f"no checkpoint has made room for calls within {ROOM_S:g} s; the last: {why}")
            self.station.wait()

    def _is_sending(self, member: Member) -> bool:
        is_open = self._quiescing is None and not self.lost and not self._is_restoring
        return is_open and self._is_up(member)

    def _is_up(self, member: Member) -> bool:
        """Whether an actor is there, and as all others are."""
        return member.host is not None and member.failure == "" and member.restored_in == self.generation

    @property
    def _is_restoring(self) -> bool:
        return self._rollback is not None and bool(self._rollback.missing)

    def _send_gathered(self, member: Member) -> None:
        """Send as much as there is room for; acknowledgements make room for the rest."""
        channel = member.channel
        assert member.host is not None, "calls gather while there is no host"
        while channel.gathered and channel.has_room:
            first, calls = channel.take()
            member.host.connection.send(Kind.CALLS, pack(Parcel(self.generation, self.begun, 0, first, calls)))

    def fetch(self, refs: Sequence[Ref], timeout_s: float | None) -> None:
        """Wait for replies."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for ref in refs:
            while ref.reply is None:
                if self.lost:
                    raise RestoreFailed(self.lost)
                left = TURN_S if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"no reply within {timeout_s} s")
                self.station.wait(min(left, TURN_S))

    def _on_frame(self, connection: Connection, kind: int, body: bytes) -> None:
        if kind == Kind.REPLIES:
            parcel = unpack(body)
            if parcel.generation == self.generation:
                member = self.members[connection.introduction or ""]
                self._on_replies(member, parcel)
            return
        topic, said = unpack_words(body)
        self._topics[topic](connection, **said)

    def _on_replies(self, member: Member, parcel: Parcel) -> None:
        channel = member.channel
        channel.acknowledge(parcel.acknowledged)
        settled = channel.settle(parcel.first, parcel.items)
        if self._holds_output:
            self._held += [Held(parcel.epoch, channel, *one) for one in settled]
        else:
            for _, ref, reply in settled:
                ref.reply = reply
        if self._rollback is not None and self._rollback.note_replied(member.name, channel.replied):
            self._end_rollback()
        if self._quiescing is not None:
            self._look_whether_quiet()
        elif channel.gathered and self._is_sending(member):
            self._send_gathered(member)

    # members

    def create(self, name: str, code: bytes, arguments: bytes) -> Member:
        """Have an actor on a host; returns before it answers."""
        with self.station.lock:
            member = self.members[name] = Member(name, code, arguments, self.begun)
            self._orphans.append(member)
            self._give_hosts()
            for spare in self.spares:
                self._prepare(spare, code)
        return member

    def _on_here(self, connection: Connection, *, address: str, pid: int) -> None:
        spare = Spare(connection, address, pid)
        self.spares.append(spare)
        self._give_hosts()
        if spare in self.spares:
            for code in dict.fromkeys(member.code for member in self.members.values()):
                self._prepare(spare, code)

    def _prepare(self, spare: Spare, code: bytes) -> None:
        """Have a spare load a class before it is needed."""
        spare.connection.send(Kind.WORDS, pack_words("prepare", code=code))

    def _give_hosts(self) -> None:
        while self._orphans and self.spares:
            member = self._orphans.popleft()
            member.host = self.spares.popleft()
            member.host.connection.introduction = member.name
            self._tell(member, "take", name=member.name, code=member.code, arguments=member.arguments,
                       **self._present(member))  # fmt: skip
            for other in self.members.values():
                if other is not member and other.host is not None:
                    self._tell(other, "places", places=self._places())

    def _present(self, member: Member) -> dict[str, Any]:
        """What an actor must know to be as all others are: places, generation, and where it begins."""
        checkpoint = self.completed if self.completed > member.created_in else None
        return {
            "places": self._places(), "generation": self.generation, "epoch": self.begun, "checkpoint": checkpoint,
        }  # fmt: skip

    def _places(self) -> dict[str, str]:
        return {member.name: member.host.address for member in self.members.values() if member.host is not None}

    def _tell(self, member: Member, topic: str, **said: Any) -> None:
        assert member.host is not None, "only who has a host can be told"
        member.host.connection.send(Kind.WORDS, pack_words(topic, **said))

    # checkpoints

    def _plan_checkpoint(self) -> None:
        self.station.loop.later(self._interval_s, self._on_interval)

    def _on_interval(self) -> None:
        self._plan_checkpoint()
        self._begin_checkpoint()

    def _begin_checkpoint(self) -> None:
        """Take a checkpoint, unless one is under way or not all actors are there; in a replay too."""
        is_ready = self.members and not self.lost and all(self._is_up(member) for member in self.members.values())
        if self._attempt is not None or self._quiescing is not None or not is_ready:
            return
        if has_cycle(self.edges):
            self._quiescing = Quiescing()
            self._look_whether_quiet()
            self.station.loop.later(QUIESCE_S, partial(self._give_up_quiescing, self._quiescing))
        else:
            self._send_all_gathered()
            self._send_barriers(self.edges)

    def _send_barriers(self, edges: set[tuple[str, str]]) -> None:
        """What was sent is before the checkpoint, and what has gathered is after it."""
        members = list(self.members.values())
        self.begun += 1
        self._attempt = Attempt(self.begun, members)
        late = f"checkpoint {self.begun} took longer than {ATTEMPT_S:g} s"
        self.station.loop.later(ATTEMPT_S, partial(self._give_up, self._attempt, late))
        for member in members:
            self._tell(member, "barrier", generation=self.generation, checkpoint=self.begun, completed=self.completed,
                       inputs=sorted(inputs_of(member.name, edges)))  # fmt: skip

    def _on_edge(self, connection: Connection, *, generation: int, callee: str) -> None:
        edge = (connection.introduction or "", callee)
        if generation == self.generation and edge not in self.edges:
            self.edges.add(edge)
            self._attempt = None

    def _give_up(self, attempt: Attempt, why: str) -> None:
        if self._attempt is attempt:
            self._attempt = None
            self.given_up.append(why)
            log.warning("%s", why)

    def _on_saved(self, connection: Connection, *, generation: int, checkpoint: int, size: int, failure: str) -> None:
        if not failure:
            self.snapshots += 1
            self.snapshot_bytes += size
        attempt = self._attempt
        if attempt is None or generation != self.generation or checkpoint != attempt.number:
            return
        name = connection.introduction or ""
        if failure:
            self._give_up(attempt, f"checkpoint {checkpoint} lacks the snapshot of {name}: {failure}")
            return
        attempt.missing.discard(name)
        if not attempt.missing:
            self._complete(attempt)

    def _complete(self, attempt: Attempt) -> None:
        self._attempt = None
        self.completed = attempt.number
        self.checkpoints.append(1e3 * (time.monotonic() - attempt.began))
        for name, position in attempt.positions.items():
            member = self.members[name]
            member.position = position
            member.channel.truncate(position)
        if self._held:
            for held in self._held:
                if held.epoch < attempt.number:
                    held.ref.reply = held.reply
            self._held = [held for held in self._held if held.epoch >= attempt.number]

    # quiescing

    def _look_whether_quiet(self) -> None:
        """Once all that was sent is answered, ask the actors whether they still call one another."""
        quiescing = self._quiescing
        assert quiescing is not None, "the source is not quiet"
        if quiescing.number == 0 and all(self._is_answered(member.channel) for member in self.members.values()):
            self._probe(quiescing)

    def _is_answered(self, channel: Channel) -> bool:
        return channel.replied == channel.next_number - len(channel.gathered)

    def _probe(self, quiescing: Quiescing) -> None:
        if self._quiescing is quiescing:
            quiescing.number += 1
            quiescing.counts = {}
            for member in self.members.values():
                self._tell(member, "probe", generation=self.generation, number=quiescing.number)

    def _on_counts(self, connection: Connection, *, generation: int, number: int, sent: int, executed: int) -> None:
        quiescing = self._quiescing
        if quiescing is None or generation != self.generation or number != quiescing.number:
            return
        quiescing.counts[connection.introduction or ""] = sent, executed
        if len(quiescing.counts) < len(self.members):
            return
        all_sent, all_executed = (sum(counts) for counts in zip(*quiescing.counts.values(), strict=True))
        if all_sent == all_executed == quiescing.before:
            self._quiescing = None
            self._send_barriers(set())
            self._send_all_gathered()
        else:
            quiescing.before = all_sent if all_sent == all_executed else None
            again = partial(self._probe, quiescing)
            if quiescing.before is None:
                self.station.loop.later(PROBE_S, again)
            else:
                again()

    def _give_up_quiescing(self, quiescing: Quiescing) -> None:
        if self._quiescing is quiescing:
            self._quiescing = None
            self._send_all_gathered()

    def _send_all_gathered(self) -> None:
        for member in self.members.values():
            if self._is_sending(member):
                self._send_gathered(member)

    # rollbacks

    def _on_lost(self, connection: Connection, _: str) -> None:
        if self.station.closed:
            return
        self.spares = deque(spare for spare in self.spares if spare.connection is not connection)
        for member in self.members.values():
            if member.host is not None and member.host.connection is connection:
                member.host = None
                self._orphans.append(member)
                self._roll_back(member)
        if self._orphans:
            self._start_another()
        else:
            self.station.loop.later(NEW_SPARE_S, self._replace_spare)

    def _replace_spare(self) -> None:
        """Have as many processes as before, once that disturbs nobody."""
        if self._rollback is None:
            self._start_another()
        else:
            self.station.loop.later(NEW_SPARE_S, self._replace_spare)

    def _start_another(self) -> None:
        self._starter.submit(self._start_host).add_done_callback(tell_failure)

    def _roll_back(self, dead: Member) -> None:
        """Have everybody be as at the last complete checkpoint."""
        former = self._rollback
        self.generation += 1
        self._attempt = self._quiescing = None
        self.edges.clear()  # connections between actors end, and are reported again
        for held in self._held:
            held.channel.reopen(held.number, held.ref)
        self._held = []
        members = self.members.values()
        goals = {member.name: member.channel.next_number for member in members}
        if former is None:
            self._rollback = Rollback([dead.name], goals)
        else:
            self._rollback = former.joined_by(dead.name, goals)
        for member in members:
            if member.host is not None:
                self._tell(member, "rollback", **self._present(member))
        self._give_hosts()

    def _on_restored(self, connection: Connection, *, generation: int, restore_ms: float, failure: str) -> None:
        assert restore_ms >= 0.0
        member = self.members[connection.introduction or ""]
        if member.failure is None:
            member.failure = failure
        elif failure and not self.lost:
            why = failure.strip().splitlines()[-1]
            self.lost = f"{member.name} could not go back to the last complete checkpoint: {why}\n{failure}"
        member.restored_in = generation
        rollback = self._rollback
        if generation == self.generation and rollback is not None and member.name in rollback.missing:
            if rollback.note_restored(member.name):
                self._send_again(rollback)
        elif self._is_sending(member):
            self._send_gathered(member)

    def _send_again(self, rollback: Rollback) -> None:
        """Everybody is back: send what no checkpoint covers."""
        for member in self.members.values():
            rollback.replayed += member.channel.rewind(member.position)
        self._send_all_gathered()
        if rollback.is_over({member.name: member.channel.replied for member in self.members.values()}):
            self._end_rollback()

    def _end_rollback(self) -> None:
        assert self._rollback is not None, "none is under way"
        self._rollback.end()
        self.rollbacks.append(self._rollback)
        self._rollback = None

    def close(self) -> None:
        """Let go of all hosts, which then end."""
        with suppress(OSError):
            self.station.close()
        self._starter.shutdown(cancel_futures=True)  # it would start a Ray of its own after this one
