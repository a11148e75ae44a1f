"""The rules of the global-checkpoint system that need no process: batching, alignment, snapshots, rollbacks."""

import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from benchmarks.suite.systems.global_checkpoint import GlobalCheckpoint
from benchmarks.suite.systems.global_checkpoint_alignment import SOURCE, Alignment, has_cycle, inputs_of
from benchmarks.suite.systems.global_checkpoint_channel import MOST_BYTES, MOST_CALLS, WINDOW, Channel
from benchmarks.suite.systems.global_checkpoint_frames import Parcel, pack, pack_words, unpack, unpack_words
from benchmarks.suite.systems.global_checkpoint_handles import Handle, Ref, adopt, get
from benchmarks.suite.systems.global_checkpoint_host import Life, Settings
from benchmarks.suite.systems.global_checkpoint_rollback import Rollback
from benchmarks.suite.systems.global_checkpoint_snapshots import (
    IN_PLACE_S,
    Snapshots,
    pack_state,
    unpack_state,
    write,
)
from benchmarks.suite.systems.global_checkpoint_station import Station
from lineage_stash.core.rope import rope, whole
from lineage_stash.on_ray import payloads


class Slotted:
    __slots__ = ("count", "handle")

    def __init__(self, count: int) -> None:
        self.count = count
        self.handle = Handle("other")


class Counted:
    def __init__(self, count: int) -> None:
        self.count = count


def submitted(channel: Channel, *calls: bytes) -> list[Ref]:
    refs = [Ref() for _ in calls]
    for call, ref in zip(calls, refs, strict=True):
        channel.submit(call, ref)
    return refs


@pytest.mark.parametrize("items", [[], [b"one"], [b"one", b"", b"three"], [rope(b"large", [(2, b"part")]), b"small"]])
def test_parcel_is_the_same_after_the_wire(items: list[bytes]) -> None:
    body = pack(Parcel(3, 7, 2, 40, items))
    pieces = body if isinstance(body, tuple) else (body,)
    found = unpack(b"".join(bytes(piece) for piece in pieces))
    assert found[:4] == (3, 7, 2, 40)
    assert [whole(item) for item in found.items] == [whole(item) for item in items]


def test_words_are_the_same_after_the_wire() -> None:
    assert unpack_words(pack_words("barrier", checkpoint=4)) == ("barrier", {"checkpoint": 4})


def test_busy_channel_gathers_calls_until_a_frame_is_acknowledged() -> None:
    channel = Channel(retains=False)
    for number in range(WINDOW):
        submitted(channel, b"call")
        assert channel.has_room
        assert channel.take() == (number, [b"call"])
    submitted(channel, b"eighth", b"ninth")
    assert not channel.has_room
    channel.acknowledge(1)
    assert channel.has_room
    assert channel.take() == (WINDOW, [b"eighth", b"ninth"])


def test_frames_are_bounded_in_calls_and_bytes_also_of_a_rewound_channel() -> None:
    channel = Channel(retains=True)
    large = bytes(MOST_BYTES // 2)
    submitted(channel, *[b"small"] * (MOST_CALLS + 1), large, large, large + large + b"larger", b"last")
    expected = [(0, MOST_CALLS), (MOST_CALLS, 2), (MOST_CALLS + 2, 1), (MOST_CALLS + 3, 1), (MOST_CALLS + 4, 1)]
    for _ in range(2):
        frames = []
        while channel.gathered:
            first, calls = channel.take()
            frames.append((first, len(calls)))
        assert frames == expected
        channel.rewind(0)


def test_rewound_channel_sends_again_what_no_checkpoint_covers_and_drops_repeated_replies() -> None:
    channel = Channel(retains=True)
    refs = submitted(channel, b"0", b"1", b"2", b"3")
    channel.take()
    assert [number for number, _, _ in channel.settle(0, [b"a", b"b", b"c"])] == [0, 1, 2]
    channel.truncate(2)
    assert channel.rewind(2) == 2
    assert channel.take() == (2, [b"2", b"3"])
    assert channel.settle(2, [b"c", b"d"]) == [(3, refs[3], b"d")]
    assert (channel.repeated, channel.is_answered, channel.retained_bytes) == (1, True, 2)
    with pytest.raises(AssertionError, match="not retained"):
        channel.rewind(1)


def test_held_reply_that_did_not_happen_is_awaited_again() -> None:
    channel = Channel(retains=True)
    (ref,) = submitted(channel, b"0")
    channel.take()
    (settled,) = channel.settle(0, [b"first"])
    channel.reopen(settled[0], settled[1])
    channel.rewind(0)
    assert channel.settle(0, [b"second"]) == [(0, ref, b"second")]


def test_snapshot_waits_for_the_barriers_of_all_inputs_and_holds_what_is_behind_them() -> None:
    alignment: Alignment[str] = Alignment(0)
    assert alignment.announce(1, ["upstream", SOURCE]) == []
    assert alignment.admit(1, "behind the source's barrier") == []
    assert alignment.admit(0, "before the upstream's barrier") == ["before the upstream's barrier"]
    assert alignment.pass_barrier(1, "upstream") == [(1, ["behind the source's barrier"])]
    assert alignment.admit(1, "later") == ["later"]


def test_barrier_of_an_input_that_comes_before_the_sources_is_kept() -> None:
    alignment: Alignment[str] = Alignment(4)
    assert alignment.pass_barrier(5, "upstream") == []
    assert alignment.admit(5, "held") == []
    assert alignment.announce(5, ["upstream"]) == [(5, ["held"])]


def test_checkpoint_that_was_given_up_does_not_hold_up_the_next() -> None:
    alignment: Alignment[str] = Alignment(0)
    assert alignment.announce(1, ["upstream"]) == []
    assert alignment.announce(2, ["upstream"]) == []
    assert alignment.pass_barrier(1, "upstream") == [(1, [])]
    assert alignment.pass_barrier(2, "upstream") == [(2, [])]


def test_cycles_are_told_from_joins() -> None:
    joined = {("a", "c"), ("b", "c"), ("a", "b")}
    assert not has_cycle(joined)
    assert inputs_of("c", joined) == {SOURCE, "a", "b"}
    assert has_cycle(joined | {("c", "a")})
    assert has_cycle({("a", "a")})


@pytest.mark.parametrize("kind", [Counted, Slotted])
def test_state_is_the_same_after_a_snapshot(kind: type, tmp_path: Path) -> None:
    path = tmp_path / "one.state"
    write(path, pack_state(kind(7)))
    assert unpack_state(kind, path.read_bytes()).count == 7
    assert list(tmp_path.iterdir()) == [path]


class Large:
    """Takes long to open, and says who has pickled it."""

    def __init__(self) -> None:
        self.pickled_by = 0

    def __getstate__(self) -> dict[str, int]:
        return {"pickled_by": os.getpid()}

    def __setstate__(self, state: dict[str, int]) -> None:
        time.sleep(2 * IN_PLACE_S)
        self.__dict__.update(state)


def test_first_snapshot_of_a_restored_large_state_is_taken_by_a_child(tmp_path: Path) -> None:
    station = Station(b"secret", "one", on_frame=lambda *_: None, on_open=lambda _: None, on_lost=lambda *_: None)
    saved: list[tuple[int, int, str]] = []
    snapshots = Snapshots(tmp_path, "one", 0.0, station.loop, lambda *said: saved.append(said))
    write(snapshots.path(1), pack_state(Large()))
    restored = snapshots.read(Large, 1)
    assert restored.pickled_by == os.getpid()
    snapshots.take(restored, 2, 1)
    deadline = time.monotonic() + 30.0
    while not saved and time.monotonic() < deadline:
        station.wait()
    ((checkpoint, size, failure),) = saved
    assert (checkpoint, size > 0, failure) == (2, True, "")
    assert snapshots.read(Large, 2).pickled_by != os.getpid()
    station.close()


def test_rollback_is_over_when_all_have_answered_what_they_had_been_asked() -> None:
    rollback = Rollback(["a"], {"a": 5, "b": 0})
    assert not rollback.note_restored("b")
    assert rollback.note_restored("a")
    assert not rollback.is_over({"a": 3, "b": 0})
    assert rollback.note_replied("a", 5)


def test_second_death_joins_a_rollback_and_keeps_its_time() -> None:
    rollback = Rollback(["a"], {"a": 5, "b": 2})
    rollback.note_restored("b")
    joined = rollback.joined_by("b", {"a": 9, "b": 2, "c": 1})
    joined.end()
    assert joined.missing == {"a", "b", "c"}
    assert joined.goals == {"a": 5, "b": 2, "c": 1}
    assert [(each.peer, each.second) for each in joined.recoveries(rollback.noticed_at)] == [("a", 0.0), ("b", 0.0)]


class Answering:
    """A runtime that answers every call with its arguments."""

    def submit(self, callee: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ref:
        ref = Ref()
        ref.reply = payloads.pack_value([callee, method, *args, *kwargs.values()])
        return ref

    def fetch(self, refs: object, timeout_s: float | None) -> None:
        raise TimeoutError(f"{refs} within {timeout_s} s")


def test_handles_and_refs_can_be_passed_on() -> None:
    adopt(Answering())
    try:
        handle = pickle.loads(pickle.dumps(Handle("one")))
        ref = handle.add.remote(2, by=3)
        assert get(ref) == get(pickle.loads(pickle.dumps(ref))) == ["one", "add", 2, 3]
        with pytest.raises(TimeoutError):
            get([Ref()], 0.1)
    finally:
        adopt(None)


def test_unknown_option_is_refused() -> None:
    with pytest.raises(ValueError, match="no option pace"):
        GlobalCheckpoint("pace=fast")
    assert GlobalCheckpoint("output=held").guarantee.promised == "precise"


def test_docs_promise_no_more_than_the_system_does() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    (row,) = [line for line in docs.splitlines() if line.startswith("| `global-checkpoint` |")]
    by_default, _, held = row.partition("`output=held`")
    assert GlobalCheckpoint().guarantee.promised == "repeating"
    assert "replies repeated" in by_default
    assert "precise" not in by_default
    assert "precise" in held


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    """A host that does what it is told and has no thread."""
    heard = Station(b"secret", SOURCE, on_frame=lambda *_: None, on_open=lambda _: None, on_lost=lambda *_: None)
    living = Life(Settings(heard.address, b"secret", str(tmp_path), 0.0))
    yield living
    living.station.close()
    heard.close()


@pytest.mark.parametrize("checkpoint", [None, 3])
def test_rollback_that_comes_before_a_spare_is_the_actor_does_not_make_it_another(
    life: Life, checkpoint: int | None
) -> None:
    created: dict[str, Any] = {"code": cloudpickle.dumps(Counted), "arguments": cloudpickle.dumps((5,))}
    present: dict[str, Any] = {"places": {}, "checkpoint": checkpoint}
    life._take(life.driver, name="one", **created, generation=1, epoch=3, **present)
    write(life.snapshots.path(3), pack_state(Counted(5)))
    life._on_rollback(life.driver, generation=2, epoch=4, **present)
    assert life._rollback is not None
    life._rollback()
    assert (type(life.instance), life.instance.count) == (Counted, 5)
    assert (life.generation, life.epoch) == (2, 4)
