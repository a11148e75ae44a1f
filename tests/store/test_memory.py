"""The contract holds for one replica in memory, and for three behind the quorum client with any one of them away."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage_stash.codec import decode, encode, pack_span
from lineage_stash.core.history import Beginning, Decision, History
from lineage_stash.core.ids import Incarnation, Index, Member, NodeId, Round
from lineage_stash.core.peer import Peer
from lineage_stash.core.policy import Policy
from lineage_stash.restoring import NoLife, restore
from lineage_stash.store import contract
from lineage_stash.store.quorum import Quorum
from lineage_stash.store.replica import FIRST_EPOCH, Replica
from tests.store.contract_suite import (
    Appended,
    Outcome,
    P,
    StoreContract,
    UnreliableStoreContract,
    Verbs,
    checkpoint,
    entry,
    log,
)

TICKS = 6
THREE = contract.ReplicaSet(FIRST_EPOCH, (0, 1, 2))


class OneReplica(Verbs):
    """A replica in memory, asked through the codec."""

    def __init__(self) -> None:
        super().__init__()
        self.replica = Replica()

    def ask(self, request: contract.Request) -> tuple[Any, ...]:
        return (decode(encode(self.replica.handle(decode(encode(request))))),)


class ThreeReplicas(Verbs):
    """Three replicas behind the quorum client; the transport answers at once, or not at all from those away."""

    def __init__(self, away: tuple[int, ...] = (), outcomes: tuple[Outcome, ...] = ()) -> None:
        super().__init__(quorum=2)
        self.replicas = [Replica() for _ in range(3)]
        self.away = away
        self.outcomes = list(outcomes)
        self.history = History()
        self.client = Quorum(THREE, self.history, encode, self.send)

    def send(self, replica: int, ticket: contract.Ticket, frame: bytes) -> None:
        outcome = self.outcomes.pop() if self.outcomes else Outcome(True, True)
        if replica in self.away or not outcome.happened:
            return
        answer = encode(self.replicas[replica].handle(decode(frame), ticket.epoch))
        if outcome.reported:
            self.client.on_reply(replica, ticket.number, decode(answer))

    def ask(self, request: contract.Request) -> tuple[Any, ...]:
        done: list[tuple[Any, ...]] = []
        self.client.request(request, done.append)
        for _ in range(TICKS):
            if not done:
                self.client.on_ticked()
        assert len(done) <= 1
        return done[0] if done else ()


class TestOneReplica(StoreContract, UnreliableStoreContract):
    @pytest.fixture
    def store(self) -> Verbs:
        return OneReplica()

    @pytest.fixture
    def make_store(self) -> Callable[[], Verbs]:
        return OneReplica


class TestThreeReplicas(StoreContract, UnreliableStoreContract):
    @pytest.fixture(params=[(), (0,), (1,), (2,)], ids=lambda away: f"away {away}")
    def store(self, request: pytest.FixtureRequest) -> Verbs:
        return ThreeReplicas(request.param)

    @pytest.fixture
    def make_store(self) -> Callable[[], Verbs]:
        return ThreeReplicas


EVERY_PAIR = pytest.mark.parametrize(
    ("away_first", "away_then"), [(first, then) for first in range(3) for then in range(3)]
)


@EVERY_PAIR
def test_read_with_any_one_replica_away_sees_what_was_committed_with_any_other_away(
    away_first: int, away_then: int
) -> None:
    store = ThreeReplicas((away_first,))
    assert store.append(log(0, 3)) == Appended(3, False)
    store.away = (away_then,)
    assert store.read() == [entry(0), entry(1), entry(2)]


@EVERY_PAIR
def test_replica_that_was_away_is_repaired_from_the_others_before_it_counts(away_first: int, away_then: int) -> None:
    store = ThreeReplicas((away_first,))
    store.append(log(0, 3))
    store.away = (away_then,)
    assert store.append(log(3, 5)) == Appended(5, False)
    store.away = (3 - away_first - away_then,) if away_first != away_then else ()
    assert store.read() == [entry(index) for index in range(5)]


@EVERY_PAIR
def test_replica_that_missed_a_truncated_part_is_repaired_from_there_on(away_first: int, away_then: int) -> None:
    store = ThreeReplicas((away_first,))
    store.append(log(0, 4))
    store.truncate(3)
    store.away = (away_then,)
    assert store.append(log(4, 6)) == Appended(6, False)
    assert store.read() == [entry(3), entry(4), entry(5)]


@EVERY_PAIR
def test_fence_with_one_replica_away_shuts_out_a_zombie_that_reaches_the_others(
    away_first: int, away_then: int
) -> None:
    store = ThreeReplicas((away_first,))
    store.append(log(0, 2))
    store.fence()
    store.away = (away_then,)
    after = store.append(log(2, 4))
    assert after.refused
    assert after.upper <= 2


@EVERY_PAIR
def test_newest_checkpoint_is_found_whoever_was_away_when_it_was_stored(away_first: int, away_then: int) -> None:
    store = ThreeReplicas()
    store.put_checkpoint(checkpoint(3))
    store.away = (away_first,)
    assert store.put_checkpoint(checkpoint(6))
    store.away = (away_then,)
    assert store.get_checkpoint() == checkpoint(6)


def test_two_replicas_away_leave_the_asker_without_an_answer_until_one_returns() -> None:
    store = ThreeReplicas((0, 1))
    done: list[tuple[Any, ...]] = []
    store.client.request(contract.Append((pack_span(log(0, 1)),), (), (), (), False), done.append)
    store.client.on_ticked()
    assert done == []
    store.away = (0,)
    store.client.on_ticked()
    assert len(done) == 1


def test_request_is_done_once_however_often_replicas_answer() -> None:
    store = ThreeReplicas()
    done: list[tuple[Any, ...]] = []
    store.client.request(contract.GetCheckpoint(P), done.append)
    for replica in range(3):
        store.client.on_reply(replica, 1, contract.Loaded(None))
    store.client.on_ticked()
    assert len(done) == 1


def test_one_replica_that_answers_twice_is_no_majority() -> None:
    store = ThreeReplicas((0, 1, 2))
    done: list[tuple[Any, ...]] = []
    store.client.request(contract.GetCheckpoint(P), done.append)
    store.client.on_reply(0, 1, contract.Loaded(None))
    store.client.on_reply(0, 1, contract.Loaded(None))
    assert done == []


outcomes = st.lists(st.builds(Outcome, st.booleans(), st.booleans()), max_size=12).map(tuple)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(outcomes, st.integers(0, 2))
def test_committed_entries_are_read_back_whatever_becomes_of_single_frames(
    drawn: tuple[Outcome, ...], away: int
) -> None:
    store = ThreeReplicas(outcomes=drawn)
    for lower in (0, 2, 4):
        assert store.append(log(lower, lower + 2)) == Appended(lower + 2, False)
    store.outcomes, store.away = [], (away,)
    assert store.read() == [entry(index) for index in range(6)]


def test_settlement_reaches_a_fenced_replica_that_lacks_what_lies_below_it() -> None:
    store = ThreeReplicas((2,))
    store.append(log(0, 5))
    store.away = (0,)
    assert store.fence(lower=3) == [entry(3), entry(4)]
    assert store.append(log(3, 5), settling=True) == Appended(5, False)


def test_peer_that_left_its_record_at_a_majority_gets_no_further_life() -> None:
    store = ThreeReplicas()
    store.put_checkpoint(checkpoint(3))
    store.away = (0,)
    store.put_checkpoint(checkpoint(3, final=True))
    store.away = (2,)
    beginning = Beginning(P, Incarnation(1), Index(3))
    history = History((Decision(Round(1), (beginning,), (), "coordinator"),))
    begun: list[Peer | NoLife] = []
    restore(Member(P, NodeId("node"), True), Incarnation(1), history, Policy(), store.client, (), begun.append)
    assert begun == [NoLife.RETIRED]
    store.away = (1,)
    assert store.get_checkpoint().final, "the record is at a majority by now"


def test_process_started_for_a_life_that_is_over_does_not_begin_it() -> None:
    store = ThreeReplicas()
    lives = (Beginning(P, Incarnation(1), Index(3)), Beginning(P, Incarnation(2), Index(3)))
    history = History(tuple(Decision(Round(1 + number), (life,), (), "c") for number, life in enumerate(lives)))
    begun: list[Peer | NoLife] = []
    restore(Member(P, NodeId("node"), True), Incarnation(1), history, Policy(), store.client, (), begun.append)
    assert begun == [NoLife.SUPERSEDED]


def test_fenced_asker_is_refused_even_if_it_appends_nothing() -> None:
    replica = Replica()
    replica.handle(contract.Fence(((P, Incarnation(0)),), ((P, Index(0)),)))
    held = replica.handle(contract.Append((), (), (), (P,), False, (P, Incarnation(0))))
    assert isinstance(held, contract.Held)
    assert held.refused == (P,)
    next_life = replica.handle(contract.Append((), (), (), (P,), False, (P, Incarnation(1))))
    assert isinstance(next_life, contract.Held)
    assert next_life.refused == ()


def test_repair_that_takes_longer_than_a_tick_is_finished() -> None:
    replicas = [Replica() for _ in range(3)]
    under_way: list[tuple[int, contract.Ticket, bytes]] = []
    done: list[object] = []
    client = Quorum(THREE, History(), encode, lambda *sent: under_way.append(sent))

    def turn(away: int) -> None:
        """One tick, after which the answers to what was sent before it come in."""
        sent, under_way[:] = list(under_way), []
        answers = [(replica, ticket.number, replicas[replica].handle(decode(frame))) for replica, ticket, frame in sent
                   if replica != away]  # fmt: skip
        client.on_ticked()
        for answer in answers:
            client.on_reply(*answer)

    client.request(contract.Append((pack_span(log(0, 3)),), (), (), (), False), done.append)
    for _ in range(3):
        turn(away=2)
    client.request(contract.Append((pack_span(log(3, 5)),), (), (), (), False), done.append)
    for _ in range(20):
        turn(away=0)
    assert len(done) == 2
    assert replicas[2].logs[log(0, 3).peer].upper == 5


def test_replica_that_twice_held_less_than_another_is_brought_up() -> None:
    store = ThreeReplicas((1,))
    store.append(log(0, 4))
    store.away = (0,)
    store.watch(P)
    store.watch(P)
    assert [upper for _, _, upper in store.watch(P)] == [4, 4]
