"""What can be wrong with a replica's folder, one class each; every message says what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOT_AS_THE_OLD_ONE = (
    "If that cannot be done, have the replica replaced by one with another number, in another folder: the others have "
    "what this one has confirmed, and it must not take part under its old number without it."
)


class StoreError(Exception):
    """A replica cannot be opened, or cannot go on."""


class StoreInUse(StoreError):
    """Another process, or this one, has the folder open."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder} is open already: a replica has one process, and a folder of its own")


class StoreFailed(StoreError):
    """The disk failed, or failed earlier; whether the requests at hand are durable is unknown until it is reopened."""


class StoreForeign(StoreError):
    """The folder, or a file in it, is another replica's."""

    def __init__(self, path: Path, found: str, expected: str) -> None:
        super().__init__(
            f"{path} belongs to {found!r}, and this is {expected!r}. Nothing was changed. Give each replica a folder "
            f"of its own; if a file was put here by mistake, put the right one back."
        )


class StoreEmptied(StoreError):
    """There is nothing in a folder in which something was confirmed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{folder} has no files of a replica, although one was opened there before: it was emptied, or is not the "
            f"disk that it was. Nothing was changed. Mount the disk or put its files back. {NOT_AS_THE_OLD_ONE}"
        )


class StoreFormatUnknown(StoreError):
    """The files were written by a version that this one does not understand."""


class StoreDamaged(StoreError):
    """What was durable cannot be read back; nothing was changed."""

    def __init__(self, path: Path, offset: int, finding: str) -> None:
        super().__init__(
            f"{path} is damaged at byte {offset}: {finding}. Nothing was changed. Put back a good copy of the file. "
            f"{NOT_AS_THE_OLD_ONE}"
        )
        self.path = path
        self.offset = offset


class BodyDamaged(StoreError):
    """One body cannot be read back; everything else can."""

    def __init__(self, path: Path, offset: int, finding: str) -> None:
        super().__init__(f"the body at byte {offset} of {path} is damaged: {finding}. {NOT_AS_THE_OLD_ONE}")
        self.path = path
        self.offset = offset


@contextmanager
def disk_errors_told(folder: Path) -> Iterator[None]:
    """Turn what the system says about a file into what it means for the replica."""
    try:
        yield
    except OSError as error:
        raise StoreFailed(
            f"the replica in {folder} cannot go on: {error}. Nothing was answered. See to the disk (its health, its "
            f"space, its permissions), then open the folder again: what was answered before is there."
        ) from error
