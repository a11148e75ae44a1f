"""The simulator, shipped because users test their own actors on it: a deterministic world made from one seed.

It runs the production `Shell`, `Peer`, `Coordinator`, `Replica` and `Quorum`, not copies of them. What is simulated is
only what surrounds them: the network, the registry, the disks, the clock, and the user's programs.
"""

from lineage_stash.testing.replay_check import ReplayDiffers, replay_check

__all__ = ["ReplayDiffers", "replay_check"]
