"""Ray programs that survive `kill -9`: each call applied exactly once, with no wait for a log on the way of a call.

`import lineage_stash as ray`, and leave the program as it is. Importing this package is cheap and loads no Ray: the
protocol, its simulator and the test kit run without a cluster. The verbs are loaded when one is first used, and
whatever is not a verb of this package is Ray's own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lineage_stash import compiled

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from lineage_stash.on_ray.api import (
        ActorHandle,
        ObjectID,
        ObjectRef,
        cancel,
        durability,
        get,
        get_actor,
        get_runtime_context,
        init,
        is_initialized,
        kill,
        observe,
        put,
        remote,
        set_durability,
        shutdown,
        upgrade,
        wait,
    )
    from lineage_stash.on_ray.errors import (
        LineageLost,
        NondeterminismError,
        RunFinishedError,
        RunInUseError,
        UpgradeRefused,
    )
    from lineage_stash.on_ray.output import commit, effect

_VERBS = frozenset((
    "ActorHandle", "ObjectID", "ObjectRef", "cancel", "durability", "get", "get_actor", "get_runtime_context", "init",
    "is_initialized", "kill", "observe", "put", "remote", "set_durability", "shutdown", "upgrade", "wait",
))  # fmt: skip

_OUTPUT = frozenset(("commit", "effect"))
_ERRORS = frozenset(("LineageLost", "NondeterminismError", "RunFinishedError", "RunInUseError", "UpgradeRefused"))

_MODULES = frozenset(("actor", "exceptions", "util"))
"""Those of Ray's modules that have a counterpart here."""

__all__ = [
    "__version__", "init", "shutdown", "is_initialized", "remote", "get", "wait", "put", "kill", "cancel", "get_actor",
    "observe", "ObjectID", "ObjectRef", "ActorHandle", "get_runtime_context", "durability", "set_durability",
    "LineageLost", "NondeterminismError", "RunFinishedError", "RunInUseError", "UpgradeRefused", "upgrade", "commit",
    "effect",
]  # fmt: skip


is_compiled = compiled.use()
"""Whether the hot modules run in their compiled form."""


def __getattr__(name: str) -> Any:
    """One of the verbs, a module of ours, or whatever Ray has under this name."""
    if name in _VERBS:
        found = getattr(import_module("lineage_stash.on_ray.api"), name)
        globals()[name] = found
        return found
    if name in _MODULES:
        return import_module(f"lineage_stash.{name}")
    if name in _OUTPUT:
        return getattr(import_module("lineage_stash.on_ray.output"), name)
    if name in _ERRORS:
        return getattr(import_module("lineage_stash.on_ray.errors"), name)
    if name.startswith("__"):
        raise AttributeError(f"module 'lineage_stash' has no attribute {name!r}")
    return getattr(import_module("ray"), name)
