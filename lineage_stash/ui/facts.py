"""Facts: what the page shows, put together from what others have found. Pure.

The page is given values and draws them; all that needs to be known about the system to judge them is decided here.
"""

from typing import Any

from lineage_stash.cli.records import Records, Recovery, Run
from lineage_stash.cli.status import PeerStatus, State, Status, out_of
from lineage_stash.core.ids import PeerId
from lineage_stash.on_ray.answers import Figures
from lineage_stash.store.placement import survived_nodes
from lineage_stash.ui.looks import Look
from lineage_stash.ui.rates import Rates

Facts = dict[str, Any]

MOST_RECOVERIES = 1000
MOST_WHO_LEFT = 200
"""A page that is asked for once a second is not to grow with all that ever was."""

NO_FIGURES = dict.fromkeys(("lag", *(name for name in Figures._fields if name != "incarnation")))
"""Of a peer that does not answer."""


def promise_facts(status: Status, records: Records, alive_nodes: frozenset[str]) -> Facts:
    """What may fail now, with one word for it."""
    replicas = () if records.replica_set is None else records.replica_set.replicas
    homes = tuple(records.residences[replica].node for replica in replicas if replica in records.residences)
    out = out_of(records, alive_nodes)
    if not homes or len(homes) - len(out) < len(homes) // 2 + 1:
        level, word = "none", "Nothing may fail."
    elif out:
        level, word = "less", "Less than promised."
    elif survived_nodes(homes):
        level, word = "full", "Processes and nodes may fail."
    else:
        level, word = "some", "Processes may fail."
    return {"level": level, "word": word, "text": status.promise}


def recovery_facts(recovery: Recovery) -> Facts:
    """One recovery, with a name that it can be asked for by."""
    return {"id": recovery.id, **recovery._asdict()}


def run_facts(run: PeerId, noted: Run, state: str) -> Facts:
    """One run."""
    return {"run": run, "state": state, **noted._asdict()}


def peer_facts(peer: PeerStatus, look: Look | None, name: str, calls_per_s: float | None) -> Facts:
    """One peer, with what it said of itself."""
    said = NO_FIGURES if look is None else {**look.figures._asdict(), "lag": look.figures.lag}
    return {**peer._asdict(), **said, "name": name, "calls_per_s": calls_per_s, "held_bytes": None,
            "durable": None if look is None else look.figures.committed}  # fmt: skip


def flow_facts(looks: dict[PeerId, Look], records: Records, rates: Rates, at_s: float) -> list[Facts]:
    """Who calls whom, as the caller says, or, of one that has left, the callee.

    That somebody has created an actor, and no more, is no flow.
    """
    flows = [(look, caller, callee, calls) for caller, look in looks.items() for callee, calls in look.called.items()]
    flows += [(look, caller, callee, calls) for callee, look in looks.items() for caller, calls in look.callers.items()
              if caller not in looks]  # fmt: skip
    found = []
    for look, caller, callee, calls in flows:
        creation = records.creations.get(callee)
        if calls > 1 or creation is None or creation.creator != caller:
            per_s = rate_of(look, (caller, callee), calls, rates, at_s)
            found.append({"caller": caller, "callee": callee, "calls": calls, "per_s": per_s})
    return found


def rate_of(look: Look, key: tuple[str, ...], calls: int, rates: Rates, at_s: float) -> float | None:
    """How fast something grows that a peer counts: a life that replays counts again what was counted before."""
    if look.figures.is_replaying:
        return None
    return rates.note((*key, look.figures.incarnation), calls, at_s)


def without_too_many(peers: list[Facts], flows: list[Facts]) -> list[Facts]:
    """All who are there, and of those who have left the newest, and those who still matter to somebody who is there."""
    needed = {flow["caller"] for flow in flows} | {flow["callee"] for flow in flows}
    left = [peer["peer"] for peer in peers if State(peer["state"]).has_left and peer["peer"] not in needed]
    hidden = set(left[:-MOST_WHO_LEFT])
    return [peer for peer in peers if peer["peer"] not in hidden]


def total_facts(peers: list[Facts]) -> Facts:
    """All peers together, and those that stand out."""
    said = [peer for peer in peers if peer["lag"] is not None]
    most = max(said, key=lambda peer: int(peer["lag"]), default=None)
    return {
        "peers": len(peers),
        "calls": sum(peer["calls"] for peer in said),
        "calls_per_s": sum(peer["calls_per_s"] or 0.0 for peer in said),
        "lag": sum(peer["lag"] for peer in said),
        "lag_most": most["peer"] if most is not None and most["lag"] else None,
        "stash_bytes_most": max((peer["stash_bytes"] for peer in said), default=0),
        "stash_cap_bytes": max((peer["stash_cap_bytes"] for peer in said), default=0),
    }


class UnderWay:
    """Who is being recovered, and since when that was seen."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], float] = {}

    def facts(self, status: Status, at_s: float) -> list[Facts]:
        """Those of this moment."""
        now = {(peer.peer, peer.incarnation) for peer in status.peers if peer.state is State.RECOVERING}
        self._since = {life: self._since.get(life, at_s) for life in sorted(now)}
        return [{"peer": peer, "since": since, "phase": status.phase} for (peer, _), since in self._since.items()]
