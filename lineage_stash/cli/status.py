"""Status: which services run, who takes part, and what may fail without loss; derived from the records.

`alive` means that the coordinator has a link to the process, or, where the coordinator does not answer, that a process
has come up and nobody has reported its death.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from lineage_stash.cli.asking import NoAnswer, Standing, ask_coordinator, list_replica, of_each, time_replica
from lineage_stash.cli.records import Records
from lineage_stash.core.ids import FIRST_INCARNATION, PeerId
from lineage_stash.core.recovery import is_out
from lineage_stash.on_ray.answers import Figures
from lineage_stash.on_ray.registry import COORDINATOR, Place, replica_name
from lineage_stash.on_ray.replica_sets import ANYWHERE
from lineage_stash.store.contract import Item, ReplicaId
from lineage_stash.store.placement import promise

NO_FIGURES: Mapping[PeerId, Figures] = MappingProxyType({})
"""Where no peer was asked."""


class State(StrEnum):
    """What a peer is doing."""

    STARTING = "starting"
    ALIVE = "alive"
    RECOVERING = "recovering"
    AWAY = "away"
    """A script that can be resumed, and that its user has not started again."""
    KILLED = "killed"
    RETIRED = "retired"
    GONE = "gone"

    @property
    def has_left(self) -> bool:
        """Whether it will not be back."""
        return self in (State.KILLED, State.RETIRED, State.GONE)


class Service(NamedTuple):
    """The coordinator or a replica, as it was found."""

    name: str
    up: bool
    node: str
    host: str
    pid: int | None
    found: str
    took_ms: float | None = None
    held_bytes: int | None = None
    """What a replica keeps of everybody; None for others, and where it does not say."""


class PeerStatus(NamedTuple):
    """One peer."""

    peer: str
    kind: str
    class_name: str
    node: str
    host: str
    pid: int | None
    incarnation: int
    recovered: int
    state: State
    run: str = ""
    calls: int | None = None
    """Those that it has executed; this and all below is None where the peer was not asked, or did not answer."""
    upper: int | None = None
    """How long its log is."""
    committed: int | None = None
    lag: int | None = None
    """How many entries of its log are not committed."""
    checkpointed: int | None = None
    stash_bytes: int | None = None
    stash_cap_bytes: int | None = None
    buffer_bytes: int | None = None
    level: str | None = None
    """How durable its commits are."""
    is_held_back: bool | None = None
    """Whether it waits for commits, because its stash is at its cap."""


class Status(NamedTuple):
    """All that `stash status` tells."""

    address: str
    epoch: int | None
    """Which replica set is the store; None before the first."""
    durability: str | None
    services: tuple[Service, ...]
    lost: dict[str, str]
    """Replicas of former sets that have lost what they had confirmed, and why."""
    spares: int | None
    """Processes that wait to take over; None where the coordinator does not answer."""
    round: int
    phase: str | None
    promise: str
    peers: tuple[PeerStatus, ...]


def collect(records: Records, address: str, own_node: str, alive_nodes: frozenset[str],
            figures: Mapping[PeerId, Figures] = NO_FIGURES) -> Status:  # fmt: skip
    """Ask the services, and put together what they, the records and the peers say."""
    coordinator, standing = _look_at_coordinator(records, own_node)
    replicas = of_each(records.replicas, lambda replica: _look_at_replica(records, replica, own_node, alive_nodes))
    links = None if standing is None else standing.links
    return Status(
        address=address,
        epoch=None if records.replica_set is None else records.replica_set.epoch,
        durability=records.durability,
        services=(coordinator, *replicas.values()),
        lost={replica_name(of): why for of, why in records.lost.items() if of not in records.replicas},
        spares=None if standing is None else standing.spares,
        round=records.history.round,
        phase=None if standing is None else standing.phase.lower(),
        promise=promise_of(records, alive_nodes),
        peers=tuple(peer_status(peer, records, links, figures.get(peer)) for peer in records.peers),
    )


def without_those_who_left(status: Status) -> Status:
    """Only the peers that are there or will be."""
    return status._replace(peers=tuple(peer for peer in status.peers if not peer.state.has_left))


def promise_of(records: Records, alive_nodes: frozenset[str]) -> str:
    """What may be lost without losing anything that was promised, and what is lost of that already."""
    replicas = () if records.replica_set is None else records.replica_set.replicas
    homes = {replica: records.residences[replica].node for replica in replicas if replica in records.residences}
    said = promise(tuple(homes.values()))
    out = out_of(records, alive_nodes)
    if not out:
        return said
    left = len(homes) - len(out)
    named = ", ".join(map(replica_name, out))
    if left < len(homes) // 2 + 1:
        return f"none now: {named} of {len(homes)} replicas are out, and a majority is needed to commit and to recover"
    return f"less now: {named} of {len(homes)} replicas {'is' if len(out) == 1 else 'are'} out. In full: {said}"


def out_of(records: Records, alive_nodes: frozenset[str]) -> list[ReplicaId]:
    """The replicas of the newest set that will not be back."""
    replicas = () if records.replica_set is None else records.replica_set.replicas
    homes = {replica: records.residences[replica].node for replica in replicas if replica in records.residences}
    return [replica for replica, node in homes.items() if replica in records.lost or node not in alive_nodes]


def peer_status(peer: PeerId, records: Records, links: frozenset[str] | None,
                figures: Figures | None = None) -> PeerStatus:  # fmt: skip
    """One peer's row; `links` are the addresses that the coordinator has a link to, where it says so."""
    creation = records.creations.get(peer)
    place = records.places.get(records.address(peer))
    member = records.members.get(peer)
    found = PeerStatus(
        peer=peer,
        kind="actor" if creation is not None else "driver",
        class_name=creation.class_name if creation is not None else "",
        node=place.node if place is not None else member.node if member is not None else "",
        host=host_of(place),
        pid=place.pid if place is not None else None,
        incarnation=records.history.incarnation(peer),
        recovered=sum(recovery.peer == peer for recovery in records.recoveries),
        state=state_of(peer, records, links),
        run=peer.partition("/")[0],
    )
    if figures is None:
        return found
    return found._replace(
        calls=figures.calls,
        upper=figures.upper,
        committed=figures.committed,
        lag=figures.lag,
        checkpointed=figures.checkpointed,
        stash_bytes=figures.stash_bytes,
        stash_cap_bytes=figures.stash_cap_bytes,
        buffer_bytes=figures.buffer_bytes,
        level=figures.level,
        is_held_back=figures.is_held_back,
    )


def state_of(peer: PeerId, records: Records, links: frozenset[str] | None) -> State:
    """What the records, and the coordinator where it answers, make of a peer."""
    if peer in records.history.gone:
        return State.GONE
    if peer in records.killed:
        return State.KILLED
    if peer in records.retired:
        return State.RETIRED
    member = records.members.get(peer)
    if member is not None and is_out(member, records.history):
        return State.AWAY
    address = records.address(peer)
    if address in records.accused:
        return State.RECOVERING
    if address in (records.places if links is None else links):
        return State.ALIVE
    return State.STARTING if records.history.incarnation(peer) == FIRST_INCARNATION else State.RECOVERING


def host_of(place: Place | None) -> str:
    """The machine of a place, as its address names it."""
    return "" if place is None else place.tcp.removeprefix("tcp:").rpartition(":")[0]


def _look_at_coordinator(records: Records, own_node: str) -> tuple[Service, Standing | None]:
    place = records.places.get(records.coordinator or "")
    if place is None or records.secret is None:
        return Service(COORDINATOR, False, "", "", None, "not registered"), None
    service = Service(COORDINATOR, False, place.node, host_of(place), place.pid, "")
    try:
        standing = ask_coordinator(place.address_from(own_node), records.secret)
    except NoAnswer as error:
        return service._replace(found=str(error)), None
    return service._replace(up=True, found=f"answers in {standing.took_ms:.1f} ms"), standing


def _look_at_replica(records: Records, replica: ReplicaId, own_node: str, alive_nodes: frozenset[str]) -> Service:
    service = _described(records, replica)
    fault = fault_of(records, replica, alive_nodes)
    place = records.place_of_replica(replica)
    if fault or place is None or records.secret is None:
        return service._replace(found=fault)
    address = place.address_from(own_node)
    try:
        took_ms = time_replica(address, records.secret)
        held = sum(map(bytes_of, list_replica(address, records.secret)))
    except NoAnswer as error:
        return service._replace(found=str(error))
    found = f"answers in {took_ms:.1f} ms"
    if records.replica_set is not None and replica == records.replica_set.archive:
        found += f", the archive in {records.residences[replica].folder}"
    return service._replace(up=True, found=found, took_ms=took_ms, held_bytes=held)


def _described(records: Records, replica: ReplicaId) -> Service:
    """Where a replica should be."""
    home, place = records.residences.get(replica), records.place_of_replica(replica)
    node = (home.node if home is not None else "") or (place.node if place is not None else "")
    pid = place.pid if place is not None else None
    return Service(replica_name(replica), False, node, host_of(place), pid, "")


def fault_of(records: Records, replica: ReplicaId, alive_nodes: frozenset[str]) -> str:
    """What keeps a replica from answering, as far as that is on record."""
    home = records.residences.get(replica)
    if replica in records.lost:
        return f"lost: {records.lost[replica]}"
    if home is not None and home.node not in (ANYWHERE, *alive_nodes):
        return "its node is dead"
    if records.place_of_replica(replica) is None:
        return "not registered"
    return "" if records.secret is not None else "there is no secret to prove ourselves with"


def bytes_of(item: Item) -> int:
    """How much a replica keeps of one peer: its log, its chunks, and what its checkpoints hold by themselves."""
    kept = item.body_bytes
    for checkpoint in item.checkpoints:
        kept += len(checkpoint.state)
        kept += sum(len(payload) for _, calls in checkpoint.calls_to for payload in calls.payloads)
        kept += sum(len(result) for _, calls in checkpoint.calls_to for _, result in calls.results)
        kept += sum(len(reply) for _, calls in checkpoint.calls_from for reply in calls.replies)
    return kept
