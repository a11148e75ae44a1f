"""Records: what the control plane knows, read once, as values. All that the commands tell is derived from these.

They are not read in one moment: each was true when it was read. Rounds are read before decisions and decisions before
places, so that a recovery that ends meanwhile is seen as ended.
"""

import json
from typing import NamedTuple, Protocol

from lineage_stash import codec
from lineage_stash.core.history import History
from lineage_stash.core.ids import Member, NodeId, PeerId
from lineage_stash.on_ray.creation import Creation
from lineage_stash.on_ray.registry import COORDINATOR, REPLICA, Place
from lineage_stash.shell import address_of

REPLICAS = REPLICA.rpartition("-")[0] + "-"


class Plane(Protocol):
    """What is needed of the control plane."""

    def get(self, key: str) -> bytes | None:
        """The value of a key."""

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with `prefix`."""

    def get_all(self, prefix: str) -> dict[str, bytes]:
        """All keys that begin with `prefix`, with their values."""


class Recovery(NamedTuple):
    """One life that took over from another."""

    round: int
    peer: str
    incarnation: int
    noticed_at: float = 0.0
    reason: str = ""
    detect_ms: float = 0.0
    gather_ms: float = 0.0
    settle_ms: float = 0.0
    start_ms: float = 0.0
    restore_ms: float = 0.0
    replay_ms: float = 0.0
    total_ms: float = 0.0
    replayed: int = 0
    host: str = ""
    pid: int = 0


class Records(NamedTuple):
    """The facts of one cluster."""

    secret: bytes | None
    coordinator: str | None
    storage: str | None
    history: History
    accused: frozenset[str]
    """Addresses that are taken for dead in a round that is not decided yet."""
    members: dict[PeerId, Member]
    creations: dict[PeerId, Creation]
    retired: frozenset[PeerId]
    killed: frozenset[PeerId]
    claimed: frozenset[str]
    places: dict[str, Place]
    recoveries: tuple[Recovery, ...]

    @property
    def has_services(self) -> bool:
        """Whether a program has ever started the coordinator or a replica here."""
        return self.coordinator is not None or bool(self.replicas)

    @property
    def replicas(self) -> dict[str, Place]:
        """The replicas of the store by name."""
        return {name: place for name, place in self.places.items() if name.startswith(REPLICAS)}

    def address(self, peer: PeerId) -> str:
        """The address of the present life of a peer."""
        return address_of(peer, self.history.incarnation(peer))


def read(plane: Plane) -> Records:
    """Read everything."""
    notes = [codec.decode(value) for value in plane.get_all("notes/").values()]
    history = History(tuple(codec.decode(value).decision for value in plane.get_all("decisions/").values()))
    found_at, storage = plane.get(COORDINATOR), plane.get("storage")
    return Records(
        secret=plane.get("secret"),
        coordinator=None if found_at is None else found_at.decode(),
        storage=None if storage is None else storage.decode(),
        history=history,
        accused=frozenset(address_of(*dead) for note in notes if note.round > history.round for dead in note.dead),
        members=dict(map(_member, plane.get_all("members/").items())),
        creations={
            PeerId(key.removeprefix("actors/")): Creation(*json.loads(value))
            for key, value in plane.get_all("actors/").items()
        },
        retired=_peers(plane, "retired/"),
        killed=_peers(plane, "killed/"),
        claimed=frozenset(key.removeprefix("claims/") for key in plane.keys("claims/")),
        places={
            key.removeprefix("places/"): Place(*json.loads(value)) for key, value in plane.get_all("places/").items()
        },
        recoveries=read_recoveries(plane),
    )


def read_recoveries(plane: Plane) -> tuple[Recovery, ...]:
    """All recoveries that have ended, oldest first."""
    found = [_recovery(value) for value in plane.get_all("recoveries/").values()]
    return tuple(sorted(found, key=lambda recovery: (recovery.noticed_at, recovery.round, recovery.peer)))


def unclaimed(records: Records) -> tuple[PeerId, ...]:
    """The actors whose present life no process has taken up."""
    left = records.killed | records.retired | frozenset(records.history.gone)
    return tuple(
        peer for peer in records.creations if peer not in left and records.address(peer) not in records.claimed
    )


def _member(item: tuple[str, bytes]) -> tuple[PeerId, Member]:
    peer = PeerId(item[0].removeprefix("members/"))
    node, replayable = json.loads(item[1])
    return peer, Member(peer, NodeId(node), replayable)


def _peers(plane: Plane, prefix: str) -> frozenset[PeerId]:
    return frozenset(PeerId(key.removeprefix(prefix)) for key in plane.keys(prefix))


def _recovery(value: bytes) -> Recovery:
    """A record, also one that an older or a newer version wrote."""
    said = json.loads(value)
    return Recovery(**{name: said[name] for name in Recovery._fields if name in said})
