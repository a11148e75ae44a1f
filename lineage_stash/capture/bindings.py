"""Names that were bound to a function before it was replaced, and modules that must see the real clock.

- `from time import time` copies a name. In modules of the user and of the libraries that it uses, such names are found
  and bound anew: among the globals, and where the module did not come with `pip` also in the attributes of classes, in
  default values and in closures of the functions that are found there. Not found: what lies in other containers, in
  instances, and in the C variables of extension modules. Modules that are imported later copy the new names anyway.
- What the standard library and Ray read for themselves (time-outs, time stamps of log records, event loops) is no
  part of the user's program, and how often they do it depends on the load: these modules keep the real clock.
"""

import sys
import types
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import suppress
from typing import Any, TypeGuard

Instead = dict[int, tuple[object, object]]
"""By identity of what a name may be bound to: that, which is so kept alive, and what is to be there instead."""

OWN = frozenset(("lineage_stash",))
"""Pauses capture whenever it is entered, and needs no more."""

REPLACED = frozenset((
    "time", "os", "posix", "random", "secrets", "uuid", "datetime", "_datetime", "numpy", "numpy.random",
    "numpy.random.mtrand",
))  # fmt: skip
"""Modules in which the functions themselves are replaced."""

REAL = (sys.stdlib_module_names | {"ray"}) - {"__main__"}
"""Packages that read clocks for themselves."""

READ_FOR_THE_USER = frozenset(("email.utils", "timeit"))
"""Modules of the standard library whose readings are the user's."""

Code = type | types.FunctionType


def is_real(module: str | None) -> bool:
    """Whether a module sees the real clock."""
    return module is not None and module.partition(".")[0] in REAL and module not in READ_FOR_THE_USER


def is_code(value: object) -> TypeGuard["Code"]:
    """Whether it is a class or a function; objects that only pretend to be one are not asked."""
    return type(value) is types.FunctionType or issubclass(type(value), type)


class Bindings:
    """Binds names anew, and can bind them back."""

    def __init__(self, captured: Instead, real: Instead) -> None:
        self.captured = captured
        self.real = real
        self._seen: dict[int, object] = {}
        """By identity; kept, so that nothing else comes to have the same."""
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, value: object) -> None:
        """Set an attribute, until `put_back`."""
        if isinstance(owner, types.ModuleType):
            self._replace_item(_names_of(owner), name, value)
            return
        before = vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))

    def _replace_item(self, names: MutableMapping[str, Any], name: str, value: object) -> None:
        before = names[name]
        names[name] = value
        self._undo.append(lambda: names.__setitem__(name, before))

    def put_back(self) -> None:
        """Bind every name as it was."""
        while self._undo:
            self._undo.pop()()
        self._seen.clear()

    def forget(self) -> None:
        """Bind the real functions again in modules that were imported meanwhile and have copied the others."""
        inverse = {id(instead): (instead, real) for real, instead in self.captured.values()}
        for module in list(sys.modules.values()):
            if isinstance(module, types.ModuleType):
                names = _names_of(module)
                for name, value in list(names.items()):
                    if id(value) in inverse:
                        names[name] = inverse[id(value)][1]

    def search_modules(self) -> None:
        """Look through all modules that were not looked through yet."""
        for name, module in list(sys.modules.items()):
            if id(module) in self._seen or not isinstance(module, types.ModuleType):
                continue
            names = _names_of(module)
            if not getattr(names.get("__spec__"), "_initializing", False):  # another thread imports it
                self._seen[id(module)] = module
                self._search_module(name, names)

    def search_again(self) -> None:
        """Look through all modules once more: there is more to be replaced than before."""
        self._seen.clear()
        self.search_modules()

    def _search_module(self, name: str, names: dict[str, Any]) -> None:
        package = name.partition(".")[0]
        if package in OWN or name in REPLACED:
            return
        if is_real(name):
            self._search_dictionary(names, self.real)
            return
        self._search_dictionary(names, self.captured)
        if _is_installed_package(names):
            return
        for value in list(names.values()):
            if is_code(value) and value.__module__ == name:
                self._search_in(value)

    def _search_in(self, found: Code) -> None:
        """Look through a class or a function, and through what it holds."""
        if id(found) in self._seen:
            return
        self._seen[id(found)] = found
        if isinstance(found, types.FunctionType):
            self._search_function(found)
            return
        for name, value in list(vars(found).items()):
            self._search_attribute(found, name, value)
            for function in _functions_in(value):
                self._search_in(function)

    def search_class(self, cls: type) -> None:
        """Look through a class that may have come by value, with globals that are no module's."""
        for base in cls.__mro__:
            if not is_real(base.__module__):
                self._search_in(base)
                for value in list(vars(base).values()):
                    for function in _functions_in(value):
                        self._search_globals(function.__globals__)

    def search_function(self, function: types.FunctionType) -> None:
        """Look through a function that may have come by value."""
        self._search_in(function)
        self._search_globals(function.__globals__)

    def _search_attribute(self, cls: type, name: str, value: Any) -> None:
        is_static = type(value) is staticmethod
        instead: Any = self._instead_of(value.__func__ if is_static else value)
        if instead is not (value.__func__ if is_static else value):
            with suppress(AttributeError, TypeError):  # some classes refuse
                self.replace(cls, name, staticmethod(instead) if is_static else instead)

    def _search_function(self, function: types.FunctionType) -> None:
        defaults = function.__defaults__
        if defaults and any(id(value) in self.captured for value in defaults):
            self.replace(function, "__defaults__", tuple(self._instead_of(value) for value in defaults))
        if function.__kwdefaults__:
            self._search_dictionary(function.__kwdefaults__, self.captured)
        for cell in function.__closure__ or ():
            self._search_cell(cell)

    def _search_globals(self, names: dict[str, Any]) -> None:
        if id(names) not in self._seen:
            self._seen[id(names)] = names
            self._search_dictionary(names, self.captured)
            for value in list(names.values()):
                if is_code(value) and not is_real(value.__module__):
                    self._search_in(value)

    def _search_dictionary(self, names: MutableMapping[str, Any], instead: Instead) -> None:
        for name, value in list(names.items()):
            found = instead.get(id(value))
            if found is not None:
                self._replace_item(names, name, found[1])

    def _search_cell(self, cell: types.CellType) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # not bound yet
            return
        if id(value) in self.captured:
            self.replace(cell, "cell_contents", self._instead_of(value))
        elif type(value) is types.FunctionType and not is_real(value.__module__):
            self._search_in(value)

    def _instead_of(self, value: object) -> object:
        found = self.captured.get(id(value))
        return value if found is None else found[1]


def _names_of(module: types.ModuleType) -> dict[str, Any]:
    """The globals of a module; a lazy one is not loaded by this."""
    names: dict[str, Any] = types.ModuleType.__getattribute__(module, "__dict__")
    return names


def _is_installed_package(names: dict[str, Any]) -> bool:
    """Whether it came with `pip`: there are thousands of classes in those, so that only their globals are looked at."""
    file = str(names.get("__file__"))
    return "site-packages" in file or "dist-packages" in file


def _functions_in(value: object) -> Iterator[types.FunctionType]:
    """The functions that an attribute of a class is made of."""
    if isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, staticmethod | classmethod):
        yield from _functions_in(value.__func__)
    elif isinstance(value, property):
        for function in (value.fget, value.fset, value.fdel):
            yield from _functions_in(function)
