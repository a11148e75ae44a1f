"""Channels of the global-checkpoint system: the calls from one caller to one callee. No I/O.

Rules:
- Calls are numbered, sent in order, and answered in order.
- At most `WINDOW` frames are under way unacknowledged. So an idle channel sends at once, and in a busy one calls gather
  and then travel together, at most `MOST_CALLS` and `MOST_BYTES` in a frame unless a single one is larger; the system
  that this one is compared with does the same, with the same bounds.
- The channel of a source retains its calls until a complete checkpoint of the callee covers them, and can be rewound to
  any call that it retains. Replies that came before are dropped by their number when they come again.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice

from benchmarks.suite.systems.global_checkpoint_handles import Ref
from lineage_stash.core.policy import Policy
from lineage_stash.core.rope import weigh

WINDOW = Policy().window_messages
MOST_CALLS = Policy().calls_per_message
MOST_BYTES = Policy().bytes_per_message


class Channel:
    """What one caller has submitted to one callee."""

    def __init__(self, *, retains: bool) -> None:
        self.next_number = 0
        """Of the next call that is submitted."""
        self.gathered: deque[bytes] = deque()
        """Calls that were not sent: the last ones below `next_number`."""
        self.replied = 0
        """All replies below have come since the channel was made or rewound."""
        self.repeated = 0
        """How many replies came again and were dropped."""
        self.retained_bytes = 0
        self._gathered_bytes = 0
        self._retains = retains
        self._retained: deque[bytes] = deque()
        self._waiting: dict[int, Ref] = {}
        self._frames_sent = 0
        self._frames_acknowledged = 0

    @property
    def has_room(self) -> bool:
        """Whether another frame may be sent now."""
        return self._frames_sent - self._frames_acknowledged < WINDOW

    @property
    def is_answered(self) -> bool:
        """Whether every call was answered."""
        return self.replied == self.next_number

    def submit(self, call: bytes, ref: Ref) -> None:
        """Take a call in."""
        self._waiting[self.next_number] = ref
        self.next_number += 1
        self.gathered.append(call)
        weight = weigh(call)
        self._gathered_bytes += weight
        if self._retains:
            self._retained.append(call)
            self.retained_bytes += weight

    def take(self) -> tuple[int, list[bytes]]:
        """The calls to send in a frame now, and the number of the first one; some may be left for the next."""
        gathered = self.gathered
        first = self.next_number - len(gathered)
        self._frames_sent += 1
        if len(gathered) <= MOST_CALLS and self._gathered_bytes <= MOST_BYTES:
            self.gathered, self._gathered_bytes = deque(), 0
            return first, list(gathered)
        calls = [gathered.popleft()]
        taken = weigh(calls[0])
        while gathered and len(calls) < MOST_CALLS and taken + weigh(gathered[0]) <= MOST_BYTES:
            taken += weigh(gathered[0])
            calls.append(gathered.popleft())
        self._gathered_bytes -= taken
        return first, calls

    def acknowledge(self, frames: int) -> None:
        """So many frames have arrived in all."""
        self._frames_acknowledged = frames

    def settle(self, first: int, replies: Iterable[bytes]) -> list[tuple[int, Ref, bytes]]:
        """Replies have come; the numbers of the calls whose refs waited for them, and these refs."""
        found = []
        number = first
        for reply in replies:
            ref = self._waiting.pop(number, None)
            if ref is None:
                self.repeated += 1
            else:
                found.append((number, ref, reply))
            number += 1
        self.replied = max(self.replied, number)
        return found

    def reopen(self, number: int, ref: Ref) -> None:
        """A reply that nobody has seen did not happen: wait for it again."""
        self._waiting[number] = ref

    def truncate(self, position: int) -> None:
        """Forget the calls below a position."""
        retained = self._retained
        for _ in range(len(retained) - (self.next_number - position)):
            self.retained_bytes -= weigh(retained.popleft())

    def rewind(self, position: int) -> int:
        """Be about to send everything from a position on, over a new connection; how many calls that is."""
        count = self.next_number - position
        assert self._retains, "only a source can send again"
        assert 0 <= count <= len(self._retained), f"call {position} is not retained"
        self.gathered = deque(islice(self._retained, len(self._retained) - count, None))
        self._gathered_bytes = sum(weigh(call) for call in self.gathered)
        self.replied = position
        self._frames_sent = self._frames_acknowledged = 0
        return count
