"""Puts the stand-ins in their places in this process, and takes them away again.

Nobody notices while no call of the user is running: the stand-ins are then the real functions, some 0.1 µs later.
What a module reads while it is imported is not captured: an import happens once in a process, not once in a life.
"""

import os
import random
import sys
import tempfile
import time
import types
import uuid
from collections.abc import Callable
from importlib import import_module
from typing import Any

from lineage_stash.capture import clocks, dates, draws, numpy_draws
from lineage_stash.capture.bindings import Bindings, Instead
from lineage_stash.capture.here import here


class _Installed:
    """What was done to this process."""

    bindings: Bindings | None = None
    put_back_dates: Callable[[], None] | None = None
    has_numpy = False


def is_installed() -> bool:
    """Whether the stand-ins are there."""
    return _Installed.bindings is not None


def install() -> None:
    """Replace the functions, and the names that are bound to them; again is nothing."""
    if is_installed():
        return
    captured: Instead = {}
    real: Instead = {id(time): (time, _real_time())}
    bindings = _Installed.bindings = Bindings(captured, real)
    for owner, stand_ins in (
        (None, clocks.stand_ins()), (os, draws.urandom_stand_ins()), (uuid, draws.uuid_stand_ins())
    ):  # fmt: skip
        for stand_in in stand_ins:
            captured[id(stand_in.real)] = (stand_in.real, stand_in)
            real[id(stand_in)] = (stand_in, stand_in.real)
            bindings.replace(owner or sys.modules[stand_in.__module__], stand_in.__name__, stand_in)
    _share_random(bindings)
    _Installed.put_back_dates = dates.replace()
    _Installed.has_numpy = False
    bootstrap: Any = import_module("importlib._bootstrap")
    bindings.replace(bootstrap, "_find_and_load", _importing(bootstrap._find_and_load))
    cover()


def add(owner: Any, name: str, instead: Any) -> None:
    """Replace one more function, of a module or of a class, until `uninstall`."""
    bindings = _Installed.bindings
    assert bindings is not None, "what is added is added to the rest"
    if isinstance(owner, types.ModuleType):
        real = getattr(owner, name)
        bindings.captured[id(real)] = (real, instead)
    bindings.replace(owner, name, instead)


def uninstall() -> None:
    """Put everything back."""
    bindings, _Installed.bindings = _Installed.bindings, None
    if bindings is not None:
        assert _Installed.put_back_dates is not None
        _Installed.put_back_dates()
        bindings.put_back()
        bindings.forget()


def cover(code: type | types.FunctionType | None = None) -> None:
    """Look for names that were bound earlier: in new modules, and in code that may have come without one."""
    bindings = _Installed.bindings
    if bindings is None:
        return
    if not _Installed.has_numpy and numpy_draws.is_loaded():
        _Installed.has_numpy = True
        bindings.captured |= numpy_draws.share(bindings.replace)
        bindings.search_again()
    bindings.search_modules()
    if isinstance(code, type):
        bindings.search_class(code)
    elif code is not None:
        bindings.search_function(code)


def _share_random(bindings: Bindings) -> None:
    for name in draws.SHARED_NAMES:
        method, shared = getattr(random, name), getattr(draws.SHARED, name)
        bindings.captured[id(method)] = (method, shared)
        bindings.replace(random, name, shared)
    bindings.replace(random, draws.HIDDEN_NAME, draws.SHARED)
    bindings.replace(random, "_urandom", os.urandom)
    real_seed = random.Random.seed
    bindings.replace(random.Random, "seed", draws.seed_of(real_seed))
    # Names of temporary files: one generator for a whole process, and another life must not be given the same names.
    bindings.replace(tempfile, "_Random", type("Random", (random.Random,), {"seed": real_seed}))


def _real_time() -> types.ModuleType:
    """The module `time` as it is without capture."""
    real = types.ModuleType("time", time.__doc__)
    vars(real).update(vars(time))
    return real


def _importing(find_and_load: Callable[..., Any]) -> Callable[..., Any]:
    """Import without capture; then look through what has come."""

    def replaced(name: str, import_: Callable[..., Any]) -> Any:
        recorder, here.recorder = here.recorder, None
        outermost, here.importing = not here.importing, True
        try:
            return find_and_load(name, import_)
        finally:
            if outermost:
                here.importing = False
                cover()
            here.recorder = recorder

    return replaced
