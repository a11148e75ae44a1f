"""Events: facts, in the past tense. The only way into a peer or a coordinator.

Events from the user's program come from whatever executes it and are answered by a `Resume` effect, at once or later.
"""

from typing import NamedTuple

from lineage_stash.core.batch import Range
from lineage_stash.core.channel import Message
from lineage_stash.core.checkpoint import Checkpoint
from lineage_stash.core.frontier import Positions
from lineage_stash.core.history import Decision
from lineage_stash.core.ids import Incarnation, Index, Member, PeerId, Ref, Round
from lineage_stash.core.lineage import Holdings

# From the user's program.


class MainStarted(NamedTuple):
    """A driver's program begins."""


Passed = Ref | bytes
"""A ref that is passed on, or its value where that is known."""


class CallSubmitted(NamedTuple):
    """The program calls `callee`; answered by its `Ref`. The reply is dropped on arrival unless it is wanted.

    The payload has the refs of `passed` in it. The call is not sent before the first `awaited` of them have a value.
    """

    callee: PeerId
    payload: bytes
    wanted: bool = True
    passed: tuple[Passed, ...] = ()
    awaited: int = 0


class TaskSubmitted(NamedTuple):
    """The program has a task for whichever runner is free; answered by its `Ref`."""

    payload: bytes
    wanted: bool = True
    passed: tuple[Passed, ...] = ()
    awaited: int = 0


class TaskAssigned(NamedTuple):
    """A runner has been found for a task that was offered."""

    task: int
    runner: PeerId


class GetStarted(NamedTuple):
    """The program waits for all of `refs` and drops them; answered by a tuple of values."""

    refs: tuple[Ref, ...]


class WaitStarted(NamedTuple):
    """The program waits for `at_least` so many of `refs`; answered by the positions that are ready."""

    refs: tuple[Ref, ...]
    at_least: int


class RunnerDropped(NamedTuple):
    """There will be no further task for this runner: nobody calls it any more, and it may be forgotten once it left."""

    runner: PeerId


class ValuePut(NamedTuple):
    """The program puts a value aside that has refs in it; answered by its `Ref`."""

    value: bytes
    passed: tuple[Passed, ...]


class CommitStarted(NamedTuple):
    """The program waits until all that it depends on is committed; answered by None."""


class NextStarted(NamedTuple):
    """The program waits for an item of the stream of a call; answered by its `Ref`, or None if there is no such."""

    ref: Ref
    position: int


class WaitTimedOut(NamedTuple):
    """Time is up for the wait that is under way."""


class ReadStarted(NamedTuple):
    """The program asks the outside world; answered by what it said, now or in the first run."""

    kind: str


class ReadingTaken(NamedTuple):
    """What the outside world said."""

    value: bytes


class OutputEmitted(NamedTuple):
    """The program sends something out of the system."""

    value: bytes


class ItemYielded(NamedTuple):
    """The running call has an item for its caller, before it is finished."""

    value: bytes
    passed: tuple[Passed, ...] = ()


class CallFinished(NamedTuple):
    """The running call has returned or raised; `reply` says which."""

    reply: bytes
    passed: tuple[Passed, ...] = ()


class StateCaptured(NamedTuple):
    """The program's state between two calls, as asked for."""

    state: bytes


class CaptureFailed(NamedTuple):
    """The program's state cannot be copied."""


class RefsDropped(NamedTuple):
    """The program has let go of refs: of some with all that is in their values, of others it has looked into them."""

    refs: tuple[Ref, ...]
    opened: tuple[Ref, ...] = ()


class KillAsked(NamedTuple):
    """Somebody wants this peer gone for good: it finishes no call any more, and callers get its last words.

    What its log has from `abandons_from` on is not even replayed: the process would die of it again, or do otherwise.
    """

    last_words: bytes
    abandons_from: Index | None = None


class RetireAsked(NamedTuple):
    """A driver's program has ended, or an actor is no longer wanted."""

    abandons_tasks: bool = False
    """Whether tasks that have no runner yet are not wanted any more either: a driver's end with it, as in Ray."""


# From the network and the store.


class MessageArrived(NamedTuple):
    """A peer said something."""

    message: Message


class Appended(NamedTuple):
    """A flush was answered by a quorum of replicas, each saying what it holds of the logs written and watched."""

    holdings: tuple[Holdings, ...]
    quorum: int


class CheckpointStored(NamedTuple):
    """A checkpoint is durable and visible."""

    upper: Index


class StoreRefused(NamedTuple):
    """The store has fenced this incarnation."""


class OutputAccepted(NamedTuple):
    """The sink has an output."""

    number: int


class Departed(NamedTuple):
    """A peer has retired: it will not speak again."""

    peer: PeerId


class RecordLoaded(NamedTuple):
    """The final checkpoint of a peer that retired."""

    record: Checkpoint


class FlushDue(NamedTuple):
    """What was appended has waited for company long enough."""


class CommitWanted(NamedTuple):
    """Somebody waits until all that this peer depends on is committed."""


class Lingered(NamedTuple):
    """The running call takes its time: what was gathered meanwhile should leave."""


class Ticked(NamedTuple):
    """Some time has passed."""


# Rounds.


class GatherAsked(NamedTuple):
    """A coordinator asks for a promise and for the stash."""

    round: Round
    dead: tuple[tuple[PeerId, Incarnation], ...]
    coordinator: str


class Decided(NamedTuple):
    """A round is settled."""

    decision: Decision


class GatherAnswered(NamedTuple):
    """A peer has promised to ignore the dead and handed over its stash."""

    peer: PeerId
    incarnation: Incarnation
    round: Round
    dead: tuple[tuple[PeerId, Incarnation], ...]
    ignored: tuple[tuple[PeerId, Incarnation], ...]
    ranges: tuple[Range, ...]
    needs: Positions
    committed: Positions


class Suspected(NamedTuple):
    """Somebody noticed that an incarnation is gone."""

    peer: PeerId
    incarnation: Incarnation


class PeersSeen(NamedTuple):
    """These peers have a connection that works: they may be busy, but they are there."""

    peers: frozenset[PeerId]


class CoordinatorStarted(NamedTuple):
    """A coordinator begins; it knows nothing yet of who is alive."""


class MembersRead(NamedTuple):
    """The round is noted as open; this is who is registered and has not retired."""

    attempt: int
    members: tuple[Member, ...]


class StoreFenced(NamedTuple):
    """A majority of replicas refuses the dead from now on; this is what each of them held at that moment."""

    attempt: int
    ranges: tuple[Range, ...]
    bases: Positions


class SettlementStored(NamedTuple):
    """The cut is durable at a majority."""

    attempt: int


class Published(NamedTuple):
    """The decision that stands for a round: this coordinator's own, or another's that came first."""

    decision: Decision
