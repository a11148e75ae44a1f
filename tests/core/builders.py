"""Small things that core tests are made of: names, entries, ranges, histories, and strategies that draw them."""

from hypothesis import settings
from hypothesis import strategies as st

from lineage_stash.core.batch import Range
from lineage_stash.core.entry import Assigned, Entry, Forwarded, Got, Ran, Read, Waited
from lineage_stash.core.frontier import Positions
from lineage_stash.core.history import Beginning, Decision, History
from lineage_stash.core.ids import Incarnation, Index, Member, NodeId, PeerId, Round, Seqno

A, B, C, D = (PeerId(name) for name in "abcd")

# The same examples in every run: a check that fails must fail again, and one that passes must not depend on luck.
quick = settings(deadline=None, max_examples=150, derandomize=True)


def member(peer: PeerId, *, replayable: bool = True, begun: int | None = None) -> Member:
    return Member(peer, NodeId(f"node of {peer}"), replayable, None if begun is None else Incarnation(begun))


def ran(seqno: int = 0, *, caller: PeerId = A, payload: bytes | None = None, needs: Positions = ()) -> Ran:
    return Ran(caller, Seqno(seqno), payload, 0, needs)


def said(value: bytes = b"", *, needs: Positions = ()) -> Read:
    return Read(value, 0, needs)


def needing(*needs: tuple[PeerId, int]) -> Ran:
    return ran(needs=tuple((peer, Index(upper)) for peer, upper in needs))


def log_of(*values: str) -> tuple[Read, ...]:
    """Entries that can be told apart."""
    return tuple(said(value.encode()) for value in values)


def piece(peer: PeerId, lower: int, entries: tuple[Entry, ...], *, incarnation: int = 0) -> Range:
    return Range(peer, Incarnation(incarnation), Index(lower), tuple(entries))


def decision(round_: int, *beginnings: tuple[PeerId, int, int], gone: tuple[PeerId, ...] = ()) -> Decision:
    begun = tuple(Beginning(peer, Incarnation(incarnation), Index(index)) for peer, incarnation, index in beginnings)
    return Decision(Round(round_), begun, gone, "coordinator")


def history_of(*rounds: tuple[PeerId, int, int]) -> History:
    """One round per beginning."""
    return History(tuple(decision(number, beginning) for number, beginning in enumerate(rounds, 1)))


peers = st.sampled_from((A, B, C, D))
numbers = st.integers(0, 2**40)
small = st.integers(0, 6).map(Index)
digests = st.integers(0, 2**32 - 1)
blobs = st.binary(max_size=12)
positions = st.lists(st.tuples(peers, small), max_size=5).map(tuple)
frontiers = st.dictionaries(peers, small, max_size=4)

entries = st.one_of(
    st.builds(Ran, peers, numbers, st.none() | blobs, digests, positions),
    st.builds(Read, blobs, digests, positions),
    st.builds(Waited, st.lists(st.integers(0, 300), max_size=4).map(tuple), digests, positions),
    st.builds(Got, peers, numbers, blobs, digests, positions),
    st.builds(Assigned, numbers, peers, digests, positions),
    st.builds(Forwarded, peers, numbers, numbers, numbers, digests, positions),
)
