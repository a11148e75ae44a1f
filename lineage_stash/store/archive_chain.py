"""The chain: the objects that are an archive's state, from the newest state to the group that was written last.

What it guarantees: whatever is committed is handed to whoever opens the archive again, in order, or opening raises; and
only the last one to open it commits anything. Two processes may both believe that they are the one, for a moment:

- Whoever opens first writes its claim, and then lists what there is. Whoever commits first writes its group, and then
  lists the claims; if there is a greater one than its own, it has not committed, and never will again.
- So if a group is committed, every greater claim was written after the group, and was followed by a listing that shows
  it. The successor knows all that was ever confirmed, and goes on from there. A group that comes too late to be in the
  listing comes too late to be confirmed: it is not followed by any, or stands beside another one, and is left out.
- In the same way, whoever has written a state first makes its manifest visible, then lists the claims, and then removes
  what is superseded. A successor that could miss a removed group has a claim that would have been seen.
- Claims have terms, one more than the greatest in any name, and are compared by term, then token. Of two that open at
  once, the lesser one sees the other's claim before it does anything, or is simply the former owner.

Left to others: that a listing shows what was written (`objects`). Not promised: to notice that the newest groups of all
were removed, or everything was put back as it once was. A chain cannot know how long it should be; all that is known
is how long it was when it was last opened or compacted.
"""

import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from lineage_stash.store.archive_bodies import Stored, Vault
from lineage_stash.store.archive_faults import ArchiveDamaged, ArchiveEmptied, ArchiveTakenOver
from lineage_stash.store.archive_names import (
    FOLDERS,
    GROUPS,
    Claim,
    Listing,
    Name,
    find_chain,
    leftovers,
    list_archive,
    list_claims,
    number_of,
)
from lineage_stash.store.objects import AT_ONCE
from lineage_stash.store.sealed import Label, Record, Unsealed

OPENED_AHEAD = 8 * AT_ONCE
REMOVED_AT_A_STRETCH = 4 * AT_ONCE

Replay = Callable[[Stored, Unsealed], None]
Each = TypeVar("Each")


class State(NamedTuple):
    """A whole state as it was after a group."""

    name: Name
    follows: str
    """The group that it was after."""
    parts: tuple[Stored, ...]


class Chain:
    """An open archive."""

    def __init__(self, url: str, vault: Vault, owner: Claim) -> None:
        self.url = url
        self.vault = vault
        self.owner = owner
        self.number = 0
        """Of the last group."""
        self.last = ""
        """The last group, by name."""
        self.state: State | None = None
        """What the groups begin after."""
        self.size = 0
        """Bytes in use."""
        self._groups: dict[int, int] = {}

    @property
    def objects(self) -> int:
        """How many objects are in use."""
        return len(self._groups) + (len(self.state.parts) if self.state else 0)

    @property
    def base(self) -> int:
        """The number of the group that the state is after; all groups up to there are superseded."""
        return self.state.name.number if self.state else 0

    def commit(self, records: Sequence[Record]) -> tuple[Stored, list[int]]:
        """Make records durable together; in which object they are, and where in it their bodies."""
        name = Name(self.number + 1, self.owner)
        stored, offsets = self.vault.put(self.label(name.group(), previous=self.last), records)
        self.check_owner()
        self._add(name, stored.size)
        return stored, offsets

    def label(self, name: str, *, previous: str = "", parts: int = 0, newest: int = 0) -> Label:
        """The label of a new object."""
        return Label(name, self.vault.sealer.identity, previous, parts, newest)

    def _add(self, name: Name, size: int) -> None:
        self.number, self.last = name.number, name.group()
        self._groups[name.number] = size
        self.size += size

    # owning

    def claim(self, newest: int) -> None:
        """Say that this process writes from now on."""
        self.vault.objects.make_folders(FOLDERS)
        self.vault.put(self.label(str(self.owner), newest=newest), [])

    def successor(self) -> Claim | None:
        """Who has opened the archive after this process, if anybody has."""
        claims = list_claims(self.vault.objects)
        greatest = max(claims, default=self.owner)
        if greatest <= self.owner and self.owner not in claims:
            raise OSError(f"{self.owner} was removed, or listings of this place do not show what was written")
        return greatest if greatest > self.owner else None

    def check_owner(self) -> None:
        """Raise if another process has taken over."""
        successor = self.successor()
        if successor is not None:
            raise ArchiveTakenOver(self.url, str(successor))

    # compaction

    def adopt(self, state: State) -> None:
        """Take a state in place of all that it has in it."""
        self.state = state
        self._groups = {number: size for number, size in self._groups.items() if number > state.name.number}
        self.size = sum(self._groups.values()) + sum([part.size for part in state.parts])

    def sweep(self) -> Generator[None, None, None]:
        """Remove what is superseded; for another thread, because that takes long."""
        listing = list_archive(self.vault.objects)
        old = leftovers(listing, self.base, self.owner)
        for names in _in_stretches(old, REMOVED_AT_A_STRETCH):
            yield
            self.vault.objects.remove(names)

    # opening

    def read(self, listing: Listing, replay: Replay) -> None:
        """Hand everything that was committed to `replay`."""
        if listing.manifests:
            state = self._find_state(max(listing.manifests), listing)
            for stored, unsealed in self._open_all(state.parts):
                replay(stored, unsealed)
            self.adopt(state)
            self.number, self.last = state.name.number, state.follows
        chain = find_chain(listing.groups, self.number, lambda name: self._open(name, listing).label.previous)
        groups = [Stored(name.group(), listing.groups[name]) for name in chain]
        for name, (stored, unsealed) in zip(chain, self._open_all(groups), strict=True):
            if unsealed.label.previous != self.last:
                raise ArchiveDamaged(unsealed.label.previous or stored.name, f"it is not there, and {stored.name} is")
            replay(stored, unsealed)
            self._add(name, stored.size)

    def _find_state(self, name: Name, listing: Listing) -> State:
        label = self.vault.open(Stored(name.manifest(), listing.manifests[name])).label
        parts = []
        for part in map(name.part, range(label.parts)):
            if part not in listing.parts:
                raise ArchiveDamaged(part, "it is not there")
            parts.append(Stored(part, listing.parts[part]))
        return State(name, label.previous, tuple(parts))

    def _open(self, name: Name, listing: Listing) -> Unsealed:
        return self.vault.open(Stored(name.group(), listing.groups[name]))

    def _open_all(self, objects: Sequence[Stored]) -> Iterator[tuple[Stored, Unsealed]]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for some in _in_stretches(objects, OPENED_AHEAD):
                yield from zip(some, pool.map(self.vault.open, some), strict=True)


def _in_stretches(elements: Sequence[Each], length: int) -> Iterator[Sequence[Each]]:
    for at in range(0, len(elements), length):
        yield elements[at : at + length]


def open_chain(url: str, vault: Vault, *, expect_existing: bool, replay: Replay) -> Chain:
    """Take over an archive, or begin one, and hand everything that was committed to `replay`."""
    listing = list_archive(vault.objects)
    if listing.is_empty and expect_existing:
        raise ArchiveEmptied(url)
    try:
        known = _newest_known(vault, listing)
    except FileNotFoundError as error:
        raise ArchiveTakenOver(url, "at this very moment") from error  # who removes the claims before its own
    chain = Chain(url, vault, Claim(listing.last_term + 1, secrets.token_hex(8)))
    chain.claim(listing.newest)
    listing = list_archive(vault.objects)
    chain.check_owner()
    try:
        chain.read(listing, replay)
    except FileNotFoundError:
        chain.check_owner()  # who may have removed what is needed no more
        raise
    if chain.number < known:
        raise ArchiveDamaged(f"{GROUPS}/{known:08}-…", f"it was there once, and the last one now is {chain.number}")
    vault.objects.remove([*leftovers(listing, chain.base, chain.owner), *listing.unfinished])
    return chain


def _newest_known(vault: Vault, listing: Listing) -> int:
    """The number of a group that was there for certain; raises if this is another's archive, before it is changed."""
    known = max([number_of(part) for part in listing.parts], default=0)
    if listing.claims:
        claim = max(listing.claims)
        return max(known, vault.open(Stored(str(claim), listing.claims[claim])).label.newest)
    if listing.manifests:
        name = max(listing.manifests)
        vault.open(Stored(name.manifest(), listing.manifests[name]))
    elif listing.groups:
        name = max(listing.groups)
        vault.open(Stored(name.group(), listing.groups[name]))
    return known
