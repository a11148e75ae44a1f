"""What users write: Ray's verbs, on actors that survive.

`import lineage_stash as ray` and change nothing else: classes decorated with `remote` become actors whose every call is
applied exactly once, whichever process dies. What is not here falls through to Ray itself.
"""

import atexit
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, overload

import ray

from lineage_stash.capture.here import here, paused
from lineage_stash.core.frontier import START
from lineage_stash.on_ray import plain, services
from lineage_stash.on_ray.actors import ActorClass, ActorHandle, ActorMethod, make_handle, upgrade
from lineage_stash.on_ray.context import Context, get_runtime_context
from lineage_stash.on_ray.driver import Driver
from lineage_stash.on_ray.levels import Durability, level_kept
from lineage_stash.on_ray.limits import WantedLimits
from lineage_stash.on_ray.logged import LoggedRuntime
from lineage_stash.on_ray.names import check_name, find_name
from lineage_stash.on_ray.options import DECORATOR_ERROR, is_cython
from lineage_stash.on_ray.present import Now, adopt, current, is_initialized
from lineage_stash.on_ray.refs import ObjectRef, ObjectRefGenerator
from lineage_stash.on_ray.resumable import ResumableDriver
from lineage_stash.on_ray.tasks import RemoteFunction
from lineage_stash.on_ray.telling import warn
from lineage_stash.on_ray.unborn import fail_calls_of_unborn
from lineage_stash.shell import address_of

__all__ = [
    "ActorClass", "ActorHandle", "ActorMethod", "Durability", "ObjectID", "ObjectRef", "adopt", "cancel", "current",
    "durability", "get", "get_actor", "get_runtime_context", "init", "is_initialized", "kill", "observe", "put",
    "remote", "set_durability", "shutdown", "upgrade", "wait",
]  # fmt: skip

plain.keep_refs_apart()

ObjectID = ObjectRef
"""The name that refs had in old programs."""


def init(address: str | None = None, *, storage: str | Path | None = None, replicas: int | None = None,
         durability: str | None = None, archive: str | None = None, spares: int = 1, transport: str | None = None,
         stash_cap_bytes: int | None = None, buffer_cap_bytes: int | None = None, max_failures: int | None = None,
         run_id: str | None = None, ignore_reinit_error: bool = False, **ray_options: Any) -> Context:  # fmt: skip
    """Start Ray or join it, as `ray.init` does, and the store and the coordinator with it.

    Where Ray runs in this process already, this joins it. All options of `ray.init` are passed on to it.

    `storage` is the folder of each node where lineage is made durable (by default in Ray's session folder, which ends
    with the cluster); `replicas` is how many copies there are, on as many nodes as there are (by default one per node
    up to three; to survive f nodes it takes 2f + 1); `durability` is when something counts as committed: "memory" (in
    the memories of a majority of replicas), "disk" (on the disks of a majority; the default) or "remote" (and in the
    archive); single actors may have their own. `archive` is the URL of a folder in any file system that pyarrow knows
    (file, s3, gs, hdfs).
    `spares` is how many processes wait, started and empty, to take over from one that dies.
    `stash_cap_bytes` (64 MB) is how much lineage that is not committed a process holds before new calls wait for the
    store; `buffer_cap_bytes` (128 MB) is how much of calls and replies it keeps in memory before it puts them on disk.
    `max_failures` is how many nodes may fail within one commit window: lineage then travels until one node more than
    that holds it; should more fail, whoever depends on what is lost is rolled back, and that is reported. By default
    any number is survived, and what is not committed travels with every message that depends on it.
    `transport` is how processes talk: "wire" (the default) over connections of their own, "ray" by Ray's actor calls,
    for clusters whose nodes cannot connect to one another freely. It is the same for all of a cluster.
    `run_id` makes this script one that can be resumed: started again with the same id after it was killed or has
    failed, it does again what it had done, with the same outcome, and goes on (`docs/resume.md`). By default it is what
    LINEAGE_STASH_RUN_ID says; without either the script cannot be resumed, and pays nothing for it.
    """
    with Now.lock:
        if Now.runtime is not None:
            if not ignore_reinit_error:
                raise RuntimeError(CALLED_TWICE)
            return Context(_join(), _leave)
        starts = not ray.is_initialized()
        if ray_options and not starts and not ignore_reinit_error:
            raise RuntimeError(f"Ray runs in this process already, without {', '.join(ray_options)}. {CALLED_TWICE}")
        found = ray.init(address=_checked(address), **ray_options) if starts else _join()
        try:
            services.ensure(storage=storage, spares=spares, transport=transport, replicas=replicas,
                            durability=durability, archive=archive,
                            limits=WantedLimits(stash_cap_bytes, buffer_cap_bytes, max_failures))  # fmt: skip
            adopt(_begin(run_id))
        except BaseException:
            if starts:
                ray.shutdown()
            raise
        Now.owns_ray = starts
    atexit.register(_leave_at_exit)
    return Context(found, _leave)


def _begin(run_id: str | None) -> Driver:
    """Take part, as a run that has an id or as one that has none."""
    if run_id is None and ray.get_runtime_context().worker.mode == ray.SCRIPT_MODE:
        run_id = os.environ.get(RUN_ID) or None
    if run_id is None:
        return Driver.begin()
    node = ray.get_runtime_context().worker.node
    if node is not None and node.is_head():
        warn("own cluster", "this script has started its cluster, which ends with it: to resume the run "
             f"{run_id!r}, have it join one that stays (`ray start --head`)", run=run_id)  # fmt: skip
    return ResumableDriver.resume(run_id)


RUN_ID = "LINEAGE_STASH_RUN_ID"
"""What a script's run id is if it does not say: `ray job submit` sets it without a change to the script."""

CALLED_TWICE = (
    "Maybe you called ray.init twice by accident? This error can be suppressed by passing in "
    "'ignore_reinit_error=True' or by calling 'ray.shutdown()' prior to 'ray.init()'."
)


def _checked(address: str | None) -> str | None:
    """Refuse Ray's client, whose processes are not part of the cluster."""
    if address is not None and "://" in address:
        raise ValueError(f"address={address!r} is for Ray's client: run the script on a node, or submit it as a job")
    return address


def _join() -> Any:
    """Ray's context of the connection that this process has; a worker of Ray has none."""
    is_script = ray.get_runtime_context().worker.mode == ray.SCRIPT_MODE
    return ray.init(ignore_reinit_error=True) if is_script else None


def shutdown(*, wait_for_processes: bool = False, _exiting_interpreter: bool = False) -> None:
    """Leave: this script's actors end, and Ray too if it was started here. Again does nothing."""
    with Now.lock:
        runtime = Now.runtime
        adopt(None)
        if not isinstance(runtime, Driver):
            return
        if ray.is_initialized():
            runtime.leave(Now.actors)
        Now.actors.clear()
        if Now.owns_ray:
            Now.owns_ray = False
            ray.shutdown(wait_for_processes=wait_for_processes, _exiting_interpreter=_exiting_interpreter)


def _leave_at_exit() -> None:
    _leave(failed=getattr(sys, "last_type", None) is not None)


def _leave(*, failed: bool) -> None:
    """Come to the end; a script that can be resumed, and that has failed or was told to end, has not come to it."""
    runtime = Now.runtime
    if isinstance(runtime, ResumableDriver) and (failed or runtime.was_told_to_end):
        runtime.step_out()
    shutdown()


# actors


@overload
def remote(cls: type, /) -> ActorClass: ...
@overload
def remote(function: FunctionType, /) -> RemoteFunction: ...
@overload
def remote(**options: Any) -> Callable[[Any], Any]: ...
def remote(*decorated: Any, **options: Any) -> Any:
    """Make actors of a class, or tasks of a function: `@remote`, or `@remote(num_cpus=2)`."""
    if len(decorated) == 1 and not options and callable(decorated[0]):
        return make_remote(decorated[0], {})
    if decorated or not options:
        raise TypeError(DECORATOR_ERROR)
    return lambda each: make_remote(each, options)


def make_remote(decorated: Any, options: dict[str, Any]) -> ActorClass | RemoteFunction:
    """Decorate a class or a function."""
    if inspect.isclass(decorated):
        return ActorClass(decorated, options)
    if inspect.isfunction(decorated) or is_cython(decorated):
        return RemoteFunction(decorated, options)
    raise TypeError("The @ray.remote decorator must be applied to either a function or a class.")


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """The actor that was created with this name, and has not ended; the handle does not keep it alive."""
    if not name:
        raise ValueError("Please supply a non-empty value to get_actor")
    check_name(name, namespace)
    runtime = current()
    plane, where = runtime.process.plane, namespace or runtime.namespace
    return make_handle(*runtime.observe(lambda: tuple(find_name(plane, name, where))))


def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    """End an actor for good: calls that it has not finished, and later ones, raise `RayActorError`.

    With `no_restart=False` only its process ends; the actor goes on in another one, and has lost nothing.
    """
    if isinstance(actor, ray.actor.ActorHandle):
        ray.kill(actor, no_restart=no_restart)
        return
    if not isinstance(actor, ActorHandle):
        raise ValueError(f"ray.kill() only supported for actors. For tasks, try ray.cancel(). Got: {type(actor)}.")
    runtime = current()
    process = runtime.process
    runtime.about_to(f"kill {actor._peer}")
    if no_restart:
        with paused():
            if isinstance(runtime, LoggedRuntime):
                runtime.commit()  # in a past that is lost, whoever is run again might let it live
            process.kill(actor._peer, "it was killed")
            fail_calls_of_unborn(runtime, actor._peer)
        return
    with process.lock:
        assert process.shell is not None
        incarnation = process.shell.machine.history.incarnation(actor._peer)
        process.control(address_of(actor._peer, incarnation), crash=incarnation)


def cancel(ray_waitable: Any, *, force: bool = False, recursive: bool = True) -> None:
    """Have a call fail with `TaskCancelledError`, unless it is finished.

    A running task is ended with its process, whether forced or not, and so are the tasks that it waits for. A call of
    an actor can be cancelled before it begins.
    """
    ref = ray_waitable._ref if isinstance(ray_waitable, ObjectRefGenerator) else ray_waitable
    if isinstance(ref, ObjectRef):
        ref.check_session()
        current().about_to(f"cancel {ref.name}")
        with paused():
            current().cancelling.cancel(ref, force=force)
        return
    if not isinstance(ref, ray.ObjectRef | ray.ObjectRefGenerator):
        raise TypeError(f"ray.cancel() only supported for object refs. For actors, try ray.kill(). Got: {type(ref)}.")
    ray.cancel(ref, force=force, recursive=recursive)


# durability


def set_durability(level: str) -> None:
    """From now on, have what this process logs committed at another level: "memory", "disk" or "remote".

    It takes effect with the next flush, costs nothing, and may be changed as often as one likes: less while load is
    high, more when there is time. What was flushed before keeps the level it was flushed with, or gets a higher one.
    """
    runtime = current()
    runtime.shell.level = level_kept(level, runtime.process.store)


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


def put(value: Any) -> ObjectRef:
    """Put a value aside, as it is now, and pass on its ref instead."""
    if isinstance(value, ObjectRef | ray.ObjectRef):
        raise TypeError(
            "Calling 'put' on an ray.ObjectRef is not allowed. If you really want to do this, you can wrap the "
            "ray.ObjectRef in a list and call 'put' on it."
        )
    return current().put(value)


@overload
def get(object_refs: ObjectRef, *, timeout: float | None = None) -> Any: ...
@overload
def get(object_refs: Sequence[ObjectRef], *, timeout: float | None = None) -> list[Any]: ...
def get(object_refs: ObjectRef | Sequence[ObjectRef], *, timeout: float | None = None) -> Any:
    """The value of a ref, or of each in a list; raises what the call raised."""
    if isinstance(object_refs, ObjectRef):
        if object_refs._runtime.has_left:
            object_refs.check_session()
        return current().get_one(object_refs, timeout)
    if isinstance(object_refs, ray.ObjectRef):
        return ray.get(object_refs, timeout=timeout)
    if not isinstance(object_refs, list):
        raise ValueError(
            f"Invalid type of object refs, {type(object_refs)}, is given. 'object_refs' must either be an ObjectRef or "
            "a list of ObjectRefs."
        )
    if all(isinstance(ref, ObjectRef) for ref in object_refs):
        for ref in object_refs:
            if ref._runtime.has_left:
                ref.check_session()
        return current().get_all(object_refs, timeout)
    for ref in object_refs:
        if not isinstance(ref, ObjectRef | ray.ObjectRef):
            raise TypeError(f"Attempting to call `get` on the value {ref}, which is not an ray.ObjectRef.")
    return [get(ref, timeout=timeout) for ref in object_refs]


def wait(ray_waitables: list[Any], *, num_returns: int = 1, timeout: float | None = None,
         fetch_local: bool = True) -> tuple[list[Any], list[Any]]:  # fmt: skip
    """Wait until `num_returns` of the refs have come or time is up: those that have, and the others."""
    refs = ray_waitables
    _check_waitables(refs, timeout)
    if not refs:
        return [], []
    if len(set(refs)) != len(refs):
        raise ValueError("Wait requires a list of unique ray_waitables.")
    if num_returns <= 0:
        raise ValueError(f"Invalid number of objects to return {num_returns}.")
    if num_returns > len(refs):
        raise ValueError("num_returns cannot be greater than the number of ray_waitables provided to ray.wait.")
    if not isinstance(refs[0], ObjectRef):
        ready_of_ray, rest = ray.wait(refs, num_returns=num_returns, timeout=timeout, fetch_local=fetch_local)
        return ready_of_ray, rest
    ready = set(current().wait_for(refs, num_returns, timeout)[:num_returns])
    return [refs[at] for at in sorted(ready)], [ref for at, ref in enumerate(refs) if at not in ready]


def _check_waitables(refs: Any, timeout: float | None) -> None:
    if isinstance(refs, ObjectRef | ray.ObjectRef):
        raise TypeError(f"wait() expected a list of ray.ObjectRef, got a single ray.ObjectRef {refs}")
    if not isinstance(refs, list):
        raise TypeError(f"wait() expected a list of ray.ObjectRef, got {type(refs)}")
    if timeout is not None and timeout < 0:
        raise ValueError(f"The 'timeout' argument must be nonnegative. Received {timeout}")
    for ref in refs:
        if not isinstance(ref, ObjectRef | ray.ObjectRef):
            raise TypeError(f"wait() expected a list of ray.ObjectRef, got list containing {type(ref)}")
        if isinstance(ref, ObjectRef):
            ref.check_session()
    if len({isinstance(ref, ObjectRef) for ref in refs}) > 1:
        raise TypeError(
            "wait() cannot wait for results of plain Ray and of recovered calls at once: wait for each kind"
        )


def observe(read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Ask the outside world: `read(*args, **kwargs)`. A replay recalls the answer instead of asking again."""
    asked = partial(read, *args, **kwargs) if args or kwargs else read
    if here.observing:
        return asked()
    recorder = here.recorder  # in a test without a cluster there is no other
    return current().observe(asked) if recorder is None else recorder.observe(asked)
