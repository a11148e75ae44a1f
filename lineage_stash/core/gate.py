"""The gate: where outputs wait until their causal past is committed.

Rules:
- An effect that leaves the system (an output, a checkpoint becoming visible, a retirement) is held with the dependency
  frontier of the moment it was made, and released when all of that is committed. Frontiers of one peer only grow, so
  outputs leave in the order in which they were made.
- An output is kept until its sink has accepted it, and is part of every checkpoint until then. It carries
  `(peer, number)` as its key, the same in every replay: exactly once at a sink that is idempotent by that key.
"""

from collections import deque
from typing import NamedTuple

from lineage_stash.core.checkpoint import Checkpoint
from lineage_stash.core.frontier import Frontier, covers


class Output(NamedTuple):
    """One effect on the outside world, numbered within its peer."""

    number: int
    value: bytes


class Gate:
    """Outputs and checkpoints in the order they were made, and the outputs that no sink has accepted yet."""

    def __init__(self) -> None:
        self._held: deque[tuple[Frontier, Output | Checkpoint]] = deque()
        self.unaccepted: dict[int, Output] = {}
        self.released_below = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, item: Output | Checkpoint, frontier: Frontier) -> None:
        """Keep `item` until `frontier` is committed."""
        self._held.append((frontier, item))
        if isinstance(item, Output):
            self.unaccepted[item.number] = item

    def release(self, committed: Frontier) -> list[Output | Checkpoint]:
        """Everything whose causal past is committed by now, in order."""
        released: list[Output | Checkpoint] = []
        while self._held and covers(committed, self._held[0][0].items()):
            item = self._held.popleft()[1]
            released.append(item)
            if isinstance(item, Output):
                self.released_below = item.number + 1
        return released

    def accept(self, number: int) -> None:
        """The sink has the output."""
        self.unaccepted.pop(number, None)

    def overdue(self) -> list[Output]:
        """Released outputs that no sink has accepted: to be offered again."""
        return [output for output in self.unaccepted.values() if output.number < self.released_below]
