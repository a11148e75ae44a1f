"""Runs: a driver with all the actors that it, and they, have created. Which there are, and which are over. No I/O.

Everyone whose id begins with a driver's belongs to its run. A run is over when the driver has left or died and every
one of its actors has left: then nobody will write for it again.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from lineage_stash.cli.holdings import Holdings
from lineage_stash.cli.records import Records, Run
from lineage_stash.cli.status import State, state_of
from lineage_stash.core.ids import PeerId

DRIVERS = "driver-"
"""How the ids of runs begin."""

KEYS_OF_A_STAGE = ("partitions/", "digests/", "lost-partitions/", "failed-stages/", "released-stages/")
"""What is known of a run's Spark stages: their names begin with that of the run, and a colon."""

KEYS_OF_A_PEER = (
    *KEYS_OF_A_STAGE,
    "actors/", "handles/", "claims/", "code/", "places/", "crashes/", "strayed/", "members/", "runs/", "killed/",
    "retired/",
)  # fmt: skip
"""In the order in which they are deleted: at no time is anybody on record of whom it is not known that he has left."""

TOMBSTONES = "retired/"


class RunState(StrEnum):
    """What became of a driver."""

    RUNNING = "running"
    AWAY = "away"
    """It can be resumed, and its user has not started it again."""
    ENDED = "ended"
    DIED = "died"


class RunStatus(NamedTuple):
    """One run."""

    run: str
    state: RunState
    started_at: float | None
    ended_at: float | None
    entrypoint: str
    user: str
    node: str
    pid: int | None
    actors_alive: int
    actors_ended: int
    entries: int | None
    """What the store has of it, in one copy; None where the store does not answer."""
    bytes: int | None


def run_of(peer: PeerId) -> PeerId:
    """The driver to whose run a peer belongs."""
    return PeerId(peer.partition("/")[0])


def all_runs(records: Records) -> list[PeerId]:
    """The runs on record, oldest first as far as that is known."""
    found = {run_of(peer) for peer in records.peers} | records.runs.keys()
    return sorted(found, key=lambda run: (records.runs.get(run, Run()).started_at or 0.0, run))


def peers_of(run: PeerId, records: Records, holdings: Holdings) -> list[PeerId]:
    """Everyone of a run that is on record or in the store."""
    return sorted({peer for peer in (*records.peers, *holdings.peers) if run_of(peer) == run})


def strays(records: Records, holdings: Holdings) -> list[PeerId]:
    """Those whom the store has and nobody knows: what a removal that was cut short, or a replica that missed it, left.

    The holdings must have been asked for before the records were read: whoever writes is on record before.
    """
    known = set(all_runs(records))
    return [peer for peer in holdings.peers if peer.startswith(DRIVERS) and run_of(peer) not in known]


def is_over(peer: PeerId, records: Records) -> bool:
    """Whether nobody will ever write for this peer again."""
    if peer in records.retired or peer in records.history.gone:
        return True
    # One that was killed still has its record to write, unless it never began.
    return peer in records.killed and not any(claimed.rpartition("@")[0] == peer for claimed in records.claimed)


def describe(run: PeerId, records: Records, holdings: Holdings) -> RunStatus:
    """One run's row."""
    noted = records.runs.get(run, Run())
    actors = [peer for peer in records.creations if run_of(peer) == run]
    ended = sum(is_over(actor, records) for actor in actors)
    held = holdings.of(peers_of(run, records, holdings)) if holdings.items else None
    member = records.members.get(run)
    state = RunState.RUNNING
    if is_over(run, records):
        state = RunState.DIED if run in records.history.gone else RunState.ENDED
    elif state_of(run, records, None) is State.AWAY:
        state = RunState.AWAY
    return RunStatus(
        run=run,
        state=state,
        started_at=noted.started_at,
        ended_at=noted.ended_at if is_over(run, records) else None,
        entrypoint=noted.entrypoint,
        user=noted.user,
        node=noted.node or (member.node if member is not None else ""),
        pid=noted.pid,
        actors_alive=len(actors) - ended,
        actors_ended=ended,
        entries=None if held is None else held.entries,
        bytes=None if held is None else held.bytes,
    )


def who_is_alive(run: PeerId, records: Records) -> tuple[str, ...]:
    """Those of a run who may still write, in words; nobody if the run is over."""
    members = [run, *(peer for peer in records.peers if peer != run and run_of(peer) == run)]
    return tuple(_in_words(peer, records) for peer in members if not is_over(peer, records))


def living_actors(records: Records) -> list[PeerId]:
    """The actors that may have to be run again."""
    return [peer for peer in records.creations if not is_over(peer, records)]


def keys_of(run: PeerId, records: Records, keys: Iterable[str]) -> list[str]:
    """Which of the control plane's `keys` are about a run, in the order in which to delete them."""
    named = [key for key, peer in records.names.items() if run_of(peer) == run]
    found: dict[str, list[str]] = {kind: [] for kind in KEYS_OF_A_PEER}
    for key in sorted(keys):
        kind, _, subject = key.partition("/")
        if f"{kind}/" in found and re.split("[/@:]", subject, maxsplit=1)[0] == run:
            found[f"{kind}/"].append(key)
    return named + [key for kind in KEYS_OF_A_PEER for key in found[kind]]


def _in_words(peer: PeerId, records: Records) -> str:
    creation = records.creations.get(peer)
    state = state_of(peer, records, None)
    if creation is None:
        return f"its driver is {state.value}"
    names = [key.split("/", 2)[2] for key, named in records.names.items() if named == peer]
    words = [creation.class_name, *(["detached"] if creation.detached else []), *(f"named {name!r}" for name in names)]
    return f"{peer} ({', '.join(words)}) is {'ending' if state is State.KILLED else state.value}"
