"""Parcels: values that one peer sends another because it has passed a ref on to it.

A ref never leads back to whoever owns it. Whoever passes one on, inside a call or a reply, numbers a parcel for the
receiver there and then, and sends the value when it has it. So the receiver depends on nobody but the giver, the value
comes with the giver's lineage like everything else, and a ref survives its owner.

Rules:
- Parcels are numbered per giver and receiver, in the order in which refs were passed: the same in every replay.
- They are filled in any order, because values come in any order; a receiver takes each number once.
- The giver keeps a parcel until the receiver covers it: its durable checkpoint has the value or has done without it, or
  its committed log has the content. What is covered is a frontier: one parcel that is late keeps those behind it.
- The items of a stream are parcels too, and carry the number of the call that yields them.
- A value with refs in it that is forwarded has its refs passed on with it. They are numbered when it comes, which is no
  choice of the program's, so that where the numbers lie is logged, and a replay leaves them free.
- A payload with refs begins with `PARCELED`, the number of its first parcel and how many there are.
"""

from collections import deque
from typing import NamedTuple

from lineage_stash.core.handles import PARCELED, PARCELS_HEAD
from lineage_stash.core.ids import Ref, Seqno
from lineage_stash.core.rope import behind, put_before, weigh

HEAD_BYTES = PARCELS_HEAD.size

ORPHANED = b""
"""The value of a parcel that nobody will ever fill, because the giver is gone for good."""

NO_STREAM = Seqno(0)
"""What stands for no call: the seqnos of streams are counted from one here."""


class Parcel(NamedTuple):
    """One value on its way; `stream` is one more than the seqno of the call that yields it, or `NO_STREAM`."""

    number: int
    stream: Seqno
    value: bytes


def wrap(payload: bytes, first: int, count: int) -> bytes:
    """A payload that refers to parcels."""
    return put_before(PARCELS_HEAD.pack(PARCELED, first, count), payload)


def is_parceled(payload: bytes) -> bool:
    """Whether a payload refers to parcels."""
    return len(payload) > 0 and payload[0] == PARCELED


def unwrap(payload: bytes) -> tuple[bytes, int, int]:
    """The payload itself, the number of its first parcel, and how many there are."""
    if not is_parceled(payload):
        return payload, 0, 0
    _, first, count = PARCELS_HEAD.unpack_from(payload)
    return behind(payload, HEAD_BYTES), first, count


class ParcelsTo(NamedTuple):
    """What a checkpoint remembers about parcels for one receiver."""

    floor: int
    upper: int
    filled: tuple[Parcel, ...]
    sources: tuple[tuple[int, Ref], ...]


class ParcelsFrom(NamedTuple):
    """What a checkpoint remembers about parcels from one giver."""

    frontier: int
    early: tuple[int, ...]
    kept: tuple[Parcel, ...]
    unwanted: tuple[int, ...]
    streams: tuple[tuple[Seqno, tuple[int, ...]], ...]


class OutgoingParcels:
    """Parcels `[floor, upper)` for one receiver: those that have a value, and where the others' will come from."""

    def __init__(self) -> None:
        self.floor = 0
        self.upper = 0
        self.filled: dict[int, Parcel] = {}
        self.sources: dict[int, Ref] = {}
        self.unsent: deque[int] = deque()
        self.taken: dict[int, int] = {}
        """In a replay: the numbers that forwarded values will need, first and count."""

    def add(self, count: int = 1) -> int:
        """Number the next parcels; the number of the first."""
        number = self.upper
        self.upper = number + count
        self.skip_taken()
        return number

    def skip_taken(self) -> None:
        """Leave the numbers free that somebody will need."""
        while self.upper in self.taken:
            self.upper += self.taken.pop(self.upper)

    def fill(self, number: int, value: bytes, stream: Seqno = NO_STREAM) -> None:
        """The value is here."""
        self.sources.pop(number, None)
        if number >= self.floor:
            self.filled[number] = Parcel(number, stream, value)
            self.unsent.append(number)

    def is_filled(self, number: int) -> bool:
        """Whether the receiver has the value, or can be sent it."""
        return number < self.floor or number in self.filled

    def take_unsent(self, most: int, most_bytes: int) -> tuple[Parcel, ...]:
        """The next parcels to put into a message."""
        taken: list[Parcel] = []
        size = 0
        while self.unsent and len(taken) < most and size < most_bytes:
            parcel = self.filled.get(self.unsent.popleft())
            if parcel is not None:
                taken.append(parcel)
                size += weigh(parcel.value)
        return tuple(taken)

    def drop_below(self, floor: int) -> None:
        """The receiver will never ask for anything below `floor` again."""
        while self.floor < min(floor, self.upper):
            self.filled.pop(self.floor, None)
            self.sources.pop(self.floor, None)
            self.floor += 1
        self.floor = max(self.floor, floor)

    def resend_all(self) -> None:
        """A new channel: the receiver may have lost whatever was sent."""
        self.unsent = deque(sorted(self.filled))

    def capture(self) -> ParcelsTo:
        """What a checkpoint remembers."""
        return ParcelsTo(self.floor, self.upper, tuple(self.filled.values()), tuple(self.sources.items()))

    def restore(self, parcels: ParcelsTo) -> None:
        """Go on from the moment of a checkpoint."""
        self.floor, self.upper = parcels.floor, parcels.upper
        self.filled = {parcel.number: parcel for parcel in parcels.filled}
        self.sources = dict(parcels.sources)
        self.resend_all()


class IncomingParcels:
    """Parcels from one giver: all below `frontier` have come, and so have the `early` ones."""

    def __init__(self) -> None:
        self.frontier = 0
        self.early: dict[int, None] = {}
        self.kept: dict[int, Parcel] = {}
        self.unwanted: dict[int, None] = {}
        self.streams: dict[Seqno, list[int]] = {}
        self.orphaned = False
        self.covered = 0
        self.told_covered = 0

    @property
    def is_used(self) -> bool:
        """Whether this giver has ever given anything."""
        return bool(self.frontier or self.early or self.unwanted)

    def accept(self, parcel: Parcel) -> bool:
        """Take in a parcel; False if it has come before."""
        number = parcel.number
        if number < self.frontier or number in self.early:
            return False
        self.early[number] = None
        while self.frontier in self.early:
            del self.early[self.frontier]
            self.frontier += 1
        if number in self.unwanted:
            del self.unwanted[number]
        else:
            self.kept[number] = parcel
            if parcel.stream != NO_STREAM:
                self.streams.setdefault(parcel.stream, []).append(number)
        return True

    def drop(self, number: int) -> bytes | None:
        """Nobody will ask for this one; its value, if it is here."""
        parcel = self.kept.pop(number, None)
        if parcel is not None:
            return parcel.value
        if number >= self.frontier and number not in self.early:
            self.unwanted[number] = None
        return None

    def drop_stream(self, seqno: Seqno) -> list[bytes]:
        """Nobody will ask for the items of this call; those that are here."""
        dropped = [self.kept.pop(number, None) for number in self.streams.pop(Seqno(seqno + 1), ())]
        return [parcel.value for parcel in dropped if parcel is not None]

    def item(self, seqno: Seqno, position: int) -> int | None:
        """The number of an item of a stream, if it has come."""
        numbers = self.streams.get(Seqno(seqno + 1), ())
        return numbers[position] if position < len(numbers) else None

    def capture(self) -> ParcelsFrom:
        """What a checkpoint remembers."""
        streams = tuple([(stream, tuple(numbers)) for stream, numbers in self.streams.items()])
        return ParcelsFrom(
            self.frontier, tuple(self.early), tuple(self.kept.values()), tuple(self.unwanted), streams
        )  # fmt: skip

    def restore(self, parcels: ParcelsFrom) -> None:
        """Go on from the moment of a checkpoint."""
        self.frontier = parcels.frontier
        self.early = dict.fromkeys(parcels.early)
        self.unwanted = dict.fromkeys(parcels.unwanted)
        self.kept = {parcel.number: parcel for parcel in parcels.kept}
        self.streams = {stream: list(numbers) for stream, numbers in parcels.streams}
