"""What can be wrong with an archive, one class each; every message says what to do, and none shows a password."""

from pathlib import Path

from lineage_stash.store.faults import (
    BodyDamaged,
    StoreDamaged,
    StoreEmptied,
    StoreError,
    StoreForeign,
    StoreFormatUnknown,
)

REPAIR = (
    "Put back a good copy of the object: where the place keeps versions, an earlier version is one. If there is none, "
    "begin a new archive at another URL and leave this one to whoever repairs it: the replicas' disks have what they "
    "have confirmed."
)


class ArchiveUnreachable(StoreError):
    """Nothing can be read or written where the archive should be."""

    def __init__(self, url: str, finding: str, remedy: str) -> None:
        super().__init__(f"the archive at {url} cannot be opened: {finding}. {remedy}")


class ArchiveTakenOver(StoreError):
    """Another process has opened the archive since; whatever was not answered yet is that one's to answer."""

    def __init__(self, url: str, successor: str) -> None:
        super().__init__(
            f"the archive at {url} was opened by another process ({successor}) after this one, which must stop: what "
            f"it has confirmed is known to its successor. If both are meant to run, give each a URL of its own."
        )


class ArchiveKeyWrong(StoreForeign):
    """The archive was written with another key."""

    def __init__(self, name: str) -> None:
        StoreError.__init__(
            self,
            f"{name} was written with another key. Nothing was changed. Open the archive with the key that it was "
            f"written with, or give this one a URL of its own.",
        )


class ArchiveForeign(StoreForeign):
    """The archive is another store's."""

    def __init__(self, name: str, found: str, expected: str) -> None:
        StoreError.__init__(
            self,
            f"{name} belongs to {found!r}, and this is {expected!r}. Nothing was changed. Give each archive a URL of "
            f"its own; to go on with this one, open it as {found!r}.",
        )


class ArchiveEmptied(StoreEmptied):
    """There is nothing where an archive was."""

    def __init__(self, url: str) -> None:
        StoreError.__init__(
            self,
            f"there is no archive at {url}, although there was one: it was emptied, or this is another place. Nothing "
            f"was changed. Put its objects back, or correct the URL; if they are gone for good, begin a new archive "
            f"at another URL.",
        )


class ArchiveFormatUnknown(StoreFormatUnknown):
    """The archive was written by a version that this one does not understand."""

    def __init__(self, name: str, found: int, known: int, version: str) -> None:
        super().__init__(
            f"{name} is in format {found}, and this is lineage_stash {version}, which reads format {known}. Nothing "
            f"was changed. Open it with a version that reads format {found}."
        )


class ArchiveDamaged(StoreDamaged):
    """What was durable cannot be read back; nothing was removed."""

    def __init__(self, name: str, finding: str) -> None:
        StoreError.__init__(self, f"{name} is damaged: {finding}. Nothing was removed. {REPAIR}")
        self.path, self.offset = Path(name), 0


class ArchivedBodyDamaged(BodyDamaged):
    """One body cannot be read back; everything else can."""

    def __init__(self, name: str, offset: int, finding: str) -> None:
        StoreError.__init__(self, f"the body at byte {offset} of {name} is damaged: {finding}. {REPAIR}")
        self.path, self.offset = Path(name), offset


class BodyUnreachable(ArchivedBodyDamaged):
    """One body cannot be read now, and perhaps later."""

    def __init__(self, name: str, offset: int, finding: str) -> None:
        StoreError.__init__(
            self, f"the body at byte {offset} of {name} cannot be read now: {finding}. Ask again; see to the network."
        )
        self.path, self.offset = Path(name), offset
