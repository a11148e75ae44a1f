"""Records: what the control plane knows, read once, as values. All that the commands tell is derived from these.

They are not read in one moment: each was true when it was read. Rounds are read before decisions and decisions before
places, so that a recovery that ends meanwhile is seen as ended. Who has left is read before who is there, so that
nobody is missing whom one that has left had created.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol
from zlib import crc32

from lineage_stash import codec
from lineage_stash.core.history import History
from lineage_stash.core.ids import Member, PeerId
from lineage_stash.on_ray import recovery_file
from lineage_stash.on_ray.creation import Creation
from lineage_stash.on_ray.levels import DURABILITY
from lineage_stash.on_ray.registry import COORDINATOR, Place, replica_name
from lineage_stash.on_ray.replica import STORE
from lineage_stash.on_ray.replica_sets import Residence, unpack_set
from lineage_stash.shell import address_of
from lineage_stash.store.contract import ReplicaId, ReplicaSet


class Plane(Protocol):
    """What is needed of the control plane."""

    def get(self, key: str) -> bytes | None:
        """The value of a key."""

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with `prefix`."""

    def get_all(self, prefix: str) -> dict[str, bytes]:
        """All keys that begin with `prefix`, with their values."""

    def put(self, key: str, value: bytes) -> None:
        """Set a key."""

    def delete(self, key: str) -> None:
        """Forget a key."""


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
    replayed_calls: int = 0
    """This and the next two are 0 where a version before 0.1 has put it on record."""
    replayed_bytes: int = 0
    """Payloads and readings that were in the log."""
    restored_bytes: int = 0
    """The state that was in the checkpoint."""

    @property
    def id(self) -> str:
        """What it is called, for ever: its round, and a checksum of whose it was."""
        return f"{self.round}-{crc32(self.peer.encode()) & 0xFFFF:04x}"


class Run(NamedTuple):
    """What a driver has put on record of itself."""

    started_at: float | None = None
    ended_at: float | None = None
    """When it left, or, for one that died, when that was first noticed by `stash gc`."""
    entrypoint: str = ""
    user: str = ""
    pid: int | None = None
    node: str = ""
    job_id: str = ""


class Records(NamedTuple):
    """The facts of one cluster."""

    secret: bytes | None
    coordinator: str | None
    storage: str | None
    store: str | None
    """What tells this cluster's store from any other's."""
    durability: str | None
    replica_set: ReplicaSet | None
    residences: dict[ReplicaId, Residence]
    """Where every replica lives that ever was."""
    lost: dict[ReplicaId, str]
    """The replicas that do not have any more what they have confirmed, and why."""
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

    runs: dict[PeerId, Run]
    names: dict[str, PeerId]
    """Which actor has a name, by the key of the name."""

    @property
    def has_services(self) -> bool:
        """Whether a program has ever started the coordinator or a replica here."""
        return self.coordinator is not None or self.replica_set is not None

    @property
    def replicas(self) -> tuple[ReplicaId, ...]:
        """The replicas that the store is now, the archive included."""
        return () if self.replica_set is None else self.replica_set.everyone

    @property
    def peers(self) -> list[PeerId]:
        """Everyone on record, in the order of their names."""
        return sorted(self.members.keys() | self.creations.keys())

    def place_of_replica(self, replica: ReplicaId) -> Place | None:
        """Where a replica listens; None if it has not come up."""
        return self.places.get(replica_name(replica))

    def address(self, peer: PeerId) -> str:
        """The address of the present life of a peer."""
        return address_of(peer, self.history.incarnation(peer))


def read(plane: Plane) -> Records:
    """Read everything."""
    notes = [codec.decode(value) for value in plane.get_all("notes/").values()]
    history = History(tuple(codec.decode(value).decision for value in plane.get_all("decisions/").values()))
    found_at = plane.get(COORDINATOR)
    retired, killed = _peers(plane, "retired/"), _peers(plane, "killed/")
    return Records(
        secret=plane.get("secret"),
        coordinator=None if found_at is None else found_at.decode(),
        storage=_text(plane, "storage"),
        store=_text(plane, STORE),
        durability=_text(plane, DURABILITY),
        replica_set=_newest_set(plane),
        residences={
            int(key.removeprefix("replicas/")): Residence(*json.loads(value))
            for key, value in plane.get_all("replicas/").items()
        },
        lost={int(key.removeprefix("lost/")): value.decode() for key, value in plane.get_all("lost/").items()},
        history=history,
        accused=frozenset(address_of(*dead) for note in notes if note.round > history.round for dead in note.dead),
        members=dict(map(_member, plane.get_all("members/").items())),
        creations={
            PeerId(key.removeprefix("actors/")): Creation(*json.loads(value))
            for key, value in plane.get_all("actors/").items()
        },
        retired=retired,
        killed=killed,
        claimed=frozenset(key.removeprefix("claims/") for key in plane.keys("claims/")),
        places={
            key.removeprefix("places/"): Place(*json.loads(value)) for key, value in plane.get_all("places/").items()
        },
        recoveries=read_recoveries(plane),
        runs={PeerId(key.removeprefix("runs/")): _run(value) for key, value in plane.get_all("runs/").items()},
        names={key: PeerId(json.loads(value)[0]) for key, value in plane.get_all("names/").items()},
    )


def read_recoveries(plane: Plane) -> tuple[Recovery, ...]:
    """All recoveries that have ended, oldest first."""
    return in_order(_recovery(value) for value in plane.get_all("recoveries/").values())


def left_recoveries(storage: Path) -> tuple[Recovery, ...]:
    """Those that a cluster has left beside its store, oldest first; a line that is damaged is left out."""
    found: list[Recovery] = []
    for line in recovery_file.read(storage):
        with suppress(ValueError, TypeError, AttributeError):
            found.append(_recovery(line))
    return in_order(found)


def in_order(recoveries: Iterable[Recovery]) -> tuple[Recovery, ...]:
    """Oldest first."""
    return tuple(sorted(recoveries, key=lambda recovery: (recovery.noticed_at, recovery.round, recovery.peer)))


def unclaimed(records: Records) -> tuple[PeerId, ...]:
    """The actors whose present life no process has taken up."""
    left = records.killed | records.retired | frozenset(records.history.gone)
    return tuple(
        peer for peer in records.creations if peer not in left and records.address(peer) not in records.claimed
    )


def _member(item: tuple[str, bytes]) -> tuple[PeerId, Member]:
    peer = PeerId(item[0].removeprefix("members/"))
    return peer, Member(peer, *json.loads(item[1]))


def _peers(plane: Plane, prefix: str) -> frozenset[PeerId]:
    return frozenset(PeerId(key.removeprefix(prefix)) for key in plane.keys(prefix))


def _text(plane: Plane, key: str) -> str | None:
    found = plane.get(key)
    return None if found is None else found.decode()


def _newest_set(plane: Plane) -> ReplicaSet | None:
    keys = plane.keys("epochs/")
    value = plane.get(keys[-1]) if keys else None
    return None if value is None else unpack_set(value)


def _recovery(value: bytes) -> Recovery:
    """A record, also one that an older or a newer version wrote."""
    said = json.loads(value)
    return Recovery(**{name: said[name] for name in Recovery._fields if name in said})


def _run(value: bytes) -> Run:
    """The same for a run."""
    said = json.loads(value)
    return Run(**{name: said[name] for name in Run._fields if name in said})
