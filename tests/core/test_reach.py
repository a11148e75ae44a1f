"""Actors that nobody can reach end, and no others do, whatever travels, crashes and is rolled back meanwhile.

Random worlds show it for everything at once; a tale for every rule shows what happens without it.
"""

from collections.abc import Callable

import pytest

from lineage_stash.core.holding import FORGOTTEN, MOST_NOTED, Holding
from lineage_stash.core.ids import Index, PeerId, Round
from tests.core import handle_world as rules
from tests.core.handle_world import MUTANTS, EndedTooEarly, Letter, Node, World

SEEDS = 200
STEPS = 800


def test_whoever_can_be_reached_lives_and_everybody_else_ends() -> None:
    ended = 0
    for seed in range(SEEDS):
        world = World(seed)
        world.run(STEPS)
        world.heal()
        assert world.left_over() == [], f"seed {seed}"
        ended += len(world.ended)
    assert ended > SEEDS, "hardly anybody was ever ended: the world is too kind"


class Tale:
    """A world in which everything happens as it is told: a script, who has a keeper and somebody who is kept."""

    def __init__(self, mutant: str) -> None:
        self.world = World(0, mutant)
        self.world.is_quiet = True
        self.world.random.randint = lambda lower, _: lower  # type: ignore[method-assign]
        del self.world.nodes[PeerId("b")]
        self.script = self.world.nodes[PeerId("a")]
        self.keeper, self.kept = self.create(self.script), self.create(self.script)

    def create(self, node: Node, *, calm: bool = True) -> Node:
        node.append()
        peer = self.world.create(node)
        node.state.append(peer)
        node.end_entry()
        if calm:
            self.calm()
        return self.world.nodes[peer]

    def calm(self) -> None:
        """All letters come to their ends, and everything is committed."""
        world = self.world
        while open_letters := [letter for letter in world.letters if letter.executed_at is None]:
            for letter in open_letters:
                self.deliver(letter)
                world.execute_letter(letter)
        for node in world.members:
            world.commit_up_to(node, node.upper)

    def send(self, sender: Node, receiver: Node, *handles: Node, drop: bool = True) -> Letter:
        """Call somebody with handles, and drop these."""
        sender.append()
        self.world.send(sender, receiver.id, [node.id for node in handles], None)
        if drop:
            self.drop(sender, *handles, logged=False)
        sender.end_entry()
        return self.world.letters[-1]

    def drop(self, node: Node, *handles: Node, logged: bool = True) -> None:
        if logged:
            node.append()
        for other in handles:
            node.state.remove(other.id)
            node.note(other.id, -1)
        node.end_entry()

    def deliver(self, letter: Letter) -> None:
        if not letter.delivered:
            self.world.deliver_letter(letter)
        letter.acknowledged = True

    def crash(self, node: Node, *, learned: bool = True) -> None:
        world = self.world
        world.crash_all([node])
        world.begin_life(node)
        node.finish_replay()
        for other in world.living() if learned else ():
            world.hear(other)

    def look(self, *first: Node, then: Callable[[], None] = lambda: None) -> None:
        """Ask some, have something happen, and ask all the others."""
        world = self.world
        world.look()
        look = world.reach.now
        assert look is not None, "the look before is not over"
        for node in first:
            world.answer_by(node)
        then()
        for peer in look.missing:
            if world.nodes[peer].is_up:
                world.answer_by(world.nodes[peer])
        world.check()

    def look_often(self) -> None:
        for _ in range(4):
            self.look()


def handle_comes_behind_the_look(tale: Tale) -> None:
    letter = tale.send(tale.script, tale.keeper, tale.kept)
    tale.look()
    tale.look(tale.keeper, then=lambda: tale.deliver(letter))


def handle_is_only_in_a_letter(tale: Tale) -> None:
    tale.send(tale.script, tale.keeper, tale.kept)
    tale.look_often()


def drop_is_rolled_back(tale: Tale) -> None:
    tale.send(tale.script, tale.keeper, tale.kept)
    tale.calm()
    tale.drop(tale.keeper, tale.kept)
    tale.look_often()
    tale.crash(tale.keeper)
    tale.world.check()


def keeper_is_dead(tale: Tale) -> None:
    tale.send(tale.script, tale.keeper, tale.kept)
    tale.calm()
    tale.world.crash_all([tale.keeper])
    tale.world.hear(tale.script)
    tale.world.hear(tale.kept)
    for _ in range(3):
        tale.look()
        tale.world.reach.now = None  # whoever waits for the dead waits in vain


def handle_is_always_where_nobody_looks(tale: Tale) -> None:
    other = tale.create(tale.script)
    for one, another in ((tale.keeper, other), (other, tale.keeper)):
        tale.send(tale.script, one, another, drop=False)
    tale.send(tale.script, tale.keeper, tale.kept)
    tale.calm()

    def move(one: Node, another: Node) -> None:
        tale.send(one, another, tale.kept)
        tale.calm()

    for _ in range(2):
        tale.look(other, then=lambda: move(tale.keeper, other))
        tale.look(tale.keeper, then=lambda: move(other, tale.keeper))


def sender_has_not_heard_of_the_round(tale: Tale) -> None:
    tale.deliver(tale.send(tale.script, tale.keeper, tale.kept))
    tale.crash(tale.keeper, learned=False)
    tale.world.hear(tale.kept)
    tale.look_often()


def keeper_replays(tale: Tale) -> None:
    tale.send(tale.script, tale.keeper, tale.kept)
    tale.calm()
    tale.world.crash_all([tale.keeper])
    tale.world.begin_life(tale.keeper)
    for node in tale.world.living():
        tale.world.hear(node)
    tale.look_often()


def call_is_on_its_way(tale: Tale) -> None:
    tale.send(tale.script, tale.kept)
    tale.drop(tale.script, tale.kept)
    tale.look_often()


def somebody_acts_whom_nobody_holds(tale: Tale) -> None:
    tale.send(tale.script, tale.keeper, tale.kept, drop=False)
    tale.calm()
    tale.deliver(tale.send(tale.keeper, tale.kept))
    tale.drop(tale.script, tale.keeper, tale.kept)
    tale.world.commit_up_to(tale.keeper, tale.keeper.upper)
    tale.look_often()


def creation_is_rolled_back(tale: Tale) -> None:
    tale.create(tale.keeper, calm=False)
    tale.crash(tale.keeper)
    tale.look_often()
    tale.create(tale.keeper, calm=False)
    tale.world.check()


def handle_is_only_in_a_record(tale: Tale) -> None:
    other = tale.create(tale.script)
    tale.send(tale.script, other, tale.kept)
    tale.send(tale.script, other, tale.keeper, drop=False)
    tale.calm()
    tale.deliver(tale.send(other, tale.keeper, tale.kept))
    tale.world.leave(other)
    tale.crash(tale.keeper)
    tale.look_often()


TALES = {
    rules.ONE_LOOK: handle_comes_behind_the_look,
    rules.NO_BYTES: handle_is_only_in_a_letter,
    rules.NO_COMMITS: drop_is_rolled_back,
    rules.NO_DEAD: keeper_is_dead,
    rules.NO_TOUCHES: handle_is_always_where_nobody_looks,
    rules.NO_ROUNDS: sender_has_not_heard_of_the_round,
    rules.NO_REPLAYS: keeper_replays,
    rules.NO_CALLS: call_is_on_its_way,
    rules.NO_ACTS: somebody_acts_whom_nobody_holds,
    rules.NO_BEGINNINGS: creation_is_rolled_back,
    rules.NO_RECORDS: handle_is_only_in_a_record,
}


@pytest.mark.parametrize("rule", MUTANTS)
def test_what_happens_without_a_rule_does_not_happen_with_it(rule: str) -> None:
    TALES[rule](Tale(""))
    with pytest.raises(EndedTooEarly):
        TALES[rule](Tale(rule))


def test_life_that_nobody_has_looked_at_for_long_forgets_and_says_so() -> None:
    holding = Holding()
    for number in range(3 * MOST_NOTED):
        holding.note(PeerId(f"a/{number}"), 1, Index(number))
        holding.note(PeerId(f"a/{number}"), -1, Index(number))
    assert len(holding.lost_at) <= MOST_NOTED
    upper = Index(3 * MOST_NOTED)
    first = holding.answer("1", Round(0), (), upper, Index(1), settled=True, active=False)
    second = holding.answer("2", Round(0), (), upper, upper, settled=True, active=False)
    third = holding.answer("3", Round(0), (), upper, upper, settled=True, active=False)
    assert (first.since, first.settled) == (FORGOTTEN, False)
    assert (second.since, second.settled, len(second.held)) == ("1", True, 0)
    assert (third.since, third.active) == ("2", False)
