"""Rates: how fast numbers grow that only ever grow, from looks at them now and then. Pure."""

from collections import deque
from collections.abc import Hashable

OVER_S = 4.0
"""Long enough to be calm, short enough to see a change."""


class Rates:
    """What was seen of each number lately."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, deque[tuple[float, int]]] = {}

    def note(self, key: Hashable, value: int, at_s: float) -> float | None:
        """Take in what a number is now; by how much it grows per second, None where it was seen once only."""
        seen = self._seen.setdefault(key, deque())
        seen.append((at_s, value))
        while len(seen) > 2 and seen[1][0] <= at_s - OVER_S:
            seen.popleft()
        (first_s, first), (last_s, last) = seen[0], seen[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else None

    def forget_before(self, at_s: float) -> None:
        """Let go of numbers that nobody has noted since."""
        for key in [key for key, seen in self._seen.items() if seen[-1][0] < at_s]:
            del self._seen[key]
