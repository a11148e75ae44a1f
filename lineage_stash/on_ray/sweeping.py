"""Sweeping: part of the coordinator: actors that were given away end when nobody can reach them any more.

Rules:
- It looks only while there are actors that their creators have given away, and seldom where nothing has changed.
- What two looks in a row mean is for `core/reach` to say. This asks everybody who is there, and gives up whatever a
  death or a round has fallen into.
- A script that can be resumed and is away may have any handle in its log: nobody ends until it is back, or abandoned.
- An actor with a name, a detached one, and one of which a handle is out of sight is never ended here.
- Whoever is ended is killed for good, and leaves a record: replays get the same answers from there.
- It holds nothing that matters: who was given away is on record, and everything else is asked for again.
"""

import json
import time
from functools import partial
from typing import Any, NamedTuple

from lineage_stash.core.ids import Member, PeerId
from lineage_stash.core.reach import Answer, Look, Reach
from lineage_stash.core.recovery import Coordinator, Phase, is_out
from lineage_stash.on_ray.creation import Creation, read_creation
from lineage_stash.on_ray.holdings import GIVEN_AWAY, HANDLES
from lineage_stash.on_ray.links import Link
from lineage_stash.on_ray.process import Process, split_address
from lineage_stash.shell import address_of

SOON_S = 0.2
"""How soon to look again where the last look has found somebody whom nobody holds."""

PAUSE_S, LONGEST_PAUSE_S = 0.5, 4.0
"""Between looks that find everybody held; twice as long each time that nothing has changed."""

PATIENCE_S = 5.0
"""How long to wait for answers: somebody may be busy, or have left since."""

REASON = "nobody has a handle of it any more"


class Census(NamedTuple):
    """Who is on record."""

    members: tuple[Member, ...]
    departed: frozenset[PeerId]
    """Those that have left, and have left a record."""
    given_away: frozenset[PeerId]
    creations: dict[PeerId, Creation | None]
    out_of_sight: frozenset[PeerId]


class Sweeping:
    """Looks at everybody, now and then."""

    def __init__(self, process: Process, machine: Coordinator) -> None:
        self.process = process
        self.machine = machine
        self.reach = Reach()
        self.given_away: frozenset[PeerId] = frozenset()
        self.creations: dict[PeerId, Creation | None] = {}
        self._looks = 0
        self._next_at = 0.0
        self._pause_s = PAUSE_S
        self._is_reading = False
        self._asked_at = 0.0
        self._seen: dict[PeerId, tuple[PeerId, ...]] = {}
        self._unread: dict[PeerId, list[PeerId]] = {}

    def begin(self) -> None:
        """See who was given away before this coordinator was there."""
        self.process.registry.ask(self._read_given_away, self._on_given_away, self.begin)

    def _read_given_away(self) -> frozenset[PeerId]:
        found = self.process.plane.get_all(HANDLES)
        return frozenset([PeerId(key.removeprefix(HANDLES)) for key, how in found.items() if how == GIVEN_AWAY])

    def _on_given_away(self, given_away: frozenset[PeerId]) -> None:
        self.given_away |= given_away
        self._look_after(PAUSE_S)

    def on_given(self, actor: PeerId) -> None:
        """A creator has given an actor away."""
        self._on_given_away(frozenset([actor]))

    def _look_after(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._next_at = time.monotonic() + pause_s

    # looking

    def on_ticked(self) -> None:
        """Some time has passed."""
        if not self.given_away:
            return
        now = time.monotonic()
        look = self.reach.now
        if look is not None:
            if now - self._asked_at > PATIENCE_S or not self._is_undisturbed(look):
                self._give_up()
        elif now >= self._next_at and not self._is_reading:
            self._is_reading = True
            self.process.registry.ask(self._read, self._on_read, self._on_unread)

    def _is_undisturbed(self, look: Look) -> bool:
        machine = self.machine
        return machine.phase is Phase.IDLE and not machine.dead and machine.history.round == look.round

    def _give_up(self) -> None:
        self.reach.give_up()
        self._look_after(PAUSE_S)

    def _read(self) -> Census:
        """In the registry's thread."""
        plane = self.process.plane
        retired = {PeerId(key.removeprefix("retired/")) for key in plane.keys("retired/")}
        everybody = [Member(PeerId(key.removeprefix("members/")), *json.loads(value))
                     for key, value in plane.get_all("members/").items()]  # fmt: skip
        marks = {PeerId(key.removeprefix(HANDLES)): how for key, how in plane.get_all(HANDLES).items()}
        for actor in [actor for actor in marks if actor in retired]:
            del marks[actor]
            plane.delete(f"{HANDLES}{actor}")
        members = tuple([member for member in everybody if member.peer not in retired])
        known = self.creations
        creations = {one.peer: known[one.peer] if one.peer in known else read_creation(plane, one.peer)
                     for one in members}  # fmt: skip
        given_away = frozenset([actor for actor, how in marks.items() if how == GIVEN_AWAY])
        departed = frozenset([one.peer for one in everybody if one.peer in retired and one.replayable])
        return Census(members, departed, given_away, creations, frozenset(marks) - given_away)

    def _on_unread(self) -> None:
        self._is_reading = False
        self._give_up()

    def _on_read(self, census: Census) -> None:
        self._is_reading = False
        self.given_away, self.creations = census.given_away, census.creations
        history = self.machine.history
        present = [one for one in census.members if one.peer not in history.gone]
        lives = tuple([(one.peer, history.incarnation(one.peer)) for one in present])
        roots = tuple([one.peer for one in present if one.peer in census.out_of_sight or self._is_root(one.peer)])
        self._looks += 1
        look = Look(f"{self.process.token}-{self._looks}", history.round, lives, roots, census.departed)
        is_away = any(is_out(one, history) for one in present)
        if is_away or not self._is_undisturbed(look):
            self._give_up()
        elif self.given_away:
            self._ask(look)

    def _is_root(self, peer: PeerId) -> bool:
        """Whether it is there whoever holds it: a script, a runner of tasks, a detached actor, one that has a name."""
        creation = self.creations.get(peer)
        return creation is None or not creation.class_digest or creation.detached or bool(creation.name)

    def _ask(self, look: Look) -> None:
        self.reach.begin(look)
        self._asked_at = time.monotonic()
        for peer, incarnation in look.members.items():
            read = self._unread.get(peer, [])
            self.process.control(address_of(peer, incarnation), look=look.name, read=read)

    def on_answer(self, link: Link, said: list[Any]) -> None:
        """Somebody says what it holds."""
        lived = split_address(link.introduction or "")
        look = self.reach.now
        if lived is None or look is None or not self.reach.on_answer(*lived, _answer_in(said)):
            return
        if not self._is_undisturbed(look):
            self._give_up()
            return
        self._unread = {}
        for peer, departed in look.unread:
            self._unread.setdefault(peer, []).append(departed)
        unreached, is_certain = self.reach.conclude()
        doomed = [peer for peer in unreached if peer in self.given_away]
        if doomed and is_certain:
            self.process.registry.ask(partial(self._end, doomed))
        self._plan(look, is_urgent=bool(doomed) or not look.is_clear)

    def _plan(self, look: Look, *, is_urgent: bool) -> None:
        """Decide when to look again."""
        seen = {peer: tuple(sorted(self.given_away.intersection(answer.held)))
                for peer, answer in look.answers.items()}  # fmt: skip
        has_changed, self._seen = seen != self._seen, seen
        if is_urgent:
            self._look_after(SOON_S)
        else:
            self._look_after(PAUSE_S if has_changed else min(2 * self._pause_s, LONGEST_PAUSE_S))

    def _end(self, doomed: list[PeerId]) -> None:
        """In the registry's thread: kill those that are not out of sight meanwhile."""
        for actor in doomed:
            if self.process.plane.get(f"{HANDLES}{actor}") == GIVEN_AWAY:
                self.process.kill(actor, REASON)


def _answer_in(said: list[Any]) -> Answer:
    """An answer as it was before it travelled."""
    parts: list[Any] = [tuple(part) if isinstance(part, list) else part for part in said]
    return Answer(*parts)
