"""The coordinator, driven by hand: what it asks for, what it ignores, and what it publishes."""

from lineage_stash.core import effects, events
from lineage_stash.core.batch import Range
from lineage_stash.core.entry import Read
from lineage_stash.core.history import Beginning, Decision, History
from lineage_stash.core.ids import Incarnation, Index, Member, NodeId, PeerId, Round
from lineage_stash.core.policy import Policy
from lineage_stash.core.recovery import BUSY_TIMES, Coordinator, Phase

ALICE, BOB, CAROL = PeerId("alice"), PeerId("bob"), PeerId("carol")
MEMBERS = tuple(Member(peer, NodeId(f"node of {peer}"), True) for peer in (ALICE, BOB, CAROL))
FIRST = Incarnation(0)


def of_kind(kind: type, orders: list[effects.Effect]) -> list[effects.Effect]:
    return [order for order in orders if isinstance(order, kind)]


def opened(*suspects: PeerId) -> Coordinator:
    """A coordinator that has noted some deaths and asked everybody else."""
    coordinator = Coordinator("token", History(), Policy(patience_ticks=2))
    coordinator.handle(events.CoordinatorStarted())
    for suspect in suspects:
        coordinator.handle(events.Suspected(suspect, FIRST))
    coordinator.handle(events.MembersRead(coordinator.attempt, MEMBERS))
    return coordinator


def answer(coordinator: Coordinator, peer: PeerId, *, ranges: tuple[Range, ...] = (), needs: tuple = (),
           ignored: tuple = ()) -> list[effects.Effect]:  # fmt: skip
    dead = tuple(coordinator.dead.items())
    return coordinator.handle(
        events.GatherAnswered(peer, FIRST, coordinator.round, dead, ignored or dead, ranges, needs, ())
    )


def log(peer: PeerId, length: int) -> Range:
    return Range(peer, FIRST, Index(0), tuple(Read(b"%d" % index, 0, ()) for index in range(length)))


def settled(coordinator: Coordinator, *ranges: Range) -> list[effects.Effect]:
    coordinator.handle(events.StoreFenced(coordinator.attempt, ranges, ()))
    return coordinator.handle(events.SettlementStored(coordinator.attempt))


def test_a_death_noticed_while_opening_is_noted_before_anyone_is_asked() -> None:
    coordinator = Coordinator("token", History(), Policy())
    coordinator.handle(events.Suspected(ALICE, FIRST))
    first_attempt = coordinator.attempt
    (opening,) = of_kind(effects.OpenRound, coordinator.handle(events.Suspected(BOB, FIRST)))
    assert dict(opening.dead) == {ALICE: FIRST, BOB: FIRST}
    assert coordinator.handle(events.MembersRead(first_attempt, MEMBERS)) == []
    asked = of_kind(effects.AskGather, coordinator.handle(events.MembersRead(coordinator.attempt, MEMBERS)))
    assert [order.peer for order in asked] == [CAROL]


def test_silent_peer_that_is_seen_to_be_there_has_more_time_and_not_for_ever() -> None:
    coordinator = opened(ALICE)
    answer(coordinator, BOB)
    coordinator.handle(events.PeersSeen(frozenset((CAROL,))))
    for _ in range(2 * BUSY_TIMES):
        (asked,) = of_kind(effects.AskGather, coordinator.handle(events.Ticked()))
        assert asked.peer == CAROL
    coordinator.handle(events.Ticked())
    assert CAROL in coordinator.dead


def test_silent_peer_whose_connection_is_lost_meanwhile_joins_the_dead() -> None:
    coordinator = opened(ALICE)
    answer(coordinator, BOB)
    coordinator.handle(events.PeersSeen(frozenset((CAROL,))))
    for _ in range(4):
        coordinator.handle(events.Ticked())
    assert CAROL not in coordinator.dead
    coordinator.handle(events.PeersSeen(frozenset()))
    coordinator.handle(events.Ticked())
    assert CAROL in coordinator.dead


def test_whoever_is_silent_joins_the_dead_and_all_are_asked_again() -> None:
    coordinator = opened(ALICE)
    answer(coordinator, BOB)
    for _ in range(3):
        orders = coordinator.handle(events.Ticked())
    assert CAROL in coordinator.dead
    assert of_kind(effects.OpenRound, orders)
    assert coordinator.phase is Phase.OPENING


def test_death_of_an_unknown_life_makes_the_coordinator_look_for_decisions() -> None:
    coordinator = Coordinator("token", History(), Policy())
    orders = coordinator.handle(events.Suspected(ALICE, Incarnation(1)))
    assert of_kind(effects.FetchDecisions, orders)
    assert not of_kind(effects.OpenRound, orders)


def test_idle_coordinator_notices_a_decision_whose_author_died_before_starting_anyone() -> None:
    coordinator = Coordinator("token", History(), Policy())
    looked = [order for _ in range(20) for order in coordinator.handle(events.Ticked())]
    assert of_kind(effects.FetchDecisions, looked)
    theirs = Decision(Round(1), (Beginning(BOB, Incarnation(1), Index(0)),), (), "another token")
    (opening,) = of_kind(effects.OpenRound, coordinator.handle(events.Decided(theirs)))
    assert opening.round == 2


def test_whoever_somebody_ignores_joins_the_dead() -> None:
    coordinator = opened()
    answer(coordinator, ALICE, ignored=((BOB, FIRST),))
    assert coordinator.dead == {BOB: FIRST}


def test_an_answer_about_fewer_dead_does_not_count() -> None:
    coordinator = opened(ALICE, BOB)
    late = events.GatherAnswered(CAROL, FIRST, coordinator.round, ((ALICE, FIRST),), (), (), (), ())
    assert coordinator.handle(late) == []
    assert coordinator.phase is Phase.GATHERING


def test_the_cut_is_stored_before_it_is_published() -> None:
    coordinator = opened(ALICE)
    answer(coordinator, BOB, ranges=(log(ALICE, 3),), needs=((ALICE, Index(3)),))
    (fence,) = of_kind(effects.FenceStore, answer(coordinator, CAROL))
    assert dict(fence.dead) == {ALICE: FIRST}
    orders = coordinator.handle(events.StoreFenced(coordinator.attempt, (log(ALICE, 1),), ()))
    (stored,) = of_kind(effects.StoreSettlement, orders)
    assert stored.ranges == (log(ALICE, 3),)
    assert not of_kind(effects.Publish, orders)
    (published,) = of_kind(effects.Publish, coordinator.handle(events.SettlementStored(coordinator.attempt)))
    assert published.decision.beginnings == (Beginning(ALICE, Incarnation(1), Index(3)),)


def test_a_survivor_that_needs_what_nobody_holds_is_reported_and_rolled_back() -> None:
    coordinator = opened(ALICE)
    answer(coordinator, BOB, needs=((ALICE, Index(5)),))
    answer(coordinator, CAROL)
    orders = coordinator.handle(events.StoreFenced(coordinator.attempt, (log(ALICE, 2),), ()))
    (fault,) = of_kind(effects.ReportFault, orders)
    assert fault.kind == "orphan"
    assert str(BOB) in fault.text
    assert coordinator.dead == {ALICE: FIRST, BOB: FIRST}
    assert not of_kind(effects.StoreSettlement, orders)


def test_a_slot_that_another_one_took_is_obeyed_and_the_round_starts_over() -> None:
    coordinator = opened(ALICE)
    answer(coordinator, BOB)
    answer(coordinator, CAROL)
    settled(coordinator)
    others = Decision(Round(1), (Beginning(BOB, Incarnation(1), Index(0)),), (), "another token")
    orders = coordinator.handle(events.Published(others))
    assert coordinator.history.incarnation(BOB) == 1
    assert not of_kind(effects.StartIncarnation, orders)
    (opening,) = of_kind(effects.OpenRound, orders)
    assert opening.round == 2
    assert dict(opening.dead) == {ALICE: FIRST}


def test_a_settlement_of_an_earlier_attempt_publishes_nothing() -> None:
    coordinator = opened(ALICE)
    answer(coordinator, BOB)
    answer(coordinator, CAROL)
    coordinator.handle(events.StoreFenced(coordinator.attempt, (), ()))
    earlier = coordinator.attempt
    coordinator.handle(events.Suspected(BOB, FIRST))
    assert not of_kind(effects.Publish, coordinator.handle(events.SettlementStored(earlier)))


def test_a_visitor_that_died_is_gone_and_not_started_again() -> None:
    coordinator = Coordinator("token", History(), Policy())
    coordinator.handle(events.Suspected(ALICE, FIRST))
    visitor = MEMBERS[0]._replace(replayable=False)
    coordinator.handle(events.MembersRead(coordinator.attempt, (visitor, MEMBERS[1])))
    answer(coordinator, BOB)
    (published,) = of_kind(effects.Publish, settled(coordinator))
    assert published.decision.gone == (ALICE,)
    orders = coordinator.handle(events.Published(published.decision))
    assert not of_kind(effects.StartIncarnation, orders)


def test_a_driver_whose_user_starts_it_again_is_settled_and_nobody_is_started_for_it() -> None:
    coordinator = Coordinator("token", History(), Policy())
    coordinator.handle(events.Suspected(ALICE, FIRST))
    resumable = MEMBERS[0]._replace(begun=FIRST)
    coordinator.handle(events.MembersRead(coordinator.attempt, (resumable, MEMBERS[1])))
    answer(coordinator, BOB)
    (published,) = of_kind(effects.Publish, settled(coordinator, log(ALICE, 3)))
    assert published.decision.gone == ()
    assert published.decision.beginnings == (Beginning(ALICE, Incarnation(1), Index(3)),)
    assert not of_kind(effects.StartIncarnation, coordinator.handle(events.Published(published.decision)))


def test_a_round_does_not_wait_for_a_driver_that_is_away_but_for_one_that_is_back() -> None:
    away = MEMBERS[0]._replace(begun=FIRST)
    back = away._replace(begun=Incarnation(1))
    for member, expected in ((away, [CAROL]), (back, [ALICE, CAROL])):
        history = History((Decision(Round(1), (Beginning(ALICE, Incarnation(1), Index(3)),), (), "token"),))
        coordinator = Coordinator("token", history, Policy())
        coordinator.handle(events.Suspected(BOB, FIRST))
        asked = coordinator.handle(events.MembersRead(coordinator.attempt, (member, *MEMBERS[1:])))
        assert [order.peer for order in of_kind(effects.AskGather, asked)] == expected


def test_a_suspicion_of_a_driver_that_is_away_comes_to_nothing() -> None:
    history = History((Decision(Round(1), (Beginning(ALICE, Incarnation(1), Index(3)),), (), "token"),))
    coordinator = Coordinator("token", history, Policy())
    coordinator.handle(events.Suspected(ALICE, Incarnation(1)))
    coordinator.handle(events.MembersRead(coordinator.attempt, (MEMBERS[0]._replace(begun=FIRST),)))
    assert coordinator.phase is Phase.IDLE
    assert not coordinator.dead
