"""The outbox: this peer's calls to one callee, and the replies to them.

Rules:
- Calls are numbered by the caller; a replayed caller gives the same numbers to the same calls.
- A payload is kept until the callee covers it: its durable checkpoint holds the call's effect, or its committed log the
  call's content. `[floor, next_seqno)` are kept.
- A callee runs one caller's calls in order, so replies come in order and `answered` is one number, not a set.
- On a new channel everything kept is sent again; the callee drops what it has.
"""

from collections import deque

from lineage_stash.core.ids import Seqno


class Outbox:
    """Calls `[floor, next_seqno)` kept for the callee, and results not yet dropped by the caller's program."""

    def __init__(self) -> None:
        self.floor = Seqno(0)
        self.next_seqno = Seqno(0)
        self.unsent = Seqno(0)
        self.payloads: deque[bytes] = deque()
        self.bytes = 0
        self.answered = Seqno(0)
        self.results: dict[Seqno, bytes] = {}
        self.unwanted: dict[Seqno, None] = {}
        self.released = Seqno(0)
        self.told_released = Seqno(0)

    def submit(self, payload: bytes, wanted: bool = True) -> Seqno:
        """Number a call and keep its payload; nobody will ask for the reply unless it is wanted."""
        seqno = self.next_seqno
        self.next_seqno = Seqno(seqno + 1)
        if seqno >= self.floor:
            self.payloads.append(payload)
            self.bytes += len(payload)
        if not wanted and self.results.pop(seqno, None) is None:
            self.unwanted[seqno] = None
        return seqno

    def take_unsent(self, most: int) -> tuple[Seqno, tuple[bytes, ...]]:
        """The next calls to put into a message."""
        first = max(self.unsent, self.floor)
        skipped = first - self.floor
        count = min(most, len(self.payloads) - skipped)
        if count <= 0:
            return first, ()
        if skipped == 0 and count == len(self.payloads):
            calls = tuple(self.payloads)
        else:
            payloads = self.payloads
            calls = tuple([payloads[position] for position in range(skipped, skipped + count)])
        self.unsent = Seqno(first + count)
        return first, calls

    @property
    def has_unsent(self) -> bool:
        """Whether calls wait to be put into a message."""
        return self.unsent < self.next_seqno and self.floor < self.next_seqno

    def cover(self, covered: Seqno) -> None:
        """The callee will never ask for calls below `covered` again."""
        payloads = self.payloads
        while self.floor < covered:
            if payloads:
                self.bytes -= len(payloads.popleft())
            else:
                self.floor = covered
                break
            self.floor = Seqno(self.floor + 1)
        self.unsent = max(self.unsent, self.floor)

    def accept_replies(self, first: Seqno, replies: tuple[bytes, ...]) -> None:
        """Take in replies; those that came before are the same and are dropped."""
        assert first <= self.answered, f"replies from {first} before {self.answered} was answered"
        known = self.answered - first
        results = self.results
        seqno = int(self.answered)
        for reply in replies[known:] if known else replies:
            results[Seqno(seqno)] = reply
            seqno += 1
        self.answered = Seqno(seqno)
        if self.unwanted:
            self._drop_unwanted()

    def _drop_unwanted(self) -> None:
        for seqno in [seqno for seqno in self.unwanted if seqno < self.answered]:
            del self.unwanted[seqno]
            self.results.pop(seqno, None)

    def resend_all(self) -> None:
        """A new channel: the callee may have lost whatever was sent."""
        self.unsent = self.floor
