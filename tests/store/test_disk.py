"""The contract holds on disk, also if the folder is opened anew for every request; what a commit is and costs."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage_stash.codec import FrameError, decode, encode, pack_span, unpack_spans
from lineage_stash.core.ids import Epoch, Incarnation, Index, PeerId
from lineage_stash.store import bodies, compaction, contract, files, groups, segment
from lineage_stash.store.disk import (
    Asked,
    DiskReplica,
    StoreEmptied,
    StoreForeign,
    StoreInUse,
)
from lineage_stash.store.replica import FIRST_EPOCH, NO_EPOCH, Replica
from tests.store.contract_suite import FIRST_LIFE, P, Q, StoreContract, UnreliableStoreContract, Verbs, checkpoint, log
from tests.store.disk_kit import (
    Eager,
    Stepper,
    append,
    chunk,
    count_calls,
    entries_of,
    epochs,
    files_in,
    in_chunks,
    requests,
    segment_in,
    state,
    state_on_reopening,
    use,
    without_waiting,
)


@pytest.fixture(autouse=True)
def _nothing_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "on_a_real_disk" not in request.fixturenames:
        without_waiting(monkeypatch)


@pytest.fixture
def on_a_real_disk() -> None:
    """For tests that do wait."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "replica"


class OnDisk(Verbs):
    """A replica on disk."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.replica = DiskReplica(folder)

    def ask(self, request: contract.Request) -> tuple[Any, ...]:
        return (decode(self.replica.handle(encode(request))),)

    def close(self) -> None:
        self.replica.close()


class Reopened(OnDisk):
    """A replica that is recovered before every request, and compacted at every second one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.requests = count()

    def ask(self, request: contract.Request) -> tuple[Any, ...]:
        self.replica.close()
        self.replica = DiskReplica(self.replica.folder, segment_bytes=(1 << 20) * (next(self.requests) % 2))
        return super().ask(request)


@pytest.mark.parametrize("kind", [OnDisk, Reopened])
class TestOnDisk(StoreContract, UnreliableStoreContract):
    @pytest.fixture
    def make_store(
        self, tmp_path: Path, kind: type[OnDisk], monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Callable[[], Verbs]]:
        """Every store is closed when the next one is made: there are many."""
        use(Eager, monkeypatch)
        made: list[OnDisk] = []

        def make() -> Verbs:
            if made:
                made[-1].close()
            made.append(kind(tmp_path / str(len(made))))
            return made[-1]

        yield make
        made[-1].close()

    @pytest.fixture
    def store(self, make_store: Callable[[], Verbs]) -> Verbs:
        return make_store()


# Random requests, in groups.


def asked(request: contract.Request, epoch: int = FIRST_EPOCH) -> Asked:
    return Asked(Epoch(epoch), encode(request))


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.lists(st.tuples(requests, epochs), max_size=20))
def test_requests_that_tell_a_state_rebuild_it(drawn: list[tuple[contract.Request, Epoch]]) -> None:
    replica, rebuilt = Replica(), Replica()
    for request, epoch in drawn:
        replica.handle(decode(encode(request)), epoch)
    for request in compaction.state_requests(replica):
        rebuilt.handle(decode(encode(request)), replica.epoch)
    assert state(rebuilt) == state(replica)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    st.lists(st.lists(st.tuples(requests, epochs), max_size=4), max_size=8),
    st.sampled_from([1, 400, 1 << 20]),
    st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_any_groups_are_answered_as_in_memory_and_recovered(
    tmp_path_factory: pytest.TempPathFactory,
    groups: list[list[tuple[contract.Request, Epoch]]],
    segment_bytes: int,
    reopened_after: list[bool],
) -> None:
    folder = tmp_path_factory.mktemp("replica")
    memory = Replica()
    with pytest.MonkeyPatch.context() as patches:
        use(Stepper, patches)
        disk = DiskReplica(folder, segment_bytes=segment_bytes)
        for group, reopened in zip(groups, reopened_after, strict=False):
            answers = disk.apply([asked(*each) for each in group])
            disk.commit()
            expected = [encode(memory.handle(decode(encode(request)), epoch)) for request, epoch in group]
            assert [b"".join(answer) if isinstance(answer, tuple) else answer for answer in answers] == expected
            if reopened:
                disk.close()
                disk = DiskReplica(folder, segment_bytes=segment_bytes)
            assert state(disk.replica) == state(memory)
        disk.close()
    assert state_on_reopening(folder) == state(memory)


# What is written.


def test_group_costs_one_write_and_one_sync_and_a_note_that_it_is_durable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "ROOM_BYTES", 1 << 18)
    replica = DiskReplica(folder)
    called = count_calls(monkeypatch, "pwritev", "fdatasync", "fsync")
    replica.handle_all([append(0, 2), append(0, 1, peer=Q), encode(contract.Read(P, Index(0))), append(2, 3)])
    assert called == ["pwritev", "fdatasync", "pwritev"]
    replica.close()


def test_requests_that_change_nothing_touch_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = DiskReplica(folder)
    replica.handle_all([append(0, 5), encode(contract.PutCheckpoint(checkpoint(3)))])
    replica.handle(encode(contract.PutChunks(Q, (chunk(b"c"),))))
    replica.handle(encode(contract.Fence(((P, Incarnation(0)),), ())))
    called = count_calls(monkeypatch, "pwritev", "fdatasync", "fsync")
    span = pack_span(log(0, 5))
    idle: list[contract.Request] = [
        contract.Read(P, Index(0)),
        contract.GetCheckpoint(P),
        contract.GetChunks(Q, (chunk(b"c").digest,)),
        contract.List(PeerId("")),
        contract.Append((), (), (), (P, Q), False, (P, Incarnation(0))),
        contract.Append((span,), ((P, FIRST_LIFE),), ((P, Index(0)),), (), True),
        contract.Append((pack_span(log(5, 9)),), (), (), (), False),
        contract.PutCheckpoint(checkpoint(3)),
        contract.PutCheckpoint(checkpoint(9)),
        contract.PutChunks(Q, (chunk(b"c"),)),
        contract.Fence(((P, Incarnation(0)),), ((P, Index(0)),)),
        contract.Truncate(P, FIRST_LIFE, Index(0)),
        contract.Forget((PeerId("nobody"),)),
        contract.Seal(NO_EPOCH),
    ]
    answers = replica.handle_all([encode(request) for request in idle])
    assert [answer for answer in answers if not isinstance(answer, bytes)] == []
    assert called == []
    replica.close()


@pytest.mark.parametrize("request_", [contract.Read(P, Index(0)), contract.Append((), (), (), (P,), False)])
def test_request_that_only_brings_a_later_epoch_is_remembered(folder: Path, request_: contract.Request) -> None:
    replica = DiskReplica(folder)
    replica.apply([asked(request_, 5)])
    replica.commit()
    replica.close()
    assert state_on_reopening(folder)[-2:] == (5, False)


def test_seal_is_remembered_until_a_later_epoch(folder: Path) -> None:
    replica = DiskReplica(folder)
    replica.apply([asked(contract.Seal(Epoch(4)), NO_EPOCH)])
    replica.commit()
    replica.close()
    assert state_on_reopening(folder)[-2:] == (4, True)
    replica = DiskReplica(folder)
    (elsewhere, held) = replica.apply([Asked(Epoch(4), append(0, 1)), Asked(Epoch(5), append(0, 1))])
    assert decode(elsewhere) == contract.Elsewhere(Epoch(4), True)
    assert decode(held).holdings == ((P, 0, 1),)
    replica.close()
    assert state_on_reopening(folder)[-2:] == (5, False)


def test_frame_that_is_no_request_is_refused_and_the_others_are_answered(folder: Path) -> None:
    replica = DiskReplica(folder)
    unreadable = encode(contract.PutCheckpoint(checkpoint(3, state=in_chunks(b"a chunk")[:-1])))
    frames = [append(0, 1), append(1, 2)[:-1], encode(contract.Stored(True)), unreadable, append(1, 3)]
    first, *refused, last = replica.handle_all(frames)
    assert [type(refusal) for refusal in refused] == [FrameError] * 3
    assert [decode(answer).holdings for answer in (first, last)] == [((P, 0, 1),), ((P, 0, 3),)]
    with pytest.raises(FrameError, match="this is a Stored"):
        replica.handle(frames[2])
    expected = state(replica.replica)
    replica.close()
    assert state_on_reopening(folder) == expected


def test_system_that_takes_a_few_bytes_at_a_time_gets_them_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_few(file: int, pieces: list[bytes], offset: int) -> int:
        return os.pwrite(file, b"".join(pieces)[:7], offset)

    monkeypatch.setattr(os, "pwritev", write_few)
    replica = DiskReplica(folder)
    replica.handle(append(0, 5))
    expected = state(replica.replica)
    replica.close()
    assert state_on_reopening(folder) == expected


def test_system_that_gives_a_few_bytes_at_a_time_is_read_to_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = DiskReplica(folder)
    replica.handle(append(0, 5))
    expected = state(replica.replica)
    replica.close()
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, length, offset: pread(file, min(length, 5), offset))
    assert state_on_reopening(folder) == expected


# Bodies.


def test_bodies_are_in_the_file_and_not_in_memory_once_they_are_committed(folder: Path) -> None:
    replica = DiskReplica(folder)
    replica.apply([Asked(FIRST_EPOCH, append(0, 5)), asked(contract.PutChunks(P, (chunk(b"content"),)))])
    (span,) = replica.replica.logs[P].spans
    (kept,) = replica.replica.chunks[P].values()
    assert not isinstance(span.body.where, tuple)
    replica.commit()
    assert [place.body.where[0].path for place in (span, kept)] == [segment_in(folder)] * 2
    assert (span.body.read(), kept.body.read()) == (pack_span(log(0, 5)).body, b"content")
    replica.close()


def test_body_that_is_not_committed_yet_is_read_from_memory(folder: Path) -> None:
    replica = DiskReplica(folder)
    _, answer = replica.apply([Asked(FIRST_EPOCH, append(0, 5)), asked(contract.Read(P, Index(0)))])
    assert isinstance(answer, tuple)
    assert unpack_spans(decode(b"".join(answer)).spans) == (log(0, 5),)
    replica.close()


def test_large_body_is_neither_copied_nor_added_up_twice_on_its_way_to_the_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = DiskReplica(folder)
    written: list[Any] = []
    added_up: list[int] = []
    pwritev, crc32 = os.pwritev, bodies.crc32
    for module in (bodies, groups):
        monkeypatch.setattr(
            module, "crc32", lambda content, *seed: (added_up.append(len(content)), crc32(content, *seed))[1]
        )
    monkeypatch.setattr(os, "pwritev", lambda file, pieces, at: (written.extend(pieces), pwritev(file, pieces, at))[1])
    frame = encode(contract.PutChunks(P, (chunk(bytes(1 << 20)),)))
    replica.apply([Asked(FIRST_EPOCH, memoryview(frame))])
    replica.commit()
    large = [piece for piece in written if len(piece) >= 1 << 20]
    assert [piece.obj is frame for piece in large] == [True]
    assert [length for length in added_up if length >= 1 << 20] == [1 << 20]
    replica.close()


def test_answer_has_large_bodies_as_pieces_of_their_own(folder: Path) -> None:
    replica = DiskReplica(folder)
    content = bytes(1 << 20)
    replica.handle(encode(contract.PutChunks(P, (chunk(content),))))
    (answer,) = replica.apply([asked(contract.GetChunks(P, (chunk(content).digest,)))])
    assert answer[1] == content
    replica.close()


def test_opening_reads_no_more_of_large_bodies_than_it_reads_ahead(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = DiskReplica(folder)
    for number in range(8):
        replica.handle(encode(contract.PutChunks(P, (chunk(b"%d" % number * (1 << 20)),))))
    replica.close()
    read: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *given: (content := pread(*given), read.append(len(content)))[0])
    DiskReplica(folder).close()
    assert sum(read) < 8 * 3 * files.WINDOW_BYTES


# Promises.


def promising(folder: Path) -> DiskReplica:
    replica = DiskReplica(folder)
    replica.handle(append(0, 1))
    replica.apply([Asked(FIRST_EPOCH, append(1, 2))])
    replica.note_memory_promise()
    replica.apply([Asked(FIRST_EPOCH, append(2, 3))])
    return replica


def kill(replica: DiskReplica) -> None:
    """End a replica as a signal would: nothing more is written."""
    replica._usable = False
    replica.close()


def test_killed_replica_that_had_promised_in_memory_says_that_it_forgot(folder: Path) -> None:
    kill(promising(folder))
    replica = DiskReplica(folder)
    assert replica.forgot
    assert entries_of(replica.replica) == 2, (
        "what was staged before the first promise was committed with the note of it"
    )
    replica.close()
    replica = DiskReplica(folder)
    assert replica.forgot, "closing does not bring back what is forgotten"
    replica.close()


def test_promises_kept_later_do_not_bring_back_what_a_former_process_forgot(folder: Path) -> None:
    kill(promising(folder))
    replica = DiskReplica(folder)
    replica.note_memory_promise()
    replica.close()
    replica = DiskReplica(folder)
    assert replica.forgot
    replica.close()


def test_replica_that_is_closed_keeps_its_promises(folder: Path) -> None:
    promising(folder).close()
    replica = DiskReplica(folder)
    assert not replica.forgot
    assert entries_of(replica.replica) == 3
    kill(replica)
    replica = DiskReplica(folder)
    assert not replica.forgot, "nothing was promised since"
    replica.close()


def test_promises_are_noted_once_and_durably(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = DiskReplica(folder)
    called = count_calls(monkeypatch, "fdatasync")
    replica.note_memory_promise()
    assert "fdatasync" in called
    called.clear()
    replica.note_memory_promise()
    assert called == []
    replica.close()


def test_promises_outlast_a_compaction(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Eager, monkeypatch)
    replica = DiskReplica(folder, segment_bytes=1)
    replica.note_memory_promise()
    for lower in range(0, 100, 10):
        replica.handle_all([append(lower, lower + 10), encode(contract.Truncate(P, FIRST_LIFE, Index(lower + 9)))])
    kill(replica)
    assert any(name.endswith(".state") for name in files_in(folder))
    replica = DiskReplica(folder)
    assert replica.forgot
    replica.close()


# Whose folder it is.


def test_folder_of_another_replica_is_refused_and_left_as_it_is(folder: Path) -> None:
    replica = DiskReplica(folder, identity="cluster/replica-3")
    replica.handle(append(0, 3))
    replica.close()
    content = segment_in(folder).read_bytes()
    with pytest.raises(
        StoreForeign, match=r"belongs to 'cluster/replica-3', and this is 'cluster/replica-4'.*a folder"
    ):
        DiskReplica(folder, identity="cluster/replica-4")
    assert segment_in(folder).read_bytes() == content
    replica = DiskReplica(folder, identity="cluster/replica-3", expect_existing=True)
    assert entries_of(replica.replica) == 3
    replica.close()


def test_identity_is_in_every_file_that_is_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Eager, monkeypatch)
    DiskReplica(folder, identity="cluster/replica-3").close()
    replica = DiskReplica(folder, segment_bytes=1)
    for lower in range(0, 100, 10):
        replica.handle_all([append(lower, lower + 10), encode(contract.Truncate(P, FIRST_LIFE, Index(lower + 9)))])
    replica.wait_for_compaction()
    replica.close()
    made = [folder / name for name in files_in(folder)]
    assert [path.suffix for path in made] == [".segment", ".state"]
    assert all(b'"cluster/replica-3"' in path.read_bytes()[:200] for path in made)


@pytest.mark.parametrize("is_there", [True, False])
def test_emptied_folder_is_not_taken_for_a_new_one(folder: Path, is_there: bool) -> None:
    if is_there:
        folder.mkdir()
        (folder / "lost+found").mkdir()
    with pytest.raises(StoreEmptied, match=r"Mount the disk.*replaced by one with another number"):
        DiskReplica(folder, expect_existing=True)
    assert folder.exists() == is_there
    assert not is_there or [path.name for path in folder.iterdir()] == ["lost+found"]


def test_folder_that_is_open_already_is_refused_until_it_is_closed(folder: Path) -> None:
    first = DiskReplica(folder)
    with pytest.raises(StoreInUse, match="open already"):
        DiskReplica(folder)
    program = f"from pathlib import Path; from lineage_stash.store.disk import *; DiskReplica(Path({str(folder)!r}))"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert other.returncode == 1
    assert "StoreInUse" in other.stderr
    first.close()
    first.close()
    DiskReplica(folder).close()


# A real disk.

APPENDS_FOREVER = """
import sys
from pathlib import Path
from lineage_stash.codec import decode, encode, pack_span
from lineage_stash.store.contract import Append, Truncate
from lineage_stash.store.disk import DiskReplica
from tests.store.contract_suite import FIRST_LIFE, P, log

replica, upper = DiskReplica(Path(sys.argv[1]), segment_bytes=10_000), int(sys.argv[2])
while True:
    append = encode(Append((pack_span(log(upper, upper + 3)),), (), (), (), False))
    truncate = encode(Truncate(P, FIRST_LIFE, max(0, upper - 30)))
    upper = decode(replica.handle_all([append, truncate])[0]).holdings[0][2]
    print(upper, flush=True)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("on_a_real_disk")
def test_process_that_is_killed_keeps_everything_it_has_confirmed(folder: Path) -> None:
    upper = 0
    for commits in (1, 40, 400, 1000):
        command = [sys.executable, "-c", APPENDS_FOREVER, str(folder), str(upper)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as child:
            assert child.stdout is not None
            for _ in range(commits):
                child.stdout.readline()
            child.kill()
            confirmed = int(child.stdout.read().split("\n")[-2:][0] or 0)
        replica = DiskReplica(folder)
        held = replica.replica.logs[P]
        found = decode(replica.handle(encode(contract.Read(P, Index(0)))))
        replica.close()
        assert held.upper >= max(confirmed, upper + 3 * commits)
        entries = [entry for piece in unpack_spans(found.spans) for entry in piece.entries]
        assert entries == list(log(held.base, held.upper).entries)
        upper = held.upper
