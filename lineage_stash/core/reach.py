"""Reach: which actors nobody can call any more, as far as two looks at all peers in a row can tell.

A handle is always somewhere: in a peer's state, or in bytes that a peer keeps (`holding`). A look asks every peer what
it holds. Peers are asked one after the other while handles travel, so that one look proves nothing: a handle may have
been where nobody looked any more. So each answer also has what was held at any time since the answer before.

Rules:
- Two looks in a row count, in the same round, each answered by all members, none of them with something still to be
  replayed or to be read in a record. Then there was a moment between the two of which both together tell all: what
  neither has seen held was held by nobody in it, and whatever nobody holds nobody ever will. Who has begun meanwhile
  tells of all its life; who has left has given what it held to others, or has put it on record.
- What a peer holds counts if somebody can have it act: a root, one that acts by itself, or one that such a peer holds.
  So two actors that have nothing but each other are found too.
- An actor belongs to the peer whose id its own begins with, and ends with it: who is reached keeps its owner.
- A drop that is not committed did not happen, as far as anybody knows: whoever answers counts such handles as held. Nor
  did a beginning: whoever was not begun for good ends with its owner only, because it may be created once more.

Left to others: who the members and the roots are, and that nobody is missing among them (`on_ray/sweeping`).
"""

from collections.abc import Collection
from typing import NamedTuple

from lineage_stash.core.ids import FIRST_INCARNATION, Incarnation, PeerId, Round

NO_LOOK = ""


class Answer(NamedTuple):
    """What a peer says when it is looked at."""

    look: str
    since: str
    """The look that it answered before this one."""
    round: Round
    settled: bool
    """Whether its state is the one that counts: nothing is to be replayed."""
    active: bool
    """Whether it acts without being called, or has acted since the look before."""
    held: tuple[PeerId, ...]
    """The actors that it holds, or held at any time since the look before, or would hold in a past that may be back."""
    unread: tuple[PeerId, ...] = ()
    """Peers that this life has heard of, and into whose records, should they have left, it has not looked."""
    begun: bool = True
    """Whether its beginning is committed: until then its creator may live that moment again, and create it anew."""


class Look:
    """One question to all members, and the answers so far."""

    def __init__(self, name: str, round_: Round, members: tuple[tuple[PeerId, Incarnation], ...],
                 roots: tuple[PeerId, ...], departed: Collection[PeerId] = ()) -> None:  # fmt: skip
        self.name = name
        self.round = round_
        self.members = dict(members)
        self.roots = roots
        self.departed = departed
        """Who has left, and has left a record."""
        self.answers: dict[PeerId, Answer] = {}

    @property
    def missing(self) -> list[PeerId]:
        """Who has not answered."""
        return [peer for peer in self.members if peer not in self.answers]

    @property
    def is_clear(self) -> bool:
        """Whether all that was answered is of the present, and nothing is left in records alone."""
        are_of_now = all(answer.settled and answer.round == self.round for answer in self.answers.values())
        return are_of_now and not self.unread

    @property
    def unread(self) -> list[tuple[PeerId, PeerId]]:
        """Who should look into whose record."""
        answers = self.answers.items()
        return [(peer, other) for peer, answer in answers for other in answer.unread if other in self.departed]

    def follows(self, before: "Look") -> bool:
        """Whether nothing can have happened between the two that neither tells of: who is new tells of all its life."""
        return self.round == before.round and all(
            answer.since == before.name
            if before.members.get(peer) == self.members[peer]
            else answer.since == NO_LOOK and self.members[peer] == FIRST_INCARNATION and peer not in before.members
            for peer, answer in self.answers.items()
        )


class Reach:
    """Takes in looks; says who is out of reach."""

    def __init__(self) -> None:
        self.before: Look | None = None
        self.now: Look | None = None

    def begin(self, look: Look) -> None:
        """Look again."""
        self.now = look

    def give_up(self) -> None:
        """Something has happened that makes all looks so far worthless."""
        self.before = self.now = None

    def on_answer(self, peer: PeerId, incarnation: Incarnation, answer: Answer) -> bool:
        """Take in an answer; whether it was the last one that was missing."""
        look = self.now
        if look is None or answer.look != look.name or look.members.get(peer) != incarnation:
            return False
        if peer in look.answers:
            return False
        look.answers[peer] = answer
        return not look.missing

    def conclude(self) -> tuple[list[PeerId], bool]:
        """Everybody has answered: the members that nobody can reach, and whether that is certain."""
        look, before = self.now, self.before
        assert look is not None, "a look is over that was not begun"
        assert not look.missing, "a look is over that somebody has not answered"
        self.before = self.now = None
        if not look.is_clear:
            return [], False
        self.before = look
        if before is None or not look.follows(before):
            return unreached([look]), False
        return unreached([before, look]), True


def unreached(looks: list[Look]) -> list[PeerId]:
    """The members that no root reaches, over everything that any of these looks has seen held."""
    held: dict[PeerId, list[PeerId]] = {}
    reached: dict[PeerId, None] = {}
    for look in looks:
        for peer, answer in look.answers.items():
            held.setdefault(peer, [owner_of(peer)]).extend(answer.held)
            if answer.active:
                reached[peer] = None
        reached.update(dict.fromkeys(look.roots))
    ahead = list(reached)
    while ahead:
        for peer in held.get(ahead.pop(), ()):
            if peer not in reached:
                reached[peer] = None
                ahead.append(peer)
    return [peer for peer, answer in looks[-1].answers.items() if answer.begun and peer not in reached]


def owner_of(peer: PeerId) -> PeerId:
    """Whom a peer ends with; nobody, for a script."""
    return PeerId(peer.rpartition("/")[0])
