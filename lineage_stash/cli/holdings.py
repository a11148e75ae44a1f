"""Holdings: what the store has of each peer, as its replicas say, and with whom the living have had to do.

A living actor that dies is run again from its last checkpoint, and what it asks for then must be there: what it called
others for, and what others called it with. For those who have left, that is in their records. So these are not to be
forgotten while somebody may ask:

- Since its last checkpoint an actor may have called anybody whom it heard of, and its log does not say whom: all that
  its log names, and all that are of the same run, may be asked.
- Up to its last checkpoint it may have called those whom the checkpoint names as called. It may call them again, and
  then must hear that they are dead.
- What somebody called it with, and it has not finished by then, it will have to take from that one's record.
"""

from collections.abc import Iterable
from typing import NamedTuple

from lineage_stash import codec
from lineage_stash.cli.asking import NoAnswer, list_replica, of_each, read_log
from lineage_stash.cli.records import Records
from lineage_stash.cli.status import bytes_of, fault_of
from lineage_stash.core.checkpoint import Checkpoint, age
from lineage_stash.core.entry import Entry, Ran
from lineage_stash.core.ids import PeerId, Seqno
from lineage_stash.store.contract import Item, ReplicaId


class Held(NamedTuple):
    """How much there is."""

    entries: int
    bytes: int


class Holdings(NamedTuple):
    """What each replica has that answered, and why the others did not."""

    items: dict[ReplicaId, dict[PeerId, Item]]
    silent: dict[ReplicaId, str]

    @property
    def peers(self) -> list[PeerId]:
        """Everyone of whom anybody has something, in the order of their names."""
        return sorted({peer for items in self.items.values() for peer in items})

    def of(self, peers: Iterable[PeerId]) -> Held:
        """How much one copy of some peers is: of each, as much as the replica has that has most of it."""
        entries = held_bytes = 0
        for peer in peers:
            found = [items[peer] for items in self.items.values() if peer in items]
            entries += max((item.upper - item.base for item in found), default=0)
            held_bytes += max(map(bytes_of, found), default=0)
        return Held(entries, held_bytes)

    def newest_checkpoint(self, peer: PeerId) -> Checkpoint | None:
        """The newest checkpoint that anybody has of a peer."""
        found = [kept for items in self.items.values() if peer in items for kept in items[peer].checkpoints]
        return max(found, key=age, default=None)

    def source_of(self, peer: PeerId) -> ReplicaId | None:
        """Who has the most of a log."""
        uppers = [(items[peer].upper, -replica) for replica, items in self.items.items() if peer in items]
        return -max(uppers)[1] if uppers else None


class Dealings(NamedTuple):
    """With whom a living actor has had to do, as far as it may have to do it again."""

    peer: PeerId
    logged: frozenset[PeerId]
    """Whom its log names since its last checkpoint."""
    called: frozenset[PeerId]
    """Whom it had called by its last checkpoint."""
    finished: dict[PeerId, Seqno]
    """How many calls of each caller it had finished by then."""

    def names(self, peers: Iterable[PeerId]) -> bool:
        """Whether any of these is known to it."""
        return any(peer in self.logged or peer in self.called or peer in self.finished for peer in peers)


def ask_all(records: Records, own_node: str, alive_nodes: frozenset[str]) -> Holdings:
    """Have every replica of the store say what it has."""

    def ask(replica: ReplicaId) -> dict[PeerId, Item] | str:
        fault = fault_of(records, replica, alive_nodes)
        place = records.place_of_replica(replica)
        if fault or place is None or records.secret is None:
            return fault
        try:
            return {item.peer: item for item in list_replica(place.address_from(own_node), records.secret)}
        except NoAnswer as error:
            return str(error)

    said = of_each(records.replicas, ask)
    return Holdings(
        items={replica: answer for replica, answer in said.items() if not isinstance(answer, str)},
        silent={replica: answer for replica, answer in said.items() if isinstance(answer, str)},
    )


def look_at_dealings(peer: PeerId, holdings: Holdings, records: Records, own_node: str) -> Dealings:
    """Read the log of a living actor; raises `NoAnswer` if that cannot be done."""
    checkpoint = holdings.newest_checkpoint(peer)
    source = holdings.source_of(peer)
    place = None if source is None else records.place_of_replica(source)
    if source is None or place is None or records.secret is None:
        return dealings(peer, checkpoint, ())
    base = holdings.items[source][peer].base
    spans = list(read_log(place.address_from(own_node), records.secret, peer, base))
    return dealings(peer, checkpoint, [entry for span in spans for entry in codec.unpack_span(span).entries])


def dealings(peer: PeerId, checkpoint: Checkpoint | None, entries: Iterable[Entry]) -> Dealings:
    """What a checkpoint and the log since then say of others."""
    logged: set[PeerId] = set()
    for entry in entries:
        logged.update(needed for needed, _ in entry.needs)
        if isinstance(entry, Ran):
            logged.add(entry.caller)
    logged.discard(peer)
    if checkpoint is None:
        return Dealings(peer, frozenset(logged), frozenset(), {})
    finished = {caller: calls.finished for caller, calls in checkpoint.calls_from}
    return Dealings(peer, frozenset(logged), frozenset(callee for callee, _ in checkpoint.calls_to), finished)


def may_ask(living: Dealings, peers: Iterable[PeerId], records: Iterable[Checkpoint]) -> bool:
    """Whether a living actor may ask for something that some who have left left behind; `records` are theirs."""
    those = frozenset(peers)
    if living.logged & those or living.called & those:
        return True
    for record in records:
        for callee, calls in record.calls_to:
            if callee == living.peer and calls.next_seqno > living.finished.get(record.peer, Seqno(0)):
                return True
    return False
