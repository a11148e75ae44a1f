"""What the page is told, put together from what others found."""

import pytest

from lineage_stash.cli.records import Records
from lineage_stash.cli.status import PeerStatus, State, Status
from lineage_stash.core.history import History
from lineage_stash.core.ids import Epoch, PeerId
from lineage_stash.on_ray.answers import Figures
from lineage_stash.on_ray.replica_sets import Residence
from lineage_stash.store.contract import ReplicaSet
from lineage_stash.ui.facts import (
    UnderWay,
    flow_facts,
    peer_facts,
    promise_facts,
    rate_of,
    total_facts,
    without_too_many,
)
from lineage_stash.ui.looks import Look
from lineage_stash.ui.rates import Rates

FIGURES = Figures(
    incarnation=1, upper=90, committed=80, checkpointed=50, calls=85, entries_needed=12, stash_bytes=1000,
    stash_cap_bytes=4000, buffer_bytes=10, buffer_cap_bytes=100, is_replaying=False, is_held_back=False, level="disk",
)  # fmt: skip


def records(nodes: tuple[str, ...], lost: dict[int, str]) -> Records:
    return Records(
        secret=None, coordinator=None, storage=None, store=None, durability=None,
        replica_set=ReplicaSet(Epoch(1), tuple(range(len(nodes)))),
        residences={number: Residence(node, "") for number, node in enumerate(nodes)}, lost=lost, history=History(),
        accused=frozenset(), members={}, creations={}, retired=frozenset(), killed=frozenset(), claimed=frozenset(),
        places={}, recoveries=(), runs={}, names={},
    )  # fmt: skip


def status(*peers: PeerStatus) -> Status:
    return Status("here", 1, "disk", (), {}, 0, 0, "gather", "a promise", peers)


def peer(state: State = State.ALIVE) -> PeerStatus:
    return PeerStatus("driver-1/Counter-1", "actor", "Counter", "n1", "host", 7, 1, 1, state)


@pytest.mark.parametrize(
    ("nodes", "lost", "level"),
    [
        (("a", "b", "c"), {}, "full"),
        (("a", "a", "a"), {}, "some"),
        (("a",), {}, "some"),
        (("a", "b", "c"), {1: "its disk"}, "less"),
        (("a", "b", "c"), {0: "its disk", 1: "its disk"}, "none"),
        ((), {}, "none"),
    ],
)
def test_promise_has_a_level_that_is_seen_at_a_glance(nodes: tuple[str, ...], lost: dict[int, str], level: str) -> None:
    found = promise_facts(status(), records(nodes, lost), frozenset(nodes))
    assert (found["level"], found["text"]) == (level, "a promise")


def test_node_that_died_takes_from_the_promise() -> None:
    assert promise_facts(status(), records(("a", "b", "c"), {}), frozenset("ab"))["level"] == "less"


def test_peer_that_does_not_answer_is_shown_without_figures() -> None:
    silent = peer_facts(peer(), None, "", None)
    assert (silent["peer"], silent["incarnation"], silent["lag"], silent["calls_per_s"]) == (peer().peer, 1, None, None)
    told = peer_facts(peer(), Look(FIGURES, {}, {}), "counter", 3.0)
    assert (told["lag"], told["stash_bytes"], told["name"], told["durable"]) == (10, 1000, "counter", 80)
    totals = total_facts([silent, told])
    assert (totals["lag"], totals["lag_most"], totals["calls"], totals["calls_per_s"]) == (10, told["peer"], 85, 3.0)


def test_rate_is_over_the_last_seconds() -> None:
    rates = Rates()
    assert rates.note("calls", 0, 100.0) is None
    assert rates.note("calls", 10, 101.0) == 10.0
    for second in range(2, 20):
        rates.note("calls", 10 + 30 * (second - 1), 100.0 + second)
    assert rates.note("calls", 10 + 30 * 19, 120.0) == pytest.approx(30.0)
    rates.forget_before(121.0)
    assert rates.note("calls", 9, 122.0) is None


def test_life_that_replays_has_no_rate_and_the_next_one_begins_anew() -> None:
    rates = Rates()

    def seen(life: int, calls: int, at_s: float, *, replaying: bool = False) -> float | None:
        look = Look(FIGURES._replace(incarnation=life, is_replaying=replaying), {}, {})
        return rate_of(look, ("peer",), calls, rates, at_s)

    assert [seen(0, 100, 1.0), seen(0, 110, 2.0)] == [None, 10.0]
    assert [seen(1, 5, 3.0, replaying=True), seen(1, 112, 4.0), seen(1, 122, 5.0)] == [None, None, 10.0]


def test_flow_of_a_caller_that_has_left_is_told_by_its_callee() -> None:
    here, other, gone = PeerId("driver-1/A-1"), PeerId("driver-1/B-2"), PeerId("driver-0")
    looks = {here: Look(FIGURES, {other: 7}, {gone: 3}), other: Look(FIGURES, {}, {here: 6})}
    found = flow_facts(looks, records(("a",), {}), Rates(), 1.0)
    assert [(flow["caller"], flow["callee"], flow["calls"]) for flow in found] == [(here, other, 7), (gone, here, 3)]


def test_those_who_left_are_not_shown_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lineage_stash.ui.facts.MOST_WHO_LEFT", 2)
    peers = [{"peer": str(number), "state": State.RETIRED} for number in range(6)] + [
        {"peer": "x", "state": State.ALIVE}
    ]
    shown = without_too_many(peers, [{"caller": "0", "callee": "x"}])
    assert [peer["peer"] for peer in shown] == ["0", "4", "5", "x"]


def test_recovery_under_way_counts_from_when_it_was_first_seen() -> None:
    under_way = UnderWay()
    assert under_way.facts(status(peer()), 5.0) == []
    assert under_way.facts(status(peer(State.RECOVERING)), 6.0)[0]["since"] == 6.0
    found = under_way.facts(status(peer(State.RECOVERING)), 7.0)
    assert found == [{"peer": PeerId(peer().peer), "since": 6.0, "phase": "gather"}]
    assert under_way.facts(status(peer()), 8.0) == []
