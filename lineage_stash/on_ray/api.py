"""What users write: Ray's verbs, on actors that survive.

`import lineage_stash as ray` and change nothing else: classes decorated with `remote` become actors whose every call is
applied exactly once, whichever process dies. What is not here falls through to Ray itself.
"""

import atexit
import inspect
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, overload

import ray

from lineage_stash.core.frontier import START
from lineage_stash.core.ids import FIRST_INCARNATION, PeerId
from lineage_stash.on_ray import services
from lineage_stash.on_ray.control_plane import ControlPlane
from lineage_stash.on_ray.creation import Creation, pack_placement, put_class, put_on_record, start_host, wishes_of
from lineage_stash.on_ray.driver import Driver
from lineage_stash.on_ray.levels import Durability, parse_level
from lineage_stash.on_ray.placing import node_for_first_life
from lineage_stash.on_ray.process import POLICY
from lineage_stash.on_ray.program import CONSTRUCTOR
from lineage_stash.on_ray.runtime import ObjectRef, Runtime
from lineage_stash.shell import address_of
from lineage_stash.store.contract import Level

__all__ = [
    "ActorClass", "ActorHandle", "ActorMethod", "Durability", "ObjectRef", "adopt", "current", "durability", "get",
    "get_actor", "init", "is_initialized", "kill", "observe", "remote", "set_durability", "shutdown", "wait",
]  # fmt: skip

MAX_CRASHES = 3
"""Lives that may die in the same call before the actor is given up."""

OWN_OPTIONS = frozenset(("checkpoint_every", "durability", "max_crashes"))
RAY_OPTIONS = frozenset((
    "name", "namespace", "lifetime", "get_if_exists", "num_cpus", "num_gpus", "resources", "memory",
    "accelerator_type", "scheduling_strategy", "runtime_env", "max_restarts", "max_task_retries",
))  # fmt: skip


class _Now:
    """The runtime of this process, if it has one, and the actors that end with it."""

    runtime: Runtime | None = None
    owns_ray = False
    lock = threading.Lock()
    actors: ClassVar[list[PeerId]] = []


def adopt(runtime: Runtime) -> None:
    """This process lives the life of an actor."""
    _Now.runtime = runtime


def current() -> Runtime:
    """The runtime of this process; a script that has none is initialized, as Ray does on first use."""
    if _Now.runtime is None:
        init()
    assert _Now.runtime is not None
    return _Now.runtime


def is_initialized() -> bool:
    """Whether this process takes part."""
    return _Now.runtime is not None


def init(address: str | None = None, *, storage: str | Path | None = None, replicas: int | None = None,
         durability: str | None = None, archive: str | None = None, spares: int = 1, transport: str | None = None,
         stash_cap_bytes: int | None = None, buffer_cap_bytes: int | None = None,
         **ray_options: Any) -> None:  # fmt: skip
    """Start Ray or join it, as `ray.init` does, and the store and the coordinator with it.

    `storage` is the folder of each node where lineage is made durable (by default in Ray's session folder, which ends
    with the cluster); `replicas` is how many copies there are, on as many nodes as there are (by default one per node
    up to three; to survive f nodes it takes 2f + 1); `durability` is when something counts as committed: "memory" (in
    the memories of a majority of replicas), "disk" (on the disks of a majority; the default) or "remote" (and in the
    archive); single actors may have their own. `archive` is the URL of a folder in any file system that pyarrow knows
    (file, s3, gs, hdfs).
    `spares` is how many processes wait, started and empty, to take over from one that dies.
    `stash_cap_bytes` (64 MB) is how much lineage that is not committed a process holds before new calls wait for the
    store; `buffer_cap_bytes` (128 MB) is how much of calls and replies it keeps in memory before it puts them on disk.
    `transport` is how processes talk: "wire" (the default) over connections of their own, "ray" by Ray's actor calls,
    for clusters whose nodes cannot connect to one another freely. It is the same for all of a cluster.
    """
    with _Now.lock:
        if _Now.runtime is not None:
            return
        if not ray.is_initialized():
            _Now.owns_ray = True
            ray.init(address=address, **ray_options)
        services.ensure(storage=storage, spares=spares, transport=transport, replicas=replicas, durability=durability,
                        archive=archive, stash_cap_bytes=stash_cap_bytes,
                        buffer_cap_bytes=buffer_cap_bytes)  # fmt: skip
        _Now.runtime = Driver()
    atexit.register(shutdown)


def shutdown() -> None:
    """Leave: this script's actors end, and Ray too if it was started here."""
    with _Now.lock:
        runtime, _Now.runtime = _Now.runtime, None
        if not isinstance(runtime, Driver):
            return
        if ray.is_initialized():
            runtime.leave(_Now.actors)
        _Now.actors.clear()
        if _Now.owns_ray:
            _Now.owns_ray = False
            ray.shutdown()


# actors


class ActorMethod:
    """`handle.method`: call it with `.remote(...)`."""

    __slots__ = ("_callee", "_name")

    def __init__(self, callee: PeerId, name: str) -> None:
        self._callee = callee
        self._name = name

    def remote(self, *args: Any, **kwargs: Any) -> ObjectRef:
        """Call the method; the result is claimed by the ref."""
        return current().submit(self._callee, self._name, args, kwargs)

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise TypeError(f"actor methods cannot be called directly: write .{self._name}.remote(...)")


class ActorHandle:
    """A handle of an actor; it may be passed to other actors."""

    def __init__(self, peer: PeerId, class_name: str, methods: frozenset[str]) -> None:
        self._peer = peer
        self._class_name = class_name
        self._method_names = methods

    def __getattr__(self, name: str) -> ActorMethod:
        if name.startswith("__") or name not in self._method_names:
            raise AttributeError(f"actor {self._class_name} has no method {name!r}")
        method = ActorMethod(self._peer, name)
        self.__dict__[name] = method
        return method

    def __repr__(self) -> str:
        return f"ActorHandle({self._class_name}, {self._peer})"

    def __reduce__(self) -> Any:
        return ActorHandle, (self._peer, self._class_name, self._method_names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and other._peer == self._peer

    def __hash__(self) -> int:
        return hash(self._peer)


class ActorClass:
    """A class whose instances are actors: create one with `.remote(...)`."""

    def __init__(self, cls: type, options: dict[str, Any]) -> None:
        _refuse_unknown(options)
        _refuse_unrecoverable(cls)
        if options.get("durability"):
            parse_level(options["durability"])
        self._cls = cls
        self._options = options
        self._digest = ""
        self._stored_in: ControlPlane | None = None
        """The cluster that has the code: another one may be joined later."""
        methods = inspect.getmembers(cls, callable)
        self._method_names = frozenset(name for name, _ in methods if not name.startswith("__") or name == "__call__")
        self.__doc__ = cls.__doc__
        self.__name__ = cls.__name__

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise TypeError(f"actors cannot be instantiated directly: write {self._cls.__name__}.remote(...)")

    def options(self, **options: Any) -> "ActorClass":
        """The same class with other options."""
        changed = ActorClass(self._cls, {**self._options, **options})
        changed._digest, changed._stored_in = self._digest, self._stored_in
        return changed

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Create an actor."""
        runtime = current()
        plane = runtime.process.plane
        if self._stored_in is not plane:
            self._digest, self._stored_in = put_class(plane, self._cls), plane
        options = self._options
        if options.get("durability"):
            _level_here(options["durability"])
        peer = PeerId(f"{runtime.id}/{self._cls.__name__}-{runtime.next_created()}")
        detached = options.get("lifetime") == "detached"
        handle = ActorHandle(peer, self._cls.__name__, self._method_names)
        standing = services.put_name(plane, options, handle)
        if standing is not None:
            return standing
        creation = Creation(
            peer, runtime.id, self._cls.__name__, self._digest, detached,
            options.get("checkpoint_every", POLICY.checkpoint_every_entries),
            options.get("max_crashes", MAX_CRASHES), options.get("durability", ""), pack_placement(options),
        )  # fmt: skip
        put_on_record(plane, creation)
        if not runtime.process.registry.is_claimed(address_of(peer, FIRST_INCARNATION)):
            start_host(creation, FIRST_INCARNATION, node_for_first_life(plane, wishes_of(creation)))
        if isinstance(runtime, Driver) and not detached:
            _Now.actors.append(peer)
        runtime.submit(peer, CONSTRUCTOR, args, kwargs)
        return handle


def _refuse_unknown(options: dict[str, Any]) -> None:
    for name in options:
        if name not in OWN_OPTIONS and name not in RAY_OPTIONS:
            known = ", ".join(sorted(OWN_OPTIONS | RAY_OPTIONS))
            raise ValueError(f"unknown or not yet supported actor option {name!r}; known are {known}")


def _refuse_unrecoverable(cls: type) -> None:
    for name, member in inspect.getmembers(cls, callable):
        if inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member):
            raise TypeError(
                f"{cls.__name__}.{name} is async: the order in which coroutines resume cannot be replayed yet. Make "
                "it a plain method, or use plain ray.remote for this class."
            )
        if inspect.isgeneratorfunction(member) and not name.startswith("__"):
            raise TypeError(f"{cls.__name__}.{name} is a generator: return a list instead, or use plain ray.remote")


@overload
def remote(cls: type, /) -> ActorClass: ...
@overload
def remote(**options: Any) -> Callable[[type], ActorClass]: ...
def remote(cls: Any = None, /, **options: Any) -> Any:
    """Make actors of a class: `@remote`, or `@remote(num_cpus=2)`."""
    if cls is None:
        return lambda decorated: remote_class(decorated, options)
    return remote_class(cls, options)


def remote_class(cls: Any, options: dict[str, Any]) -> ActorClass:
    """Decorate a class; functions cannot be recovered yet, and say so."""
    if not inspect.isclass(cls):
        raise TypeError(
            f"{getattr(cls, '__name__', cls)!r} is not a class: tasks are not recovered yet. Decorate it with plain "
            "ray.remote, and call it from a driver."
        )
    return ActorClass(cls, options)


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """The actor that was created with this name."""
    return services.find_name(current().process.plane, name, namespace)


def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    """End an actor for good: calls that it has not finished, and later ones, raise `RayActorError`."""
    runtime = current()
    if not no_restart:
        raise ValueError("an actor that is to go on is not killed: its process may be, and is recovered by itself")
    runtime.process.kill(actor._peer, "it was killed")


# durability


def set_durability(level: str) -> None:
    """From now on, have what this process logs committed at another level: "memory", "disk" or "remote".

    It takes effect with the next flush, costs nothing, and may be changed as often as one likes: less while load is
    high, more when there is time. What was flushed before keeps the level it was flushed with, or gets a higher one.
    """
    current().shell.level = _level_here(level)


def _level_here(text: str) -> Level:
    """A level that this cluster's store can keep."""
    level = parse_level(text)
    store = current().process.store
    if level is Level.REMOTE and store is not None and store.set.archive is None:
        raise ValueError(f"durability={text!r} needs an archive, and this store has none: init(archive=URL)")
    return level


def durability() -> Durability:
    """The level of this process, and how much of what it knows is not committed yet; an actor observes it."""
    runtime = current()

    def read() -> Durability:
        with runtime.process.lock:
            lineage = runtime.peer.lineage
            uncommitted = lineage.upper - lineage.committed.get(runtime.id, START)
            level = runtime.shell.level.name.lower()
            return Durability(level, uncommitted, lineage.stash.bytes, runtime.peer.policy.stash_cap_bytes)

    gauge: Durability = runtime.observe(read)
    return gauge


# results


@overload
def get(refs: ObjectRef, *, timeout: float | None = None) -> Any: ...
@overload
def get(refs: Sequence[ObjectRef], *, timeout: float | None = None) -> list[Any]: ...
def get(refs: ObjectRef | Sequence[ObjectRef], *, timeout: float | None = None) -> Any:
    """The value of a ref, or of each in a list; raises what the call raised."""
    if isinstance(refs, ObjectRef):
        return current().get_one(refs, timeout)
    if isinstance(refs, ray.ObjectRef):
        return ray.get(refs, timeout=timeout)
    if not isinstance(refs, list | tuple) or not all(isinstance(ref, ObjectRef) for ref in refs):
        raise ValueError(f"get() takes a ref or a list of refs, not {type(refs).__name__}")
    return current().get_all(refs, timeout)


def wait(refs: list[ObjectRef], *, num_returns: int = 1, timeout: float | None = None,
         fetch_local: bool = True) -> tuple[list[ObjectRef], list[ObjectRef]]:  # fmt: skip
    """Wait until `num_returns` of `refs` have come or time is up: those that have, and the others."""
    assert fetch_local in (True, False)
    if len(set(refs)) != len(refs):
        raise ValueError("wait() takes a list of different refs")
    if not 0 < num_returns <= len(refs):
        raise ValueError(f"num_returns must be between 1 and {len(refs)}, the number of refs, and is {num_returns}")
    ready = set(current().wait_for(refs, num_returns, timeout)[:num_returns])
    return [refs[at] for at in sorted(ready)], [ref for at, ref in enumerate(refs) if at not in ready]


def observe(read: Callable[[], Any]) -> Any:
    """Ask the outside world: a clock, a draw, a service. A replay recalls the answer instead of asking again."""
    return current().observe(read)
