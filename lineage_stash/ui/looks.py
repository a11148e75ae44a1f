"""Looks at live peers: how far each is, what it keeps, and whom it has called, each asked for its own.

One that is stopped, or too busy to answer while people wait, is shown without figures.
"""

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from lineage_stash.cli.asking import NoAnswer, ask
from lineage_stash.cli.figures import ASKED_AT_ONCE, WITHIN_S
from lineage_stash.cli.records import Records
from lineage_stash.core.ids import PeerId
from lineage_stash.on_ray.answers import FIGURES, FLOWS, LOOK, Figures
from lineage_stash.on_ray.links import Kind


class Look(NamedTuple):
    """What one peer said."""

    figures: Figures
    called: dict[PeerId, int]
    """How often it has called whom."""
    callers: dict[PeerId, int]
    """How often it was called by whom."""


def look_at(peers: Iterable[PeerId], records: Records, own_node: str) -> dict[PeerId, Look]:
    """Ask some peers, without those who do not answer."""
    asked = list(peers)
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        found = pool.map(lambda peer: _ask(peer, records, own_node), asked)
        return {peer: look for peer, look in zip(asked, found, strict=True) if look is not None}


def _ask(peer: PeerId, records: Records, own_node: str) -> Look | None:
    place = records.places.get(records.address(peer))
    if place is None or records.secret is None:
        return None
    question = json.dumps({LOOK: FLOWS}).encode()
    try:
        body, _ = ask(place.address_from(own_node), records.secret, Kind.CONTROL, question, within_s=WITHIN_S)
        said = json.loads(body)
        called, callers = ({PeerId(other): calls for other, calls in flows} for flows in said[FLOWS])
        return Look(Figures(*said[FIGURES]), called, callers)
    except (NoAnswer, KeyError, TypeError, ValueError):  # one of another version may say something else
        return None
