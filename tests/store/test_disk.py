"""The contract holds on disk, also if the folder is opened anew for every request; what was answered survives."""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage_stash.codec import FrameError, decode, encode
from lineage_stash.core.batch import Range
from lineage_stash.core.entry import Entry, Ran, Read, Waited
from lineage_stash.core.history import Segments
from lineage_stash.core.ids import Incarnation, Index, PeerId, Seqno
from lineage_stash.store import contract, segment
from lineage_stash.store.disk import DiskReplica, StoreFailed, StoreInUse, state_requests
from lineage_stash.store.replica import Replica
from lineage_stash.store.segment import StoreDamaged
from tests.store.contract_suite import FIRST_LIFE, P, Q, StoreContract, UnreliableStoreContract, Verbs, checkpoint, log
from tests.store.power import Power


@pytest.fixture(autouse=True)
def _nothing_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What is in the files can be tested without waiting for the disk, which is what takes the time."""
    if "on_a_real_disk" not in request.fixturenames:
        monkeypatch.setattr(segment, "ROOM_BYTES", 64)
        monkeypatch.setattr(os, "fsync", lambda _: None)
        monkeypatch.setattr(os, "fdatasync", lambda _: None)


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
    def make_store(self, tmp_path: Path, kind: type[OnDisk]) -> Iterator[Callable[[], Verbs]]:
        """Every store is closed when the next one is made: there are many."""
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


def state(replica: Replica) -> tuple[Any, ...]:
    """All that a replica holds; a log that it was asked about and knows nothing of is as good as none."""
    logs = {peer: (log.base, list(log.entries), log.segments) for peer, log in replica.logs.items()}
    known = {peer: held for peer, held in logs.items() if held != (0, [], FIRST_LIFE)}
    return known, dict(replica.fenced), {peer: list(kept) for peer, kept in replica.checkpoints.items()}


def append(lower: int, upper: int, **peer: PeerId) -> bytes:
    return encode(contract.Append((log(lower, upper, **peer),), (), (), (), False))


def state_on_reopening(folder: Path) -> tuple[Any, ...]:
    replica = DiskReplica(folder)
    replica.close()
    return state(replica.replica)


def segment_in(folder: Path) -> Path:
    (path,) = folder.glob("*.segment")
    return path


# Random requests, in groups.

LIVES: Segments = (*FIRST_LIFE, (Incarnation(1), Index(4)), (Incarnation(2), Index(3)), (Incarnation(3), Index(9)))


def entry_of(life: int, index: int) -> Entry:
    needs = ((Q, Index(index)),) if index % 2 else ()
    kinds: tuple[Entry, ...] = (
        Ran(Q, Seqno(index), None, life, needs),
        Ran(P, Seqno(index), b"content %d" % index, life, ()),
        Read(b"life %d" % life, index, needs),
        Waited((index, 0), life, ()),
    )
    return kinds[index % len(kinds)]


peers = st.sampled_from([P, Q])
lives = st.integers(0, 3).map(Incarnation)
indexes = st.integers(0, 14).map(Index)
known_lives = st.integers(1, len(LIVES)).map(lambda known: LIVES[:known])


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    peer, life, lower, length = draw(peers), draw(lives), draw(indexes), draw(st.integers(0, 8))
    return Range(peer, life, lower, tuple(entry_of(life, index) for index in range(lower, lower + length)))


def tuples_of(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(elements, max_size=2).map(tuple)


@st.composite
def checkpoints(draw: st.DrawFn) -> contract.PutCheckpoint:
    made = checkpoint(draw(indexes), life=draw(lives), final=draw(st.booleans()), state=b"s" * draw(indexes))
    return contract.PutCheckpoint(made._replace(peer=draw(peers)))


requests = st.one_of(
    st.builds(
        contract.Append, tuples_of(ranges()), tuples_of(st.tuples(peers, known_lives)),
        tuples_of(st.tuples(peers, indexes)), tuples_of(peers), st.booleans(), st.none() | st.tuples(peers, lives),
    ),
    st.builds(lambda piece: contract.Append((piece,), (), (), (), False), ranges()),
    st.builds(contract.Read, peers, indexes),
    st.builds(contract.Truncate, peers, known_lives, indexes),
    st.builds(contract.Fence, tuples_of(st.tuples(peers, lives)), tuples_of(st.tuples(peers, indexes))),
    checkpoints(),
    st.builds(contract.GetCheckpoint, peers),
)  # fmt: skip


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.lists(requests, max_size=20))
def test_requests_that_tell_a_state_rebuild_it(drawn: list[contract.Request]) -> None:
    replica, rebuilt = Replica(), Replica()
    for request in drawn:
        replica.handle(request)
    for request in state_requests(replica):
        rebuilt.handle(decode(encode(request)))
    assert state(rebuilt) == state(replica)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    st.lists(st.lists(requests, max_size=4), max_size=8),
    st.sampled_from([1, 400, 1 << 20]),
    st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_any_groups_are_answered_as_in_memory_and_recovered(
    tmp_path_factory: pytest.TempPathFactory,
    groups: list[list[contract.Request]],
    segment_bytes: int,
    reopened_after: list[bool],
) -> None:
    folder = tmp_path_factory.mktemp("replica")
    memory, disk = Replica(), DiskReplica(folder, segment_bytes=segment_bytes)
    for group, reopened in zip(groups, reopened_after, strict=False):
        assert disk.handle_all([encode(r) for r in group]) == [encode(memory.handle(r)) for r in group]
        if reopened:
            disk.close()
            disk = DiskReplica(folder, segment_bytes=segment_bytes)
        assert state(disk.replica) == state(memory)
    disk.close()
    assert state_on_reopening(folder) == state(memory)


# What a commit costs.


def count_calls(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    called: list[str] = []
    for name in names:
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, n=name, call=original: (called.append(n), call(*given))[1])
    return called


def test_group_costs_one_write_and_one_sync(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = DiskReplica(folder)
    called = count_calls(monkeypatch, "pwrite", "fdatasync", "fsync")
    replica.handle_all([append(0, 5), append(0, 3, peer=Q), encode(contract.Read(P, Index(0))), append(5, 9)])
    replica.close()
    assert called == ["pwrite", "fdatasync"]


def test_requests_that_change_nothing_touch_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = DiskReplica(folder)
    replica.handle_all([append(0, 5), encode(contract.PutCheckpoint(checkpoint(3)))])
    replica.handle(encode(contract.Fence(((P, Incarnation(0)),), ())))
    called = count_calls(monkeypatch, "pwrite", "fdatasync", "fsync")
    idle: list[contract.Request] = [
        contract.Read(P, Index(0)),
        contract.GetCheckpoint(P),
        contract.Append((), (), (), (P, Q), False, (P, Incarnation(0))),
        contract.Append((log(0, 5),), ((P, FIRST_LIFE),), ((P, Index(0)),), (), True),
        contract.Append((log(5, 9),), (), (), (), False),
        contract.PutCheckpoint(checkpoint(3)),
        contract.PutCheckpoint(checkpoint(9)),
        contract.Fence(((P, Incarnation(0)),), ((P, Index(0)),)),
        contract.Truncate(P, FIRST_LIFE, Index(0)),
    ]
    assert len(replica.handle_all([encode(request) for request in idle])) == len(idle)
    replica.close()
    assert called == []


def test_frame_that_is_no_request_is_refused_and_the_others_are_answered(folder: Path) -> None:
    replica = DiskReplica(folder)
    frames = [append(0, 1), append(1, 2)[:-1], encode(contract.Stored(True)), append(1, 3)]
    first, torn, reply, last = replica.handle_all(frames)
    assert isinstance(torn, FrameError)
    assert isinstance(reply, FrameError)
    assert [decode(answer).holdings for answer in (first, last)] == [((P, 0, 1),), ((P, 0, 3),)]
    with pytest.raises(FrameError, match="this is a Stored"):
        replica.handle(frames[2])
    expected = state(replica.replica)
    replica.close()
    assert state_on_reopening(folder) == expected


def test_system_that_takes_a_few_bytes_at_a_time_gets_them_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, content, offset: pwrite(file, content[:7], offset))
    replica = DiskReplica(folder)
    replica.handle(append(0, 5))
    replica.close()
    assert len(state_on_reopening(folder)[0][P][1]) == 5


# Torn tails and damage.


def written(folder: Path, *frames: bytes) -> tuple[bytes, list[int], list[Any]]:
    """A segment's bytes without the zeros behind it, where it ends after each frame, and the state there."""
    replica = DiskReplica(folder)
    ends, states = [replica._segment.size], [state(replica.replica)]
    for frame in frames:
        replica.handle(frame)
        ends.append(replica._segment.size)
        states.append(state(replica.replica))
    replica.close()
    return segment_in(folder).read_bytes()[: ends[-1]], ends, states


@pytest.mark.parametrize("rest", [b"", bytes(300), b"\xff" * 300], ids=["nothing", "zeros", "garbage"])
def test_last_group_torn_at_any_byte_is_cut_off_and_the_replica_goes_on(folder: Path, rest: bytes) -> None:
    content, ends, states = written(folder, append(0, 3), append(3, 5))
    path = segment_in(folder)
    for end in range(ends[1], ends[2]):
        path.write_bytes((content[:end] + rest)[: max(end, len(content) + 50)])
        replica = DiskReplica(folder)
        assert state(replica.replica) == states[1], end
        assert path.stat().st_size == ends[1]
        replica.handle(append(3, 4))
        replica.close()
        assert len(state_on_reopening(folder)[0][P][1]) == 4


def test_last_group_whose_first_pages_never_came_is_cut_off(folder: Path) -> None:
    content, ends, states = written(folder, append(0, 3), append(3, 9))
    for hole in range(ends[1] + 1, ends[2]):
        segment_in(folder).write_bytes(content[: ends[1]] + bytes(hole - ends[1]) + content[hole:])
        assert state_on_reopening(folder) == states[1]


def test_group_of_several_requests_is_recovered_whole_or_not_at_all(folder: Path) -> None:
    replica = DiskReplica(folder)
    lower = replica._segment.size
    replica.handle_all([append(0, 3), append(3, 5), append(0, 2, peer=Q)])
    upper = replica._segment.size
    replica.close()
    content = segment_in(folder).read_bytes()
    for end in range(lower, upper):
        segment_in(folder).write_bytes(content[:end])
        assert state_on_reopening(folder)[0] == {}


def test_any_changed_byte_before_the_last_group_is_told_with_file_and_offset(folder: Path) -> None:
    content, ends, _ = written(folder, append(0, 2), append(2, 4), append(4, 5))
    path = segment_in(folder)
    begins = [0, segment.FILE_HEADER.size, *ends]
    for at in range(ends[2]):
        changed = content[:at] + bytes((content[at] ^ 1,)) + content[at + 1 :]
        path.write_bytes(changed)
        with pytest.raises(StoreDamaged) as told:
            DiskReplica(folder)
        assert (told.value.path, told.value.offset) == (path, max(b for b in begins if b <= at)), at
        assert str(path) in str(told.value)
        assert path.read_bytes() == changed, "nothing was changed"
    path.write_bytes(content)
    assert len(state_on_reopening(folder)[0][P][1]) == 5


def test_compacted_state_that_ends_early_is_damage_and_not_a_torn_tail(folder: Path) -> None:
    replica = DiskReplica(folder, segment_bytes=1)
    replica.handle_all([append(0, 50), encode(contract.Truncate(P, FIRST_LIFE, Index(49)))])
    replica.handle(encode(contract.GetCheckpoint(P)))
    replica.close()
    path = segment_in(folder)
    assert path.name == "00000002.segment"
    content = path.read_bytes()
    for end in range(len(content)):
        path.write_bytes(content[:end])
        with pytest.raises(StoreDamaged):
            DiskReplica(folder)


def test_payload_that_contains_a_segment_is_not_taken_for_groups_of_it(folder: Path) -> None:
    content, _, states = written(folder, append(0, 3), append(3, 5))
    stored = encode(contract.PutCheckpoint(checkpoint(2, state=content)))
    replica = DiskReplica(folder)
    replica.handle(stored)
    upper = replica._segment.size
    replica.close()
    os.truncate(segment_in(folder), upper - 1)
    assert state_on_reopening(folder) == states[2]


def test_segment_under_another_number_is_refused(folder: Path) -> None:
    written(folder, append(0, 3))
    segment_in(folder).rename(folder / "00000007.segment")
    with pytest.raises(StoreDamaged, match="not the header of segment 7"):
        DiskReplica(folder)


# Compaction.


def test_compaction_keeps_a_truncated_log_small_and_its_state_whole(folder: Path) -> None:
    replica = DiskReplica(folder, segment_bytes=20_000)
    sizes = []
    for lower in range(0, 4000, 20):
        replica.handle(append(lower, lower + 20))
        replica.handle(encode(contract.Truncate(P, FIRST_LIFE, Index(lower))))
        sizes.append(replica._segment.size)
    assert max(sizes) < 22_000
    assert replica._segment.number > 3
    expected = state(replica.replica)
    replica.close()
    assert state_on_reopening(folder) == expected


def test_state_that_only_grows_is_not_rewritten(folder: Path) -> None:
    replica = DiskReplica(folder, segment_bytes=2_000)
    for lower in range(0, 2000, 20):
        replica.handle(append(lower, lower + 20))
    assert replica._segment.number == 1
    assert [path.name for path in folder.iterdir() if path.name != "lock"] == ["00000001.segment"]
    replica.close()


def story() -> Iterator[list[bytes]]:
    """Groups that grow the state, shrink it and let it be compacted, several times."""
    for turn in range(3):
        lower = 12 * turn
        yield [append(lower, lower + 6), append(lower, lower + 6, peer=Q)]
        yield [append(lower + 6, lower + 12), encode(contract.PutCheckpoint(checkpoint(lower + 9)))]
        yield [encode(contract.Truncate(P, FIRST_LIFE, Index(lower + 9)))]
        yield [encode(contract.Append((log(lower + 6, lower + 12, peer=Q),), (), ((Q, Index(lower + 11)),), (), False))]
    yield [encode(contract.Fence(((P, Incarnation(0)),), ()))]


def test_power_that_fails_at_any_step_loses_nothing_that_was_answered(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    states = [state(Replica())]
    with monkeypatch.context() as patches:
        power = Power(folder, patches)
        replica = DiskReplica(folder, segment_bytes=1)
        for group in story():
            replica.handle_all(group)
            power.acknowledged += 1
            states.append(state(replica.replica))
        power.note("end")
        replica.close()
        assert replica._segment.number >= 3, "it was compacted"
        assert {"pwrite", "fdatasync", "fsync", "rename", "unlink"} <= {outage.step for outage in power.outages}
    numbers = count()
    for outage in power.outages:
        for image in outage.images:
            found = recovered(tmp_path / str(next(numbers)), image)
            assert found in states[outage.acknowledged : outage.acknowledged + 2], outage.step


def test_older_segment_stays_until_the_name_of_the_newest_is_durable(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = DiskReplica(folder, segment_bytes=1)
    replica.handle_all([append(0, 50), encode(contract.Truncate(P, FIRST_LIFE, Index(49)))])
    older, expected = segment_in(folder), state(replica.replica)
    content = older.read_bytes()
    replica.handle(encode(contract.GetCheckpoint(P)))
    replica.close()
    assert segment_in(folder) != older
    older.write_bytes(content)
    with monkeypatch.context() as patches:
        power = Power(folder, patches, synced_names=(older.name,))
        DiskReplica(folder).close()
        power.note("end")
    images = [image for outage in power.outages for image in outage.images]
    assert any(len(image) == 1 for image in images)
    assert all(recovered(tmp_path / str(at), image) == expected for at, image in enumerate(images))


def recovered(folder: Path, image: dict[str, bytes]) -> tuple[Any, ...]:
    """The state that an image of a folder is opened with, and again when it is opened once more."""
    folder.mkdir()
    for name, content in image.items():
        (folder / name).write_bytes(content)
    found = state_on_reopening(folder)
    assert state_on_reopening(folder) == found
    assert len(list(folder.iterdir())) == 2, "one lock, one segment"
    return found


# Failures that are told, and locks.


def failing(code: int) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return call


@pytest.mark.parametrize(("call", "code"), [("fdatasync", errno.EIO), ("pwrite", errno.ENOSPC), ("pwrite", errno.EIO)])
def test_failed_write_or_sync_is_not_answered_and_ends_the_replica(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    replica = DiskReplica(folder)
    replica.handle(append(0, 3))
    with monkeypatch.context() as patches:
        patches.setattr(os, call, failing(code))
        with pytest.raises(StoreFailed, match=os.strerror(code)):
            replica.handle(append(3, 5))
    with pytest.raises(StoreFailed, match="open it again"):
        replica.handle(encode(contract.Read(P, Index(0))))
    replica.close()
    assert len(state_on_reopening(folder)[0][P][1]) in (3, 5)


def test_disk_that_is_full_in_the_middle_of_a_write_leaves_what_was_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = DiskReplica(folder)
    replica.handle(append(0, 3))
    pwrite, full = os.pwrite, failing(errno.ENOSPC)
    with monkeypatch.context() as patches:
        patches.setattr(os, "pwrite", lambda file, content, offset: pwrite(file, content[:40], offset) and full())
        with pytest.raises(StoreFailed, match="No space left"):
            replica.handle(append(3, 5))
    replica.close()
    assert len(state_on_reopening(folder)[0][P][1]) == 3


@pytest.mark.parametrize("call", ["pwrite", "fdatasync", "rename", "fsync", "unlink"])
def test_failure_during_compaction_ends_the_replica_and_loses_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    replica = DiskReplica(folder, segment_bytes=1)
    replica.handle_all([append(0, 50), encode(contract.Truncate(P, FIRST_LIFE, Index(49)))])
    expected = state(replica.replica)
    with monkeypatch.context() as patches:
        patches.setattr(os, call, failing(errno.EIO))
        with pytest.raises(StoreFailed, match="Nothing was answered"):
            replica.handle(append(50, 51))
    replica.close()
    assert state_on_reopening(folder) == expected


def test_last_group_is_written_again_on_opening_because_its_sync_may_have_failed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ends, _ = written(folder, append(0, 3), append(3, 5))
    steps: list[object] = []
    pwrite = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda file, content, at: (steps.append((at, at + len(content))), pwrite(file, content, at))[1]
    )
    monkeypatch.setattr(os, "fsync", lambda file: steps.append(stat.S_ISREG(os.fstat(file).st_mode)))
    state_on_reopening(folder)
    assert steps == [(ends[1], ends[2]), True, False], "a write, a sync of the file, a sync of the folder"


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


def test_folder_that_could_not_be_opened_is_not_kept_locked(folder: Path) -> None:
    written(folder, append(0, 3))
    path = segment_in(folder)
    content = path.read_bytes()
    path.write_bytes(b"?" + content[1:])
    with pytest.raises(StoreDamaged):
        DiskReplica(folder)
    path.write_bytes(content)
    DiskReplica(folder).close()


APPENDS_FOREVER = """
import sys
from pathlib import Path
from lineage_stash.codec import decode, encode
from lineage_stash.store.contract import Append, Truncate
from lineage_stash.store.disk import DiskReplica
from tests.store.contract_suite import FIRST_LIFE, P, log

replica, upper = DiskReplica(Path(sys.argv[1]), segment_bytes=10_000), int(sys.argv[2])
while True:
    append = encode(Append((log(upper, upper + 3),), (), (), (), False))
    truncate = encode(Truncate(P, FIRST_LIFE, max(0, upper - 30)))
    upper = decode(replica.handle_all([append, truncate])[0]).holdings[0][2]
    print(upper, flush=True)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("on_a_real_disk")
def test_process_that_is_killed_keeps_everything_it_has_confirmed(folder: Path) -> None:
    upper = 0
    for commits in (1, 40, 400):
        command = [sys.executable, "-c", APPENDS_FOREVER, str(folder), str(upper)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as child:
            assert child.stdout is not None
            for _ in range(commits):
                child.stdout.readline()
            child.kill()
            confirmed = int(child.stdout.read().split("\n")[-2:][0] or 0)
        replica = DiskReplica(folder)
        held = replica.replica.logs[P]
        replica.close()
        assert held.upper >= max(confirmed, upper + 3 * commits)
        assert held.entries == list(log(held.base, held.upper).entries)
        upper = held.upper
