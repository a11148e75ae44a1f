"""The names of an archive's objects, and which of them are needed.

    owners/<term>-<token>                        who may write: whoever has the greatest claim
    groups/<number>-<term>-<token>               what one commit made durable
    states/<number>-<term>-<token>-<part>        a part of the whole state after the group with that number
    manifests/<number>-<term>-<token>            says that such a state is complete

Groups are numbered as they come. The newest manifest, its state, and the groups above its number are the archive. Where
several groups have one number, each by another owner, the next group says which of them it follows; of the very last
ones, the one by the greatest owner counts. Whatever else is below is left over; other names are somebody else's.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from lineage_stash.store.archive_faults import ArchiveDamaged
from lineage_stash.store.files import UNFINISHED
from lineage_stash.store.objects import Objects

OWNERS, GROUPS, STATES, MANIFESTS = FOLDERS = ("owners", "groups", "states", "manifests")
NUMBER = "([0-9]{8,18})"
TOKEN = "([0-9a-f]{16})"
CLAIM_NAME = re.compile(f"{NUMBER}-{TOKEN}")
OBJECT_NAME = re.compile(f"{NUMBER}-{NUMBER}-{TOKEN}")
PART_NAME = re.compile(f"{NUMBER}-{NUMBER}-{TOKEN}-{NUMBER}")


class Claim(NamedTuple):
    """Who may write; the greatest claim counts."""

    term: int
    token: str

    def __str__(self) -> str:
        return f"{OWNERS}/{self.term:08}-{self.token}"


class Name(NamedTuple):
    """A group, a manifest, or what all parts of a state have in common."""

    number: int
    owner: Claim

    def group(self) -> str:
        """The name of the group."""
        return f"{GROUPS}/{self}"

    def manifest(self) -> str:
        """The name of the manifest."""
        return f"{MANIFESTS}/{self}"

    def part(self, part: int) -> str:
        """The name of a part of the state."""
        return f"{STATES}/{self}-{part:08}"

    def __str__(self) -> str:
        return f"{self.number:08}-{self.owner.term:08}-{self.owner.token}"


class Listing(NamedTuple):
    """All that there is of an archive at one moment, with sizes."""

    claims: dict[Claim, int]
    groups: dict[Name, int]
    manifests: dict[Name, int]
    parts: dict[str, int]
    """By name; nobody looks at them unless a manifest refers to them."""
    unfinished: list[str]

    @property
    def is_empty(self) -> bool:
        """Whether there is no archive."""
        return not (self.claims or self.groups or self.manifests or self.parts)

    @property
    def newest(self) -> int:
        """The greatest number of a group that there is, or was and is in a state."""
        return max([name.number for name in (*self.groups, *self.manifests)], default=0)

    @property
    def last_term(self) -> int:
        """The greatest term that is in any name."""
        names = [*self.groups, *self.manifests]
        return max([claim.term for claim in self.claims] + [name.owner.term for name in names], default=0)


def list_claims(objects: Objects) -> dict[Claim, int]:
    """Everybody's claims."""
    claims = {}
    for name, size in objects.list(OWNERS).items():
        if (found := CLAIM_NAME.fullmatch(name)) is not None:
            claim = Claim(int(found[1]), found[2])
            if str(claim) == f"{OWNERS}/{name}":
                claims[claim] = size
    return claims


def list_archive(objects: Objects) -> Listing:
    """All that there is; the groups first, so that a manifest that allowed to remove some of them is seen after it."""
    groups, manifests, parts = objects.list(GROUPS), objects.list(MANIFESTS), objects.list(STATES)
    found_parts = {f"{STATES}/{name}": size for name, size in parts.items() if PART_NAME.fullmatch(name)}
    unfinished = [
        f"{folder}/{name}" for folder, names in ((GROUPS, groups), (MANIFESTS, manifests), (STATES, parts))
        for name in names if name.endswith(UNFINISHED) and _is_ours(name.removesuffix(UNFINISHED))
    ]  # fmt: skip
    return Listing(list_claims(objects), _named(groups), _named(manifests), found_parts, unfinished)


def _named(listed: dict[str, int]) -> dict[Name, int]:
    named = {}
    for text, size in listed.items():
        if (found := OBJECT_NAME.fullmatch(text)) is not None:
            name = Name(int(found[1]), Claim(int(found[2]), found[3]))
            if str(name) == text:
                named[name] = size
    return named


def _is_ours(name: str) -> bool:
    return OBJECT_NAME.fullmatch(name) is not None or PART_NAME.fullmatch(name) is not None


def find_chain(groups: Iterable[Name], above: int, previous_of: Callable[[Name], str]) -> list[Name]:
    """The groups above a number, each followed by the next; `previous_of` tells which one a group follows."""
    candidates: dict[int, list[Name]] = defaultdict(list)
    for name in groups:
        candidates[name.number].append(name)
    chain: list[Name] = []
    for number in range(max(candidates, default=0), above, -1):
        found = candidates.get(number)
        if found is None:
            raise ArchiveDamaged(f"{GROUPS}/{number:08}-…", "it is not there, and later ones are")
        if len(found) > 1 and chain:
            previous = previous_of(chain[-1])
            found = [name for name in found if name.group() == previous] or found
        chain.append(max(found))
    chain.reverse()
    return chain


def number_of(part: str) -> int:
    """The number of the group that a part of a state is after."""
    return int(part.removeprefix(f"{STATES}/").partition("-")[0])


def leftovers(listing: Listing, number: int, owner: Claim) -> list[str]:
    """What a state with this number and the present owner have made superfluous."""
    old = [str(claim) for claim in listing.claims if claim < owner]
    old += [name.group() for name in listing.groups if name.number <= number]
    old += [name.manifest() for name in listing.manifests if name.number < number]
    # A state with the same number may be about to get its manifest from a former owner, and would then be missed.
    return old + [name for name in listing.parts if number_of(name) < number]
