"""Named tuples, made quickly: for the few that every call makes.

To call the class of a named tuple runs an interpreted function, also from compiled code, and takes three times as long
as to make the tuple. The price is that nobody checks the fields: they are given all, in order, as one tuple.
"""

from functools import partial
from typing import Any


def maker(kind: type) -> Any:
    """What makes one of this kind of a tuple of all its fields."""
    return partial(tuple.__new__, kind)
