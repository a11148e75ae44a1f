"""The backlog: numbered payloads that are kept for one receiver until it needs them no more.

`[floor, upper)` are kept, in order; those below `unsent` have travelled on the present channel. Numbers are given by
the sender and are the same in every replay. The receiver may be ahead of a sender that replays: then `floor` is above
`upper`, and what is added below it is counted and not kept.
"""

from collections import deque

from lineage_stash.core.ids import Seqno


class Backlog:
    """Payloads `[floor, upper)`, how far they have travelled, and their bytes."""

    def __init__(self) -> None:
        self.floor = Seqno(0)
        self.upper = Seqno(0)
        self.unsent = Seqno(0)
        self.items: deque[bytes] = deque()
        self.bytes = 0

    def add(self, item: bytes) -> Seqno:
        """Number a payload, and keep it if the receiver may still ask for it."""
        number = self.upper
        self.upper = Seqno(number + 1)
        if number >= self.floor:
            self.items.append(item)
            self.bytes += len(item)
        return number

    def __getitem__(self, number: Seqno) -> bytes:
        """The payload with this number, which must be kept."""
        assert number >= self.floor, f"payload {number} was dropped, below {self.floor}"
        return self.items[number - self.floor]

    def restore(self, floor: Seqno, upper: Seqno, items: tuple[bytes, ...]) -> None:
        """Go on from the moment of a checkpoint; nothing of it has travelled yet."""
        self.floor = self.unsent = floor
        self.upper = upper
        self.items.extend(items)
        self.bytes = sum(map(len, items))

    def take_unsent(self, most: int, most_bytes: int) -> tuple[Seqno, tuple[bytes, ...]]:
        """The next payloads to put into a message, at least one if there is any, and the number of the first."""
        items = self.items
        first = max(self.unsent, self.floor)
        skipped = first - self.floor
        count = min(most, len(items) - skipped)
        if count <= 0:
            return first, ()
        if self.bytes > most_bytes:
            count = self._count_within(most_bytes, skipped, count)
        self.unsent = Seqno(first + count)
        if count == len(items):
            return first, tuple(items)
        return first, tuple([items[position] for position in range(skipped, skipped + count)])

    def _count_within(self, most_bytes: int, skipped: int, most: int) -> int:
        total = 0
        for count in range(most):
            total += len(self.items[skipped + count])
            if total > most_bytes:
                return max(1, count)
        return most

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be put into a message."""
        return self.unsent < self.upper and self.floor < self.upper

    def drop_below(self, floor: Seqno) -> None:
        """The receiver will never ask for anything below `floor` again."""
        items = self.items
        while self.floor < floor and items:
            self.bytes -= len(items.popleft())
            self.floor = Seqno(self.floor + 1)
        self.floor = max(self.floor, floor)

    def resend_all(self) -> None:
        """A new channel: the receiver may have lost whatever was sent."""
        self.unsent = self.floor
