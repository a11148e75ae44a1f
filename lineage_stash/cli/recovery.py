"""One recovery in full: what died, how it was noticed, each phase on one line of time, and who had to wait.

Who was affected is told by the log: whoever had called the dead one before its history ended, and whoever it had heard
of. They went on with everything else meanwhile; what they waited for took as long as the recovery.
"""

from typing import NamedTuple

from lineage_stash.cli.logs import LogView
from lineage_stash.cli.records import Records, Recovery
from lineage_stash.cli.sources import NotFound, Source
from lineage_stash.core.entry import Ran
from lineage_stash.core.ids import Incarnation, PeerId
from lineage_stash.on_ray.recoveries import PHASES
from lineage_stash.shell import address_of

LOOKED_AT = 2048
"""How many entries before the end of a life are looked at for its callers."""


class Phase(NamedTuple):
    """What took how long, from the notice of the death on."""

    name: str
    began_ms: float
    took_ms: float


class Life(NamedTuple):
    """Where a life was lived."""

    incarnation: int
    node: str
    pid: int | None


class WholeRecovery(NamedTuple):
    """All that is known of one recovery."""

    id: str
    recovery: Recovery
    former: Life
    present: Life
    history_ends: int | None
    """At which index of its log the new life began; None where that was decided before anything is on record."""
    timeline: tuple[Phase, ...]
    together: tuple[str, ...]
    """Who else was down in the same round."""
    gone: tuple[str, ...]
    """Scripts that died in that round and cannot be run again."""
    affected: tuple[str, ...]
    """Who had called it."""


def find_recovery(records: Records, wanted: str) -> Recovery:
    """The recovery with an id; `last` is the newest."""
    if not records.recoveries:
        raise NotFound("nothing has been recovered so far")
    if wanted == "last":
        return records.recoveries[-1]
    for found in records.recoveries:
        if found.id == wanted:
            return found
    newest = ", ".join(found.id for found in records.recoveries[-5:])
    raise NotFound(f"there is no recovery {wanted}: the newest are {newest}; see stash recoveries")


def tell(recovery: Recovery, records: Records, source: Source | None) -> WholeRecovery:
    """All that records, and the log where it can be read, say of a recovery."""
    peer = PeerId(recovery.peer)
    decisions = records.history.decisions
    decision = decisions[recovery.round - 1] if 0 < recovery.round <= len(decisions) else None
    beginnings = {begun.peer: begun for begun in decision.beginnings} if decision is not None else {}
    own = beginnings.get(peer)
    ends = None if own is None else own.lower
    return WholeRecovery(
        id=recovery.id,
        recovery=recovery,
        former=_life(records, peer, recovery.incarnation - 1),
        present=_life(records, peer, recovery.incarnation)._replace(pid=recovery.pid or None),
        history_ends=ends,
        timeline=timeline(recovery),
        together=tuple(sorted(begun for begun in beginnings if begun != peer)),
        gone=() if decision is None else tuple(sorted(decision.gone)),
        affected=() if source is None or ends is None else _callers(source, peer, ends),
    )


def timeline(recovery: Recovery) -> tuple[Phase, ...]:
    """The phases one after the other."""
    found = []
    began = 0.0
    for name in PHASES:
        took = getattr(recovery, f"{name}_ms")
        found.append(Phase(name, began, took))
        began += took
    return tuple(found)


def _life(records: Records, peer: PeerId, incarnation: int) -> Life:
    place = records.places.get(address_of(peer, Incarnation(incarnation)))
    return Life(incarnation, "" if place is None else place.node, None if place is None else place.pid)


def _callers(source: Source, peer: PeerId, ends: int) -> tuple[str, ...]:
    """Who had called a peer before its history ended, as far as its log or its checkpoints say."""
    try:
        view = LogView(source, peer)
        found = {caller for made in view.item.checkpoints for caller, _ in made.calls_from}
        for _, _, entry in view.entries(ends - LOOKED_AT, ends):
            if isinstance(entry, Ran):
                found.add(entry.caller)
    except NotFound:
        return ()
    return tuple(sorted(found))
