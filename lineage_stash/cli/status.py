"""Status: which services run, who takes part, and what may fail without loss; derived from the records.

`alive` means that the coordinator has a link to the process, or, where the coordinator does not answer, that a process
has come up and nobody has reported its death.
"""

from enum import StrEnum
from typing import NamedTuple

from lineage_stash.cli.asking import NoAnswer, Standing, ask_coordinator, ask_replica
from lineage_stash.cli.records import Records
from lineage_stash.core.ids import FIRST_INCARNATION, PeerId
from lineage_stash.on_ray.registry import COORDINATOR, Place


class State(StrEnum):
    """What a peer is doing."""

    STARTING = "starting"
    ALIVE = "alive"
    RECOVERING = "recovering"
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


class Status(NamedTuple):
    """All that `stash status` tells."""

    address: str
    services: tuple[Service, ...]
    spares: int | None
    """Processes that wait to take over; None where the coordinator does not answer."""
    round: int
    phase: str | None
    promise: str
    peers: tuple[PeerStatus, ...]


def collect(records: Records, address: str, own_node: str) -> Status:
    """Ask the services, and put together what they and the records say."""
    coordinator, standing = _look_at_coordinator(records, own_node)
    replicas = tuple(_look_at_replica(records, name, own_node) for name in sorted(records.replicas))
    links = None if standing is None else standing.links
    everybody = sorted(records.members.keys() | records.creations.keys())
    return Status(
        address=address,
        services=(coordinator, *replicas),
        spares=None if standing is None else standing.spares,
        round=records.history.round,
        phase=None if standing is None else standing.phase.lower(),
        promise=promise_of(len(records.replicas)),
        peers=tuple(peer_status(peer, records, links) for peer in everybody),
    )


def without_those_who_left(status: Status) -> Status:
    """Only the peers that are there or will be."""
    return status._replace(peers=tuple(peer for peer in status.peers if not peer.state.has_left))


def promise_of(replicas: int) -> str:
    """What may be lost at a time without losing anything that was promised."""
    if replicas == 0:
        return "no replica of the store is registered: a process that dies now is not recovered"
    if replicas == 1:
        return (
            "one replica: any number of processes may die, the replica's own included; "
            "the loss of its node or its disk is not survived"
        )
    survived = (replicas - 1) // 2
    return (
        f"{replicas} replicas: any number of processes may die, and {survived} of the replicas' nodes or disks be lost"
    )


def peer_status(peer: PeerId, records: Records, links: frozenset[str] | None) -> PeerStatus:
    """One peer's row; `links` are the addresses that the coordinator has a link to, where it says so."""
    creation = records.creations.get(peer)
    place = records.places.get(records.address(peer))
    member = records.members.get(peer)
    return PeerStatus(
        peer=peer,
        kind="actor" if creation is not None else "driver",
        class_name=creation.class_name if creation is not None else "",
        node=place.node if place is not None else member.node if member is not None else "",
        host=host_of(place),
        pid=place.pid if place is not None else None,
        incarnation=records.history.incarnation(peer),
        recovered=sum(recovery.peer == peer for recovery in records.recoveries),
        state=state_of(peer, records, links),
    )


def state_of(peer: PeerId, records: Records, links: frozenset[str] | None) -> State:
    """What the records, and the coordinator where it answers, make of a peer."""
    if peer in records.history.gone:
        return State.GONE
    if peer in records.killed:
        return State.KILLED
    if peer in records.retired:
        return State.RETIRED
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


def _look_at_replica(records: Records, name: str, own_node: str) -> Service:
    place = records.places[name]
    service = Service(name, False, place.node, host_of(place), place.pid, "")
    if records.secret is None:
        return service._replace(found="there is no secret to prove ourselves with")
    try:
        took_ms = ask_replica(place.address_from(own_node), records.secret)
    except NoAnswer as error:
        return service._replace(found=str(error))
    return service._replace(up=True, found=f"answers in {took_ms:.1f} ms")
