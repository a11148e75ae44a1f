"""What a spare of the global-checkpoint system does while it waits: it loads the classes of the actors there are.

To import what a class needs may take longer than all the rest of a rollback, so that it must not be a part of it. The
system that this one is compared with does the same.

Rules:
- What counts is the code: a class that was loaded for one actor is that of all others with the same code.
- Nothing depends on it. A class that cannot be loaded here is left to whoever needs it, who says why.
"""

from contextlib import suppress

import cloudpickle


class Prepared:
    """The classes that one process has ready, by their code."""

    def __init__(self) -> None:
        self._classes: dict[bytes, type] = {}

    def prepare(self, code: bytes) -> None:
        """Load a class beforehand, if that works."""
        with suppress(Exception):  # the user's modules raise what they like
            self.class_of(code)

    def class_of(self, code: bytes) -> type:
        """The class with this code, loaded now if it was not before."""
        if code not in self._classes:
            self._classes[code] = cloudpickle.loads(code)
        return self._classes[code]
