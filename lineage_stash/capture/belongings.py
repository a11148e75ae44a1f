"""What belongs to one actor and not to its process: its generators of random numbers, and how far its clocks have come.

Rules:
- A generator is made when it is first touched, from a captured draw, so that a replay makes the same one.
- What was touched is part of the actor's state: a checkpoint has it, and a restore goes on with the same sequence.
- A monotonic clock never goes back, though the next life may run on a machine that was started later.
"""

from collections.abc import Callable
from typing import Any

State = tuple[Any, Any, dict[str, int]]
"""The generator of `random`, that of `numpy.random`, and the clocks; none where nobody has touched them."""


class Belongings:
    """Of one actor."""

    __slots__ = ("_offsets_ns", "clocks_ns", "numpy", "random")

    def __init__(self) -> None:
        self.random: Any = None
        self.numpy: Any = None
        self.clocks_ns: dict[str, int] = {}
        self._offsets_ns: dict[str, int] = {}

    def pack(self) -> State | None:
        """A part of a checkpoint, to be pickled."""
        if self.random is None and self.numpy is None and not self.clocks_ns:
            return None
        return self.random, self.numpy, self.clocks_ns

    def restore(self, state: State | None) -> None:
        """Go on from a checkpoint."""
        self.random, self.numpy, self.clocks_ns = (None, None, {}) if state is None else state
        self._offsets_ns = {}

    def tick(self, clock: str, real_ns: Callable[[], int]) -> int:
        """What a monotonic clock says now: never less than it has ever said to this actor."""
        now_ns = real_ns() + self._offsets_ns.get(clock, 0)
        last_ns = self.clocks_ns.get(clock, now_ns)
        if now_ns < last_ns:
            self._offsets_ns[clock] = self._offsets_ns.get(clock, 0) + last_ns - now_ns
            return last_ns
        return now_ns
