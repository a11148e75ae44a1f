"""Effects: orders, in the imperative. The only way out of a peer or a coordinator; the shell carries them out."""

from typing import Any, NamedTuple

from lineage_stash.core.batch import Range
from lineage_stash.core.channel import Message
from lineage_stash.core.checkpoint import Checkpoint
from lineage_stash.core.events import GatherAnswered
from lineage_stash.core.gate import Output
from lineage_stash.core.history import Decision
from lineage_stash.core.ids import CallId, Incarnation, Index, NodeId, PeerId, Round

# To the user's program.


class RunMain(NamedTuple):
    """Run a driver's program."""


class RunCall(NamedTuple):
    """Run one call."""

    call: CallId
    payload: bytes


class Resume(NamedTuple):
    """Let the program go on with this answer."""

    answer: Any


class TakeReading(NamedTuple):
    """Ask the outside world on the program's behalf."""

    kind: str


class RestoreState(NamedTuple):
    """Put the program into the state of a checkpoint, before it runs anything."""

    state: bytes


class CaptureState(NamedTuple):
    """Copy the program's state, between two calls."""


class OfferTask(NamedTuple):
    """Find a runner for a task; its arguments are here."""

    task: int


class FinishReplay(NamedTuple):
    """Let it be known that the past is caught up with: new calls run from here on."""

    replayed: int


# To others.


class SendMessage(NamedTuple):
    """Send to a peer."""

    message: Message


class ReleaseOutput(NamedTuple):
    """Hand an output to its sink, keyed by (peer, number)."""

    output: Output


class AppendToStore(NamedTuple):
    """Make ranges durable, and ask how far the logs of `watch` are."""

    ranges: tuple[Range, ...]
    watch: tuple[PeerId, ...]


class StoreCheckpoint(NamedTuple):
    """Make a checkpoint durable and visible."""

    checkpoint: Checkpoint


class TruncateStore(NamedTuple):
    """Delete the own log below a durable checkpoint."""

    below: Index


class FindRecord(NamedTuple):
    """Look whether `peer` has retired, and if so load its record."""

    peer: PeerId


class FetchDecisions(NamedTuple):
    """Look up what was decided after `round`."""

    round: Round


class ReportSuspicion(NamedTuple):
    """Tell the coordinator that an incarnation is gone."""

    peer: PeerId
    incarnation: Incarnation


class SendAnswer(NamedTuple):
    """Answer a coordinator."""

    coordinator: str
    answer: GatherAnswered


class SendDecision(NamedTuple):
    """Tell a coordinator that its round is decided already."""

    coordinator: str
    decision: Decision


class Retire(NamedTuple):
    """Leave: nobody needs this peer any more."""


class Stop(NamedTuple):
    """End this incarnation: another one has taken over, or it must not go on."""

    reason: str


class ReportFault(NamedTuple):
    """Tell people, loudly: what happened, and what it means."""

    kind: str
    text: str


# From a coordinator.


class OpenRound(NamedTuple):
    """Note in the registry who is taken for dead in this round, then read who is there.

    In this order: whoever registers later finds the note, and whoever registered earlier is found.
    """

    attempt: int
    round: Round
    dead: tuple[tuple[PeerId, Incarnation], ...]


class AskGather(NamedTuple):
    """Ask one peer for its promise and its stash."""

    peer: PeerId
    incarnation: Incarnation
    round: Round
    dead: tuple[tuple[PeerId, Incarnation], ...]


class FenceStore(NamedTuple):
    """Have a majority of replicas refuse the dead, and read what they hold of them from `lowers` on."""

    attempt: int
    dead: tuple[tuple[PeerId, Incarnation], ...]
    lowers: tuple[tuple[PeerId, Index], ...]


class StoreSettlement(NamedTuple):
    """Make the cut durable at a majority."""

    attempt: int
    ranges: tuple[Range, ...]


class Publish(NamedTuple):
    """Put the decision into its slot unless another one is there."""

    decision: Decision


class Announce(NamedTuple):
    """Tell a peer what was decided."""

    peer: PeerId
    incarnation: Incarnation
    decision: Decision


class StartIncarnation(NamedTuple):
    """Start a process for a new life of a peer."""

    peer: PeerId
    incarnation: Incarnation
    lower: Index
    node: NodeId


ProgramEffect = RunMain | RunCall | Resume | RestoreState | CaptureState | OfferTask | FinishReplay
PeerEffect = (
    ProgramEffect | TakeReading | SendMessage | ReleaseOutput | AppendToStore | StoreCheckpoint | TruncateStore
    | FindRecord | FetchDecisions | ReportSuspicion | SendAnswer | SendDecision | Retire | Stop | ReportFault
)  # fmt: skip
CoordinatorEffect = (
    OpenRound | AskGather | FenceStore | StoreSettlement | Publish | Announce | StartIncarnation | FetchDecisions
    | ReportFault
)  # fmt: skip
Effect = PeerEffect | CoordinatorEffect
