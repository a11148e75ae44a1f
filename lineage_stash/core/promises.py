"""Promises: a live peer's part in rounds. It never stops working for them.

Rules:
- Obey the highest round only: a question about a round that is decided already is answered by that decision.
- From the answer on, the dead incarnations are refused, whatever they say, until a decision gives the peer a new one.
- Until then, whatever depends on a dead peer beyond what was answered is held: the round may decide that it never was.
- A peer that learns that it was replaced stops. One that depends on what never happened, and was not replaced, reports
  itself: it must not go on, and must not be silent about it.
"""

from collections.abc import Callable

from lineage_stash.core.batch import Batch
from lineage_stash.core.effects import (
    Effect,
    FetchDecisions,
    ReportFault,
    ReportSuspicion,
    SendAnswer,
    SendDecision,
    Stop,
)
from lineage_stash.core.events import GatherAnswered, GatherAsked
from lineage_stash.core.frontier import START, Frontier
from lineage_stash.core.history import Decision
from lineage_stash.core.ids import Incarnation, PeerId, Round
from lineage_stash.core.lineage import Lineage


class Promises:
    """Which incarnations this peer ignores, and what it answered about them."""

    def __init__(self, me: PeerId, incarnation: Incarnation, lineage: Lineage, emit: Callable[[Effect], None]) -> None:
        self.me = me
        self.incarnation = incarnation
        self.lineage = lineage
        self.emit = emit
        self.ignored: dict[PeerId, Incarnation] = {}
        self.answered: Frontier = {}

    def ignores(self, peer: PeerId) -> bool:
        """Whether the present incarnation of `peer` is counted among the dead."""
        return peer in self.ignored

    def refuses(self, sender: PeerId, incarnation: Incarnation) -> bool:
        """Whether a message from this incarnation must not be looked at."""
        return incarnation <= self.ignored.get(sender, -1) or incarnation < self.lineage.history.incarnation(sender)

    def must_hold(self, batch: Batch, round_: Round) -> bool:
        """Whether a batch depends on a dead peer beyond what was answered, or on what a later round ended."""
        history = self.lineage.history
        if not self.ignored and round_ == history.round:
            return False
        uppers = [(piece.peer, piece.upper) for piece in batch.ranges]
        uppers.extend(batch.needs)
        ended = [beginning for decision in history.decisions[round_:] for beginning in decision.beginnings]
        return any(
            (peer in self.ignored and upper > self.answered[peer])
            or any(beginning.peer == peer and upper > beginning.lower for beginning in ended)
            for peer, upper in uppers
        )

    def ignore(self, dead: tuple[tuple[PeerId, Incarnation], ...]) -> None:
        """Refuse the dead from now on, and take nothing more that depends on them."""
        lineage = self.lineage
        for peer, incarnation in dead:
            if peer != self.me and incarnation >= lineage.history.incarnation(peer):
                self.ignored[peer] = incarnation
                known = max(lineage.needs.get(peer, START), lineage.committed.get(peer, START))
                self.answered.setdefault(peer, known)
                lineage.version += 1

    def answer(self, event: GatherAsked) -> None:
        """Promise to ignore the dead, and hand over the stash."""
        history, lineage = self.lineage.history, self.lineage
        if event.round <= history.round:
            self.emit(SendDecision(event.coordinator, history.decisions[event.round - 1]))
            return
        if event.round > history.round + 1:
            self.emit(FetchDecisions(history.round))
            return
        self.ignore(event.dead)
        answer = GatherAnswered(
            self.me, self.incarnation, event.round, event.dead, tuple(self.ignored.items()), lineage.all_ranges(),
            tuple(lineage.needs.items()), tuple(lineage.committed.items()),
        )  # fmt: skip
        self.emit(SendAnswer(event.coordinator, answer))

    def end_of_this_life(self, decision: Decision) -> Stop | None:
        """Whether a decision has put another incarnation in the place of this one, or none."""
        for beginning in decision.beginnings:
            if beginning.peer == self.me and beginning.incarnation > self.incarnation:
                return Stop(f"incarnation {beginning.incarnation} of {self.me} has taken over")
        if self.me in decision.gone:
            self.emit(ReportFault("gone", f"{self.me} was taken for dead and cannot be run again"))
            return Stop("taken for dead")
        return None

    def obey(self, decision: Decision) -> bool:
        """Take in what was settled; False if this peer depends on what never happened, so that it must not go on."""
        sound = True
        for beginning in decision.beginnings:
            if self.ignored.get(beginning.peer, beginning.incarnation) < beginning.incarnation:
                self.forget(beginning.peer)
            if not self.lineage.settle(beginning):
                sound = False
                text = f"{self.me} depends on {beginning.peer} beyond {beginning.lower}, which nobody holds any more"
                self.emit(ReportFault("orphan", text))
                self.emit(ReportSuspicion(self.me, self.incarnation))
        for peer in decision.gone:
            self.forget(peer)
        self.lineage.version += 1
        return sound

    def forget(self, peer: PeerId) -> None:
        """Whatever was promised about this peer is over."""
        self.ignored.pop(peer, None)
        self.answered.pop(peer, None)
