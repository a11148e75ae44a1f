"""The coordinator: one round for all peers that are down now: gather, settle, publish, start.

Rules:
- One round for all. Another death while a round is open joins it, and everybody is asked again.
- Whoever does not answer in time joins the dead, but whoever is seen to be there has more time, because it may be busy;
  so does whoever a live peer already ignores, and whoever turns out to
  depend on what is lost.
- Fence before reading: a majority of replicas refuses the dead from the moment it says what it holds of them.
- The cut is durable at a majority before it is published. Publishing is one put-if-absent into the slot of this round.
  If another coordinator's decision is there, that one stands, and this round starts over on top of it.
- A coordinator holds nothing that matters: another one may start at any time, and two may run.
- What was handed over is a fact and stays one: evidence is kept while the round is open, whoever dies meanwhile.
- A peer that only its user starts again is settled like any other, and then it is *away*: nobody is started for it, and
  nobody waits for it, until it registers for the life that was decided.
"""

from collections.abc import Callable
from enum import Enum, auto

from lineage_stash.core import events
from lineage_stash.core.batch import Range
from lineage_stash.core.effects import (
    Announce,
    AskGather,
    Effect,
    FenceStore,
    FetchDecisions,
    OpenRound,
    Publish,
    ReportFault,
    StartIncarnation,
    StoreSettlement,
)  # fmt: skip
from lineage_stash.core.frontier import START, Frontier, join
from lineage_stash.core.history import Beginning, Decision, History
from lineage_stash.core.ids import Incarnation, Member, PeerId, Round
from lineage_stash.core.policy import Policy
from lineage_stash.core.settle import Cut, Stretch, assemble, find_cut

BUSY_TIMES = 3
"""How many times longer a round waits for a silent peer that is there than for one that is not: others wait with it."""

LOOK_UP_TICKS = 8
"""How often an idle coordinator looks whether another one has decided something."""


def is_out(member: Member, history: History) -> bool:
    """Whether a peer is gone for good, or away: its user has not begun the life that was decided."""
    is_away = member.begun is not None and member.begun < history.incarnation(member.peer)
    return is_away or member.peer in history.gone


class Phase(Enum):
    """Where a round stands."""

    IDLE = auto()
    OPENING = auto()
    GATHERING = auto()
    FENCING = auto()
    SETTLING = auto()
    PUBLISHING = auto()


class Coordinator:
    """`handle(event)` returns the effects to carry out, in order; what is not in its table is ignored as late."""

    def __init__(self, token: str, history: History, policy: Policy) -> None:
        self.token = token
        self.history = history
        self.policy = policy
        self.phase = Phase.IDLE
        self.members: dict[PeerId, Member] = {}
        self.dead: dict[PeerId, Incarnation] = {}
        self.answers: dict[PeerId, events.GatherAnswered] = {}
        self.evidence: list[Range] = []
        self.committed: Frontier = {}
        self.silent_ticks = 0
        self.seen: frozenset[PeerId] = frozenset()
        """Those that were there at the last look; nothing is decided by the order of these."""
        self.idle_ticks = 0
        self.attempt = 0
        self.cut = Cut({}, (), ())
        self.proposal = Decision(Round(0), (), (), token)
        self._effects: list[Effect] = []
        self._emit = self._effects.append
        anytime = tuple(Phase)
        table: list[tuple[tuple[Phase, ...], type, Callable[..., None]]] = [
            ((Phase.IDLE,), events.CoordinatorStarted, self._on_started),
            (anytime, events.Suspected, self._on_suspected),
            ((Phase.OPENING,), events.MembersRead, self._on_members_read),
            ((Phase.GATHERING,), events.GatherAnswered, self._on_answered),
            ((Phase.GATHERING,), events.PeersSeen, self._on_peers_seen),
            ((Phase.FENCING,), events.StoreFenced, self._on_fenced),
            ((Phase.SETTLING,), events.SettlementStored, self._on_settlement_stored),
            ((Phase.PUBLISHING,), events.Published, self._on_published),
            ((Phase.IDLE,), events.Ticked, self._on_idle_tick),
            ((Phase.OPENING,), events.Ticked, lambda _: self._note_opening()),
            ((Phase.GATHERING,), events.Ticked, self._on_ticked),
            ((Phase.PUBLISHING,), events.Ticked, lambda _: self._emit(Publish(self.proposal))),
            (anytime, events.Decided, self._on_decided),
        ]
        self._table = {(phase, kind): handler for phases, kind, handler in table for phase in phases}

    @property
    def round(self) -> Round:
        """The round that is open, or would be next."""
        return Round(self.history.round + 1)

    def handle(self, event: object) -> list[Effect]:
        """Take in one fact; return what to do about it."""
        handler = self._table.get((self.phase, type(event)))
        if handler is not None:
            handler(event)
        effects = self._effects[:]
        self._effects.clear()
        return effects

    # detect

    def _on_started(self, _: events.CoordinatorStarted) -> None:
        self._open()

    def _on_suspected(self, event: events.Suspected) -> None:
        if event.incarnation > self.history.incarnation(event.peer):
            self._emit(FetchDecisions(self.history.round))
        current = event.incarnation == self.history.incarnation(event.peer)
        if not current or event.peer in self.history.gone or event.peer in self.dead:
            return
        self.dead[event.peer] = event.incarnation
        if self.phase is not Phase.PUBLISHING:
            self._open()

    def _on_idle_tick(self, _: events.Ticked) -> None:
        """Another coordinator may have decided something, and died before it carried it out."""
        self.idle_ticks += 1
        if self.idle_ticks % LOOK_UP_TICKS == 0:
            self._emit(FetchDecisions(self.history.round))

    def _open(self) -> None:
        """Begin, or begin again: whoever is asked must hear of all that are dead."""
        self.phase = Phase.OPENING
        self.attempt += 1
        self._note_opening()

    def _note_opening(self) -> None:
        self._emit(OpenRound(self.attempt, self.round, tuple(self.dead.items())))

    # gather

    def _on_members_read(self, event: events.MembersRead) -> None:
        if event.attempt != self.attempt:
            return
        self.members = {member.peer: member for member in event.members if not is_out(member, self.history)}
        self.dead = {
            peer: incarnation for peer, incarnation in self.dead.items()
            if peer in self.members and incarnation == self.history.incarnation(peer)
        }  # fmt: skip
        self.phase = Phase.GATHERING
        self.answers.clear()
        self.silent_ticks = 0
        self.seen = frozenset()
        self._ask_silent()
        self._proceed_if_all_answered()

    def _silent(self) -> list[PeerId]:
        return [peer for peer in self.members if peer not in self.dead and peer not in self.answers]

    def _ask_silent(self) -> None:
        for peer in self._silent():
            self._emit(AskGather(peer, self.history.incarnation(peer), self.round, tuple(self.dead.items())))

    def _on_ticked(self, _: events.Ticked) -> None:
        self.silent_ticks += 1
        lost = self._lost()
        if not lost:
            self._ask_silent()
            return
        for peer in lost:
            self.dead[peer] = self.history.incarnation(peer)
        self._open()

    def _lost(self) -> list[PeerId]:
        """The silent ones that nobody has patience with any more."""
        patience = self.policy.patience_ticks
        if self.silent_ticks <= patience:
            return []
        is_late = self.silent_ticks > patience * BUSY_TIMES
        return [peer for peer in self._silent() if is_late or peer not in self.seen]

    def _on_peers_seen(self, event: events.PeersSeen) -> None:
        self.seen = event.peers

    def _on_answered(self, event: events.GatherAnswered) -> None:
        if event.round != self.round or event.dead != tuple(self.dead.items()) or event.peer not in self._silent():
            return
        if event.incarnation != self.history.incarnation(event.peer):
            return
        self.answers[event.peer] = event
        self.evidence.extend(event.ranges)
        join(self.committed, event.committed)
        ignored = [
            (peer, incarnation) for peer, incarnation in event.ignored
            if peer in self.members and peer not in self.dead and incarnation == self.history.incarnation(peer)
        ]  # fmt: skip
        if ignored:
            self.dead.update(ignored)
            self._open()
        else:
            self._proceed_if_all_answered()

    def _proceed_if_all_answered(self) -> None:
        if self._silent():
            return
        if not self.dead:
            self._close()
            return
        self.phase = Phase.FENCING
        lowers = tuple((peer, self.committed.get(peer, START)) for peer in self.dead)
        self._emit(FenceStore(self.attempt, tuple(self.dead.items()), lowers))

    def _close(self) -> None:
        self.phase = Phase.IDLE
        self.evidence.clear()
        self.answers.clear()
        self.committed.clear()

    # settle

    def _on_fenced(self, event: events.StoreFenced) -> None:
        if event.attempt != self.attempt:
            return
        self.evidence.extend(event.ranges)
        join(self.committed, event.bases)
        stretches = assemble(self.evidence, self.committed, self.history)
        needs = {peer: answer.needs for peer, answer in self.answers.items()}
        cut = find_cut(stretches, self.committed, self.dead, needs)
        if cut.orphans:
            self._roll_back(cut)
        elif cut.short:
            for peer in cut.short:
                del self.answers[peer]
            self.silent_ticks = 0
            self.phase = Phase.GATHERING
            self._ask_silent()
        else:
            self._store(cut, stretches)

    def _roll_back(self, cut: Cut) -> None:
        """More nodes died at once than the bound: live peers depend on what nobody holds."""
        for peer in cut.orphans:
            text = f"{peer} depends on lineage that nobody holds: more nodes failed at once than max_failures allows"
            self._emit(ReportFault("orphan", text))
            self.dead[peer] = self.history.incarnation(peer)
        self._open()

    def _store(self, cut: Cut, stretches: dict[PeerId, Stretch]) -> None:
        self.phase = Phase.SETTLING
        self.cut = cut
        ranges: list[Range] = []
        for peer, stretch in stretches.items():
            end = min(stretch.upper, cut.ends.get(peer, stretch.upper))
            for writer, start, stop in self.history.pieces(peer, stretch.lower, end):
                kept = stretch.entries[start - stretch.lower : stop - stretch.lower]
                ranges.append(Range(peer, writer, start, kept))
        self._emit(StoreSettlement(self.attempt, tuple(ranges)))

    def _on_settlement_stored(self, event: events.SettlementStored) -> None:
        if event.attempt != self.attempt:
            return
        self.phase = Phase.PUBLISHING
        beginnings = tuple(
            Beginning(peer, Incarnation(incarnation + 1), self.cut.ends[peer])
            for peer, incarnation in self.dead.items() if self.members[peer].replayable
        )  # fmt: skip
        gone = tuple(peer for peer in self.dead if not self.members[peer].replayable)
        self.proposal = Decision(self.round, beginnings, gone, self.token)
        self._emit(Publish(self.proposal))

    # publish, start

    def _on_published(self, event: events.Published) -> None:
        decision = event.decision
        if decision.round != self.round:
            return
        self.history.apply(decision)
        if decision.writer != self.token:
            self._start_over()
            return
        self._close()
        self._drop_settled()
        self._carry_out(decision)
        if self.dead:
            self._open()

    def _start_over(self) -> None:
        """Another coordinator decided, and may have died before it started anyone: see who is there."""
        self._close()
        self._drop_settled()
        self._open()

    def _drop_settled(self) -> None:
        self.dead = {
            peer: incarnation for peer, incarnation in self.dead.items()
            if incarnation == self.history.incarnation(peer) and peer not in self.history.gone
        }  # fmt: skip

    def _carry_out(self, decision: Decision) -> None:
        for beginning in decision.beginnings:
            member = self.members[beginning.peer]
            if not member.resumable:
                self._emit(StartIncarnation(beginning.peer, beginning.incarnation, beginning.lower, member.node))
        begun = {beginning.peer: beginning.incarnation - 1 for beginning in decision.beginnings}
        for peer in self.members:
            incarnation = Incarnation(begun.get(peer, self.history.incarnation(peer)))
            self._emit(Announce(peer, incarnation, decision))

    def _on_decided(self, event: events.Decided) -> None:
        """Another coordinator decided: this round's premises are gone."""
        if event.decision.round > self.round:
            self._emit(FetchDecisions(self.history.round))
        elif event.decision.round == self.round and self.phase is not Phase.PUBLISHING:
            self.history.apply(event.decision)
            self._start_over()
