"""Figures of live peers: how far each is and how much it keeps, asked of all of them at once.

One that does not answer in time is left out: it may be dying, and nobody is to wait for it.
"""

import json
from concurrent.futures import ThreadPoolExecutor

from lineage_stash.cli.asking import NoAnswer, ask
from lineage_stash.cli.records import Records
from lineage_stash.cli.status import State, state_of
from lineage_stash.core.ids import PeerId
from lineage_stash.on_ray import answers
from lineage_stash.on_ray.answers import Figures
from lineage_stash.on_ray.links import Kind

ASKED_AT_ONCE = 16

WITHIN_S = 1.0
"""A peer answers in well under a millisecond, a busy one when its steward comes round."""


def ask_figures(records: Records, own_node: str) -> dict[PeerId, Figures]:
    """What every peer says that is alive and answers."""
    alive = [peer for peer in records.peers if state_of(peer, records, None) is State.ALIVE]
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        said = pool.map(lambda peer: ask_one(records, peer, own_node), alive)
        return {peer: figures for peer, figures in zip(alive, said, strict=True) if figures is not None}


def ask_one(records: Records, peer: PeerId, own_node: str) -> Figures | None:
    """What one peer says."""
    place = records.places.get(records.address(peer))
    if place is None or records.secret is None:
        return None
    question = json.dumps({answers.LOOK: answers.FIGURES}).encode()
    try:
        body, _ = ask(place.address_from(own_node), records.secret, Kind.CONTROL, question, within_s=WITHIN_S)
        return Figures(*json.loads(body)[answers.FIGURES])
    except (NoAnswer, KeyError, TypeError):
        return None
