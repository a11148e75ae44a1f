"""Refs: passed on as arguments, inside others, in results and in state; put aside, streamed, several per call."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
import ray as plain_ray

import lineage_stash as ray

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(120)]

PATIENCE_S = 60.0


@ray.remote(num_cpus=0)
class Keeper:
    """Keeps a ref, and looks into it when it is asked to."""

    def __init__(self) -> None:
        self.kept: list[ray.ObjectRef] = []

    def keep(self, refs: "list[ray.ObjectRef]") -> int:
        self.kept.extend(refs)
        return len(self.kept)

    def open(self) -> list[object]:
        return list(ray.get(self.kept))

    def hand_to(self, other: "ray.ActorHandle") -> int:
        return int(ray.get(other.keep.remote(self.kept)))

    def echo(self, value: object) -> object:
        return value

    def call(self, other: "ray.ActorHandle", value: object) -> "list[ray.ObjectRef]":
        return [other.echo.remote(value)]

    def open_deeply(self, nested: "list[ray.ObjectRef]") -> object:
        while isinstance(nested, list):
            nested = ray.get(nested[0])
        return nested

    def fail(self) -> None:
        raise KeyError("on purpose")

    def two(self) -> tuple[int, int]:
        return 1, 2

    def count(self, upper: int) -> Iterator[int]:
        yield from range(upper)

    def count_and_fail(self, upper: int) -> Iterator[int]:
        yield from range(upper)
        raise KeyError("on purpose")


@pytest.fixture(scope="module")
def pair() -> "tuple[ray.ActorHandle, ray.ActorHandle]":
    return Keeper.remote(), Keeper.remote()


Pair = tuple["ray.ActorHandle", "ray.ActorHandle"]


def test_ref_inside_an_argument_is_a_ref_there(pair: Pair) -> None:
    keeper, other = Keeper.remote(), pair[1]
    assert ray.get(keeper.keep.remote([other.echo.remote("x"), ray.put("y")]), timeout=PATIENCE_S) == 2
    assert ray.get(keeper.open.remote(), timeout=PATIENCE_S) == ["x", "y"]


def test_ref_is_handed_on_by_one_who_never_looked_into_it(pair: Pair) -> None:
    first, second = Keeper.remote(), Keeper.remote()
    ray.get(first.keep.remote([pair[0].echo.remote(np.arange(3))]), timeout=PATIENCE_S)
    assert ray.get(first.hand_to.remote(second), timeout=PATIENCE_S) == 1
    (value,) = ray.get(second.open.remote(), timeout=PATIENCE_S)
    assert value.tolist() == [0, 1, 2]


def test_ref_in_a_result_can_be_waited_for_and_passed_on(pair: Pair) -> None:
    (inner,) = ray.get(pair[0].call.remote(pair[1], "deep"), timeout=PATIENCE_S)
    assert ray.wait([inner], timeout=PATIENCE_S) == ([inner], [])
    assert ray.get(pair[0].echo.remote(inner), timeout=PATIENCE_S) == "deep"
    assert ray.get(inner) == ray.get(inner) == "deep"


def test_refs_inside_refs_are_opened_one_after_the_other(pair: Pair) -> None:
    nested = ray.put([pair[0].call.remote(pair[1], "deepest")])
    assert ray.get(Keeper.remote().open_deeply.remote([nested]), timeout=PATIENCE_S) == "deepest"
    again = ray.get(nested)
    assert ray.get(ray.get(again[0])[0], timeout=PATIENCE_S) == "deepest"


def test_value_that_was_opened_before_is_opened_again_with_the_same_refs(pair: Pair) -> None:
    outer = pair[0].call.remote(pair[1], "again")
    first, second = ray.get(outer, timeout=PATIENCE_S), ray.get(outer)
    del first
    assert ray.get(second[0], timeout=PATIENCE_S) == "again"


def test_submitting_does_not_wait_for_the_arguments() -> None:
    first, second = Keeper.remote(), Keeper.remote()
    ref = second.echo.remote(first.echo.remote(second.echo.remote("round")))
    assert ray.get(ref, timeout=PATIENCE_S) == "round"


def test_error_of_an_argument_is_the_error_of_the_call(pair: Pair) -> None:
    with pytest.raises(KeyError, match="on purpose"):
        ray.get(pair[1].echo.remote(pair[0].fail.remote()), timeout=PATIENCE_S)


def test_refs_are_equal_wherever_they_came_from(pair: Pair) -> None:
    ref = pair[0].echo.remote(1)
    (back,) = ray.get(pair[1].echo.remote([ref]), timeout=PATIENCE_S)
    assert back == ref
    assert hash(back) == hash(ref)
    assert back.hex() == ref.hex()
    assert {back: "found"}[ref] == "found"


def test_value_that_is_put_aside_is_of_that_moment() -> None:
    array = np.zeros(3)
    ref = ray.put(array)
    array[0] = 7
    assert ray.get(ref).tolist() == [0, 0, 0]
    with pytest.raises(TypeError, match="wrap"):
        ray.put(ref)


def test_call_with_several_results_has_a_ref_for_each(pair: Pair) -> None:
    one, two = pair[0].two.options(num_returns=2).remote()
    assert ray.get([two, one], timeout=PATIENCE_S) == [2, 1]
    assert ray.get(pair[1].echo.remote(two), timeout=PATIENCE_S) == 2
    assert ray.get(ray.get(pair[1].echo.remote([one]), timeout=PATIENCE_S)[0]) == 1
    assert pair[0].two.options(num_returns=0).remote() is None
    wrong = pair[0].two.options(num_returns=3).remote()
    with pytest.raises(ValueError, match="returned 2"):
        ray.get(wrong[0], timeout=PATIENCE_S)


def test_generator_streams_its_items(pair: Pair) -> None:
    assert [ray.get(ref, timeout=PATIENCE_S) for ref in pair[0].count.remote(5)] == [0, 1, 2, 3, 4]
    assert list(pair[0].count.remote(0)) == []
    items = pair[0].count_and_fail.remote(2)
    assert [ray.get(next(items), timeout=PATIENCE_S) for _ in range(2)] == [0, 1]
    with pytest.raises(KeyError, match="on purpose"):
        ray.get(next(items), timeout=PATIENCE_S)
    with pytest.raises(StopIteration):
        next(items)


def test_refs_can_be_awaited(pair: Pair) -> None:
    async def gather() -> list[object]:
        refs = [pair[0].echo.remote(number) for number in range(3)]
        return list(await asyncio.gather(*refs))

    assert asyncio.run(gather()) == [0, 1, 2]
    assert pair[0].echo.remote("future").future().result(PATIENCE_S) == "future"


def test_ref_of_rays_own_has_the_value_or_the_error(pair: Pair) -> None:
    assert plain_ray.get(pair[0].echo.remote({"a": 1}).as_ray(), timeout=PATIENCE_S) == {"a": 1}
    with pytest.raises(KeyError, match="on purpose"):
        plain_ray.get(pair[0].fail.remote().as_ray(), timeout=PATIENCE_S)


def test_ref_that_is_pickled_by_hand_is_refused_with_advice(pair: Pair) -> None:
    import pickle

    with pytest.raises(TypeError, match="pass it to whoever needs it"):
        pickle.dumps(pair[0].echo.remote(1))
