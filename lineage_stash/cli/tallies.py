"""Tallies of all processes of a cluster's programs, each asked for its own."""

import json
from concurrent.futures import ThreadPoolExecutor

from lineage_stash.cli.asking import NoAnswer, ask
from lineage_stash.cli.records import Records
from lineage_stash.cli.status import State, state_of
from lineage_stash.on_ray.links import Kind
from lineage_stash.on_ray.tally import Tallied

ASKED_AT_ONCE = 16


def read_tallies(records: Records, own_node: str) -> dict[str, Tallied]:
    """What each driver, actor and task that is alive has forwarded and flushed; without those who do not answer."""
    alive = [peer for peer in records.peers if state_of(peer, records, None) is State.ALIVE]
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        found = pool.map(lambda peer: _ask(records, records.address(peer), own_node), alive)
        return {peer: tallied for peer, tallied in zip(alive, found, strict=True) if tallied is not None}


def total_of(tallies: dict[str, Tallied]) -> Tallied:
    """All of them together."""
    return sum(tallies.values(), Tallied())


def _ask(records: Records, address: str, own_node: str) -> Tallied | None:
    place = records.places.get(address)
    if place is None or records.secret is None:
        return None
    try:
        body, _ = ask(place.address_from(own_node), records.secret, Kind.CONTROL, json.dumps({"tally": 1}).encode())
    except NoAnswer:
        return None
    return Tallied(*json.loads(body)["tally"])
