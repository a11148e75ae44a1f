"""Upgrading: an actor that goes on with other code.

Rules:
- An upgrade is a call like any other: it has its place in the order of calls, runs once, and a replay comes to it at
  that place. What was logged before it is replayed with the former code, never with the new one; both are on record.
- A checkpoint says which code its state is of. One is taken right after an upgrade, so that the former code is needed
  no longer than until that is durable.
- `__stash_version__` of a class says which form its state has; where the form is the same, the new code takes over the
  attributes as they are. Where it is another, `__stash_upgrade__(self, version, state)` makes a new state of the former
  one. Where there is none, or it raises, the upgrade is refused, and the actor goes on as before.
- Code that is known by its name only (a class of an installed module) can change behind an actor's back: a life finds
  that out by the version in its checkpoint, upgrades the state, and refuses to replay what the former code had done.
"""

import hashlib
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

import cloudpickle

from lineage_stash.on_ray.control_plane import ControlPlane
from lineage_stash.on_ray.creation import put_class, read_creation
from lineage_stash.on_ray.errors import UpgradeRefused
from lineage_stash.on_ray.telling import warn

UPGRADE = "__stash_take_code__"
"""The method that every actor has for this."""

FIRST_VERSION = 1


def version_of(cls: type) -> Any:
    """Which form the state of a class has."""
    return getattr(cls, "__stash_version__", FIRST_VERSION)


def upgrade_object(instance: Any, cls: type) -> Any:
    """An object of another class with the state of this one."""
    saves = getattr(instance, "__ray_save__", None)
    former = version_of(type(instance))
    return upgrade_state(attributes_of(instance) if saves is None else saves(), cls, former, saved=saves is not None)


def upgrade_state(state: Any, cls: type, former_version: Any, *, saved: bool) -> Any:
    """An object of a class with a state that is made of attributes, or of what `__ray_save__` said."""
    try:
        changed: Any = object.__new__(cls)
    except TypeError as error:
        raise UpgradeRefused(f"{cls.__name__} cannot be made without its constructor: {error}") from error
    if version_of(cls) == former_version:
        if saved:
            changed.__ray_restore__(state)
            return changed
        for name, value in state.items():
            object.__setattr__(changed, name, value)
        return changed
    hook: Callable[[Any, Any], None] | None = getattr(changed, "__stash_upgrade__", None)
    if hook is None:
        raise UpgradeRefused(
            f"the state of {cls.__name__} has another form: __stash_version__ is {version_of(cls)!r} and was "
            f"{former_version!r}. Define __stash_upgrade__(self, version, state), which makes one of the other."
        )
    try:
        hook(former_version, _copy(state))
    except Exception as error:
        raise UpgradeRefused(f"{cls.__name__}.__stash_upgrade__ raised {type(error).__name__}: {error}") from error
    return changed


def attributes_of(instance: Any) -> dict[str, Any]:
    """All attributes of an object."""
    slots = [name for cls in type(instance).__mro__ for name in _slots_of(cls) if hasattr(instance, name)]
    return {**{name: getattr(instance, name) for name in slots}, **getattr(instance, "__dict__", {})}


def _slots_of(cls: type) -> list[str]:
    slots = cls.__dict__.get("__slots__", ())
    return [name for name in ([slots] if isinstance(slots, str) else slots) if name not in ("__dict__", "__weakref__")]


def _copy(value: Any) -> Any:
    """A copy as far as plain containers go, so that a hook that fails has not changed the former state by halves."""
    if type(value) is dict:
        return {key: _copy(each) for key, each in value.items()}
    return type(value)(map(_copy, value)) if type(value) in (list, tuple, set, frozenset) else value


# code


def put_code(plane: ControlPlane, cls: type) -> str:
    """Store the code of a class, by value even if it has a name in some module; its digest."""
    module = sys.modules.get(cls.__module__)
    by_name = module is not None and cls.__module__ != "__main__"
    if by_name:
        cloudpickle.register_pickle_by_value(module)
    try:
        return put_class(plane, cls)
    finally:
        if by_name:
            cloudpickle.unregister_pickle_by_value(module)


def fingerprint(cls: type) -> str:
    """The same for the same methods, in every script; what they refer to does not count."""
    sum_ = hashlib.sha256(repr(version_of(cls)).encode())
    for base in cls.__mro__[:-1]:
        for name, member in sorted(vars(base).items()):
            code = getattr(getattr(member, "__func__", member), "__code__", None)
            if code is not None:
                sum_.update(f"{name}\0".encode())
                _add_code(sum_, code)
    return sum_.hexdigest()[:16]


def _add_code(sum_: Any, code: CodeType) -> None:
    sum_.update(code.co_code)
    sum_.update("\0".join((*code.co_names, *code.co_varnames)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(sum_, constant)
        else:
            sum_.update((str(len(constant)) if isinstance(constant, frozenset) else repr(constant)).encode())


def note_fingerprint(plane: ControlPlane, peer: str, cls: type) -> None:
    """Put on record which code an actor has now."""
    plane.put(f"code/{peer}", fingerprint(cls).encode())


def warn_of_other_code(plane: ControlPlane, peer: str, name: str, cls: type) -> None:
    """Say it if an actor that was found by its name runs other code than the script has."""
    known = plane.get(f"code/{peer}")
    if known is not None and known.decode() != fingerprint(cls):
        creation = read_creation(plane, peer)  # type: ignore[arg-type]
        was = creation.class_name if creation is not None else "another class"
        warn(
            "other code",
            f"code: the actor {name!r} exists and goes on with the code that it has ({was}), which "
            f"differs from {cls.__name__} here: lineage_stash.upgrade(handle, {cls.__name__}) has it take this one.",
            peer=peer,
        )
