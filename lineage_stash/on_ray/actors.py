"""Actors as users see them: classes, handles and methods, as in Ray.

Rules:
- What is wrong with a class, its options or the arguments of a call is said where it is written.
- Handles and methods hold on to a tie (see `lending`) and not to one another, so that dropping the last of them is
  enough for an actor to end.
"""

import hashlib
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import ray
from ray.actor import ActorClassInheritanceException

from lineage_stash.capture.here import paused
from lineage_stash.core.ids import FIRST_INCARNATION, PeerId
from lineage_stash.on_ray import options
from lineage_stash.on_ray.control_plane import ControlPlane
from lineage_stash.on_ray.creation import (
    Creation,
    id_below,
    pack_placement,
    put_class,
    put_on_record,
    read_creation,
    start_host,
    wishes_of,
)
from lineage_stash.on_ray.driver import Driver
from lineage_stash.on_ray.groups import inherit_placement
from lineage_stash.on_ray.lending import Tie
from lineage_stash.on_ray.levels import level_kept
from lineage_stash.on_ray.methods import CONSTRUCTOR, STREAMING, Method, Methods, methods_of, unpack
from lineage_stash.on_ray.names import Bearer, check_name, put_name, rename_methods
from lineage_stash.on_ray.placing import node_for_first_life
from lineage_stash.on_ray.present import Now, current
from lineage_stash.on_ray.process import POLICY
from lineage_stash.on_ray.refs import is_saving, saved_runtime
from lineage_stash.on_ray.runtime import Runtime
from lineage_stash.on_ray.upgrading import UPGRADE, note_fingerprint, put_code, warn_of_other_code
from lineage_stash.shell import address_of

MAX_CRASHES = 3
"""Lives that may die in the same call before the actor is given up."""


class ActorMethod:
    """`handle.method`: call it with `.remote(...)`."""

    __slots__ = ("_method", "_num_returns", "_tie")

    def __init__(self, tie: Tie, method: Method) -> None:
        self._tie = tie
        self._method = method
        self._num_returns = method.num_returns

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method; the result is claimed by the ref, or by one ref for each result."""
        method = self._method
        method.check(args, kwargs)
        if self._num_returns == 1:
            return current().submit(self._tie.peer, method.name, args, kwargs)
        return current().submit_for(self._tie.peer, method.name, args, kwargs, self._num_returns)

    def options(self, **wanted: Any) -> "ActorMethod":
        """The same method, with other options for the calls that are made through it."""
        options.check_method_options(wanted, is_generator=self._method.num_returns == STREAMING)
        changed = ActorMethod(self._tie, self._method)
        if wanted.get("num_returns") is not None:
            changed._num_returns = wanted["num_returns"]
        return changed

    def bind(self, *_args: Any, **_kwargs: Any) -> Any:
        """Refused: only calls are recovered."""
        raise NotImplementedError(options.NO_DAGS)

    def _remote(self, args: Any = (), kwargs: dict[str, Any] | None = None, **wanted: Any) -> Any:
        """Ray's long form of `options(...).remote(...)`."""
        return self.options(**wanted).remote(*(args or ()), **(kwargs or {}))

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        name = self._method.name
        raise TypeError(
            f"Actor methods cannot be called directly. Instead of running 'object.{name}()', try "
            f"'object.{name}.remote()'."
        )

    def __repr__(self) -> str:
        return f"ActorMethod({ActorHandle(self._tie)!r}, {self._method.name})"

    def __reduce__(self) -> Any:
        return getattr, (ActorHandle(self._tie), self._method.name)


class ActorHandle:
    """A handle of an actor; it may be passed to other actors."""

    def __init__(self, tie: Tie) -> None:
        self._tie = tie
        self._peer = tie.peer

    def __getattr__(self, name: str) -> ActorMethod:
        method = None if name == "_tie" else self._tie.methods.by_name.get(name)
        if method is None:
            raise AttributeError(f"'ActorHandle' object has no attribute '{name}': that is no method of this actor")
        bound = self.__dict__[name] = ActorMethod(self._tie, method)
        return bound

    def __dir__(self) -> list[str]:
        return list(self._tie.methods.by_name)

    def __repr__(self) -> str:
        return f"Actor({self._tie.class_name}, {self._peer})"

    def __reduce__(self) -> Any:
        tie = self._tie
        if is_saving():
            return restore_handle, (tie.peer, tie.class_name, tie.methods.packed, tie.unreferenced is not None)
        tie.pass_on()
        return receive_handle, (tie.peer, tie.class_name, tie.methods.packed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and other._peer == self._peer

    def __hash__(self) -> int:
        return hash(self._peer)

    @property
    def _actor_id(self) -> Any:
        """An id as Ray's are, made of the actor's own: the same in every process and every life."""
        return actor_id_of(self._peer)


def make_handle(peer: str, class_name: str, methods: str) -> ActorHandle:
    """A handle of an actor that does not keep it alive."""
    return ActorHandle(Tie(PeerId(peer), class_name, unpack(methods)))


def receive_handle(peer: str, class_name: str, methods: str) -> ActorHandle:
    """A handle that somebody else has passed on."""
    handle = make_handle(peer, class_name, methods)
    handle._tie.note_received()
    return handle


def restore_handle(peer: str, class_name: str, methods: str, is_owned: bool) -> ActorHandle:
    """A handle in the state of an actor; where that one has created the other, it ends when no handle is left."""
    life = saved_runtime()
    if not is_owned or life is None:
        return make_handle(peer, class_name, methods)
    return ActorHandle(life.restore_tie(PeerId(peer), class_name, unpack(methods)))


def actor_id_of(peer: PeerId) -> Any:
    """Ray's kind of id for an actor."""
    return ray.ActorID(hashlib.sha256(peer.encode()).digest()[: ray.ActorID.size()])


class ActorClass:
    """A class whose instances are actors: create one with `.remote(...)`."""

    def __init__(self, cls: type, wanted: dict[str, Any]) -> None:
        options.check_actor_options(wanted)
        options.check_actor_class(cls)
        self._begin(cls, wanted)

    def _begin(self, cls: type, wanted: dict[str, Any]) -> None:
        self._cls = cls
        self._options = wanted
        self._digest = ""
        self._stored_in: ControlPlane | None = None
        """The cluster that has the code: another one may be joined later."""
        self.__doc__ = cls.__doc__
        self.__name__ = cls.__name__
        self.__module__ = cls.__module__

    @cached_property
    def _methods(self) -> Methods:
        return methods_of(self._cls)

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Create an actor."""
        self._methods.by_name[CONSTRUCTOR].check(args, kwargs)
        check_name(self._options.get("name"), self._options.get("namespace"))
        with paused():
            return create(self, current(), args, kwargs)

    def options(self, **wanted: Any) -> "ActorClass":
        """The same class with other options."""
        kept = {name: value for name, value in self._options.items() if name != "concurrency_groups"}
        changed = {**kept, **wanted}
        options.check_actor_options(changed, in_options=True)
        other = ActorClass.__new__(ActorClass)
        other._begin(self._cls, changed)
        other._digest, other._stored_in = self._digest, self._stored_in
        return other

    def bind(self, *_args: Any, **_kwargs: Any) -> Any:
        """Refused: only calls are recovered."""
        raise NotImplementedError(options.NO_DAGS)

    def _remote(self, args: Any = (), kwargs: dict[str, Any] | None = None, **wanted: Any) -> ActorHandle:
        """Ray's long form of `options(...).remote(...)`."""
        return self.options(**wanted).remote(*(args or ()), **(kwargs or {}))

    def _code_in(self, plane: ControlPlane) -> str:
        """The digest of the class's code, which is in this cluster afterwards."""
        if self._stored_in is not plane:
            self._digest, self._stored_in = put_class(plane, self._cls), plane
        return self._digest

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        name = self._cls.__name__
        raise TypeError(f"Actors cannot be instantiated directly. Instead of '{name}()', use '{name}.remote()'.")

    def __mro_entries__(self, _bases: tuple[Any, ...]) -> Any:
        raise ActorClassInheritanceException(
            f"Attempted to define a subclass of actor class '{self._cls.__name__}'. Inheriting from actor classes is "
            "not currently supported. You can instead inherit from a non-actor base class and make the derived class "
            "an actor class (with @ray.remote)."
        )

    @property
    def __ray_metadata__(self) -> SimpleNamespace:
        """The name that Ray's lists of actors show."""
        return SimpleNamespace(class_name=self.__name__)

    def __getattr__(self, name: str) -> Any:
        """Attributes and methods of the class itself, as in Ray."""
        if name.startswith("__") or name == "_cls":
            raise AttributeError(f"'ActorClass' object has no attribute '{name}'")
        return getattr(self._cls, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._cls), "remote", "options", "bind"})

    def __repr__(self) -> str:
        return f"ActorClass({self._cls.__name__})"

    def __getstate__(self) -> tuple[type, dict[str, Any]]:
        return self._cls, self._options

    def __setstate__(self, state: tuple[type, dict[str, Any]]) -> None:
        # A class that refers to itself has no methods yet at this moment: they are looked at when they are needed.
        self._begin(*state)


def upgrade(actor: ActorHandle, cls: Any) -> ActorHandle:
    """Have an actor go on with another class, from the state that it has then; a handle with the methods of that class.

    Calls that were made before run with the former code. Raises `UpgradeRefused` where the state cannot be taken over:
    then the actor goes on as before.
    """
    if not isinstance(actor, ActorHandle):
        raise TypeError(f"upgrade() takes a handle of a recovered actor, not {type(actor)}")
    new = cls if isinstance(cls, ActorClass) else ActorClass(cls, {})
    runtime = current()
    with paused():
        digest, plane = put_code(runtime.process.plane, new._cls), runtime.process.plane
        runtime.get_one(runtime.submit(actor._peer, UPGRADE, (digest,), {}))
        note_fingerprint(plane, actor._peer, new._cls)
        creation = read_creation(plane, actor._peer)
        bearer = Bearer(actor._peer, new.__name__, new._methods.packed)
        if creation is not None and creation.name:
            rename_methods(plane, creation.name, creation.namespace, bearer)
    tie = actor._tie  # the same, because the actor ends with it
    tie.class_name, tie.methods = new.__name__, new._methods
    return ActorHandle(tie)


def create(cls: ActorClass, runtime: Runtime, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ActorHandle:
    """Put an actor on record, have its host started, and call its constructor; or find the one that has its name."""
    process, wanted, class_name = runtime.process, cls._options, cls.__name__
    if wanted.get("durability"):
        level_kept(wanted["durability"], process.store)
    digest = cls._code_in(process.plane)
    peer = id_below(runtime.id, class_name, runtime.next_created())
    runtime.about_to(f"create {peer}")
    name, namespace = wanted.get("name"), wanted.get("namespace") or runtime.namespace
    if name is not None:
        bearer = Bearer(peer, class_name, cls._methods.packed)
        standing = runtime.observe(lambda: tuple(put_name(process.plane, name, namespace, bearer, wanted)))
        if standing[0] != peer:
            warn_of_other_code(process.plane, standing[0], name, cls._cls)
            return make_handle(*standing)
        note_fingerprint(process.plane, peer, cls._cls)
    detached = wanted.get("lifetime") == "detached"
    placement = inherit_placement(pack_placement(wanted), runtime.placement)
    creation = Creation(
        peer, runtime.id, class_name, digest, detached,
        wanted.get("checkpoint_every", POLICY.checkpoint_every_entries), wanted.get("max_crashes") or MAX_CRASHES,
        wanted.get("durability") or "", placement, name or "", namespace,
    )  # fmt: skip
    put_on_record(process.plane, creation)
    if not process.registry.is_claimed(address_of(peer, FIRST_INCARNATION)):
        start_host(creation, FIRST_INCARNATION, node_for_first_life(process.plane, wishes_of(creation)))
    try:
        runtime.submit(peer, CONSTRUCTOR, args, kwargs)
    except (TypeError, ValueError):  # nobody has a handle of it
        process.kill(peer, "the arguments of its constructor could not be sent")
        raise
    if isinstance(runtime, Driver) and not detached:
        Now.actors.append(peer)
    return ActorHandle(Tie(peer, class_name, cls._methods, None if detached else runtime.unreferenced))
