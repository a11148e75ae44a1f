"""A world of peers that pass handles around, crash and replay, and of a coordinator that ends whom nobody can reach.

Only what matters for handles is here: messages that are on their way, delivered, acknowledged and executed at different
times; logs of which a prefix is committed; crashes that roll back to any closed cut above that; rounds that peers learn
of one after the other. What peers answer, and what follows from it, is the real `Holding` and the real `Reach`.

After every step nobody who can act may lead to an actor that was ended.
"""

from random import Random
from typing import Any, NamedTuple

from lineage_stash.core.holding import Holding
from lineage_stash.core.ids import Incarnation, Index, PeerId, Round
from lineage_stash.core.reach import Answer, Look, Reach, owner_of

MOST_CRASHES = 12
ONE_LOOK = "one look instead of two"
NO_BYTES = "kept bytes are ignored"
NO_COMMITS = "drops count before they are committed"
NO_DEAD = "the dead are not waited for"
NO_TOUCHES = "what was held between looks is forgotten"
NO_ROUNDS = "answers of another round count"
NO_REPLAYS = "answers from within a replay count"
NO_CALLS = "calls that are not answered do not count"
NO_ACTS = "whoever has something to do counts as idle"
NO_BEGINNINGS = "who may be created again is ended"
NO_RECORDS = "what is in records alone is forgotten"
MUTANTS = (ONE_LOOK, NO_BYTES, NO_COMMITS, NO_DEAD, NO_TOUCHES, NO_ROUNDS, NO_REPLAYS, NO_CALLS, NO_ACTS,
           NO_BEGINNINGS, NO_RECORDS)  # fmt: skip


class EndedTooEarly(AssertionError):
    """Somebody could still have called an actor that was ended."""


class Letter:
    """A call or a reply: who has sent it at which index of its log, and how far it has come."""

    def __init__(self, sender: "Node", receiver: PeerId, handles: list[PeerId], answers: "Letter | None") -> None:
        self.sender = sender.id
        self.sent_at = sender.upper
        self.receiver = receiver
        self.handles = handles
        self.answers = answers
        self.needs = {**sender.needs, sender.id: sender.upper}
        self.delivered = False
        self.acknowledged = False
        self.executed_at: int | None = None
        self.rests_until = 0
        """Until which step of the world nothing happens to it."""


class Moment(NamedTuple):
    """What a node is at one index of its log."""

    state: tuple[PeerId, ...]
    needs: dict[PeerId, int]
    created: int


class Node:
    """A script or an actor."""

    def __init__(self, peer: PeerId, round_: int) -> None:
        self.id = peer
        self.is_script = "/" not in peer
        self.incarnation = 0
        self.round = round_
        self.is_up = True
        self.is_gone = False
        self.replays = False
        self.needs: dict[PeerId, int] = {}
        self.state: list[PeerId] = []
        self.created = 0
        self.log = [Moment((), {}, 0)]
        self.committed = 0
        self.holding = Holding()

    @property
    def upper(self) -> int:
        return len(self.log) - 1

    def note(self, actor: PeerId, change: int) -> None:
        self.holding.note(actor, change, Index(0 if self.is_script else self.upper))

    def append(self) -> None:
        """What happens from here on is behind one more entry."""
        self.log.append(self.moment())

    def moment(self) -> Moment:
        return Moment(tuple(self.state), {**self.needs}, self.created)

    def end_entry(self) -> None:
        """The state at an index is the one after all that follows from its entry."""
        self.log[-1] = self.moment()

    def roll_back(self, cut: int) -> None:
        self.log = self.log[: cut + 1]
        self.state = list(self.log[-1].state)
        self.needs = dict(self.log[-1].needs)
        self.created = self.log[-1].created
        self.holding = Holding()

    def finish_replay(self) -> None:
        """Only now it is known what the program has."""
        if self.replays:
            self.replays = False
            for actor in self.state:
                self.note(actor, 1)


class World:
    """All of it, from one seed."""

    def __init__(self, seed: int, mutant: str = "") -> None:
        self.random = Random(seed)
        self.mutant = mutant
        self.round = 0
        self.letters: list[Letter] = []
        self.nodes = {peer: Node(peer, 0) for peer in (PeerId("a"), PeerId("b"))}
        self.ended: list[PeerId] = []
        self.pinned: set[PeerId] = set()
        self.killed: set[PeerId] = set()
        self.reach = Reach()
        self.looks = 0
        self.is_quiet = False
        self.step = 0
        self.most_members = self.random.choice((4, 5, 7))
        self.rests = self.random.choice(((0,), (0, 0, 0, 10, 60), (0, 60, 60)))
        self.weights = {
            self.script_acts: 5, self.deliver: 20, self.acknowledge: 20, self.execute: 20,
            self.commit: self.random.choice((1, 6, 30)), self.learn: self.random.choice((1, 20)),
            self.crash: self.random.choice((0, 1)), self.start: 20, self.finish_replay: self.random.choice((1, 20)),
            self.kill: self.random.choice((0, 1)), self.look: 20, self.answer: self.random.choice((30, 60, 200)),
            self.restart_coordinator: self.random.choice((0, 0, 1)), self.give_up_look: 10,
        }  # fmt: skip
        """How often what happens."""
        self.crashes = 0
        self.coordinators = 0

    # who is there

    @property
    def members(self) -> list[Node]:
        return [node for node in self.nodes.values() if not node.is_gone]

    def living(self) -> list[Node]:
        return [node for node in self.members if node.is_up]

    def pick(self, nodes: list[Node]) -> Node | None:
        return self.random.choice(nodes) if nodes else None

    def some(self, handles: list[PeerId]) -> list[PeerId]:
        return [actor for actor in dict.fromkeys(handles) if self.random.random() < 0.5]

    # what programs do

    def act(self, node: Node, found: list[PeerId]) -> None:
        """A script by itself, an actor in a call: get, keep, pass on, drop, create."""
        for actor in found:
            node.note(actor, 1)
        hands, dropped = [*node.state, *found], []
        if not self.is_quiet:
            if self.random.random() < 0.3 and len(self.members) < self.most_members:
                hands.append(self.create(node))
            dropped = self.move(node, hands) if self.random.random() < 0.7 else self.call(node, hands)
        for actor in hands:
            if actor in dropped:
                node.note(actor, -1)
        node.state = [actor for actor in hands if actor not in dropped]

    def move(self, node: Node, hands: list[PeerId]) -> list[PeerId]:
        """Pass on the last handle that has come, and keep none of it."""
        moved = hands[-1] if hands else None
        others = [actor for actor in hands if actor != moved]
        if moved is None or not others:
            return []
        self.send(node, self.random.choice(others), [moved], None)
        return [moved]

    def call(self, node: Node, hands: list[PeerId]) -> list[PeerId]:
        """Call somebody, with some handles; drop some."""
        for actor in self.some(hands)[:1]:
            self.send(node, actor, self.some(hands), None)
        return self.some(hands) if self.random.random() < 0.5 else []

    def create(self, node: Node) -> PeerId:
        node.created += 1
        peer = PeerId(f"{node.id}/{node.created}")
        if peer not in self.nodes:
            self.nodes[peer] = Node(peer, node.round)
        node.note(peer, 1)
        self.send(node, peer, [], None)
        return peer

    def send(self, node: Node, receiver: PeerId, handles: list[PeerId], answers: Letter | None) -> None:
        if receiver in self.ended and answers is None and node.id not in self.ended:
            raise EndedTooEarly(f"{node.id} has called {receiver}")
        letter = Letter(node, receiver, handles, answers)
        self.rest(letter)
        self.letters.append(letter)

    def rest(self, letter: Letter) -> None:
        letter.rests_until = self.step + self.random.choice(self.rests)

    # one step of many kinds

    def script_acts(self) -> None:
        node = self.pick([node for node in self.living() if node.is_script])
        if node is not None:
            self.act(node, [])

    def deliver(self) -> None:
        letters = [letter for letter in self.letters if not letter.delivered and self.is_open(letter)]
        letter = self.pick_letter(letters)
        if letter is not None:
            self.deliver_letter(letter)
            self.rest(letter)

    def pick_letter(self, letters: list[Letter]) -> Letter | None:
        ready = [letter for letter in letters if letter.rests_until <= self.step]
        return self.random.choice(ready) if ready else None

    def deliver_letter(self, letter: Letter) -> None:
        receiver = self.nodes[letter.receiver]
        letter.delivered = True
        for peer, upper in letter.needs.items():
            receiver.needs[peer] = max(upper, receiver.needs.get(peer, 0))

    def is_open(self, letter: Letter) -> bool:
        """Whether the channel is one of two lives that know of each other; what the ended left is in their records."""
        sender, receiver = self.nodes[letter.sender], self.nodes[letter.receiver]
        if receiver.is_gone or not receiver.is_up:
            return False
        return sender.id in self.killed or (sender.is_up and not sender.is_gone and sender.round == receiver.round)

    def acknowledge(self) -> None:
        letters = [letter for letter in self.letters if letter.delivered and not letter.acknowledged]
        letter = self.pick_letter(letters)
        if letter is not None:
            letter.acknowledged = True

    def execute(self) -> None:
        queued = [letter for letter in self.letters if letter.delivered and letter.executed_at is None]
        letter = self.pick_letter([letter for letter in queued if self.can_act(self.nodes[letter.receiver])])
        if letter is not None:
            self.execute_letter(letter)

    def can_act(self, node: Node) -> bool:
        return node.is_up and not node.is_gone and not node.replays

    def execute_letter(self, letter: Letter) -> None:
        node = self.nodes[letter.receiver]
        if not node.is_script:
            node.append()
        letter.executed_at = node.upper
        opened = letter.handles if self.is_quiet or self.random.random() < 0.8 else []
        for actor in letter.handles:
            node.note(actor, 0)
        if letter.answers is None:
            self.act(node, opened)
            reply = [] if self.is_quiet else self.some(node.state)
            self.send(node, letter.sender, reply, letter)
        else:
            self.act(node, opened)
        if not node.is_script:
            node.end_entry()

    def commit(self) -> None:
        node = self.pick([node for node in self.living() if not node.is_script])
        if node is not None:
            self.commit_up_to(node, self.random.randint(node.committed, node.upper))

    def commit_up_to(self, node: Node, index: int) -> None:
        """And all that it depends on."""
        node.committed = max(node.committed, index)
        for peer, upper in node.log[index].needs.items():
            other = self.nodes[peer]
            if peer != node.id and not other.is_script and other.committed < upper:
                self.commit_up_to(other, upper)

    def learn(self) -> None:
        """Somebody hears of the latest round, and begins new channels."""
        node = self.pick([node for node in self.living() if node.round < self.round])
        if node is not None:
            self.hear(node)

    def hear(self, node: Node) -> None:
        node.round = self.round
        for letter in self.letters:
            if letter.sender == node.id and not letter.delivered:
                letter.acknowledged = False

    def crash(self) -> None:
        """Some die at once."""
        share = self.random.choice((0.2, 0.5, 0.9))
        dead = [node for node in self.living() if self.random.random() < share]
        if dead and self.crashes < MOST_CRASHES:
            self.crashes += 1
            self.crash_all(dead)

    def crash_all(self, dead: list[Node]) -> None:
        """And it is settled where their histories end."""
        for node in dead:
            node.is_up = False
            node.is_gone = node.is_script and self.random.random() < 0.1
            node.is_up = node.is_script and not node.is_gone
        self.settle([node for node in dead if not node.is_script])
        self.letters = [letter for letter in self.letters if letter.delivered or not self.is_lost(letter)]
        self.round += 1
        for node in self.members:
            if not node.is_up:
                self.hear(node)

    def is_lost(self, letter: Letter) -> bool:
        """Whether nobody will ever send it again: its script is gone, and leaves no record."""
        return self.nodes[letter.sender].is_gone and letter.sender not in self.killed

    def settle(self, dead: list[Node]) -> None:
        names = [node.id for node in dead]
        known = [node.needs for node in self.members if node.is_up]
        lower = {node.id: max([node.committed, *[needs.get(node.id, 0) for needs in known]]) for node in dead}
        cut = {node.id: self.random.randint(lower[node.id], node.upper) for node in dead}
        changed = True
        while changed:
            changed = False
            for node in dead:
                needs = node.log[cut[node.id]].needs
                if cut[node.id] > lower[node.id] and any(needs.get(peer, 0) > cut[peer] for peer in names):
                    cut[node.id] -= 1
                    changed = True
        for node in dead:
            self.unsend(node, cut[node.id])
            node.roll_back(cut[node.id])
        for node in dead:
            self.commit_up_to(node, node.upper)

    def unsend(self, node: Node, cut: int) -> None:
        """What was sent behind the cut never was, unless somebody has it; what was received behind it comes again."""
        lost = [letter for letter in self.letters if letter.sender == node.id and letter.sent_at > cut]
        assert not any(letter.delivered and self.nodes[letter.receiver].is_up for letter in lost), "an orphan"
        self.letters = [letter for letter in self.letters if letter not in lost]
        for letter in [letter for letter in self.letters if letter.receiver == node.id]:
            if letter.executed_at is None or letter.executed_at > cut:
                letter.delivered, letter.executed_at = False, None

    def start(self) -> None:
        node = self.pick([node for node in self.members if not node.is_up])
        if node is not None:
            self.begin_life(node)

    def begin_life(self, node: Node) -> None:
        node.is_up = node.replays = True
        node.incarnation += 1

    def finish_replay(self) -> None:
        node = self.pick([node for node in self.living() if node.replays])
        if node is not None:
            node.finish_replay()

    def kill(self) -> None:
        """Somebody kills an actor; handles in what it leaves, and nobody has taken yet, are nobody's to follow."""
        node = self.pick([node for node in self.living() if not node.is_script and not node.replays])
        if node is None or self.random.random() > 0.1:
            return
        self.leave(node)

    def leave(self, node: Node) -> None:
        """Its record is of a moment of which all is committed."""
        for peer, upper in {**node.needs, node.id: node.upper}.items():
            if not self.nodes[peer].is_script:
                self.commit_up_to(self.nodes[peer], upper)
        node.is_gone = True
        self.killed.add(node.id)
        left = [letter for letter in self.letters if letter.sender == node.id and not letter.acknowledged]
        left = [letter for letter in left if not self.nodes[letter.receiver].is_gone]
        self.pinned |= {actor for letter in left for actor in letter.handles}
        self.pinned |= {letter.receiver for letter in left if letter.answers is None}

    # looking

    def look(self) -> None:
        if self.reach.now is not None:
            return
        self.looks += 1
        members = [node for node in self.members if node.is_up or self.mutant != NO_DEAD]
        roots = tuple(node.id for node in members if node.is_script or node.id in self.pinned)
        lives = tuple((node.id, Incarnation(node.incarnation)) for node in members)
        name = f"{self.coordinators}-{self.looks}"
        self.reach.begin(Look(name, Round(self.round), lives, roots, tuple(self.killed)))

    def answer(self) -> None:
        look = self.reach.now
        node = None if look is None else self.pick([n for n in self.living() if n.id in look.missing])
        if node is not None:
            self.answer_by(node)

    def answer_by(self, node: Node) -> None:
        assert self.reach.now is not None, "nobody looks"
        said = self.ask(node, self.reach.now)
        if self.mutant == ONE_LOOK:
            self.reach.before = None
        if self.reach.on_answer(node.id, Incarnation(node.incarnation), said):
            self.conclude(self.reach.conclude())

    def ask(self, node: Node, look: Look) -> Answer:
        outbox = [
            letter for letter in self.letters if letter.sender == node.id and not self.nodes[letter.receiver].is_gone
        ]
        sent = [letter for letter in outbox if not letter.acknowledged]
        queue = [letter for letter in self.letters if letter.receiver == node.id and letter.delivered]
        queue = [letter for letter in queue if letter.executed_at is None]
        answered = [letter.answers for letter in self.letters if letter.receiver == node.id and letter.delivered]
        calls = [letter for letter in outbox if letter.answers is None]
        kept = [actor for letter in (*sent, *queue) for actor in letter.handles]
        if self.mutant == NO_BYTES:
            kept = []
        if self.mutant == NO_TOUCHES:
            node.holding.touched = {}
        if self.mutant != NO_CALLS:
            kept += [letter.receiver for letter in calls if letter not in answered]
        committed = node.committed if self.mutant != NO_COMMITS and not node.is_script else 1_000_000
        answer = node.holding.answer(
            look.name, Round(node.round), kept, Index(0 if node.is_script else node.upper), Index(committed),
            settled=not node.replays, active=bool(sent or queue), unread=self.unread_by(node),
        )  # fmt: skip
        return self.distort(answer, look)

    def distort(self, answer: Answer, look: Look) -> Answer:
        """Forget a rule, if that is what this world is for."""
        changes: dict[str, dict[str, Any]] = {
            NO_ROUNDS: {"round": look.round}, NO_REPLAYS: {"settled": True}, NO_ACTS: {"active": False},
            NO_BEGINNINGS: {"begun": True}, NO_RECORDS: {"unread": ()}, NO_COMMITS: {"begun": True},
        }  # fmt: skip
        return answer._replace(**changes.get(self.mutant, {}))

    def unread_by(self, node: Node) -> tuple[PeerId, ...]:
        undelivered = [letter for letter in self.letters if letter.receiver == node.id and not letter.delivered]
        return tuple({letter.sender: None for letter in undelivered}) if node.incarnation else ()

    def conclude(self, verdict: tuple[list[PeerId], bool]) -> None:
        unreached, certain = verdict
        if self.reach.before is not None and self.reach.before.round != self.round and self.mutant != NO_ROUNDS:
            self.reach.give_up()
            return
        for peer in unreached if certain or self.mutant == ONE_LOOK else []:
            self.end(peer)
        if self.ended and unreached and not self.is_quiet:
            self.crash()  # now, if ever, it shows whether somebody would have been needed

    def end(self, peer: PeerId) -> None:
        """And all that it owns."""
        for node in self.members:
            if f"{node.id}/".startswith(f"{peer}/"):
                self.ended.append(node.id)
                self.leave(node)

    def restart_coordinator(self) -> None:
        if self.random.random() < 0.1:
            self.coordinators += 1
            self.reach = Reach()

    def give_up_look(self) -> None:
        """A look that nobody will finish: somebody has gone, or lives another life."""
        look = self.reach.now
        if look is not None and any(
            self.nodes[peer].is_gone or self.nodes[peer].incarnation != life for peer, life in look.members.items()
        ):
            self.reach.give_up()

    # what must be true

    def within_reach(self) -> dict[PeerId, None]:
        """Everybody whom those that can act lead to, over states, and over letters that were not executed yet."""
        open_letters = [letter for letter in self.letters if letter.executed_at is None]
        open_letters = [letter for letter in open_letters if self.is_awaited(letter)]
        reached = {node.id: None for node in self.members if node.is_script}
        reached.update({peer: None for peer in self.pinned if not self.nodes[peer].is_gone})
        reached.update({letter.receiver: None for letter in open_letters})
        ahead = list(reached)
        while ahead:
            node = self.nodes[ahead.pop()]
            if node.is_gone and node.id not in self.ended:
                continue
            held = [*node.state, owner_of(node.id)]
            held += [actor for letter in open_letters if letter.receiver == node.id for actor in letter.handles]
            for peer in held:
                if peer and peer not in reached:
                    reached[peer] = None
                    ahead.append(peer)
        return reached

    def is_awaited(self, letter: Letter) -> bool:
        """Whether a letter will be executed, or should be: a call is, whoever has ended."""
        return not self.nodes[letter.receiver].is_gone or (letter.receiver in self.ended and letter.answers is None)

    def check(self) -> None:
        wrong = [peer for peer in self.within_reach() if peer in self.ended]
        if wrong:
            raise EndedTooEarly(f"{wrong} can still be reached")

    def left_over(self) -> list[PeerId]:
        """Actors that have begun, and that nobody can reach; the others end with whoever was to begin them."""
        reached = self.within_reach()
        return [node.id for node in self.members if node.id not in reached and node.committed]

    # running

    def run(self, steps: int) -> None:
        steps_of, weights = list(self.weights), list(self.weights.values())
        for self.step in range(steps):
            self.random.choices(steps_of, weights)[0]()
            self.check()

    def heal(self) -> None:
        """Nobody does anything new, and everything comes to its end."""
        self.is_quiet = True
        for _ in range(60):
            for node in self.members:
                if not node.is_up:
                    self.begin_life(node)
                node.finish_replay()
                self.hear(node)
            for letter in [letter for letter in self.letters if not letter.delivered and self.is_open(letter)]:
                self.deliver_letter(letter)
            for letter in list(self.letters):
                letter.acknowledged = letter.acknowledged or letter.delivered
                receiver = self.nodes[letter.receiver]
                if letter.delivered and letter.executed_at is None and not receiver.is_gone:
                    self.execute_letter(letter)
            for node in self.members:
                self.commit_up_to(node, node.upper)
            self.give_up_look()
            self.look()
            for _ in self.nodes:
                self.answer()
            self.check()
