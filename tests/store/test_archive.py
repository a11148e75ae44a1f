"""The contract holds in an archive, on a disk and in an fsspec place; what a commit is; what compactions keep."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage_stash.codec import FrameError, decode, encode, pack_span, unpack_spans
from lineage_stash.core.ids import Epoch, Incarnation, Index
from lineage_stash.store import archive_bodies, archive_compaction, compaction, contract
from lineage_stash.store.archive import ArchiveReplica
from lineage_stash.store.disk import Asked
from lineage_stash.store.faults import StoreFailed
from lineage_stash.store.replica import FIRST_EPOCH, NO_EPOCH, Replica
from tests.store.archive_kit import (
    Crash,
    MemoryObjects,
    check_killed_writers,
    files_in,
    forget_what_is_at_hand,
    kept_in,
    kill,
    opened,
    state_of,
    state_on_reopening,
)
from tests.store.contract_suite import P, Q, StoreContract, UnreliableStoreContract, Verbs, checkpoint, log
from tests.store.disk_kit import (
    Eager,
    Stepper,
    append,
    chunk,
    count_calls,
    entries_of,
    epochs,
    in_chunks,
    requests,
    story,
    truncate,
    use,
)

memory_places = count()


@pytest.fixture(autouse=True)
def _nothing_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def url(folder: Path) -> str:
    return f"file://{folder}"


@pytest.fixture(params=["file", "memory"])
def any_url(request: pytest.FixtureRequest, folder: Path) -> str:
    """A place on this disk, or one of fsspec's."""
    if request.param == "file":
        return f"file://{folder}"
    pytest.importorskip("fsspec", reason="fsspec is not installed, and places by fsspec are optional")
    return f"memory://test-{next(memory_places)}/archive"


# The contract.


class InArchive(Verbs):
    """A replica in an archive."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.replica = opened(url)

    def ask(self, request: contract.Request) -> tuple[Any, ...]:
        return (decode(self.replica.handle(encode(request))),)

    def close(self) -> None:
        self.replica.close()


class Reopened(InArchive):
    """A replica that is recovered before every request, and compacted at every second one."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.requests = count()

    def ask(self, request: contract.Request) -> tuple[Any, ...]:
        self.replica.close()
        self.replica = opened(self.url, segment_bytes=(1 << 20) * (next(self.requests) % 2))
        forget_what_is_at_hand(self.replica)
        return super().ask(request)


@pytest.mark.parametrize("kind", [InArchive, Reopened])
class TestInArchive(StoreContract):
    @pytest.fixture
    def store(self, any_url: str, kind: type[InArchive], monkeypatch: pytest.MonkeyPatch) -> Iterator[Verbs]:
        use(Eager, monkeypatch)
        store = kind(any_url)
        yield store
        store.close()


class TestUnreliableInArchive(UnreliableStoreContract):
    @pytest.fixture
    def make_store(self) -> Iterator[Callable[[], Verbs]]:
        """In memory, because there are many; all are the same archive's, with nothing in it."""
        objects = MemoryObjects({})

        def make() -> Verbs:
            objects.contents.clear()
            return InArchive("")

        with kept_in(objects):
            yield make


# Random requests, in groups.


def asked(request: contract.Request, epoch: int = FIRST_EPOCH) -> Asked:
    return Asked(Epoch(epoch), encode(request))


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    st.lists(st.lists(st.tuples(requests, epochs), max_size=4), max_size=8),
    st.sampled_from([1, 1 << 17, 1 << 20]),
    st.sampled_from([1, 1000, 1 << 20]),
    st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_any_groups_are_answered_as_in_memory_and_recovered(
    groups: list[list[tuple[contract.Request, Epoch]]],
    segment_bytes: int,
    part_bytes: int,
    reopened_after: list[bool],
) -> None:
    memory = Replica()
    with kept_in(MemoryObjects({})), pytest.MonkeyPatch.context() as patches:
        use(Stepper, patches)
        patches.setattr(archive_compaction, "PART_BYTES", part_bytes)
        replica = opened("", segment_bytes=segment_bytes)
        for group, reopened in zip(groups, reopened_after, strict=False):
            answers = replica.apply([asked(*each) for each in group])
            replica.commit()
            expected = [encode(memory.handle(decode(encode(request)), epoch)) for request, epoch in group]
            assert [b"".join(answer) if isinstance(answer, tuple) else answer for answer in answers] == expected
            if reopened:
                replica.close()
                replica = opened("", segment_bytes=segment_bytes)
            assert state_of(replica.replica) == state_of(memory)
        replica.close()
        assert state_on_reopening("") == state_of(memory)


# What is written.


def test_group_is_one_object_synced_before_it_gets_its_name(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = opened(url)
    called = count_calls(monkeypatch, "pwritev", "fsync", "rename")
    replica.handle_all([append(0, 2), append(0, 1, peer=Q), encode(contract.Read(P, Index(0))), append(2, 3)])
    assert called == ["pwritev", "fsync", "rename", "fsync"], "the file, and then the folder that its name is in"
    assert [path.name[:17] for path in files_in(folder, "groups")] == ["00000001-00000001"]
    replica.close()


def test_requests_that_change_nothing_write_nothing(any_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = opened(any_url)
    replica.handle_all([append(0, 5), encode(contract.PutCheckpoint(checkpoint(3)))])
    put: list[str] = []
    monkeypatch.setattr(replica._vault.objects, "put", lambda name, _: put.append(name))
    idle = [append(0, 5), encode(contract.Read(P, Index(0))), encode(contract.PutCheckpoint(checkpoint(3)))]
    assert [type(answer) for answer in replica.handle_all(idle)] == [bytes] * 3
    assert put == []


def test_frame_that_is_no_request_is_refused_and_the_others_are_answered(url: str) -> None:
    replica = opened(url)
    unreadable = encode(contract.PutCheckpoint(checkpoint(3, state=in_chunks(b"a chunk")[:-1])))
    frames = [append(0, 1), append(1, 2)[:-1], encode(contract.Stored(True)), unreadable, append(1, 3)]
    first, *refused, last = replica.handle_all(frames)
    assert [type(refusal) for refusal in refused] == [FrameError] * 3
    assert [decode(answer).holdings for answer in (first, last)] == [((P, 0, 1),), ((P, 0, 3),)]
    with pytest.raises(FrameError, match="this is a Stored"):
        replica.handle(frames[2])
    expected = state_of(replica.replica)
    replica.close()
    assert state_on_reopening(url) == expected


def test_seal_is_remembered_until_a_later_epoch(url: str) -> None:
    replica = opened(url)
    replica.apply([asked(contract.Seal(Epoch(4)), NO_EPOCH)])
    replica.commit()
    kill(replica)
    assert state_on_reopening(url)[-2:] == (4, True)
    replica = opened(url)
    elsewhere, held = replica.apply([Asked(Epoch(4), append(0, 1)), Asked(Epoch(5), append(0, 1))])
    assert decode(elsewhere) == contract.Elsewhere(Epoch(4), True)
    assert decode(held).holdings == ((P, 0, 1),)
    replica.close()
    assert state_on_reopening(url)[-2:] == (5, False)


def test_bodies_are_in_objects_once_they_are_committed_and_in_memory_before(any_url: str) -> None:
    replica = opened(any_url)
    apply = [Asked(FIRST_EPOCH, append(0, 5)), asked(contract.PutChunks(P, (chunk(b"content"),)))]
    replica.apply([*apply])
    (span,) = replica.replica.logs[P].spans
    (kept,) = replica.replica.chunks[P].values()
    assert span.body.read() == pack_span(log(0, 5)).body
    assert not isinstance(span.body.where, tuple)
    replica.commit()
    assert {place.body.where[0].name for place in (span, kept)} == {replica._chain.last}
    forget_what_is_at_hand(replica)
    assert (span.body.read(), kept.body.read()) == (pack_span(log(0, 5)).body, b"content")
    replica.close()


@pytest.mark.parametrize("largest_cached_bytes", [0, 1 << 24])
def test_bodies_are_read_from_the_place_whole_or_by_range(
    any_url: str, monkeypatch: pytest.MonkeyPatch, largest_cached_bytes: int
) -> None:
    monkeypatch.setattr(archive_bodies, "LARGEST_CACHED_BYTES", largest_cached_bytes)
    replica = opened(any_url)
    replica.handle_all([append(0, 9), append(0, 5, peer=Q), encode(contract.PutChunks(P, (chunk(bytes(90_000)),)))])
    replica.handle(append(9, 12))
    kill(replica)
    replica = opened(any_url)
    forget_what_is_at_hand(replica)
    found = decode(replica.handle(encode(contract.Read(P, Index(0)))))
    assert [entry for piece in unpack_spans(found.spans) for entry in piece.entries] == list(log(0, 12).entries)
    (content,) = decode(replica.handle(encode(contract.GetChunks(P, (chunk(bytes(90_000)).digest,))))).chunks
    assert bytes(content.body) == bytes(90_000)
    replica.close()


def test_no_more_is_at_hand_than_there_is_room_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_bodies, "CACHED_BYTES", 25_000)
    replica = opened(url)
    for number in range(8):
        replica.handle(encode(contract.PutChunks(P, (chunk(b"%d" % number * 10_000),))))
    cache = replica._vault._cache
    assert sum(map(len, cache._contents.values())) == cache._bytes <= 25_000
    assert list(cache._contents)[-1] == replica._chain.last
    expected = state_of(replica.replica)
    assert cache._bytes <= 25_000
    replica.close()
    assert state_on_reopening(url) == expected


def test_reopening_in_another_life_reads_what_the_first_wrote(any_url: str) -> None:
    for life in range(4):
        replica = opened(any_url, expect_existing=life > 0)
        replica.handle(encode(contract.Fence(((P, Incarnation(life)),), ())))
        replica.handle(append(3 * life, 3 * life + 3, peer=Q))
        kill(replica)
    replica = opened(any_url)
    assert entries_of(replica.replica, Q) == 12
    assert replica.replica.fenced[P] == 4
    assert len(replica._vault.objects.list("owners")) == 1
    replica.close()


# Promises.


def promising(url: str) -> ArchiveReplica:
    replica = opened(url)
    replica.handle(append(0, 1))
    replica.apply([Asked(FIRST_EPOCH, append(1, 2))])
    replica.note_memory_promise()
    replica.note_memory_promise()
    replica.apply([Asked(FIRST_EPOCH, append(2, 3))])
    return replica


def test_killed_replica_that_had_promised_in_memory_says_that_it_forgot(url: str) -> None:
    kill(promising(url))
    for reason in ("it was killed", "closing does not bring back what is forgotten"):
        replica = opened(url)
        assert replica.forgot, reason
        assert entries_of(replica.replica) == 2, "what was staged before the first promise went with the note of it"
        replica.close()


def test_replica_that_is_closed_keeps_its_promises(url: str) -> None:
    promising(url).close()
    replica = opened(url)
    assert not replica.forgot
    assert entries_of(replica.replica) == 3
    kill(replica)
    assert not opened(url).forgot, "nothing was promised since"


def test_promises_outlast_a_compaction(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Eager, monkeypatch)
    replica = opened(url, segment_bytes=1)
    replica.note_memory_promise()
    for lower in range(0, 50, 10):
        replica.handle_all([append(lower, lower + 10), truncate(lower + 9)])
    kill(replica)
    assert files_in(folder, "manifests")
    assert opened(url).forgot


def test_closed_replica_answers_nothing_and_closes_again(url: str) -> None:
    replica = opened(url)
    replica.close()
    replica.close()
    with pytest.raises(StoreFailed, match="open it again"):
        replica.handle(append(0, 1))


@pytest.mark.slow
def test_process_that_is_killed_keeps_everything_it_has_confirmed(url: str) -> None:
    check_killed_writers(url, (1, 40, 400, 1000))


# Compaction.


@pytest.mark.parametrize("worker", [Eager, Stepper, compaction.Worker])
def test_compaction_keeps_a_truncated_log_in_few_objects_and_its_state_whole(
    any_url: str, monkeypatch: pytest.MonkeyPatch, worker: Any
) -> None:
    use(worker, monkeypatch)
    replica = opened(any_url, segment_bytes=1 << 20)
    replica.handle(append(0, 9, peer=Q))
    for lower in range(0, 2000, 20):
        replica.handle_all([append(lower, lower + 20), truncate(lower)])
    for _ in range(3):
        replica.wait_for_compaction()
        replica.apply([])
    assert replica._chain.base > 0
    # Of the 101 groups some are gone; how many, with a thread of its own, depends on when that got its turn.
    assert replica._chain.objects < (60 if worker is not compaction.Worker else 101), "each costs as some bytes do"
    assert (replica.damaged, replica.compaction_failure) == ([], None)
    kinds = {kind: len(replica._vault.objects.list(kind)) for kind in ("owners", "manifests", "states")}
    assert kinds == {"owners": 1, "manifests": 1, "states": 1}
    assert len(replica._vault.objects.list("groups")) == replica._chain.objects - 1
    expected = state_of(replica.replica)
    replica.close()
    assert state_on_reopening(any_url) == expected


def test_state_that_only_grows_is_not_rewritten(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Eager, monkeypatch)
    replica = opened(url, segment_bytes=1 << 20)
    for number in range(30):
        replica.handle(encode(contract.PutChunks(P, (chunk(b"%03d" % number * 40_000),))))
    assert replica._chain.base == 0
    assert replica.live_bytes <= replica.disk_bytes < 1.1 * replica.live_bytes
    replica.close()


def test_state_in_several_objects_counts_as_a_whole(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Eager, monkeypatch)
    monkeypatch.setattr(archive_compaction, "PART_BYTES", 20_000)
    replica = opened(url, segment_bytes=1)
    large = encode(contract.PutCheckpoint(checkpoint(3, state=b"s" * 40_000)))
    chunks = [encode(contract.PutChunks(Q, (chunk(b"%d" % number * 10_000),))) for number in range(9)]
    replica.handle_all([append(0, 9), large, *chunks])
    replica.handle_all([append(9, 12)])
    replica.apply([])
    assert len(files_in(folder, "states")) == 3
    expected = state_of(replica.replica)
    kill(replica)
    assert state_on_reopening(url) == expected


def test_requests_are_answered_wherever_a_compaction_is(monkeypatch: pytest.MonkeyPatch) -> None:
    use(Stepper, monkeypatch)
    monkeypatch.setattr(compaction, "BODIES_PER_RECORD", 1)
    monkeypatch.setattr(archive_compaction, "MOVES_AT_A_STRETCH", 1)
    monkeypatch.setattr(archive_compaction, "PART_BYTES", 1)
    contents: dict[str, bytes] = {}
    folders: set[frozenset[str]] = set()
    with kept_in(MemoryObjects(contents)):
        replica = opened("", segment_bytes=1)
        replica.handle_all([append(0, 3, peer=Q), append(3, 5, peer=Q), append(5, 9, peer=Q)])
        for index in range(40):
            replica.handle_all([append(index, index + 1), truncate(index)])
            forget_what_is_at_hand(replica)
            found = decode(replica.handle(encode(contract.Read(Q, Index(0)))))
            assert [piece.lower for piece in unpack_spans(found.spans)] == [0, 3, 5]
            at = [span.body.where[0].name.partition("/")[0] for span in replica.replica.logs[Q].spans]
            folders.add(frozenset(at))
        expected = state_of(replica.replica)
        kill(replica)
        assert state_on_reopening("") == expected
    assert {frozenset(["groups"]), frozenset(["groups", "states"]), frozenset(["states"])} <= folders


@pytest.mark.parametrize("worker", [Stepper, Eager])
@pytest.mark.parametrize("happened", [True, False])
def test_process_that_dies_at_any_request_to_the_place_loses_nothing_that_was_answered(
    monkeypatch: pytest.MonkeyPatch, worker: type[Stepper], happened: bool
) -> None:
    use(worker, monkeypatch)
    monkeypatch.setattr(archive_compaction, "PART_BYTES", 200)
    seen: set[str] = set()
    for dies_at in count(1):
        states, acknowledged, last = run_story(contents := {}, dies_at, happened=happened)
        seen.add(last.partition("/")[0])
        with kept_in(MemoryObjects(contents)):
            assert state_on_reopening("") in states[acknowledged : acknowledged + 2], (dies_at, last)
            if last == "end":
                break
    assert {"put owners", "put groups", "put states", "put manifests", "remove groups", "remove states"} <= seen


def run_story(contents: dict[str, bytes], dies_at: int, *, happened: bool) -> tuple[list[Any], int, str]:
    """The states after each group, how many were answered before the process died, and at what it died."""
    memory, states, acknowledged, asked_for = Replica(), [state_of(Replica())], 0, []
    for group in story():
        for frame in group:
            memory.handle(decode(frame))
        states.append(state_of(memory))

    def perhaps_die(what: str) -> None:
        asked_for.append(what)
        if len(asked_for) >= dies_at:
            raise Crash

    objects = MemoryObjects(contents)
    setattr(objects, "after" if happened else "before", perhaps_die)
    with kept_in(objects), suppress(Crash):
        replica = opened("", segment_bytes=1)
        for group in story():
            replica.handle_all(group)
            acknowledged += 1
            for _ in range(12):
                replica.apply([])
        asked_for.append("end")
    return states, acknowledged, asked_for[-1]
