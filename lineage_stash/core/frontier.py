"""Frontiers: peer → index, "all below". Committed, held, needed and checkpointed are all frontiers.

A frontier is a plain dict whose missing peers stand at 0. It only grows, so joining two frontiers takes the greater
index per peer, and the order in which facts arrive does not matter.
"""

from collections.abc import Iterable

from lineage_stash.core.ids import Index, PeerId

Frontier = dict[PeerId, Index]
Positions = tuple[tuple[PeerId, Index], ...]

START = Index(0)


def join(frontier: Frontier, positions: Iterable[tuple[PeerId, Index]]) -> None:
    """Raise `frontier` to at least every one of `positions`."""
    for peer, upper in positions:
        if upper > frontier.get(peer, START):
            frontier[peer] = upper


def covers(frontier: Frontier, positions: Iterable[tuple[PeerId, Index]]) -> bool:
    """Whether every one of `positions` lies at or below `frontier`."""
    return all(frontier.get(peer, START) >= upper for peer, upper in positions)


def clip(frontier: Frontier, peer: PeerId, upper: Index) -> None:
    """Lower one peer's index to `upper`: only for what a settled round declared never to have happened."""
    if frontier.get(peer, START) > upper:
        frontier[peer] = upper
