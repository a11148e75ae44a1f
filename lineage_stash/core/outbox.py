"""The outbox: this peer's calls to one callee, and the replies to them.

Rules:
- Calls are numbered by the caller; a replayed caller gives the same numbers to the same calls.
- A payload is kept until the callee covers it: its durable checkpoint holds the call's effect, or its committed log the
  call's content.
- A callee runs one caller's calls in order, so replies come in order and `answered` is one number, not a set.
- On a new channel everything kept is sent again; the callee drops what it has.
- Calls that are sent and not answered are bounded in bytes, because the callee keeps them in memory until they run.
  Replies, lineage and news are never held up by that: whoever waits for them would wait for ever.
- A callee that was killed has left a record: what it had finished is answered from there, every other call, submitted
  or yet to be, with its last words. Both are the same whenever and however often they are looked up.
"""

from collections import deque

from lineage_stash.core.backlog import Backlog
from lineage_stash.core.ids import Seqno
from lineage_stash.core.rope import weigh

UNDER_WAY_BYTES = 64 * 1024 * 1024
"""Calls sent to one callee and not answered: enough to keep it busy for a while, whatever it does."""


class Outbox:
    """Calls kept for the callee, and results not yet dropped by the caller's program."""

    def __init__(self) -> None:
        self.calls = Backlog()
        self.answered = Seqno(0)
        self.results: dict[Seqno, bytes] = {}
        self.unwanted: dict[Seqno, None] = {}
        self.discarded: list[bytes] = []
        """Replies that came and that nobody wants; whoever takes them in empties this."""
        self.released = Seqno(0)
        self.told_released = Seqno(0)
        self.last_words: bytes | None = None
        self.room_bytes = UNDER_WAY_BYTES
        self.held: deque[tuple[Seqno, tuple[int, ...]]] = deque()
        """Calls that are not sent yet, nor what comes after them, and the parcels that they wait for."""
        self._under_way: deque[tuple[Seqno, int]] = deque()
        """Per message sent: the number after its last call, and the bytes of its calls."""
        self._under_way_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether the callee can take in more calls."""
        return self._under_way_bytes < self.room_bytes

    @property
    def has_unsent(self) -> bool:
        """Whether a call could be sent now."""
        if not self.calls.has_unsent or not self.has_room:
            return False
        return not self.held or self.held[0][0] > max(self.calls.unsent, self.calls.floor)

    def take_unsent(self, most: int, most_bytes: int) -> tuple[Seqno, tuple[bytes, ...]]:
        """The next calls to put into a message, none where the callee has no room."""
        if not self.has_room:
            return max(self.calls.unsent, self.calls.floor), ()
        if self.held:
            most = max(0, min(most, self.held[0][0] - max(self.calls.unsent, self.calls.floor)))
        first, calls = self.calls.take_unsent(most, most_bytes)
        if calls:
            size = sum(map(weigh, calls))
            self._under_way.append((Seqno(first + len(calls)), size))
            self._under_way_bytes += size
            self._note_answered()  # what is sent again for the callee's sake alone is not answered again
        return first, calls

    def _note_answered(self) -> None:
        while self._under_way and self._under_way[0][0] <= self.answered:
            self._under_way_bytes -= self._under_way.popleft()[1]

    def resend_all(self) -> None:
        """A new channel: nothing is under way on it."""
        self.calls.resend_all()
        self._under_way.clear()
        self._under_way_bytes = 0

    def submit(self, payload: bytes, wanted: bool = True) -> Seqno:
        """Number a call and keep its payload; nobody will ask for the reply unless it is wanted."""
        seqno = self.calls.add(payload)
        if self.last_words is not None and seqno >= self.answered:
            self.accept_replies(seqno, (self.last_words,))
            self.calls.drop_below(self.answered)
        if not wanted:
            self.drop(seqno)
        return seqno

    def drop(self, seqno: Seqno) -> bytes | None:
        """Nobody will ask for this reply, which is returned if it is here."""
        reply = self.results.pop(seqno, None)
        if reply is None and seqno >= self.answered:
            self.unwanted[seqno] = None
        return reply

    def fail_rest(self, last_words: bytes) -> None:
        """The callee answers no more: every call that it has not answered, and every later one, fails."""
        self.last_words = last_words
        self.held.clear()
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
                self.discarded.append(reply)
            else:
                results[Seqno(seqno)] = reply
            seqno += 1
        self.answered = max(self.answered, Seqno(seqno))
        self._note_answered()
