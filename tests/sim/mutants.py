# ruff: noqa: ARG001
"""Mutants: for every rule of the protocol, a few lines that break it, and the invariant that must say so.

Each mutant replaces one production function by a version that forgets its rule. A crash of the code does not count as
being caught, and neither does another invariant than the ones named.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from lineage_stash.core import batch, durability, events
from lineage_stash.core.channel import Channel
from lineage_stash.core.checkpoint import Checkpoint
from lineage_stash.core.counterpart import Counterpart
from lineage_stash.core.durability import Durability
from lineage_stash.core.effects import Resume
from lineage_stash.core.entry import Ran
from lineage_stash.core.gate import Gate, Output
from lineage_stash.core.ids import Incarnation, NodeId
from lineage_stash.core.inbox import Inbox
from lineage_stash.core.lineage import Lineage
from lineage_stash.core.outbox import Outbox
from lineage_stash.core.parcels import IncomingParcels, OutgoingParcels
from lineage_stash.core.peer import Peer
from lineage_stash.core.program import MASK, Program
from lineage_stash.core.promises import Promises
from lineage_stash.core.recovery import Coordinator
from lineage_stash.core.stash import Stash
from lineage_stash.core.values import Values
from lineage_stash.store import replica as replicas
from lineage_stash.store.contract import Inventory
from lineage_stash.store.quorum import Quorum
from lineage_stash.store.replica import NO_EPOCH, Log, Replica
from lineage_stash.store.succession import Phase, Succession
from lineage_stash.testing.schedule import Schedule
from lineage_stash.testing.world import World


class Mutant(NamedTuple):
    """One rule forgotten."""

    name: str
    invariants: tuple[str, ...]
    where: Any
    attribute: str
    replacement: Callable[..., Any]
    worlds: Callable[[Schedule], bool]
    first_seed: int


MUTANTS: list[Mutant] = []


def mutant(name: str, invariants: str | tuple[str, ...], where: Any, attribute: str,
           worlds: Callable[[Schedule], bool] = lambda _: True, first_seed: int = 0) -> Callable[..., Any]:  # fmt: skip
    """Register a mutant.

    `worlds` says which schedules can show it at all, and `first_seed` where to begin with one that is rarely caught, so
    that no time goes to the others; the figures from seed 0 on are in docs/verification.md.
    """

    def register(replacement: Callable[..., Any]) -> Callable[..., Any]:
        expected = (invariants,) if isinstance(invariants, str) else invariants
        original = where.__dict__[attribute] if isinstance(where, type) else getattr(where, attribute)
        wrapped = property(lambda self: replacement(original.fget, self)) if isinstance(original, property) else (
            lambda *arguments, **named: replacement(original, *arguments, **named))  # fmt: skip
        MUTANTS.append(Mutant(name, expected, where, attribute, wrapped, worlds, first_seed))  # type: ignore[arg-type]
        return replacement

    return register


@contextmanager
def applied(chosen: Mutant) -> Iterator[None]:
    """Production code with one rule forgotten."""
    original = chosen.where.__dict__[chosen.attribute] if isinstance(chosen.where, type) else getattr(
        chosen.where, chosen.attribute)  # fmt: skip
    setattr(chosen.where, chosen.attribute, chosen.replacement)
    try:
        yield
    finally:
        setattr(chosen.where, chosen.attribute, original)


def bounded(schedule: Schedule) -> bool:
    return schedule.max_failures is not None


def with_checkpoints(schedule: Schedule) -> bool:
    return schedule.checkpoint_every is not None


def replicated(schedule: Schedule) -> bool:
    return schedule.replicas == 3


def faulty(schedule: Schedule) -> bool:
    return bool(schedule.faults)


def keeping(schedule: Schedule) -> bool:
    """Whether results are kept from one call for another, with a checkpoint between them if there is time for it."""
    plans = str([driver.plan for driver in schedule.drivers])
    return schedule.checkpoint_every == 2 and faulty(schedule) and "'keep'" in plans and "'collect'" in plans


def committing(schedule: Schedule) -> bool:
    """Whether programs wait for commits."""
    return "'effect'" in repr([driver.plan for driver in schedule.drivers])


def in_chunks(schedule: Schedule) -> bool:
    return schedule.chunked and with_checkpoints(schedule)


def changing(schedule: Schedule) -> bool:
    return bool(schedule.losses or schedule.moves)


def contested(schedule: Schedule) -> bool:
    return changing(schedule) and any("second" in fault.kind or "asleep" in fault.kind for fault in schedule.faults)


# 1 no orphans


@mutant("forward nothing", "1 no orphans", Lineage, "batch_for")
def _(original: Any, self: Lineage, channel: Channel, receiver: Any, enough: Any) -> Any:
    return original(self, channel, receiver, enough)._replace(ranges=(), needs=())


@mutant("forget a reply's lineage", "1 no orphans", Peer, "_send")
def _(original: Any, self: Peer, other: Counterpart) -> None:
    if not other.outbox.calls.has_unsent:
        other.channel.version = self.lineage.version
    original(self, other)


@mutant("forward before merge", "1 no orphans", Lineage, "batch_for")
def _(original: Any, self: Lineage, channel: Channel, receiver: Any, enough: Any) -> Any:
    own = {p: u for p, u in self.needs.items() if p == self.me}
    needs, self.needs = self.needs, own
    forwarded, self.needs = original(self, channel, receiver, enough), needs
    return forwarded


@mutant(
    "go on without the silent", ("1 no orphans", "6 max_failures"), Coordinator, "_on_ticked", faulty, first_seed=340
)
def _(original: Any, self: Coordinator, event: Any) -> None:
    self.members = {p: m for p, m in self.members.items() if p not in self._silent()}
    self._proceed_if_all_answered()


@mutant("join without looking for an open round", "1 no orphans", Promises, "ignore", faulty)
def _(original: Any, self: Promises, dead: Any) -> None:
    if self.lineage.committed or self.lineage.needs:
        original(self, dead)


@mutant(
    "listen to the dead after promising not to",
    ("1 no orphans", "13 zombies"),
    Promises,
    "refuses",
    faulty,
    first_seed=640,
)
def _(original: Any, self: Promises, sender: Any, incarnation: Any) -> bool:
    return False


# 2 merge before execute


@mutant("execute before merge", "2 merge before execute", Peer, "_deliver")
def _(original: Any, self: Peer, other: Counterpart, message: Any) -> None:
    original(self, other, message._replace(batch=batch.EMPTY))
    self.program.run_next()
    original(self, other, message._replace(calls=(), replies=()))


# 3 replay equality, 5 nondeterminism, 10 replay first


@mutant("replay in arrival order", "3 replay equality", Program, "_next_scripted", faulty)
def _(original: Any, self: Program) -> Any:
    other = self._next_arrived()
    if other is not None:
        digest = (self.digest * 31 + other.inbox.queue_digests[0]) & MASK
        self.script[0] = Ran(other.peer, other.inbox.started, None, digest, ())
    return other


@mutant("read the world again in replay", ("3 replay equality", "5 nondeterminism"), Program, "read", faulty)
def _(original: Any, self: Program, kind: str) -> None:
    if self.script:
        self.script[0] = self.script[0]._replace(value=bytes((len(self.script),)))
    original(self, kind)


@mutant("take the replay's word", "5 nondeterminism", Program, "_run", lambda schedule: schedule.strays)
def _(original: Any, self: Program, other: Counterpart) -> None:
    if self.script:
        digest = (self.digest * 31 + other.inbox.queue_digests[0]) & MASK
        self.script[0] = self.script[0]._replace(digest=digest)
    original(self, other)


@mutant("run new calls before the replay's end", "10 replay first", Program, "_run", faulty)
def _(original: Any, self: Program, other: Counterpart) -> None:
    script, self.script = self.script, deque() if len(self.script) > 1 else self.script
    original(self, other)
    self.script = script


# 4 exactly once


@mutant("drop only what has finished", ("4 exactly once", "3 replay equality"), Inbox, "accept", faulty, first_seed=730)
def _(original: Any, self: Inbox, first: Any, calls: Any) -> Any:
    if first < self.received and self.replies.upper < self.received:
        first = self.received
    return original(self, first, calls)


@mutant("leave at once", "4 exactly once", Durability, "may_leave")
def _(original: Any, self: Durability) -> bool:
    return self.retiring


@mutant("forget unaccepted outputs", "4 exactly once", Gate, "accept", with_checkpoints, first_seed=1240)
def _(original: Any, self: Gate, number: int) -> None:
    self.unaccepted.clear()


# 6 max_failures, 8 forwarded enough


@mutant("settle without the survivors' stashes", ("6 max_failures", "1 no orphans", "8 truncated is committed"),
        Promises, "answer", faulty)  # fmt: skip
def _(original: Any, self: Promises, event: Any) -> None:
    ranges, self.lineage.all_ranges = self.lineage.all_ranges, lambda: ()  # type: ignore[method-assign]
    original(self, event)
    self.lineage.all_ranges = ranges  # type: ignore[method-assign]


@mutant("count processes instead of nodes", "8 forwarded enough", Lineage, "well_held", bounded)
def _(original: Any, self: Lineage, holders: Any, writers: Any, node: Any, most: int) -> Any:
    distinct = [(NodeId(f"p{number}"), held) for number, (_, held) in enumerate(holders)]
    return original(self, distinct, {p: NodeId(f"w{p}") for p in writers}, NodeId(f"w{self.me}"), most)


@mutant("stop one holder early", "8 forwarded enough", Lineage, "well_held", bounded)
def _(original: Any, self: Lineage, holders: Any, writers: Any, node: Any, most: int) -> Any:
    return original(self, holders, writers, node, most - 1)


@mutant("count the dead as holders", "8 forwarded enough", Promises, "ignores", bounded, first_seed=950)
def _(original: Any, self: Promises, other: Any) -> bool:
    return False


@mutant("acknowledge what did not travel", ("8 forwarded enough", "10 recovery ends"), Channel, "acknowledge", bounded)
def _(original: Any, self: Channel, acknowledged: int) -> None:
    original(self, self.next_number)


@mutant("keep the old node of a new incarnation", "8 forwarded enough", Counterpart, "renew", bounded)
def _(original: Any, self: Counterpart, incarnation: Any) -> None:
    member = self.member
    original(self, incarnation)
    self.member = member


@mutant("leave while others count on its copy", "8 forwarded enough", Durability, "may_leave", bounded)
def _(original: Any, self: Durability) -> bool:
    needs, self.lineage.needs = self.lineage.needs, {}
    leaves, self.lineage.needs = original(self), needs
    return bool(leaves)


# 7 never back


@mutant("forget what was committed when a round ends", "7 never back", Lineage, "settle", faulty)
def _(original: Any, self: Lineage, beginning: Any) -> bool:
    self.committed.clear()
    return bool(original(self, beginning))


@mutant("obey an old round", ("10 recovery ends", "7 never back", "1 no orphans"), Promises, "answer", faulty)
def _(original: Any, self: Promises, event: Any) -> None:
    self.ignore(tuple((p, Incarnation(max(i, self.lineage.history.incarnation(p)))) for p, i in event.dead))
    original(self, event)


# 8 truncated is committed


@mutant("commit on the word of one replica", "8 truncated is committed", Lineage, "note_durable", replicated)
def _(original: Any, self: Lineage, holdings: Any, quorum: int) -> None:
    original(self, holdings, 1)


@mutant("commit without the causes", "8 truncated is committed", Lineage, "snapshot")
def _(original: Any, self: Lineage) -> None:
    needs, self.needs = self.needs, {p: u for p, u in self.needs.items() if p == self.me}
    original(self)
    self.needs = needs


@mutant("truncate the store before the checkpoint is stored", "8 truncated is committed", Gate, "release",
        with_checkpoints)  # fmt: skip
def _(original: Any, self: Gate, committed: Any) -> Any:
    released = original(self, committed)
    for item in released:
        if isinstance(item, Checkpoint) and item.upper:
            committed[item.peer] = max(committed.get(item.peer, 0), item.upper + 1)
    return released


@mutant(
    "believe an old incarnation's leftovers", ("8 truncated is committed", "3 replay equality"), Log, "learn", faulty
)
def _(original: Any, self: Log, segments: Any) -> None:
    self.segments = segments if len(segments) > len(self.segments) else self.segments


# 9 committed in the end, 18 store outage


@mutant("never ask whether others are committed", "9 committed in the end", Durability, "poll")
def _(original: Any, self: Durability) -> None:
    return None


@mutant("ask the store only once", "18 store outage", Quorum, "on_ticked", faulty)
def _(original: Any, self: Quorum) -> None:
    return None


# 10 recovery ends


@mutant("log the payloads of strangers by reference", "10 recovery ends", Counterpart, "greet", faulty)
def _(original: Any, self: Counterpart, member: Any) -> None:
    original(self, member._replace(replayable=True, begun=None))


@mutant(
    "count on a script that was resumed to have kept what it sent",
    ("3 replay equality", "8 truncated is committed", "14 crash in recovery"),
    Counterpart, "greet", lambda schedule: any(driver.resumable for driver in schedule.drivers),
)  # fmt: skip
def _(original: Any, self: Counterpart, member: Any) -> None:
    original(self, member)
    self.keeps_payloads = True


@mutant("leave no record", "10 recovery ends", Peer, "_on_record_loaded", faulty)
def _(original: Any, self: Peer, event: Any) -> None:
    return None


@mutant("leave results out of a checkpoint", "10 recovery ends", durability, "capture", keeping, first_seed=56390)
def _(original: Any, counterparts: Any) -> Any:
    calls_to, calls_from = original(counterparts)
    return tuple((p, calls._replace(results=())) for p, calls in calls_to), calls_from


# 11 one moment


@mutant("leave the outbox out of a checkpoint", "11 one moment", durability, "capture", with_checkpoints)
def _(original: Any, counterparts: Any) -> Any:
    calls_to, calls_from = original(counterparts)
    return tuple((p, calls._replace(payloads=())) for p, calls in calls_to), calls_from


@mutant("leave the reply cache out of a checkpoint", "11 one moment", durability, "capture", with_checkpoints)
def _(original: Any, counterparts: Any) -> Any:
    calls_to, calls_from = original(counterparts)
    return calls_to, tuple((p, calls._replace(replies=())) for p, calls in calls_from)


@mutant("number calls from another moment", "11 one moment", durability, "capture", with_checkpoints)
def _(original: Any, counterparts: Any) -> Any:
    calls_to, calls_from = original(counterparts)
    return tuple((p, calls._replace(next_seqno=calls.next_seqno + 1)) for p, calls in calls_to), calls_from


# 12 deleted too early


@mutant("cover calls when they have run", "12 deleted too early", Peer, "_on_finished")
def _(original: Any, self: Peer, event: Any) -> None:
    caller = self.program.current
    original(self, event)
    assert caller is not None
    caller.inbox.covered = caller.inbox.replies.upper


@mutant("release replies when they have come", "12 deleted too early", Outbox, "accept_replies")
def _(original: Any, self: Outbox, first: Any, replies: Any) -> None:
    original(self, first, replies)
    self.released = self.answered


@mutant("believe a restored checkpoint at once", "12 deleted too early", Durability, "store_again", with_checkpoints)
def _(original: Any, self: Durability, checkpoint: Checkpoint) -> None:
    for caller, calls in checkpoint.calls_from:
        self.counterparts[caller].inbox.covered = calls.finished


# 13 zombies


@mutant("read before fencing", ("13 zombies", "8 truncated is committed"), Replica, "_fence", faulty)
def _(original: Any, self: Replica, request: Any) -> Any:
    return original(self, request._replace(dead=()))


@mutant("settle before fencing", ("13 zombies", "8 truncated is committed"), Replica, "_append", faulty, first_seed=690)
def _(original: Any, self: Replica, request: Any) -> Any:
    fenced, self.fenced = self.fenced, {}
    held, self.fenced = original(self, request), fenced
    return held


@mutant("fence reads but not checkpoints", ("13 zombies", "11 one moment", "12 deleted too early"), Replica,
        "_put_checkpoint", with_checkpoints)  # fmt: skip
def _(original: Any, self: Replica, request: Any) -> Any:
    fenced, self.fenced = self.fenced, {}
    reply, self.fenced = original(self, request), fenced
    return reply


@mutant("go on after being replaced", "6 max_failures", Promises, "end_of_this_life", faulty, first_seed=250)
def _(original: Any, self: Promises, decision: Any) -> None:
    return None


# 14 crash in recovery


@mutant("publish before the cut is stored", ("14 crash in recovery", "8 truncated is committed"), Coordinator, "_store",
        faulty)  # fmt: skip
def _(original: Any, self: Coordinator, cut: Any, stretches: Any) -> None:
    original(self, cut, stretches)
    self._effects.pop()
    self._on_settlement_stored(events.SettlementStored(self.attempt))


# 15 bounded


@mutant("ignore the cap", "15 bounded", Program, "at_cap", lambda schedule: schedule.stash_cap_bytes < 1024)
def _(original: Any, self: Program) -> bool:
    return False


@mutant("charge nothing for what comes from others", "15 bounded", Stash, "merge")
def _(original: Any, self: Stash, *arguments: Any) -> None:
    charged = self.bytes
    original(self, *arguments)
    self.bytes = charged


# 16 zero waits


@mutant(
    "wait for the store before running", "16 zero waits", Program, "_next_arrived", lambda schedule: schedule.store_away
)
def _(original: Any, self: Program) -> Any:
    return None if self.lineage.needs else original(self)


# 17 gate


@mutant("release outputs at once", "17 gate", Gate, "hold")
def _(original: Any, self: Gate, item: Any, frontier: Any) -> None:
    original(self, item, {} if isinstance(item, Output) else frontier)


@mutant("publish an orphan checkpoint", ("17 gate", "8 truncated is committed"), Gate, "hold", with_checkpoints)
def _(original: Any, self: Gate, item: Any, frontier: Any) -> None:
    original(self, item, frontier if isinstance(item, Output) else {})


@mutant("go on before the commit", "17 gate", Program, "wait_for_commit", committing)
def _(original: Any, self: Program, event: Any) -> None:
    self.emit(Resume(None))


@mutant("commit only what is one's own", "17 gate", Program, "wait_for_commit", committing)
def _(original: Any, self: Program, event: Any) -> None:
    needs = self.lineage.needs
    self.lineage.needs = {peer: upper for peer, upper in needs.items() if peer == self.me}
    original(self, event)
    self.lineage.needs = needs


# 12 deleted too early: chunks


@mutant("take a checkpoint without its chunks", "12 deleted too early", replicas, "digests_in", in_chunks)
def _(original: Any, checkpoint: Checkpoint) -> Any:
    return ()


@mutant("drop chunks that the older checkpoint needs", "12 deleted too early", Replica, "_drop_chunks", in_chunks)
def _(original: Any, self: Replica, peer: Any) -> None:
    kept = self.checkpoints[peer]
    self.checkpoints[peer] = kept[-1:]
    original(self, peer)
    self.checkpoints[peer] = kept


# 19 epochs


@mutant("publish a set without copying to it", "19 epochs", Succession, "_copy_union", changing)
def _(original: Any, self: Succession) -> None:
    self._conclude()


@mutant("publish a set when one of it has all", "19 epochs", Succession, "_on_up_to_date", changing)
def _(original: Any, self: Succession, replica: Any) -> None:
    if self.phase is Phase.COPYING:
        self._conclude()


@mutant("copy what one of the sealed has", "19 epochs", Succession, "_unite", changing)
def _(original: Any, self: Succession) -> None:
    while len(self._listed) > 1:
        self._listed.popitem()
    original(self)


@mutant("list before sealing", "19 epochs", Succession, "_seal", changing)
def _(original: Any, self: Succession) -> None:
    listed, on_last_list = dict(self._listed), type(self)._on_last_list
    original(self)
    self._on_last_list = lambda of, items: on_last_list(self, of, listed.get(of, items))  # type: ignore[method-assign]


@mutant("seal without refusing", "19 epochs", Replica, "_seal", changing)
def _(original: Any, self: Replica, request: Any) -> Inventory:
    return Inventory(self.epoch, (), False)


@mutant("seal fewer than a majority", "19 epochs", Succession, "_on_last_list", changing)
def _(original: Any, self: Succession, replica: Any, items: Any) -> None:
    if self.phase is Phase.SEALING:
        self._listed[replica] = items
        self._copy_union()


@mutant("copy no fences", "19 epochs", Succession, "_unite", changing)
def _(original: Any, self: Succession) -> None:
    original(self)
    self._union = {peer: item._replace(fenced=Incarnation(0)) for peer, item in self._union.items()}


@mutant("copy no checkpoints", "19 epochs", Succession, "_unite", changing)
def _(original: Any, self: Succession) -> None:
    original(self)
    self._union = {peer: item._replace(checkpoints=()) for peer, item in self._union.items()}


@mutant("serve an epoch that is over", "19 epochs", Replica, "_serves", changing)
def _(original: Any, self: Replica, epoch: Any, request: Any) -> bool:
    return bool(original(self, epoch, request)) or NO_EPOCH < epoch <= self.epoch


@mutant("count answers of two sets together", "8 truncated is committed", Quorum, "on_set", changing, first_seed=15950)
def _(original: Any, self: Quorum, replica_set: Any) -> None:
    before = [dict(pending.answers) for pending in self._pending.values()]
    original(self, replica_set)
    for pending, answers in zip(self._pending.values(), before, strict=True):
        pending.answers.update(answers)


@mutant("publish two sets for one epoch", ("19 epochs", "8 truncated is committed"), World, "publish_set", contested,
        first_seed=4900)  # fmt: skip
def _(original: Any, self: World, successor: Any) -> Any:
    if len(self.sets) == successor.epoch and self.sets[-1] != successor:
        del self.sets[-1]
    return original(self, successor)


# refs, parcels and tasks


def with_refs(schedule: Schedule) -> bool:
    """Whether the programs of a world pass refs on and have tasks run."""
    plans = repr([driver.plan for driver in schedule.drivers])
    return any(f"'{step}'" in plans for step in ("pass", "task", "put", "relay", "stream", "return"))


def with_values_that_have_refs(schedule: Schedule) -> bool:
    """Whether values are forwarded that have refs in them."""
    plans = repr([driver.plan for driver in schedule.drivers])
    return "'relay'" in plans or "'put'" in plans


GETS_LOST = ("10 recovery ends", "9 committed in the end", "4 exactly once")


@mutant("do not log which runner got a task", ("3 replay equality", "4 exactly once", *GETS_LOST), Program, "assign",
        with_refs)  # fmt: skip
def _(original: Any, self: Program, event: Any) -> None:
    if event.task in self.values.waiting and not self.script:
        self.values.place(event.task, event.runner)


@mutant("do not send parcels again on a new channel", GETS_LOST, OutgoingParcels, "resend_all", with_refs)
def _(original: Any, self: OutgoingParcels) -> None:
    return None


@mutant("do not log what a visitor gave", ("3 replay equality", *GETS_LOST), Program, "record_parcels", with_refs)
def _(original: Any, self: Program, giver: Any, parcels: Any) -> None:
    return None


@mutant("cover parcels as soon as they come", GETS_LOST, Peer, "_receive_parcels", with_refs)
def _(original: Any, self: Peer, giver: Counterpart, parcels: Any) -> None:
    original(self, giver, parcels)
    giver.incoming.covered = giver.incoming.frontier


@mutant("forget who waits for a ref that was dropped", GETS_LOST, Values, "drop", with_refs)
def _(original: Any, self: Values, ref: Any, opened: bool = False) -> None:
    self.targets.pop(ref, None)
    original(self, ref, opened)


@mutant("number the refs of a forwarded value anew in a replay", ("3 replay equality", *GETS_LOST), Values, "reserve",
        with_values_that_have_refs, first_seed=8800)  # fmt: skip
def _(original: Any, self: Values, receiver: Any, number: int, first: int, count: int) -> None:
    return None


@mutant("take a parcel twice", ("3 replay equality", "7 never back", *GETS_LOST), IncomingParcels, "drop", with_refs)
def _(original: Any, self: IncomingParcels, number: int) -> Any:
    self.early.pop(number, None)
    if number < self.frontier:
        self.frontier = number
    return original(self, number)


def with_retiring_runners(schedule: Schedule) -> bool:
    """Whether runners are asked to retire that may be replaying by then."""
    return schedule.retires and bool(schedule.faults) and "'task'" in repr([driver.plan for driver in schedule.drivers])


@mutant("end the call that runs when retirement is asked for", ("5 nondeterminism", "3 replay equality", *GETS_LOST),
        Program, "end_main", with_retiring_runners, first_seed=5700)  # fmt: skip
def _(original: Any, self: Program) -> None:
    self.busy = False
