"""Looks at live peers: how far each is, what it keeps, and whom it has called, each asked for its own.

One that is stopped, or too busy to answer while people wait, is shown without figures.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from lineage_stash.cli.figures import ask_all
from lineage_stash.cli.records import Records
from lineage_stash.core.ids import PeerId
from lineage_stash.on_ray.answers import FIGURES, FLOWS, Figures


class Look(NamedTuple):
    """What one peer said."""

    figures: Figures
    called: dict[PeerId, int]
    """How often it has called whom."""
    callers: dict[PeerId, int]
    """How often it was called by whom."""


def look_at(peers: Iterable[PeerId], records: Records, own_node: str) -> dict[PeerId, Look]:
    """Ask some peers, without those who do not answer."""
    return ask_all(peers, records, own_node, FLOWS, _understand)


def _understand(said: Any) -> Look:
    called, callers = ({PeerId(other): calls for other, calls in flows} for flows in said[FLOWS])
    return Look(Figures(*said[FIGURES]), called, callers)
