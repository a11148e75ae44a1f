"""What the coordinator and the replicas of the store read off themselves for metrics."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from lineage_stash.on_ray.metrics import publisher
from lineage_stash.on_ray.process import Process, split_address
from lineage_stash.on_ray.registry import replica_name
from lineage_stash.on_ray.replica_watch import AWAY_LOOKS
from lineage_stash.on_ray.tracing import trace_recovery

if TYPE_CHECKING:
    from lineage_stash.on_ray.coordinator import Office
    from lineage_stash.on_ray.replica import Keeper

PHASES = ("detect", "gather", "settle", "start", "restore", "replay", "total")


def observe_recovery(record: dict[str, Any]) -> None:
    """A recovery is over: how long each of its phases took, as metrics and as spans."""
    for phase in PHASES:
        publisher.observe("stash_recovery_seconds", record[f"{phase}_ms"] / 1e3, phase=phase)
    trace_recovery(record, PHASES[:-1])


class OfficeVitals:
    """What the coordinator says of the cluster."""

    def __init__(self, office: "Office") -> None:
        self.tags: dict[str, str] = {}
        self._office = office
        self._rounds_before = office.machine.history.round

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """What guards all of it."""
        return self._office.process.lock

    def read(self) -> Mapping[str, float]:
        """All of it."""
        office, recoveries, watch = self._office, self._office.recoveries, self._office.watch
        store = office.process.store
        assert store is not None, "a coordinator has a store before anybody asks"
        peers = [address for address in office.process.links.open if split_address(address) is not None]
        return {
            "stash_recoveries": recoveries.recovered,
            "stash_replay_rate": recoveries.replay_rate,
            "stash_rounds": office.machine.history.round - self._rounds_before,
            "stash_orphans": recoveries.orphans,
            "stash_peers_up": len(peers),
            "stash_peers_down": len(office.machine.dead) + len(recoveries.settled),
            "stash_spares": len(office.hosting.usable_spares),
            "stash_nodes_up": len(office.nodes.living),
            "stash_nodes_lost": len(office.nodes.lost),
            "stash_replicas": len(store.set.replicas),
            "stash_replicas_up": len(watch.replicas_up),
            "stash_store_up": float(watch.unanswered_looks < AWAY_LOOKS),
            "stash_store_epoch": store.set.epoch,
        }


class KeeperVitals:
    """What a replica says of itself."""

    def __init__(self, keeper: "Keeper", process: Process) -> None:
        self.tags = {"replica": replica_name(keeper.replica)}
        self.lock = process.lock
        self._keeper = keeper

    def read(self) -> Mapping[str, float]:
        """All of it; the size of its files is what it was after the last commit."""
        keeper = self._keeper
        return {
            "stash_store_requests": keeper.requests,
            "stash_store_commits": keeper.commits,
            "stash_store_commit_seconds": keeper.commit_s,
            "stash_store_bytes": keeper.disk_bytes,
        }
