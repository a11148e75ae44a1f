"""The outbox: this peer's calls to one callee, and the replies to them.

Rules:
- Calls are numbered by the caller; a replayed caller gives the same numbers to the same calls.
- A payload is kept until the callee covers it: its durable checkpoint holds the call's effect, or its committed log the
  call's content.
- A callee runs one caller's calls in order, so replies come in order and `answered` is one number, not a set.
- On a new channel everything kept is sent again; the callee drops what it has.
"""

from lineage_stash.core.backlog import Backlog
from lineage_stash.core.ids import Seqno


class Outbox:
    """Calls kept for the callee, and results not yet dropped by the caller's program."""

    def __init__(self) -> None:
        self.calls = Backlog()
        self.answered = Seqno(0)
        self.results: dict[Seqno, bytes] = {}
        self.unwanted: dict[Seqno, None] = {}
        self.released = Seqno(0)
        self.told_released = Seqno(0)

    def submit(self, payload: bytes, wanted: bool = True) -> Seqno:
        """Number a call and keep its payload; nobody will ask for the reply unless it is wanted."""
        seqno = self.calls.add(payload)
        if not wanted and self.results.pop(seqno, None) is None:
            self.unwanted[seqno] = None
        return seqno

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
