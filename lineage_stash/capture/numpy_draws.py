"""The generator that the functions of `numpy.random` share, once somebody has imported numpy.

As in `random`, the functions are methods of one hidden generator, and libraries take that one itself
(`numpy.random.mtrand._rand`). A `SharedRandomState` takes its place and hands over to the generator of the actor whose
call this thread runs. Unseeded generators of numpy draw through `secrets`, which is captured anyway.
"""

import copy
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from lineage_stash.capture.draws import draw_seed
from lineage_stash.capture.here import here

HIDDEN_NAME = "_rand"

Replace = Callable[[ModuleType, str, object], None]
"""Bind a name of a module to something else."""


def is_loaded() -> bool:
    """Whether numpy's generators are there, whole."""
    loaded = sys.modules.get("numpy.random")
    return loaded is not None and hasattr(loaded, "default_rng") and "numpy.random.mtrand" in sys.modules


def share(replace: Replace) -> dict[int, tuple[object, object]]:
    """Put a shared generator in the place of the hidden one; what stands for what, by identity."""
    module, mtrand = sys.modules["numpy.random"], sys.modules["numpy.random.mtrand"]
    hidden = getattr(mtrand, HIDDEN_NAME)
    shared = _make_shared(mtrand, hidden)
    instead: dict[int, tuple[object, object]] = {}
    for owner in (module, mtrand):
        for name, real in list(vars(owner).items()):
            if getattr(real, "__self__", None) is hidden:
                method = instead.setdefault(id(real), (real, getattr(shared, name)))[1]
                replace(owner, name, method)
        replace(owner, "set_bit_generator", _set_bit_generator(mtrand, mtrand.set_bit_generator))
    replace(mtrand, HIDDEN_NAME, shared)
    return instead


def _make_shared(mtrand: Any, hidden: Any) -> Any:
    def present() -> Any:
        recorder = here.recorder
        if recorder is None:
            return hidden
        belongings = recorder.belongings
        if belongings.numpy is None:
            bits = sys.modules["numpy.random"].MT19937
            belongings.numpy = mtrand.RandomState(bits(draw_seed()))
        return belongings.numpy

    def handing_over(name: str) -> Any:
        def method(_: Any, *args: Any, **kwargs: Any) -> Any:
            return getattr(present(), name)(*args, **kwargs)

        method.__name__, method.__doc__ = name, getattr(mtrand.RandomState, name).__doc__
        return method

    names = [name for name in dir(mtrand.RandomState) if not name.startswith("_")]
    methods: dict[str, Any] = {name: handing_over(name) for name in names}
    methods["__module__"], methods["__reduce__"] = mtrand.__name__, lambda _: HIDDEN_NAME
    methods["__copy__"] = lambda _: copy.copy(present())
    methods["__deepcopy__"] = lambda _, memo: copy.deepcopy(present(), memo)
    methods["_bit_generator"] = property(lambda _: present()._bit_generator)
    methods["__doc__"] = "Has no sequence of its own: every method is that of the generator that is meant."
    cls = type("SharedRandomState", (mtrand.RandomState,), methods)
    return cls()


def _set_bit_generator(mtrand: Any, real: Callable[[Any], None]) -> Callable[[Any], None]:
    def set_bit_generator(bitgen: Any) -> None:
        recorder = here.recorder
        if recorder is None:
            real(bitgen)
        else:
            recorder.belongings.numpy = mtrand.RandomState(bitgen)

    return set_bit_generator
