"""The inbox: one caller's calls to this peer, in the caller's order, and the cache of replies to them.

Rules:
- `replies.upper ≤ started ≤ received`, each a number: calls below `received` have come, below `started` have been run
  or are running, below `replies.upper` are answered; below `replies.floor` the caller will never ask for the reply
  again.
- De-duplication is on *received*: a repeat of a waiting or running call joins it, a repeat of a finished one finds its
  reply in the cache. Its batch is merged all the same, by the peer, before the inbox sees the call.
- A repeat whose arguments differ is nondeterminism of the caller and is reported, naming the call.
- On a new channel all cached replies are sent again.
"""

from collections import deque

from lineage_stash.core.backlog import Backlog
from lineage_stash.core.digest import digest
from lineage_stash.core.ids import Seqno
from lineage_stash.core.rope import weigh


class Inbox:
    """Queue of calls `[started, received)`, and the replies that are kept."""

    def __init__(self) -> None:
        self.received = Seqno(0)
        self.started = Seqno(0)
        self.queue: deque[bytes] = deque()
        self.queue_bytes = 0
        self.queue_digests: deque[int] = deque()
        self.digests: deque[int] = deque()
        self.replies = Backlog()
        self.covered = Seqno(0)
        self.told_covered = Seqno(0)
        self.replayed_out_of_turn = 0

    def accept(self, first: Seqno, calls: tuple[bytes, ...]) -> tuple[int, list[Seqno]]:
        """Queue what is new; return how many calls that was, and the repeats whose arguments differ."""
        differing: list[Seqno] = []
        received = int(self.received)
        assert first <= received, f"calls from {first} before {received} was received"
        known = min(received - first, len(calls))
        for position in range(known):
            if self._differs(first + position, calls[position]):
                differing.append(Seqno(first + position))
        fresh = calls[known:] if known else calls
        self.queue.extend(fresh)
        self.queue_digests.extend(map(digest, fresh))
        self.queue_bytes += sum(map(weigh, fresh))
        self.received = Seqno(received + len(fresh))
        return len(fresh), differing

    def _differs(self, seqno: int, payload: bytes) -> bool:
        if seqno >= self.started:
            return self.queue_digests[seqno - self.started] != digest(payload)
        position = len(self.digests) - (self.started - seqno)
        return position >= 0 and self.digests[position] != digest(payload)

    def start(self) -> tuple[Seqno, bytes, int]:
        """Take the next call off the queue, with the digest of its arguments."""
        seqno = self.started
        counted = self.queue_digests.popleft()
        self.digests.append(counted)
        self.started = Seqno(seqno + 1)
        payload = self.queue.popleft()
        self.queue_bytes -= weigh(payload)
        return seqno, payload, counted

    def finish(self, reply: bytes) -> None:
        """Cache the reply to the running call."""
        if self.replies.add(reply) < self.replies.floor:
            self._trim_digests()

    def release(self, released: Seqno) -> None:
        """The caller will never ask for replies below `released` again."""
        if released > self.replies.floor:
            self.replies.drop_below(released)
            self._trim_digests()

    def _trim_digests(self) -> None:
        """Digests are kept for the calls whose replies are kept, and for the one that is running."""
        surplus = len(self.digests) - (self.started - min(self.replies.floor, self.replies.upper))
        for _ in range(surplus):
            self.digests.popleft()
