"""Entries: one determinant each, the only things that must survive for a peer to be run again exactly.

Every entry carries
- `digest`: a checksum of all that the peer did up to this choice, so that a replay that strays is noticed at the next
  entry and named;
- `needs`: by how much the peer's dependency frontier grew since its previous entry. The full frontier of an entry is
  the join of the `needs` of all entries up to it; what was known to be committed is left out, because it cannot be
  lost.
"""

from typing import NamedTuple

from lineage_stash.core.frontier import Positions
from lineage_stash.core.ids import PeerId, Seqno
from lineage_stash.core.rope import weigh

ENTRY_OVERHEAD_BYTES = 160
"""What one takes in memory besides its content: measured, with its numbers and its place in a list."""


class Ran(NamedTuple):
    """This call ran next. `payload` is there only for callers that nobody can run again."""

    caller: PeerId
    seqno: Seqno
    payload: bytes | None
    digest: int
    needs: Positions


class Read(NamedTuple):
    """An outside answer: a time, a draw, whatever `observe` was told."""

    value: bytes
    digest: int
    needs: Positions


class Waited(NamedTuple):
    """Which of the refs that were waited for had come, by position."""

    ready: tuple[int, ...]
    digest: int
    needs: Positions


class Got(NamedTuple):
    """A parcel came from a giver that nobody can run again. When it came is no choice: a replay has it at once."""

    giver: PeerId
    number: int
    value: bytes
    digest: int
    needs: Positions


class Assigned(NamedTuple):
    """A task got its runner. Nobody waited for that: a replay knows it as soon as the task is submitted."""

    task: int
    runner: PeerId
    digest: int
    needs: Positions


class Forwarded(NamedTuple):
    """A value with refs in it went on in a parcel: these refs got the numbers from `first` on, when it came."""

    receiver: PeerId
    number: int
    first: int
    refs: int
    digest: int
    needs: Positions


Entry = Ran | Read | Waited | Got | Assigned | Forwarded
Scripted = Ran | Read | Waited
"""What a replay follows one after the other; the others are known from its beginning."""


def content_bytes(entry: Entry) -> int:
    """How much of payloads and readings an entry holds."""
    if isinstance(entry, Ran):
        return 0 if entry.payload is None else weigh(entry.payload)
    return weigh(entry.value) if isinstance(entry, Read | Got) else 0


def size_bytes(entry: Entry) -> int:
    """How much memory an entry is charged for."""
    return ENTRY_OVERHEAD_BYTES + content_bytes(entry)
