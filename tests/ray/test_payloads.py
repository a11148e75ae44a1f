"""Calls and values as bytes: what comes back, and what of it is the same in every run."""

import enum
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import RayActorError, RayTaskError

from lineage_stash.core.digest import OPAQUE, digest
from lineage_stash.core.parcels import wrap
from lineage_stash.core.rope import parts_of, weigh, whole
from lineage_stash.on_ray import payloads

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner)
)


class Colour(enum.IntEnum):
    RED = 1


class Opaque:
    def __init__(self, value: int) -> None:
        self.value = value


@given(st.lists(values), st.dictionaries(st.text(min_size=1), values))
def test_whatever_is_called_with_comes_back_as_it_was(args: list[object], kwargs: dict[str, object]) -> None:
    method, back, named = payloads.unpack_call(payloads.pack_call("method", tuple(args), kwargs))
    assert (method, back, named) == ("method", tuple(args), kwargs)
    assert [type(value) for value in back] == [type(value) for value in args]


@given(values)
def test_whatever_is_returned_comes_back_as_it_was(value: object) -> None:
    back = payloads.unpack_value(payloads.pack_value(value))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("value", [Colour.RED, np.float64(1.5), np.bool_(True), bytearray(b"x"), memoryview(b"x").obj])
def test_what_only_looks_plain_keeps_its_type(value: object) -> None:
    (back,) = payloads.unpack_call(payloads.pack_call("method", (value,), {}))[1]
    assert back == value
    assert type(back) is type(value)


def test_arrays_come_back_without_a_copy_and_read_only() -> None:
    array = np.arange(100_000)
    payload = payloads.pack_call("method", (array,), {})
    (back,) = payloads.unpack_call(payload)[1]
    assert np.array_equal(back, array)
    ((_, shared),) = parts_of(payload)
    assert np.shares_memory(back, np.frombuffer(shared, dtype=np.uint8))
    assert not back.flags.writeable
    assert back.ctypes.data % payloads.ALIGNED_BYTES == 0


def test_small_arrays_are_views_of_the_payload_itself() -> None:
    payload = payloads.pack_call("method", (np.arange(1000),), {})
    (back,) = payloads.unpack_call(payload)[1]
    assert np.shares_memory(back, np.frombuffer(payload, dtype=np.uint8))


@pytest.mark.parametrize(
    "value", [b"x" * 1_000_000, ["text " * 100_000, np.arange(3)], {"a": np.ones(100_000), "b": 1}]
)
def test_large_values_are_the_same_in_shared_memory_and_in_one_piece(value: object) -> None:
    for payload in (made := payloads.pack_value(value), whole(made)):
        assert repr(payloads.unpack_value(payload)) == repr(value)
    assert len(made) < 100 < weigh(made)
    several = payloads.pack_parts([payloads.pack_value(value), payloads.pack_value(2), payloads.pack_value(value)])
    for reply in (several, whole(several)):
        parts = [payloads.unpack_value(payloads.part_of(reply, number)) for number in range(3)]
        assert list(map(repr, parts)) == [repr(value), "2", repr(value)]


def test_without_descriptors_large_values_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "has_room", lambda: False)
    assert type(payloads.pack_value(b"x" * 1_000_000)) is bytes


def test_plain_calls_are_the_same_bytes_whichever_parts_are_one_object() -> None:
    text = "".join(["a", "b"])
    once, twice = ("ab", "ab"), (text, "".join(["a", "b"]))
    assert payloads.pack_call("m", once, {}) == payloads.pack_call("m", twice, {})


def test_opaque_calls_count_by_method_and_types_alone() -> None:
    one, other = (payloads.pack_call("m", (Opaque(value),), {}) for value in (1, 2))
    assert one[0] == OPAQUE
    assert digest(one) == digest(other)
    assert digest(one) != digest(payloads.pack_call("n", (Opaque(1),), {}))


def test_name_of_a_call_is_read_without_opening_its_arguments() -> None:
    class Bomb:
        def __reduce__(self) -> object:
            return pytest.fail, ("it was opened",)

    assert payloads.name_of(payloads.pack_call("plain", (1,), {})) == "plain"
    assert payloads.name_of(payloads.pack_call("large", (Bomb(),), {})) == "large"
    for first in (0, 1, 200, 1 << 33):
        for args in ((1,), (Bomb(),)):
            assert payloads.name_of(wrap(payloads.pack_call("with_refs", args, {}), first, 3)) == "with_refs"


def test_error_is_raised_as_the_users_own_type_with_the_remote_traceback() -> None:
    def fails() -> None:
        raise LookupError("lost")

    with pytest.raises(LookupError) as local:
        fails()
    with pytest.raises(LookupError, match="in fails") as raised:
        payloads.unpack_value(payloads.pack_error("Actor.method", local.value))
    assert isinstance(raised.value, RayTaskError)


def test_error_that_cannot_be_pickled_still_says_what_it_was() -> None:
    class Stubborn(Exception):
        def __reduce__(self) -> object:
            raise pickle.PicklingError("never")

    with pytest.raises(RayTaskError, match="Stubborn") as raised:
        payloads.unpack_value(payloads.pack_error("Actor.method", Stubborn("x")))
    assert "cannot be pickled" in str(raised.value.cause)


def test_last_words_are_raised_as_rays_actor_error() -> None:
    with pytest.raises(RayActorError, match="farewell"):
        payloads.unpack_value(payloads.pack_death("farewell"))


@pytest.mark.parametrize(
    ("items", "is_plain"),
    [
        ([], True),
        (["a", b"b", "c" * payloads.LARGEST_PLAIN_BYTES], True),
        (["a", "c" * (payloads.LARGEST_PLAIN_BYTES + 1)], False),
        ([1, 2.5, None, True], True),
        ([1, "a", None], True),
        ([1, "c" * (payloads.LARGEST_PLAIN_BYTES + 1)], False),
        (["a", ["b"]], False),
        (["a", Colour.RED], False),
        (["a"] * (payloads.MOST_PLAIN_ITEMS + 1), False),
    ],
)
def test_a_list_is_plain_if_it_is_short_and_all_its_items_are(items: list[object], is_plain: bool) -> None:
    assert (payloads.pack_plain_call("method", (items,), {}) is not None) is is_plain
    assert (payloads.pack_plain_call("method", (tuple(items),), {}) is not None) is is_plain
