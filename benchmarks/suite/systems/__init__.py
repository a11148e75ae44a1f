"""The systems under test, by name; each is started for one run of one cell."""

from collections.abc import Callable

from benchmarks.suite.systems.base import System
from benchmarks.suite.systems.global_checkpoint import GlobalCheckpoint
from benchmarks.suite.systems.ray_actors import Plain, RayRetry
from benchmarks.suite.systems.stash import Stash, SyncLog

SYSTEMS: dict[str, Callable[[str], System]] = {
    kind.name: kind for kind in (Stash, Plain, RayRetry, SyncLog, GlobalCheckpoint)
}
