"""Removing: what the store and the control plane keep of runs that are over.

Rules:
- The store is asked what it has before the control plane is: whoever writes is on record before, so whoever is in the
  store and on no record is nobody's.
- A run is removed only if it is over, if no actor of another run may ask for what it left, and if a majority of the
  replicas answers. A removal that is cut short can be repeated: what it needs is deleted last.
- A driver that left may be looked up by those whom it called, for as long as they live. Where there are any, it stays
  on record that it left, and nothing else.
"""

import json
from collections.abc import Iterable
from typing import NamedTuple

from lineage_stash import codec
from lineage_stash.cli.asking import NoAnswer, forget_at
from lineage_stash.cli.cluster import Cluster
from lineage_stash.cli.holdings import Dealings, Held, ask_all, look_at_dealings, may_ask
from lineage_stash.cli.records import Run, read
from lineage_stash.cli.runs import (
    KEYS_OF_A_PEER,
    TOMBSTONES,
    all_runs,
    keys_of,
    living_actors,
    peers_of,
    run_of,
    who_is_alive,
)
from lineage_stash.core.checkpoint import Checkpoint
from lineage_stash.core.ids import PeerId
from lineage_stash.on_ray.registry import replica_name


class NotRemoved(Exception):
    """Why something was left alone, and what to do; one line."""


class Failed(NotRemoved):
    """It should have been removed, and could not be."""


class Removed(NamedTuple):
    """Something that is gone now, or would be."""

    kind: str
    name: str
    bytes: int
    entries: int = 0
    copies: int = 1
    """On how many replicas."""

    @property
    def freed_bytes(self) -> int:
        """What is freed everywhere; of a run, as soon as the replicas write their files anew."""
        return self.bytes * self.copies


class Remains:
    """What a cluster has of runs, as far as it can be told at one time."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.holdings = ask_all(read(cluster.plane), cluster.node, cluster.alive_nodes)
        self.records = read(cluster.plane)
        self._dealings: dict[PeerId, Dealings] = {}

    @property
    def runs(self) -> list[PeerId]:
        """All runs on record."""
        return all_runs(self.records)

    def over_since(self, run: PeerId) -> float | None:
        """When a run was over, if that is known."""
        return self.records.runs.get(run, Run()).ended_at

    def note_over(self, run: PeerId, now_s: float) -> None:
        """Put on record that a run was found to be over, because one that died cannot say so itself."""
        key = f"runs/{run}"
        noted = self.cluster.plane.get(key)
        self.cluster.plane.put(key, json.dumps({**json.loads(noted or b"{}"), "ended_at": now_s}).encode())

    def refuse_unless_over(self, run: PeerId) -> None:
        """Raise unless a run is one, and over, and of no use to anybody."""
        if run not in self.runs:
            raise NotRemoved("there is no such run in this cluster: see `stash runs`")
        alive = who_is_alive(run, self.records)
        if alive:
            raise NotRemoved(f"it is not over: {'; '.join(alive)}")
        self.refuse_without_majority()
        peers = peers_of(run, self.records, self.holdings)
        if any(peer != run for peer in peers):  # a driver leaves nothing that anybody could ask for
            askers = [living.peer for living in self._others(run) if may_ask(living, peers, self._left_by(peers))]
            if askers:
                raise NotRemoved(
                    f"it may still be needed by {', '.join(askers)}, which had to do with it: wait for the next "
                    "checkpoint of these actors, or for their end"
                )

    def refuse_without_majority(self) -> None:
        """Raise unless a majority of the replicas answers."""
        current = self.records.replica_set
        answering = [] if current is None else [of for of in current.replicas if of in self.holdings.items]
        if current is None or len(answering) < current.majority:
            why = "; ".join(f"{replica_name(of)}: {why}" for of, why in self.holdings.silent.items())
            raise Failed(f"fewer than a majority of the store's replicas answer ({why}): see `stash doctor`")

    def held(self, run: PeerId) -> Held:
        """What the store has of a run."""
        return self.holdings.of(peers_of(run, self.records, self.holdings))

    def _left_by(self, peers: Iterable[PeerId]) -> list[Checkpoint]:
        found = [self.holdings.newest_checkpoint(peer) for peer in peers]
        return [checkpoint for checkpoint in found if checkpoint is not None]

    def _others(self, run: PeerId) -> list[Dealings]:
        """With whom the living actors of other runs have had to do."""
        return [self._dealings_of(peer) for peer in living_actors(self.records) if run_of(peer) != run]

    def _dealings_of(self, peer: PeerId) -> Dealings:
        if peer not in self._dealings:
            try:
                self._dealings[peer] = look_at_dealings(peer, self.holdings, self.records, self.cluster.node)
            except (NoAnswer, codec.FrameError) as error:
                raise Failed(f"what {peer} may still need cannot be told: {error}") from error
        return self._dealings[peer]

    # removing

    def would_remove(self, run: PeerId) -> Removed:
        """What there is to be removed of a run."""
        held = self.held(run)
        return Removed("run", run, held.bytes, held.entries, len(self.holdings.items))

    def remove(self, run: PeerId) -> Removed:
        """Remove all that is kept of a run that is over."""
        peers = peers_of(run, self.records, self.holdings)
        found = self.would_remove(run)
        stays_known = any(living.names(peers) for living in self._others(run))
        copies = self.forget(peers)
        plane = self.cluster.plane
        for key in keys_of(run, self.records, [key for kind in KEYS_OF_A_PEER for key in plane.keys(f"{kind}{run}")]):
            if not (stays_known and key.startswith(TOMBSTONES)):
                self._delete(key)
        return found._replace(copies=copies)

    def _delete(self, key: str) -> None:
        """Delete a key, unless it is a name that another actor has taken meanwhile."""
        plane, named = self.cluster.plane, self.records.names.get(key)
        value = None if named is None else plane.get(key)
        if value is None or json.loads(value)[0] == named:
            plane.delete(key)

    def forget(self, peers: list[PeerId]) -> int:
        """Have the replicas delete what they have of some peers; how many did, which are a majority."""
        records = self.records
        current = records.replica_set
        assert current is not None, "there is a store where its replicas were asked"
        assert records.secret is not None, "its replicas have proved themselves"
        done, failures = [], []
        for replica in self.holdings.items:
            place = records.place_of_replica(replica)
            try:
                if place is not None:
                    forget_at(place.address_from(self.cluster.node), records.secret, tuple(peers), current.epoch)
                    done.append(replica)
            except NoAnswer as error:
                failures.append(f"{replica_name(replica)}: {error}")
        if len([replica for replica in done if replica in current.replicas]) < current.majority:
            raise Failed(f"too few replicas have forgotten it ({'; '.join(failures)}): do it again")
        return len(done)
