"""The facts of a running cluster, collected when the page asks for them."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from lineage_stash.cli.causes import past_of
from lineage_stash.cli.cluster import FAILURES, Cluster, alive_nodes
from lineage_stash.cli.examine import START_SERVICES
from lineage_stash.cli.logs import read_log
from lineage_stash.cli.records import Records, Run, read
from lineage_stash.cli.recovery import find_recovery, tell
from lineage_stash.cli.runs import all_runs, is_over
from lineage_stash.cli.sources import ClusterSource, NotFound, Source
from lineage_stash.cli.status import State, Status, collect
from lineage_stash.core.ids import PeerId
from lineage_stash.on_ray.registry import replica_name
from lineage_stash.ui.facts import (
    MOST_RECOVERIES,
    UnderWay,
    flow_facts,
    peer_facts,
    promise_facts,
    rate_of,
    recovery_facts,
    run_facts,
    total_facts,
    without_too_many,
)
from lineage_stash.ui.looks import Look, look_at
from lineage_stash.ui.rates import OVER_S, Rates
from lineage_stash.ui.server import Facts, NotThere

MOST_ENTRIES = 60
"""Of a log, at a time."""

NOTHING_FAILED = "Nothing has failed so far. What fails, and how it comes back, will be shown here."


class LiveCluster:
    """A cluster that this process has joined."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rates = Rates()
        self._under_way = UnderWay()
        self._last: Facts = {}

    def facts(self) -> Facts:
        """All that is true now; where the cluster does not answer, what was true last, and that it does not."""
        try:
            self._last = self._collect()
        except FAILURES as error:
            if not self._last:
                raise NotThere(f"the cluster does not answer: {first_line(error)}") from error
            self._last = {**self._last, "trouble": f"The cluster does not answer any more: {first_line(error)}"}
        return self._last

    def _collect(self) -> Facts:
        cluster, now_s = self._cluster, time.time()
        records, alive = read(cluster.plane), alive_nodes()
        status = collect(records, cluster.address, cluster.node, alive)
        up = [PeerId(peer.peer) for peer in status.peers if peer.state is State.ALIVE]
        looks = look_at(up, records, cluster.node)
        peers = self._peers(status, records, looks, now_s)
        flows = flow_facts(looks, records, self._rates, now_s)
        self._rates.forget_before(now_s - OVER_S)
        return {
            "at": now_s,
            "source": {"live": True, "name": cluster.address, "title": f"the Ray cluster at {cluster.address}"},
            "trouble": "" if records.has_services else f"No services run in this cluster yet: {START_SERVICES}",
            "promise": promise_facts(status, records, alive),
            "runs": [run_facts(run, records.runs.get(run, Run()), "over" if is_over(run, records) else "here")
                     for run in all_runs(records)],
            "services": [service._asdict() for service in status.services],
            "lost": status.lost,
            "archive": _archive(records),
            "alive_nodes": sorted(alive),
            "epoch": status.epoch,
            "durability": status.durability,
            "spares": status.spares,
            "round": status.round,
            "phase": status.phase,
            "peers": without_too_many(peers, flows),
            "flows": flows,
            "recoveries": [recovery_facts(one) for one in records.recoveries[-MOST_RECOVERIES:]],
            "no_recoveries": NOTHING_FAILED,
            "under_way": self._under_way.facts(status, now_s),
            "totals": {**total_facts(peers), "recoveries": len(records.recoveries)},
            "reads_logs": True,
        }  # fmt: skip

    def _peers(self, status: Status, records: Records, looks: dict[PeerId, Look], at_s: float) -> list[Facts]:
        names = {peer: key.split("/", 2)[2] for key, peer in records.names.items()}
        found = []
        for peer in status.peers:
            look = looks.get(PeerId(peer.peer))
            per_s = None if look is None else rate_of(look, (peer.peer,), look.figures.calls, self._rates, at_s)
            found.append(peer_facts(peer, look, names.get(PeerId(peer.peer), ""), per_s))
        return found

    def log(self, peer: str, before: int | None) -> Facts:
        """Some entries of a log in words, the newest, or those before an index."""
        return self._read(lambda source: log_facts(source, peer, before))

    def past(self, call: str) -> Facts:
        """The causal past of a call as a graph."""
        return self._read(lambda source: past_facts(source, call))

    def recovery(self, wanted: str) -> Facts:
        """One recovery in full."""

        def ask(source: ClusterSource) -> Facts:
            whole = tell(find_recovery(source.records, wanted), source.records, source)
            return {"history_ends": whole.history_ends, "affected": list(whole.affected)}

        return self._read(ask)

    def _read(self, ask: Callable[[ClusterSource], Facts]) -> Facts:
        cluster = self._cluster
        try:
            source = ClusterSource(read(cluster.plane), cluster.plane, cluster.node, alive_nodes())
            with closing(source):
                return ask(source)
        except (NotFound, *FAILURES) as error:
            raise NotThere(first_line(error)) from error


def log_facts(source: Source, peer: str, before: int | None) -> Facts:
    """A part of a log, from wherever logs are read."""
    part = read_log(source, source.resolve(peer), upper=before, tail=MOST_ENTRIES)
    return {
        "entries": [{"index": one.at, "text": one.words, "call": f"{peer}:{one.at}"} for one in part.entries],
        "base": part.base,
        "more": bool(part.entries) and part.entries[0].at > part.base,
    }


def past_facts(source: Source, call: str) -> Facts:
    """The past of a call, from wherever logs are read."""
    past = past_of(source, call)
    said: dict[str, Any] = past._asdict()
    return {**said, "nodes": [node._asdict() for node in past.nodes], "edges": [edge._asdict() for edge in past.edges]}


def first_line(error: BaseException) -> str:
    """What happened, without what Ray writes below it."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _archive(records: Records) -> str | None:
    archive = None if records.replica_set is None else records.replica_set.archive
    return None if archive is None else replica_name(archive)
