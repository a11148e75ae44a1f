"""Figures of live peers: how far each is and how much it keeps, asked of all of them at once.

One that does not answer in time is left out: it may be dying, and nobody is to wait for it.
"""

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from lineage_stash.cli.asking import NoAnswer, ask
from lineage_stash.cli.records import Records
from lineage_stash.cli.status import State, state_of
from lineage_stash.core.ids import PeerId
from lineage_stash.on_ray import answers
from lineage_stash.on_ray.answers import Figures
from lineage_stash.on_ray.links import Kind

Answer = TypeVar("Answer")

ASKED_AT_ONCE = 16

WITHIN_S = 1.0
"""A peer answers in well under a millisecond, a busy one when its steward comes round."""


def ask_figures(records: Records, own_node: str) -> dict[PeerId, Figures]:
    """What every peer says that is alive and answers."""
    alive = [peer for peer in records.peers if state_of(peer, records, None) is State.ALIVE]
    return ask_all(alive, records, own_node, answers.FIGURES, lambda said: Figures(*said[answers.FIGURES]))


def ask_all(
    peers: Iterable[PeerId], records: Records, own_node: str, what: str, understand: Callable[[Any], Answer]
) -> dict[PeerId, Answer]:
    """Ask some peers the same, without those who do not answer, or answer what is not understood."""
    asked = list(peers)
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        said = pool.map(lambda peer: ask_one(peer, records, own_node, what, understand), asked)
        return {peer: answer for peer, answer in zip(asked, said, strict=True) if answer is not None}


def ask_one(
    peer: PeerId, records: Records, own_node: str, what: str, understand: Callable[[Any], Answer]
) -> Answer | None:
    """What one peer says."""
    place = records.places.get(records.address(peer))
    if place is None or records.secret is None:
        return None
    question = json.dumps({answers.LOOK: what}).encode()
    try:
        body, _ = ask(place.address_from(own_node), records.secret, Kind.CONTROL, question, within_s=WITHIN_S)
        return understand(json.loads(body))
    except (NoAnswer, KeyError, TypeError, ValueError):  # one of another version may say something else
        return None
