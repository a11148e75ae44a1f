"""Where replicas should be, and what that promises."""

import pytest

from lineage_stash.store.placement import Plan, choose_nodes, plan_next, promise, survived_nodes, wanted_replicas

THREE = {0: "a", 1: "b", 2: "c"}


@pytest.mark.parametrize(
    ("option", "nodes", "expected"), [(None, 1, 1), (None, 2, 2), (None, 9, 3), (5, 2, 5), (1, 4, 1)]
)
def test_as_many_replicas_as_nodes_up_to_three_unless_the_user_says_otherwise(
    option: int | None, nodes: int, expected: int
) -> None:
    assert wanted_replicas(option, nodes) == expected


def test_replicas_are_spread_before_a_node_gets_a_second_one() -> None:
    assert choose_nodes(5, ("a", "b"), ("b",)) == ("a", "a", "b", "a", "b")
    assert choose_nodes(2, (), ()) == ()


@pytest.mark.parametrize(
    ("lost", "alive", "expected"),
    [
        ((), ("a", "b", "c"), None),
        ((), ("a", "b", "c", "d"), None),
        ((), ("a", "b", "d"), Plan((0, 1), ("d",))),
        ((1,), ("a", "b", "c"), Plan((0, 2), ("b",))),
        ((), ("a", "b"), None),
        ((1,), ("a", "c"), None),
        ((0, 1), ("a", "b", "c"), None),
    ],
    ids=["all there", "one node more", "node gone", "disk gone", "no node free", "no node free for a lost disk",
         "a majority is gone"],
)  # fmt: skip
def test_replica_is_replaced_where_that_helps_and_a_majority_is_left(
    lost: tuple[int, ...], alive: tuple[str, ...], expected: Plan | None
) -> None:
    assert plan_next(THREE, lost, alive, None) == expected


def test_nodes_that_come_later_get_replicas_until_there_are_three() -> None:
    assert plan_next({0: "a"}, (), ("a", "b", "c", "d"), None) == Plan((0,), ("b", "c"))
    assert plan_next({0: "a"}, (), ("a", "b", "c"), 1) is None


def test_user_who_wants_three_replicas_on_one_node_gets_a_lost_one_replaced_there() -> None:
    assert plan_next({0: "a", 1: "a", 2: "a"}, (1,), ("a",), 3) == Plan((0, 2), ("a",))


@pytest.mark.parametrize(
    ("nodes", "survived"), [("a", 0), ("ab", 0), ("abc", 1), ("aab", 0), ("aaa", 0), ("abcde", 2), ("abcdd", 1)]
)
def test_nodes_are_counted_and_not_replicas(nodes: str, survived: int) -> None:
    assert survived_nodes(tuple(nodes)) == survived


def test_promise_says_how_many_nodes_may_be_lost() -> None:
    assert "1 of these nodes" in promise(("a", "b", "c"))
    assert "no node be lost" in promise(("a", "b"))
    assert "3 replicas on 1 node:" in promise(("a", "a", "a"))
    assert "its node or its disk may not" in promise(("a",))
    assert "not recovered" in promise(())
