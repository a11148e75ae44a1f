"""Alignment: when an actor of the global-checkpoint system takes its snapshot, and what waits until then. No I/O.

Rules:
- The source's barrier names all inputs of the actor; its snapshot is due when each of them has sent its own.
- What an input sent behind its barrier waits until the others' barriers have come, and then runs in order of arrival.
- Checkpoints are numbered upwards, with gaps where one was given up; barriers of one input come in order.
"""

from collections.abc import Iterable
from typing import Generic, TypeVar

Held = TypeVar("Held")

SOURCE = "driver"


class Alignment(Generic[Held]):
    """The barriers that have come to one actor."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        """The last checkpoint that is aligned here."""
        self._passed: dict[str, int] = {}
        """The last barrier of each input."""
        self._inputs: dict[int, frozenset[str]] = {}
        """Of the checkpoints that are not aligned: from whom barriers must come."""
        self._held: list[tuple[int, Held]] = []

    def admit(self, epoch: int, parcel: Held) -> list[Held]:
        """What came from a sender that is in this epoch: itself if it may run now, or nothing."""
        if epoch <= self.epoch:
            return [parcel]
        self._held.append((epoch, parcel))
        return []

    def announce(self, checkpoint: int, inputs: Iterable[str]) -> list[tuple[int, list[Held]]]:
        """The source's barrier has come, which says who else sends one; as `pass_barrier`."""
        self._inputs[checkpoint] = frozenset(inputs)
        return self.pass_barrier(checkpoint, SOURCE)

    def pass_barrier(self, checkpoint: int, sender: str) -> list[tuple[int, list[Held]]]:
        """A barrier has come: the snapshots that are due now, and for each what may run after it."""
        self._passed[sender] = checkpoint
        due = []
        while self._inputs and self._is_aligned(oldest := min(self._inputs)):
            del self._inputs[oldest]
            self.epoch = oldest
            due.append((oldest, [parcel for epoch, parcel in self._held if epoch <= oldest]))
            self._held = [(epoch, parcel) for epoch, parcel in self._held if epoch > oldest]
        return due

    def _is_aligned(self, checkpoint: int) -> bool:
        return all(self._passed.get(sender, -1) >= checkpoint for sender in self._inputs[checkpoint] | {SOURCE})


def inputs_of(actor: str, calls: Iterable[tuple[str, str]]) -> set[str]:
    """Who sends barriers to an actor, if these are the pairs of callers and callees."""
    return {SOURCE} | {caller for caller, callee in calls if callee == actor}


def has_cycle(calls: Iterable[tuple[str, str]]) -> bool:
    """Whether an actor calls itself, be it through others: its barriers would wait for one another."""
    callees: dict[str, set[str]] = {}
    for caller, callee in calls:
        callees.setdefault(caller, set()).add(callee)
    left = dict(callees)
    while left:
        first = [caller for caller, called in left.items() if not called & left.keys()]
        if not first:
            return True
        for caller in first:
            del left[caller]
    return False
