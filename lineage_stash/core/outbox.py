"""The outbox: this peer's calls to one callee, and the replies to them.

Rules:
- Calls are numbered by the caller; a replayed caller gives the same numbers to the same calls.
- A payload is kept until the callee covers it: its durable checkpoint holds the call's effect, or its committed log the
  call's content.
- A callee runs one caller's calls in order, so replies come in order and `answered` is one number, not a set.
- On a new channel everything kept is sent again; the callee drops what it has.
- A callee that was killed has left a record: what it had finished is answered from there, every other call, submitted
  or yet to be, with its last words. Both are the same whenever and however often they are looked up.
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
        self.last_words: bytes | None = None

    def submit(self, payload: bytes, wanted: bool = True) -> Seqno:
        """Number a call and keep its payload; nobody will ask for the reply unless it is wanted."""
        seqno = self.calls.add(payload)
        if self.last_words is not None and seqno >= self.answered:
            self.accept_replies(seqno, (self.last_words,))
            self.calls.drop_below(self.answered)
        if not wanted:
            self.drop(seqno)
        return seqno

    def drop(self, seqno: Seqno) -> None:
        """Nobody will ask for this reply."""
        if self.results.pop(seqno, None) is None and seqno >= self.answered:
            self.unwanted[seqno] = None

    def fail_rest(self, last_words: bytes) -> None:
        """The callee answers no more: every call that it has not answered, and every later one, fails."""
        self.last_words = last_words
        self.accept_replies(self.answered, (last_words,) * (self.calls.upper - self.answered))
        self.calls.drop_below(self.calls.upper)

    def accept_replies(self, first: Seqno, replies: tuple[bytes, ...]) -> None:
        """Take in replies; those that came before are the same and are dropped."""
        assert first <= self.answered, f"replies from {first} before {self.answered} was answered"
        known = self.answered - first
        results = self.results
        seqno = int(self.answered)
        unwanted = self.unwanted
        for reply in replies[known:] if known else replies:
            if unwanted and Seqno(seqno) in unwanted:
                del unwanted[Seqno(seqno)]
            else:
                results[Seqno(seqno)] = reply
            seqno += 1
        self.answered = max(self.answered, Seqno(seqno))
