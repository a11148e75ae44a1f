"""Whatever happens in whatever order: peers on a bad wire lose and repeat nothing, stash and replica match a model."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lineage_stash.codec import decode, encode, pack_span, unpack_span, unpack_spans
from lineage_stash.core import effects, events
from lineage_stash.core.channel import Message
from lineage_stash.core.entry import Entry, size_bytes
from lineage_stash.core.frontier import START
from lineage_stash.core.history import Decision, History
from lineage_stash.core.ids import Incarnation, Index, PeerId, Ref, Round, Seqno
from lineage_stash.core.policy import Policy
from lineage_stash.core.settle import Stretch, assemble, find_cut
from lineage_stash.core.stash import Stash
from lineage_stash.store import contract
from lineage_stash.store.replica import Replica
from tests.core.builders import A, B, decision, entries, peers, piece, quick, said
from tests.core.driving import Driven

fewer = settings(quick, max_examples=80, stateful_step_count=60)


# Two peers on a bad wire.


class PeersOnABadWire(RuleBasedStateMachine):
    """A driver calls an actor; the wire loses, repeats and reorders; one of them is taken for dead and begins again.

    The actor reads a number that nobody could guess for every call, and puts it into the reply. The store is one
    replica: what it was given may be applied and never answered. Whoever is taken for dead goes on as a zombie until
    the decision; the next life begins at the greatest cut of what the survivor and the store hold, and with it a new
    channel.
    """

    POLICY = Policy(window_messages=3, calls_per_message=2, resend_after_ticks=1, checkpoint_every_entries=None)

    @initialize(replayable=st.booleans())
    def start(self, replayable: bool) -> None:
        self.replayable = replayable
        self.decisions: list[Decision] = []
        self.pending: Decision | None = None
        self.wire: list[bytes] = []
        self.replica = Replica()
        self.flushes: dict[PeerId, list[effects.AppendToStore]] = {A: [], B: []}
        self.draws = 0
        self.submitted: list[bytes] = []
        self.executed: list[bytes] = []
        self.running: list[bytes] = []
        self.got: list[bytes] = []
        self.peers = {A: Driven(A, replayable=replayable, policy=self.POLICY), B: Driven(B, policy=self.POLICY)}
        self.feed(A, events.MainStarted())

    def feed(self, to: PeerId, event: object) -> None:
        for effect in self.peers[to].handle(event):
            assert type(effect) not in (effects.ReportFault, effects.Stop), effect
            if type(effect) is effects.SendMessage:
                self.wire.append(encode(effect.message))
            elif type(effect) is effects.AppendToStore:
                self.flushes[to].append(effect)
            elif type(effect) is effects.RunCall:
                self.running.append(effect.payload)
                self.feed(to, events.ReadStarted("draw"))
            elif type(effect) is effects.TakeReading:
                self.draws += 1
                self.feed(to, events.ReadingTaken(b" %d" % self.draws))
            elif type(effect) is effects.Resume and to == B:
                self.running[-1] += effect.answer  # type: ignore[operator]
            elif type(effect) is effects.Resume and type(effect.answer) is tuple:
                self.got += effect.answer

    # the program

    @rule(payload=st.binary(max_size=3))
    def submit(self, payload: bytes) -> None:
        self.submitted.append(payload)
        self.feed(A, events.CallSubmitted(B, payload))

    @precondition(lambda self: self.running)
    @rule()
    def finish(self) -> None:
        self.executed.append(self.running.pop())
        self.feed(B, events.CallFinished(self.executed[-1]))

    @rule(payload=st.binary(max_size=3), seen=st.booleans())
    def call_and_answer(self, payload: bytes, seen: bool) -> None:
        """A good moment: the call and, if it is to be seen, its reply get through at once."""
        self.submit(payload)
        self.carry_all()
        while self.running:
            self.finish()
        if seen:
            self.carry_all()

    # the wire

    def deliver(self, frame: bytes) -> None:
        message = decode(frame)
        assert type(message) is Message
        self.feed(message.receiver, events.MessageArrived(message))

    @precondition(lambda self: self.wire)
    @rule(data=st.data(), repeated=st.booleans())
    def carry(self, data: st.DataObject, repeated: bool) -> None:
        at = data.draw(st.integers(0, len(self.wire) - 1))
        self.deliver(self.wire[at] if repeated else self.wire.pop(at))

    @rule()
    def carry_all(self) -> None:
        frames, self.wire = self.wire, []
        for frame in frames:
            self.deliver(frame)

    @precondition(lambda self: self.wire)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.wire.pop(data.draw(st.integers(0, len(self.wire) - 1)))

    @rule(peer=st.sampled_from((A, B)))
    def tick(self, peer: PeerId) -> None:
        self.feed(peer, events.Ticked())

    # the store

    @rule(peer=st.sampled_from((A, B)), answered=st.booleans())
    def store(self, peer: PeerId, answered: bool) -> None:
        if not self.flushes[peer]:
            return
        (flush,) = self.flushes[peer]
        history = self.peers[peer].peer.history
        segments = tuple((r.peer, history.segments(r.peer)) for r in flush.ranges)
        spans = tuple(map(pack_span, flush.ranges))
        held = self.replica.handle(contract.Append(spans, segments, (), flush.watch, False))
        if answered and peer not in held.refused:
            self.flushes[peer].clear()
            self.feed(peer, events.Appended((held.holdings,), 1))

    # death and the next life

    @precondition(lambda self: self.pending is None)
    @rule(peer=st.sampled_from((A, B)))
    def take_for_dead(self, peer: PeerId) -> None:
        if peer == A and not self.replayable:
            return
        survivor = self.peers[B if peer == A else A]
        history = History(tuple(self.decisions))
        dead = ((peer, history.incarnation(peer)),)
        survivor.handle(events.GatherAsked(Round(history.round + 1), dead, "coordinator"))
        (answer,) = (effect.answer for effect in survivor.of(effects.SendAnswer))
        committed = dict(answer.committed)
        found = self.replica.handle(contract.Fence(dead, ((peer, committed.get(peer, START)),)))
        stretches = assemble((*answer.ranges, *unpack_spans(found.spans)), committed, history)
        cut = find_cut(stretches, committed, (peer,), {survivor.peer.id: answer.needs})
        assert (cut.orphans, cut.short) == ((), ())
        self.settle(peer, stretches.get(peer, Stretch(START, ())), cut.ends[peer], history)
        self.pending = decision(history.round + 1, (peer, dead[0][1] + 1, cut.ends[peer]))

    def settle(self, peer: PeerId, stretch: Stretch, end: Index, history: History) -> None:
        spans = tuple(
            pack_span(
                piece(peer, start, stretch.entries[start - stretch.lower : stop - stretch.lower], incarnation=writer)
            )
            for writer, start, stop in history.pieces(peer, stretch.lower, end)
        )
        self.replica.handle(contract.Append(spans, ((peer, history.segments(peer)),), (), (), True))

    @precondition(lambda self: self.pending is not None)
    @rule()
    def begin_again(self) -> None:
        assert self.pending is not None
        self.decisions.append(self.pending)
        history = History(tuple(self.decisions))
        peer, _, end = self.pending.beginnings[0]
        decided, self.pending = events.Decided(self.pending), None
        found = self.replica.handle(contract.Read(peer, START))
        past = assemble(unpack_spans(found.spans), {}, history).get(peer, Stretch(START, ()))
        assert past.upper >= end
        self.flushes[peer].clear()
        self.peers[peer] = Driven(peer, history=history, policy=self.POLICY, entries=past.entries[:end])
        if peer == B:
            self.executed, self.running = [], []
        else:
            self.feed(A, events.MainStarted())
            for payload in self.submitted:
                self.feed(A, events.CallSubmitted(B, payload))
        self.feed(B if peer == A else A, decided)

    # what must hold

    @precondition(lambda self: hasattr(self, "peers"))
    @invariant()
    def calls_run_in_order_and_once_in_every_life(self) -> None:
        started = [*self.executed, *self.running]
        assert [answer.rpartition(b" ")[0] for answer in started] == self.submitted[: len(started)]

    def heal(self) -> None:
        """A good wire and a good store from here on."""
        if self.pending:
            self.begin_again()
        for _ in range(40):
            self.carry_all()
            while self.running:
                self.finish()
            for peer in (A, B):
                self.store(peer, True)
                self.feed(peer, events.Ticked())

    def teardown(self) -> None:
        """The driver gets, for all of its calls and in order, what the actor's last life answered."""
        if not hasattr(self, "peers"):
            return
        self.heal()
        assert len(self.executed) == len(self.submitted)
        self.calls_run_in_order_and_once_in_every_life()
        self.feed(A, events.GetStarted(tuple(Ref(B, Seqno(seqno)) for seqno in range(len(self.submitted)))))
        assert self.got == self.executed


# The stash against a dict.


class StashAgainstADict(RuleBasedStateMachine):
    """The model is index → entry per log; the stash must show the same above its committed index."""

    def __init__(self) -> None:
        super().__init__()
        self.stash = Stash()
        self.model: dict[PeerId, dict[int, Entry]] = {}
        self.committed: Counter[PeerId] = Counter()

    def upper(self, peer: PeerId) -> int:
        return max([self.committed[peer], *(index + 1 for index in self.model.get(peer, {}))])

    @rule(peer=peers, entry=entries)
    def append(self, peer: PeerId, entry: Entry) -> None:
        self.model.setdefault(peer, {})[self.upper(peer)] = entry
        self.stash.append(peer, entry)

    @rule(peer=peers, back=st.integers(0, 4), given=st.lists(entries, max_size=6))
    def merge(self, peer: PeerId, back: int, given: list[Entry]) -> None:
        upper = self.upper(peer)
        lower = max(0, upper - back)
        self.stash.merge(peer, Index(lower), tuple(given))
        for index, entry in enumerate(given, lower):
            if index >= upper:
                self.model.setdefault(peer, {})[index] = entry

    @rule(peer=peers, by=st.integers(-2, 5))
    def commit(self, peer: PeerId, by: int) -> None:
        below = max(0, self.committed[peer] + by)
        self.committed[peer] = max(self.committed[peer], below)
        self.model[peer] = {i: e for i, e in self.model.get(peer, {}).items() if i >= self.committed[peer]}
        self.stash.commit(peer, Index(below))

    @rule(peer=peers, by=st.integers(0, 5))
    def clip(self, peer: PeerId, by: int) -> None:
        end = max(0, self.upper(peer) - by)
        self.model[peer] = {i: e for i, e in self.model.get(peer, {}).items() if i < end}
        self.stash.clip(peer, Index(end))

    @invariant()
    def shows_what_the_model_holds(self) -> None:
        shown = {
            peer: {r.lower + at: e for r in self.stash.ranges(peer, START, History()) for at, e in enumerate(r.entries)}
            for peer in self.stash
        }
        assert shown == {peer: held for peer, held in self.model.items() if held}
        assert self.stash.bytes == sum(size_bytes(entry) for held in self.model.values() for entry in held.values())
        for peer in self.model:
            assert (self.stash.lower(peer), self.stash.upper(peer)) == (self.committed[peer], self.upper(peer))


# A replica's log against a model that remembers who wrote what.


def written_by(incarnation: int, index: int) -> Entry:
    return said(b"%d wrote %d" % (incarnation, index))


class ReplicaAgainstAModel(RuleBasedStateMachine):
    """The model keeps the writer of every entry, so leftovers are told apart by who wrote them and not by where."""

    def __init__(self) -> None:
        super().__init__()
        self.replica = Replica()
        self.truth: list[tuple[Incarnation, Index]] = [(Incarnation(0), START)]
        self.known = 1
        self.fenced = 0
        self.base = 0
        self.held: dict[int, int] = {}

    @property
    def upper(self) -> int:
        return self.base + len(self.held)

    def end_of(self, incarnation: int, known: int) -> int | None:
        return min((began for other, began in self.truth[:known] if other > incarnation), default=None)

    def learn(self, known: int) -> None:
        self.known = max(self.known, known)
        leftovers = [
            index for index, writer in self.held.items()
            if (end := self.end_of(writer, self.known)) is not None and index >= end
        ]  # fmt: skip
        if leftovers:
            self.held = {index: writer for index, writer in self.held.items() if index < min(leftovers)}

    def ask_append(self, writer: int, lower: int, count: int, known: int) -> contract.Held:
        entries = tuple(written_by(writer, index) for index in range(lower, lower + count))
        span = pack_span(piece(A, lower, entries, incarnation=writer))
        request = contract.Append((span,), ((A, tuple(self.truth[:known])),), (), (), False)
        reply = self.replica.handle(request)
        assert self.replica.handle(request) == reply
        assert type(reply) is contract.Held
        return reply

    @rule(data=st.data(), count=st.integers(1, 4), offset=st.integers(-4, 2))
    def append(self, data: st.DataObject, count: int, offset: int) -> None:
        writer = data.draw(st.integers(0, len(self.truth) - 1), "writer")
        known = data.draw(st.integers(writer + 1, len(self.truth)), "rounds that the sender knows")
        lower = max(self.truth[writer][1], self.upper + offset)
        reply = self.ask_append(writer, lower, count, known)
        self.learn(known)
        if writer < self.fenced and self.end_of(writer, self.known) is None:
            assert reply.refused == (A,)
        else:
            end = self.end_of(writer, self.known)
            stop = lower + count if end is None else min(lower + count, end)
            has_gap = stop > self.upper and lower > self.upper
            assert reply.refused == ()
            assert reply.gaps == (((A, self.upper),) if has_gap else ())
            if not has_gap:
                self.held |= dict.fromkeys(range(self.upper, stop), writer)
        assert reply.holdings[0][2] == self.upper
        if self.held:
            assert reply.holdings[0][1] == self.held[self.upper - 1]

    @rule()
    def fence(self) -> None:
        reply = self.replica.handle(contract.Fence(((A, self.truth[-1][0]),), ((A, START),)))
        self.fenced = len(self.truth)
        assert reply.spans == self.replica.handle(contract.Read(A, START)).spans

    @precondition(lambda self: self.fenced == len(self.truth))
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        lower = data.draw(st.integers(self.base, self.upper), "where the next life begins")
        self.truth.append((Incarnation(len(self.truth)), Index(lower)))

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        settled = min([self.upper + 1, *(began for _, began in self.truth[self.known :])])
        below = data.draw(st.integers(0, settled), "below")
        self.replica.handle(contract.Truncate(A, tuple(self.truth[: self.known]), Index(below)))
        self.base = max(self.base, below)
        self.held = {index: writer for index, writer in self.held.items() if index >= self.base}

    @invariant()
    def reads_show_what_the_model_holds(self) -> None:
        found = self.replica.handle(contract.Read(A, START))
        assert [span.upper for span in found.spans[:-1]] == [span.lower for span in found.spans[1:]]
        ranges = map(unpack_span, found.spans)
        read = {r.lower + at: (r.incarnation, e) for r in ranges for at, e in enumerate(r.entries)}
        assert read == {index: (writer, written_by(writer, index)) for index, writer in self.held.items()}
        assert found.bases == ((A, self.base),)

    @rule(by=st.integers(0, 5))
    def read_from_the_middle(self, by: int) -> None:
        lower = self.base + by
        found = self.replica.handle(contract.Read(A, Index(lower)))
        read = [r.lower + at for r in map(unpack_span, found.spans) for at in range(len(r.entries))]
        assert read == [index for index in sorted(self.held) if index >= lower]


TestPeersOnABadWire = PeersOnABadWire.TestCase
TestPeersOnABadWire.settings = settings(fewer, max_examples=200)
TestStashAgainstADict = StashAgainstADict.TestCase
TestStashAgainstADict.settings = settings(fewer, max_examples=50)
TestReplicaAgainstAModel = ReplicaAgainstAModel.TestCase
TestReplicaAgainstAModel.settings = settings(fewer, max_examples=150)
