"""One rollback of the global-checkpoint system, by phase. No I/O but the clock.

It is over when every actor has answered again whatever had been submitted to it before the death was noticed. A death
during a rollback joins it: the phases begin anew, and the time counts from the first.
"""

import time
from collections.abc import Mapping, Sequence

from benchmarks.suite.records import Recovery


class Rollback:
    """Who died, who is not back, and how far each actor must come until it is as before."""

    def __init__(self, dead: Sequence[str], goals: Mapping[str, int]) -> None:
        self.dead = list(dead)
        self.goals = dict(goals)
        self.missing = set(goals)
        """Who has not restored its state."""
        self.replayed = 0
        self.noticed_at = time.time()
        self._noticed = time.monotonic()
        self._restored = self._ended = self._noticed
        self._behind = set(goals)
        """Who has not answered what had been submitted."""

    def joined_by(self, dead: str, goals: Mapping[str, int]) -> "Rollback":
        """The same rollback, begun anew because somebody else died too."""
        anew = Rollback(self.dead if dead in self.dead else [*self.dead, dead], {**goals, **self.goals})
        anew.noticed_at, anew._noticed = self.noticed_at, self._noticed
        return anew

    def note_restored(self, name: str) -> bool:
        """An actor is back; whether it was the last."""
        self.missing.discard(name)
        self._restored = time.monotonic()
        return not self.missing

    def note_replied(self, name: str, replied: int) -> bool:
        """An actor has answered so far; whether that ends the rollback."""
        if not self.missing and replied >= self.goals.get(name, 0):
            self._behind.discard(name)
        return not self.missing and not self._behind

    def is_over(self, replied: Mapping[str, int]) -> bool:
        """Whether all have answered far enough."""
        return [self.note_replied(name, count) for name, count in replied.items()][-1]

    def end(self) -> None:
        """All is as before."""
        self._ended = time.monotonic()

    def recoveries(self, since: float) -> list[Recovery]:
        """What the records say of it: one for each who died."""
        return [
            Recovery(
                second=self.noticed_at - since,
                peer=name,
                restore_ms=1e3 * (self._restored - self._noticed),
                replay_ms=1e3 * (self._ended - self._restored),
                replayed=self.replayed,
            )
            for name in self.dead
        ]
