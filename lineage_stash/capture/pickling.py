"""Pickles code by value like cloudpickle, but functions of `random` and `numpy.random` by name instead of by value.

They are methods of a hidden generator, and a pickle of one holds a copy of that generator: whoever had written
`from random import random` in a script would draw from the copy, in every life from its beginning.
"""

import io
import pickle
import random
import sys
from typing import Any

import cloudpickle

from lineage_stash.capture.draws import HIDDEN_NAME

METHODS = frozenset(("method", "builtin_function_or_method"))
"""The types of bound methods, in Python and in C."""


class CodePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """For classes and functions."""

    def reducer_override(self, obj: Any) -> Any:
        """How to pickle something that is not as it is with cloudpickle."""
        owner = _module_of(obj) if type(obj).__name__ in METHODS else None
        return super().reducer_override(obj) if owner is None else (getattr, (owner, obj.__name__))


def _module_of(method: Any) -> Any:
    """The module whose function this is, if it is a method of a hidden generator."""
    generator = getattr(method, "__self__", None)
    hidden_of_numpy = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    if generator is not None and generator is hidden_of_numpy:
        return sys.modules["numpy.random"]
    return random if generator is not None and generator is getattr(random, HIDDEN_NAME) else None


def dumps(code: object) -> bytes:
    """A class or a function as bytes; `cloudpickle.loads` and `pickle.loads` read it."""
    file = io.BytesIO()
    CodePickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(code)
    return file.getvalue()
