"""The backlog: numbered payloads that are kept for one receiver until it needs them no more.

`[floor, upper)` are kept, in order; those below `unsent` have travelled on the present channel. Numbers are given by
the sender and are the same in every replay. The receiver may be ahead of a sender that replays: then `floor` is above
`upper`, and what is added below it is counted and not kept.

The oldest may be spilled: kept by number in a spool, which gives them back when they are asked for. That is no matter
of durability: whoever loses its spool has lost its memory too, and makes the payloads again.
"""

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from lineage_stash.core.ids import Seqno
from lineage_stash.core.rope import weigh


class Spool(NamedTuple):
    """Where payloads are put that are kept and hardly ever asked for: put one, get it back by its place, drop it."""

    put: Callable[[bytes], int]
    get: Callable[[int], bytes]
    drop: Callable[[int], None]


def spool_in_memory() -> Spool:
    """A spool that saves nothing, for whoever has no other."""
    kept: dict[int, bytes] = {}
    places = count()

    def put(payload: bytes) -> int:
        place = next(places)
        kept[place] = payload
        return place

    def drop(place: int) -> None:
        del kept[place]

    return Spool(put, lambda place: kept[place], drop)


class Backlog:
    """Payloads `[floor, upper)`, how far they have travelled, and their bytes."""

    def __init__(self) -> None:
        self.spool: Spool | None = None
        self.spilled: deque[tuple[int, int]] = deque()
        """Place in the spool and size of the payloads from `floor` on that are not in memory."""
        self.spilled_bytes = 0
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
            self.bytes += weigh(item)
        return number

    def __getitem__(self, number: Seqno) -> bytes:
        """The payload with this number, which must be kept."""
        assert number >= self.floor, f"payload {number} was dropped, below {self.floor}"
        position = number - self.floor
        if position < len(self.spilled):
            return self._fetch(position)
        return self.items[position - len(self.spilled)]

    def _fetch(self, position: int) -> bytes:
        assert self.spool is not None, "something was spilled into no spool"
        return self.spool.get(self.spilled[position][0])

    @property
    def kept(self) -> tuple[bytes, ...]:
        """All payloads that are kept, in order."""
        if not self.spilled:
            return tuple(self.items)
        return (*[self._fetch(position) for position in range(len(self.spilled))], *self.items)

    def spill(self, spool: Spool, at_least_bytes: int) -> int:
        """Move the oldest payloads out of memory; how many bytes that was."""
        self.spool = spool
        moved = 0
        while self.items and moved < at_least_bytes:
            item = self.items.popleft()
            size = weigh(item)
            self.spilled.append((spool.put(item), size))
            moved += size
        self.spilled_bytes += moved
        return moved

    def restore(self, floor: Seqno, upper: Seqno, items: tuple[bytes, ...]) -> None:
        """Go on from the moment of a checkpoint; nothing of it has travelled yet."""
        self.floor = self.unsent = floor
        self.upper = upper
        self.items.extend(items)
        self.bytes = sum(map(weigh, items))

    def take_unsent(self, most: int, most_bytes: int) -> tuple[Seqno, tuple[bytes, ...]]:
        """The next payloads to put into a message, at least one if there is any, and the number of the first."""
        items = self.items
        first = max(self.unsent, self.floor)
        skipped = first - self.floor - len(self.spilled)
        if skipped < 0:
            return self._take_spilled(first, most, most_bytes)
        count = min(most, len(items) - skipped)
        if count <= 0:
            return first, ()
        if self.bytes - self.spilled_bytes > most_bytes:
            count = self._count_within(most_bytes, skipped, count)
        self.unsent = Seqno(first + count)
        if count == len(items):
            return first, tuple(items)
        return first, tuple([items[position] for position in range(skipped, skipped + count)])

    def _take_spilled(self, first: Seqno, most: int, most_bytes: int) -> tuple[Seqno, tuple[bytes, ...]]:
        """The next payloads, of those that are not in memory."""
        taken: list[bytes] = []
        taken_bytes = 0
        for position in range(first - self.floor, len(self.spilled)):
            taken_bytes += self.spilled[position][1]
            if len(taken) == most or (taken and taken_bytes > most_bytes):
                break
            taken.append(self._fetch(position))
        self.unsent = Seqno(first + len(taken))
        return first, tuple(taken)

    def _count_within(self, most_bytes: int, skipped: int, most: int) -> int:
        total = 0
        for taken in range(most):
            total += weigh(self.items[skipped + taken])
            if total > most_bytes:
                return max(1, taken)
        return most

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be put into a message."""
        return self.unsent < self.upper and self.floor < self.upper

    @property
    def has_unsent_spilled(self) -> bool:
        """Whether some of what waits to be put into a message is not in memory."""
        return bool(self.spilled) and self.unsent < self.floor + len(self.spilled)

    @property
    def unsent_items(self) -> list[bytes]:
        """What is in memory and waits to be put into a message."""
        if not self.has_unsent:
            return []
        skipped = max(0, max(self.unsent, self.floor) - self.floor - len(self.spilled))
        return [self.items[position] for position in range(skipped, len(self.items))]

    def drop_below(self, floor: Seqno) -> None:
        """The receiver will never ask for anything below `floor` again."""
        items = self.items
        while self.floor < floor and self.spilled:
            assert self.spool is not None, "something was spilled into no spool"
            place, size = self.spilled.popleft()
            self.spool.drop(place)
            self.spilled_bytes -= size
            self.bytes -= size
            self.floor = Seqno(self.floor + 1)
        while self.floor < floor and items:
            self.bytes -= weigh(items.popleft())
            self.floor = Seqno(self.floor + 1)
        self.floor = max(self.floor, floor)

    def resend_all(self) -> None:
        """A new channel: the receiver may have lost whatever was sent."""
        self.unsent = self.floor
