"""What callers know of an actor's class: its methods, their parameters, and how many values they return.

It travels with every handle, packed, so that a call with the wrong arguments fails where it is written and not in the
actor. A call with positional arguments only, as most are, is checked by counting them.
"""

import inspect
import json
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

CONSTRUCTOR = "__init__"
STREAMING = "streaming"
"""How many values a generator returns: one after the other."""

MANY = sys.maxsize

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

Parameter = tuple[str, int, bool]
"""Name, kind, and whether it has a default."""

ANYTHING: tuple[Parameter, ...] = (
    ("args", int(inspect.Parameter.VAR_POSITIONAL), False),
    ("kwargs", int(inspect.Parameter.VAR_KEYWORD), False),
)

GENERIC: dict[str, tuple[Parameter, ...]] = {
    "__ray_ready__": (),
    "__ray_terminate__": (),
    "__ray_call__": (("fn", int(inspect.Parameter.POSITIONAL_OR_KEYWORD), False), *ANYTHING),
}
"""What every actor can be asked for, whatever its class, as in Ray."""


class Method(NamedTuple):
    """One method, as its callers see it."""

    name: str
    parameters: tuple[Parameter, ...]
    num_returns: int | str
    fewest: int
    most: int

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise `TypeError` if the method cannot be called with these arguments."""
        if kwargs or not self.fewest <= len(args) <= self.most:
            self.signature.bind(*args, **kwargs)

    @property
    def signature(self) -> inspect.Signature:
        """The signature, without the parameter that the object itself is given in."""
        return _signature(self.parameters)


class Methods(NamedTuple):
    """All methods of a class, and the text that they are packed in."""

    packed: str
    by_name: Mapping[str, Method]


@lru_cache(maxsize=1024)
def _signature(parameters: tuple[Parameter, ...]) -> inspect.Signature:
    empty = inspect.Parameter.empty
    return inspect.Signature([
        inspect.Parameter(name, inspect._ParameterKind(kind), default=None if optional else empty)
        for name, kind, optional in parameters
    ])  # fmt: skip


@lru_cache(maxsize=1024)
def unpack(packed: str) -> Methods:
    """The methods that were packed; the same object for the same text."""
    return Methods(packed, {name: _method(name, *rest) for name, *rest in json.loads(packed)})


def _method(name: str, parameters: list[list[Any]], num_returns: int | str) -> Method:
    known: tuple[Parameter, ...] = tuple((named, kind, optional) for named, kind, optional in parameters)
    kinds = [kind for _, kind, _ in known]
    required = [kind for _, kind, optional in known if not optional]
    fewest = MANY if inspect.Parameter.KEYWORD_ONLY in required else sum(kind in POSITIONAL for kind in required)
    most = MANY if inspect.Parameter.VAR_POSITIONAL in kinds else sum(kind in POSITIONAL for kind in kinds)
    return Method(name, known, num_returns, fewest, most)


def methods_of(cls: type) -> Methods:
    """The methods that actors of a class have."""
    found = dict(GENERIC)
    returns: dict[str, int | str] = {}
    for name, member in inspect.getmembers(cls, is_method):
        found[name] = _parameters(cls, name, member)
        num_returns = getattr(inspect.unwrap(member), "__ray_num_returns__", None)
        is_generator = inspect.isgeneratorfunction(inspect.unwrap(member))
        returns[name] = (STREAMING if is_generator else 1) if num_returns is None else num_returns
    if CONSTRUCTOR not in found:
        is_plain = all(getattr(cls, name) is getattr(object, name) for name in ("__new__", CONSTRUCTOR))
        found[CONSTRUCTOR] = () if is_plain else ANYTHING
    packed = json.dumps([(name, found[name], returns.get(name, 1)) for name in sorted(found)], separators=(",", ":"))
    return unpack(packed)


def is_method(member: object) -> bool:
    """Whether a member of a class is one that can be called as a method of an actor: no slots, no nested classes."""
    return inspect.isfunction(member) or inspect.ismethod(member)


def _parameters(cls: type, name: str, member: Any) -> tuple[Parameter, ...]:
    try:
        parameters = list(inspect.signature(member).parameters.values())
    except (TypeError, ValueError):
        return ANYTHING
    is_bound = inspect.ismethod(member) or isinstance(inspect.getattr_static(cls, name), staticmethod)
    if not is_bound and parameters and parameters[0].kind in POSITIONAL:
        parameters = parameters[1:]
    return tuple((each.name, int(each.kind), each.default is not each.empty) for each in parameters)
