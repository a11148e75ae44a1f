"""A compaction loses nothing, whatever it is interrupted by, and nobody waits for it."""

import errno
import os
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lineage_stash.codec import encode
from lineage_stash.core.ids import Index, PeerId
from lineage_stash.store import compaction, contract
from lineage_stash.store.disk import BodyDamaged, DiskReplica
from lineage_stash.store.replica import Replica
from tests.store.contract_suite import P, Q
from tests.store.disk_kit import (
    Eager,
    Idle,
    Stepper,
    append,
    chunk,
    count_calls,
    failing,
    files_in,
    state,
    state_on_reopening,
    story,
    truncate,
    use,
    without_waiting,
)
from tests.store.power import Power


@pytest.fixture(autouse=True)
def _nothing_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    without_waiting(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "replica"


def kinds_in(folder: Path) -> list[str]:
    return [name.partition(".")[2] for name in files_in(folder)]


# What it is for.


@pytest.mark.parametrize("worker", [Eager, Stepper, compaction.Worker])
def test_compaction_keeps_a_truncated_log_small_and_its_state_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch, worker: Any
) -> None:
    use(worker, monkeypatch)
    replica = DiskReplica(folder, segment_bytes=20_000)
    sizes = []
    for lower in range(0, 4000, 20):
        replica.handle_all([append(lower, lower + 20), truncate(lower)])
        sizes.append(replica.disk_bytes)
    for _ in range(3):
        replica.wait_for_compaction()
        replica.apply([])
    replica.wait_for_compaction()
    assert replica._journal.number > (1 if worker is compaction.Worker else 3)
    assert replica.disk_bytes < 25_000
    assert worker is compaction.Worker or max(sizes) < 40_000
    assert (replica.damaged, replica.compaction_failure) == ([], None)
    assert kinds_in(folder) == ["segment", "state"]
    expected = state(replica.replica)
    replica.close()
    assert state_on_reopening(folder) == expected


def test_state_that_only_grows_is_not_rewritten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Eager, monkeypatch)
    replica = DiskReplica(folder, segment_bytes=2_000)
    for lower in range(0, 2000, 20):
        replica.handle(append(lower, lower + 20))
    assert files_in(folder) == ["00000001.segment"]
    assert replica.live_bytes <= replica.disk_bytes < 2 * replica.live_bytes
    replica.close()


def test_count_of_live_bytes_is_about_what_a_state_file_takes(folder: Path) -> None:
    replica = DiskReplica(folder)
    for group in story():
        replica.handle_all(group)
    replica.handle(encode(contract.PutChunks(Q, tuple(chunk(bytes([number]) * 50_000) for number in range(20)))))
    for index in range(40, 140):
        replica.handle_all([append(index, index + 1, peer=PeerId(f"r{index % 9}")), append(index, index + 1, peer=Q)])
    path = folder / "00000002.state"
    writing = compaction.Compaction(compaction.copy_index(replica.replica), path, 2, "", promised=False)
    Stepper(writing.steps()).wait()
    assert writing.state is not None
    assert writing.state.size == path.stat().st_size
    assert abs(writing.state.size - replica.live_bytes) < 0.02 * replica.live_bytes
    writing.state.close()
    replica.close()


# Beside everything else.


def test_requests_are_answered_while_a_compaction_gets_nowhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Idle, monkeypatch)
    replica = DiskReplica(folder, segment_bytes=1)
    replica.handle_all([append(0, 50), truncate(49)])
    replica.apply([])
    assert replica._worker is not None
    called = count_calls(monkeypatch, "pwritev", "fdatasync", "fsync", "rename", "unlink", "open")
    replica._journal._current._make_longer(1 << 20)
    for lower in range(50, 90):
        called.clear()
        replica.handle(append(lower, lower + 1))
        assert called == ["pwritev", "fdatasync", "pwritev"]
    expected = state(replica.replica)
    replica.close()
    assert state_on_reopening(folder) == expected


def test_what_comes_during_a_compaction_is_in_the_next_segment_and_none_is_lost_if_it_is_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given up after any number of its steps, because the replica is closed."""
    use(Stepper, monkeypatch)
    seen: set[tuple[str, ...]] = set()
    for steps in range(40):
        path = folder / str(steps)
        replica = DiskReplica(path, segment_bytes=1)
        replica.handle_all([append(0, 50), append(0, 9, peer=Q), truncate(49)])
        for lower in range(50, 50 + steps):
            replica.handle(append(lower, lower + 1))
        expected = state(replica.replica)
        seen.add(tuple(kinds_in(path)))
        replica.close()
        assert state_on_reopening(path) == expected, steps
    assert {
        ("segment",),
        ("segment", "segment"),
        ("segment", "segment", "state.unfinished"),
        ("segment", "state"),
    } <= seen


def test_bodies_are_read_wherever_a_compaction_has_them_at_the_moment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(Stepper, monkeypatch)
    monkeypatch.setattr(compaction, "BODIES_PER_RECORD", 1)
    monkeypatch.setattr(compaction, "MOVES_AT_A_STRETCH", 1)
    replica = DiskReplica(folder, segment_bytes=1)
    replica.handle_all([append(0, 50), truncate(49), append(0, 3, peer=Q), append(3, 5, peer=Q), append(5, 9, peer=Q)])
    expected = state(replica.replica)
    files: set[frozenset[str]] = set()
    for _ in range(40):
        replica.apply([])
        assert state(replica.replica) == expected
        files.add(frozenset(span.body.where[0].path.name for span in replica.replica.logs[Q].spans))
    assert {frozenset(["00000001.segment"]), frozenset(["00000001.segment", "00000002.state"]),
            frozenset(["00000002.state"])} <= files  # fmt: skip
    replica.close()


def test_body_copied_twice_is_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Eager, monkeypatch)
    replica = DiskReplica(folder, segment_bytes=1)
    replica.handle_all([append(0, 9, peer=Q), encode(contract.PutChunks(Q, (chunk(b"content"),)))])
    for lower in range(0, 400, 50):
        replica.handle_all([append(lower, lower + 50), truncate(lower + 49)])
        replica.wait_for_compaction()
    assert replica._journal.number > 3
    expected = state(replica.replica)
    replica.close()
    assert state_on_reopening(folder) == expected


# Failures.


@pytest.mark.parametrize("worker", [Stepper, Eager])
def test_power_that_fails_at_any_step_loses_nothing_that_was_answered(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, worker: type[Stepper]
) -> None:
    folder.mkdir()
    states = [state(Replica())]
    with monkeypatch.context() as patches:
        use(worker, patches)
        power = Power(folder, patches)
        replica = DiskReplica(folder, segment_bytes=1)
        for group in story():
            replica.handle_all(group)
            power.acknowledged += 1
            states.append(state(replica.replica))
            for _ in range(3):
                replica.apply([])
        power.note("end")
        replica.close()
        assert replica._journal.number >= 3, "it was compacted"
        expected_steps = {"pwritev", "posix_fallocate", "fdatasync", "fsync", "rename", "unlink"}
        assert expected_steps <= {outage.step for outage in power.outages}
    numbers = count()
    for outage in power.outages:
        for image in outage.images:
            found = recovered(tmp_path / str(next(numbers)), image)
            assert found in states[outage.acknowledged : outage.acknowledged + 2], outage.step


def recovered(folder: Path, image: dict[str, bytes]) -> tuple[Any, ...]:
    """The state that an image of a folder is opened with, and again when it is opened once more."""
    folder.mkdir()
    for name, content in image.items():
        (folder / name).write_bytes(content)
    found = state_on_reopening(folder)
    assert not any(name.endswith("unfinished") for name in files_in(folder))
    left = files_in(folder)
    assert state_on_reopening(folder) == found
    assert files_in(folder) == left
    return found


def test_power_that_fails_while_a_folder_is_opened_loses_nothing(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is that of a process that was killed in the middle of a commit and of a compaction."""
    use(Stepper, monkeypatch)
    replica = DiskReplica(folder, segment_bytes=1)
    replica.handle_all([append(0, 50), truncate(49)])
    while "state.unfinished" not in kinds_in(folder):
        replica.apply([])
    replica.handle(append(50, 51))
    expected = state(replica.replica)
    upper = replica._journal._current.file.size
    replica.handle(append(51, 59))
    leftovers = {name: (folder / name).read_bytes() for name in files_in(folder)}
    replica.close()
    torn = max(name for name in leftovers if name.endswith(".segment"))
    leftovers[torn] = leftovers[torn][: upper + 60].ljust(len(leftovers[torn]), b"\0")
    for name, content in leftovers.items():
        (folder / name).write_bytes(content)
    with monkeypatch.context() as patches:
        power = Power(folder, patches, synced_names=tuple(leftovers))
        DiskReplica(folder).close()
        power.note("end")
    assert {"pwritev", "fsync", "unlink"} <= {outage.step for outage in power.outages}
    images = [image for outage in power.outages for image in outage.images]
    assert all(recovered(tmp_path / str(at), image) == expected for at, image in enumerate(images))


def test_older_files_stay_until_the_names_of_the_newest_are_durable(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(Eager, monkeypatch)
    replica = DiskReplica(folder, segment_bytes=1)
    replica.handle_all([append(0, 50), truncate(49)])
    older, expected = folder / "00000001.segment", state(replica.replica)
    while kinds_in(folder) != ["segment", "segment", "state"]:
        replica.apply([])
    content = older.read_bytes()
    replica.wait_for_compaction()
    replica.close()
    assert files_in(folder) == ["00000002.segment", "00000002.state"]
    older.write_bytes(content)
    with monkeypatch.context() as patches:
        power = Power(folder, patches, synced_names=(older.name, "00000002.segment"))
        DiskReplica(folder).close()
        power.note("end")
    images = [image for outage in power.outages for image in outage.images]
    assert any(sorted(image) == [older.name, "00000002.segment"] for image in images)
    assert all(recovered(tmp_path / str(at), image) == expected for at, image in enumerate(images))


@pytest.mark.parametrize("call", ["pwritev", "rename", "fsync", "unlink"])
def test_failure_in_the_thread_of_a_compaction_is_told_and_the_replica_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    use(Stepper, monkeypatch)
    told = 0
    for turns in range(12):
        replica = DiskReplica(folder / str(turns), segment_bytes=1)
        replica.handle_all([append(0, 50), append(0, 9, peer=Q), truncate(49)])
        for _ in range(turns):
            replica.apply([])
        with monkeypatch.context() as patches:
            patches.setattr(os, call, failing(errno.EIO))
            if replica._worker is not None:
                replica._worker.wait()
                told += replica._worker.failure is not None
        go_on(replica, 50)
        go_on(DiskReplica(folder / str(turns), segment_bytes=1), 90)
    assert told >= 1


def go_on(replica: DiskReplica, lower: int) -> None:
    """Let a replica work and be compacted, and see whether it finds everything again."""
    others = state(replica.replica)[0][Q]
    replica.handle_all([append(lower, lower + 40), truncate(lower + 39)])
    replica.wait_for_compaction()
    expected = state(replica.replica)
    assert expected[0][Q] == others
    replica.close()
    assert state_on_reopening(replica.folder) == expected


def test_disk_too_full_for_a_compaction_is_told_and_tried_again_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(Eager, monkeypatch)
    replica = DiskReplica(folder, segment_bytes=1)
    replica.handle_all([append(0, 50), truncate(49)])
    with monkeypatch.context() as patches:
        patches.setattr(os, "rename", failing(errno.ENOSPC))
        replica.apply([])
        replica.apply([])
        assert replica.compaction_failure is not None
        assert replica.compaction_failure.errno == errno.ENOSPC
    replica.handle_all([append(50, 90), truncate(89)])
    for _ in range(9):
        replica.apply([])
    assert replica.compaction_failure is None
    assert kinds_in(folder) == ["segment", "state"]
    replica.close()


def test_damaged_body_ends_the_compaction_and_all_files_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Eager, monkeypatch)
    replica = DiskReplica(folder, segment_bytes=1)
    replica.handle_all([append(0, 9, peer=Q), append(0, 50), truncate(49)])
    file, offset = replica.replica.logs[Q].spans[0].body.where
    file.write([bytes((file.read(offset, 1)[0] ^ 1,))], offset)
    for lower in range(50, 90):
        replica.handle(append(lower, lower + 1))
    (damage,) = replica.damaged
    assert (damage.path, damage.offset) == (file.path, offset)
    assert files_in(folder) == ["00000001.segment", "00000002.segment"], "it is not tried again"
    with pytest.raises(BodyDamaged):
        replica.handle(encode(contract.Read(Q, Index(0))))
    replica.close()
    replica = DiskReplica(folder)
    assert replica.replica.logs[P].upper == 90
    replica.close()


def test_thread_of_a_compaction_ends_with_the_replica(folder: Path) -> None:
    replica = DiskReplica(folder, segment_bytes=1)
    replica.handle_all([append(0, 50), truncate(49)])
    replica.apply([])
    worker = replica._worker
    assert isinstance(worker, compaction.Worker)
    expected = state(replica.replica)
    replica.close()
    assert worker.is_done
    assert state_on_reopening(folder) == expected
