"""Whatever happens to a replica's files, nothing confirmed is lost silently or read wrong."""

import errno
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from lineage_stash import __version__
from lineage_stash.codec import decode, encode, pack_span
from lineage_stash.core.ids import Incarnation, Index
from lineage_stash.store import contract, files
from lineage_stash.store.disk import (
    BodyDamaged,
    DiskReplica,
    StoreDamaged,
    StoreError,
    StoreFailed,
    StoreForeign,
    StoreFormatUnknown,
)
from lineage_stash.store.segment import state_groups
from tests.store.contract_suite import P, Q, checkpoint, log
from tests.store.disk_kit import (
    Eager,
    Idle,
    append,
    chunk,
    entries_of,
    failing,
    files_in,
    segment_in,
    state,
    state_on_reopening,
    truncate,
    use,
    without_waiting,
)


@pytest.fixture(autouse=True)
def _nothing_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    without_waiting(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "replica"


def size_of(replica: DiskReplica) -> int:
    return replica._journal._current.file.size


def written(folder: Path, *groups: list[bytes]) -> tuple[bytes, list[int], list[Any]]:
    """A segment's bytes, where it ends after each group, and the state there."""
    replica = DiskReplica(folder)
    ends, states = [size_of(replica)], [state(replica.replica)]
    for frames in groups:
        replica.handle_all(frames)
        ends.append(size_of(replica))
        states.append(state(replica.replica))
    replica.close()
    return segment_in(folder).read_bytes(), ends, states


def torn(content: bytes, end: int, rest: bytes = b"") -> bytes:
    """A segment of which nothing was written from `end` on: as long as it was, because that was synced before."""
    return (content[:end] + rest)[: len(content)].ljust(len(content), b"\0")


def changed(content: bytes, at: int) -> bytes:
    """Content with one bit changed, each time another one."""
    return content[:at] + bytes((content[at] ^ 1 << at % 8,)) + content[at + 1 :]


# Torn writes.


@pytest.mark.parametrize("rest", [b"", b"\xff" * 300], ids=["zeros", "garbage"])
def test_last_group_torn_at_any_byte_is_dropped_and_the_replica_goes_on(folder: Path, rest: bytes) -> None:
    content, ends, states = written(folder, [append(0, 3)], [append(3, 5)])
    path = segment_in(folder)
    for end in range(ends[1], ends[2]):
        path.write_bytes(torn(content, end, rest))
        replica = DiskReplica(folder)
        assert state(replica.replica) == states[1], end
        replica.handle(append(3, 4))
        expected = state(replica.replica)
        replica.close()
        assert state_on_reopening(folder) == expected
        upper = size_of(replica)
        assert not any(path.read_bytes()[upper + 40 :]), "what was torn is cleared"


def test_last_group_whose_first_pages_never_came_is_dropped(folder: Path) -> None:
    content, ends, states = written(folder, [append(0, 3)], [append(3, 9)])
    for hole in range(ends[1] + 1, ends[2]):
        segment_in(folder).write_bytes(torn(content[: ends[1]] + bytes(hole - ends[1]) + content[hole : ends[2]], 9999))
        os.truncate(segment_in(folder), len(content))
        assert state_on_reopening(folder) == states[1]


def test_group_of_several_requests_is_recovered_whole_or_not_at_all(folder: Path) -> None:
    content, ends, states = written(folder, [append(0, 3), append(3, 5), append(0, 2, peer=Q)])
    for end in range(ends[0], ends[1]):
        segment_in(folder).write_bytes(torn(content, end))
        assert state_on_reopening(folder) == states[0]


def test_last_group_is_written_again_on_opening_if_its_sync_may_have_failed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, ends, _ = written(folder, [append(0, 3)], [append(3, 5)])
    steps: list[object] = []
    pwritev = os.pwritev
    monkeypatch.setattr(
        os,
        "pwritev",
        lambda file, pieces, at: (steps.append((at, at + sum(map(len, pieces)))), pwritev(file, pieces, at))[1],
    )
    monkeypatch.setattr(os, "fsync", lambda file: steps.append(stat.S_ISREG(os.fstat(file).st_mode)))
    confirmation = (ends[2], ends[2] + 36)
    state_on_reopening(folder)
    assert steps == [True, confirmation, False], "it is known to be durable"
    steps.clear()
    segment_in(folder).write_bytes(torn(content, ends[2]))
    state_on_reopening(folder)
    assert steps == [(ends[1], ends[2]), True, confirmation, False], "a sync of the file, and one of the folder"


def test_body_that_contains_a_segment_is_not_taken_for_groups_of_it(folder: Path) -> None:
    content, _, _ = written(folder, [append(0, 3)], [append(3, 5)])
    path = segment_in(folder)
    replica = DiskReplica(folder)
    for frame in (
        encode(contract.PutChunks(P, (chunk(content),))),
        encode(contract.PutCheckpoint(checkpoint(2, state=content))),
    ):
        replica.handle(frame)
    upper = size_of(replica)
    replica.close()
    path.write_bytes(torn(path.read_bytes(), upper - 1))
    found = state_on_reopening(folder)
    assert found[3] == {P: {chunk(content).digest: content}}
    assert found[2] == {}


# Changed bits.


def outcome(folder: Path) -> tuple[Any, list[BodyDamaged]] | StoreError:
    """What a folder is opened with: a state, except for bodies that are told to be damaged; or why not."""
    try:
        replica = DiskReplica(folder)
    except StoreError as error:
        return error
    frames = [encode(contract.Read(peer, Index(0))) for peer in (P, Q)]
    frames.append(encode(contract.GetChunks(P, tuple(replica.replica.chunks.get(P, ())))))
    answers = replica.handle_all([*frames, encode(contract.GetCheckpoint(P)), encode(contract.List(P))])
    told = [answer for answer in answers if isinstance(answer, BodyDamaged)]
    assert replica.damaged == told
    replica.close()
    return [answer for answer in answers if isinstance(answer, bytes)], told


def check_every_bit(
    folder: Path, path: Path, live: list[tuple[int, int]], dead: list[tuple[int, int]], upper: int
) -> None:
    """Change one bit of each byte of a file, and look at what a replica makes of it."""
    good, content = outcome(folder), path.read_bytes()
    assert isinstance(good, tuple)
    for at in range(len(content)):
        path.write_bytes(changed(content, at))
        found = outcome(folder)
        damaged_body = next((body for body in live if body[0] <= at < body[1]), None)
        if damaged_body is not None:
            assert isinstance(found, tuple), at
            assert [(told.path, told.offset) for told in found[1]] == [(path, damaged_body[0])]
            assert all(answer in good[0] for answer in found[0])
        elif at < upper and not any(body[0] <= at < body[1] for body in dead):
            assert isinstance(found, StoreDamaged | StoreFormatUnknown), at
            assert str(path) in str(found)
            assert path.read_bytes() == changed(content, at), "nothing was changed"
        else:
            assert found == good, at


def places_in(replica: DiskReplica, path: Path) -> list[tuple[int, int]]:
    held = [span.body for log in replica.replica.logs.values() for span in log.spans]
    held += [kept.body for chunks in replica.replica.chunks.values() for kept in chunks.values()]
    return [(place.where[1], place.where[1] + place.length) for place in held if place.where[0].path == path]


GROUPS = (
    [append(0, 2), append(0, 3, peer=Q)],
    [encode(contract.PutCheckpoint(checkpoint(2)))],
    [encode(contract.PutChunks(P, (chunk(b"content" * 9),)))],
    [append(2, 4)],
)


def test_changed_bit_anywhere_in_a_segment_is_told_or_harmless(folder: Path) -> None:
    _, ends, _ = written(folder, *GROUPS)
    replica = DiskReplica(folder)
    bodies = places_in(replica, segment_in(folder))
    replica.close()
    assert len(bodies) == 4
    check_every_bit(folder, segment_in(folder), bodies, [], upper=ends[-1])


def compacted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> DiskReplica:
    """A replica with a state file."""
    use(Eager, monkeypatch)
    replica = DiskReplica(folder, segment_bytes=1)
    for group in GROUPS:
        replica.handle_all(group)
    for lower in range(4, 54, 10):
        replica.handle_all([append(lower, lower + 10), truncate(lower + 8)])
    replica.wait_for_compaction()
    replica.segment_bytes = replica._compact_above = 1 << 30
    replica.handle(append(54, 56))
    assert [name.partition(".")[2] for name in files_in(folder)] == ["segment", "state"]
    return replica


def test_changed_bit_anywhere_in_a_state_file_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = compacted(folder, monkeypatch)
    (path,) = folder.glob("*.state")
    live = places_in(replica, path)
    replica.close()
    file = files.OpenFile(path)
    groups = list(state_groups(file, files.read_file_header(file, files.STATE, int(path.stem))))
    file.close()
    spots = [spot for group in groups for record in group.records for spot in record.spots]
    dead = [(spot.offset, spot.offset + spot.length) for spot in spots]
    assert len(live) >= 2
    assert set(live) < set(dead)
    check_every_bit(folder, path, live, dead, upper=path.stat().st_size)


def test_damaged_body_costs_the_answers_that_need_it_and_nothing_else(folder: Path) -> None:
    written(folder, [append(0, 3)], [append(0, 3, peer=Q)], [append(3, 5)])
    replica = DiskReplica(folder)
    path = segment_in(folder)
    (offset, _), *_ = places_in(replica, path)
    content = path.read_bytes()
    path.write_bytes(changed(content, offset + 5))
    read_p, read_q = (encode(contract.Read(peer, Index(0))) for peer in (P, Q))
    for _ in range(2):
        broken, good = replica.handle_all([read_p, read_q])
        assert isinstance(broken, BodyDamaged)
        assert (broken.path, broken.offset) == (path, offset)
        assert len(decode(good).spans) == 1
    assert len(replica.damaged) == 1, "each is told once"
    assert len(decode(replica.handle(encode(contract.Read(P, Index(3))))).spans) == 1
    with pytest.raises(BodyDamaged, match="checksum"):
        replica.handle(encode(contract.Fence(((P, Incarnation(0)),), ((P, Index(0)),))))
    assert decode(replica.handle(append(5, 6))).refused == (P,), "the fence is up although it has no answer"
    replica.close()
    replica = DiskReplica(folder)
    assert replica.replica.fenced == {P: 1}
    replica.close()


def test_body_that_the_disk_does_not_give_back_is_damaged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder, [append(0, 3)])
    replica = DiskReplica(folder)
    with monkeypatch.context() as patches:
        patches.setattr(os, "pread", failing(errno.EIO))
        with pytest.raises(BodyDamaged, match="Input/output error"):
            replica.handle(encode(contract.Read(P, Index(0))))
    assert len(decode(replica.handle(append(3, 4))).holdings) == 1
    replica.close()


def test_damaged_state_of_a_checkpoint_is_told_on_opening(folder: Path) -> None:
    state_bytes = b"s" * 40_000
    content, ends, _ = written(
        folder, [encode(contract.PutCheckpoint(checkpoint(2, state=state_bytes)))], [append(0, 1)]
    )
    segment_in(folder).write_bytes(changed(content, content.index(state_bytes) + 77))
    with pytest.raises(StoreDamaged, match="checksum") as told:
        DiskReplica(folder)
    assert told.value.offset == ends[0]


# Files that are cut short, missing, or not what they should be.


def test_segment_cut_short_at_any_byte_is_told(folder: Path) -> None:
    content, _, _ = written(folder, *GROUPS)
    path = segment_in(folder)
    for end in range(len(content)):
        path.write_bytes(content[:end])
        with pytest.raises(StoreDamaged):
            DiskReplica(folder)
        assert path.read_bytes() == content[:end], "nothing was changed"


def test_segment_of_a_killed_process_cut_short_at_any_byte_is_told(folder: Path) -> None:
    content, ends, states = written(folder, *GROUPS)
    path = segment_in(folder)
    for last, expected in zip(ends[1:], states[1:], strict=True):
        for end in range(len(content)):
            path.write_bytes(torn(content, last)[:end])
            if end < last + 36:
                with pytest.raises(StoreDamaged):
                    DiskReplica(folder)
            else:
                with suppress(StoreDamaged):
                    assert state_on_reopening(folder) == expected


def test_state_file_cut_short_at_any_byte_or_longer_than_it_was_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted(folder, monkeypatch).close()
    (path,) = folder.glob("*.state")
    content = path.read_bytes()
    for end in range(len(content)):
        path.write_bytes(content[:end])
        with pytest.raises(StoreDamaged):
            DiskReplica(folder)
    path.write_bytes(content + b"\0")
    with pytest.raises(StoreDamaged, match="should end here"):
        DiskReplica(folder)


def chain(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[DiskReplica, Any]:
    """A replica with a state file and three segments: two compactions were given up."""
    replica = compacted(folder, monkeypatch)
    use(Idle, monkeypatch)
    for lower in (56, 58):
        for _ in replica._journal.prepare():
            pass
        replica._journal.go_on()
        replica.handle(append(lower, lower + 2))
    return replica, state(replica.replica)


def test_missing_file_is_told_whichever_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replica, expected = chain(folder, monkeypatch)
    replica.close()
    names = files_in(folder)
    assert [name.partition(".")[2] for name in names] == ["segment", "state", "segment", "segment"]
    for name in names:
        (folder / name).rename(folder / "elsewhere")
        with pytest.raises(StoreDamaged, match="it is not there") as told:
            DiskReplica(folder)
        assert told.value.path == folder / name
        (folder / "elsewhere").rename(folder / name)
    assert state_on_reopening(folder) == expected


def test_segment_that_others_follow_and_that_lost_its_end_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, _ = chain(folder, monkeypatch)
    sizes = {file.path: file.size for file in replica._journal._full if file.path.suffix == ".segment"}
    replica.close()
    assert len(sizes) == 2
    for path, size in sizes.items():
        content = path.read_bytes()
        path.write_bytes(torn(content, size - 40))
        with pytest.raises(StoreDamaged, match="does not say so"):
            DiskReplica(folder)
        path.write_bytes(content)


def test_segment_that_was_made_ready_and_not_used_is_removed(folder: Path) -> None:
    replica = DiskReplica(folder)
    replica.handle(append(0, 3))
    expected = state(replica.replica)
    for _ in replica._journal.prepare():
        pass
    replica.close()
    assert files_in(folder) == ["00000001.segment", "00000002.segment"]
    assert state_on_reopening(folder) == expected
    assert files_in(folder) == ["00000001.segment"]


def test_file_under_another_number_is_refused(folder: Path) -> None:
    written(folder, [append(0, 3)])
    (folder / "00000002.segment").write_bytes(segment_in(folder).read_bytes())
    with pytest.raises(StoreDamaged, match="this is segment 1 and not segment 2"):
        DiskReplica(folder)


def test_file_of_another_replica_among_the_own_is_refused(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, identity in ((folder, "one"), (tmp_path / "other", "two")):
        DiskReplica(path, identity=identity).close()
        compacted(path, monkeypatch).close()
    (name,) = [name for name in files_in(folder) if name.endswith(".segment")]
    (folder / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(StoreForeign, match=f"{name} belongs to 'two', and this is 'one'"):
        DiskReplica(folder)


@pytest.mark.parametrize("format_number", [files.FORMAT + 1, files.FORMAT + 7])
def test_newer_format_is_refused_with_who_wrote_it_and_who_reads_it(folder: Path, format_number: int) -> None:
    written(folder, [append(0, 3)])
    text = json.dumps({"writer": "9.8.7", "something": "new"}).encode()
    start = files.PREFIX.pack(files.MAGIC, format_number, len(text), 0)[:-4]
    segment_in(folder).write_bytes(start + crc32(start + text).to_bytes(4, "big") + text)
    message = f"lineage_stash 9.8.7 in format {format_number}.*{__version__}, which reads format {files.FORMAT}"
    with pytest.raises(StoreFormatUnknown, match=message):
        DiskReplica(folder)


def test_first_format_is_refused_as_older(folder: Path) -> None:
    folder.mkdir()
    header = files.MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(8, "big")
    (folder / "00000001.segment").write_bytes(header + crc32(header).to_bytes(4, "big"))
    with pytest.raises(StoreFormatUnknown, match="written by an older version in format 1"):
        DiskReplica(folder)


def test_stray_files_are_left_alone(folder: Path) -> None:
    _, _, states = written(folder, [append(0, 3)])
    strays = ["notes.txt", "00000001.segment.bak", "1.segment", "core.1234", "00000009.unfinished"]
    for name in strays:
        (folder / name).write_bytes(b"somebody's")
    (folder / "lost+found").mkdir()
    assert state_on_reopening(folder) == states[-1]
    assert {*strays, "lost+found"} < {path.name for path in folder.iterdir()}


def test_folder_that_could_not_be_opened_is_not_kept_locked(folder: Path) -> None:
    content, _, _ = written(folder, [append(0, 3)])
    path = segment_in(folder)
    path.write_bytes(b"?" + content[1:])
    with pytest.raises(StoreDamaged):
        DiskReplica(folder)
    path.write_bytes(content)
    DiskReplica(folder).close()


# Disks that fail.


@pytest.mark.parametrize(
    ("call", "code"), [("fdatasync", errno.EIO), ("pwritev", errno.ENOSPC), ("pwritev", errno.EIO)]
)
def test_failed_write_or_sync_is_not_answered_and_ends_the_replica(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    replica = DiskReplica(folder)
    replica.handle(append(0, 3))
    with monkeypatch.context() as patches:
        patches.setattr(os, call, failing(code))
        with pytest.raises(StoreFailed, match=os.strerror(code)):
            replica.handle(append(3, 5))
    for attempt in (lambda: replica.handle(encode(contract.Read(P, Index(0)))), replica.commit):
        with pytest.raises(StoreFailed, match="open it again"):
            attempt()
    replica.close()
    replica = DiskReplica(folder)
    assert entries_of(replica.replica) in (3, 5)
    replica.close()


def test_disk_that_is_full_in_the_middle_of_a_write_leaves_what_was_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = DiskReplica(folder)
    replica.handle(append(0, 3))
    expected = state(replica.replica)
    pwritev, full = os.pwritev, failing(errno.ENOSPC)
    with monkeypatch.context() as patches:
        patches.setattr(os, "posix_fallocate", full)
        patches.setattr(
            os, "pwritev", lambda file, pieces, offset: pwritev(file, [b"".join(pieces)[:40]], offset) and full()
        )
        with pytest.raises(StoreFailed, match="No space left"):
            replica.handle(append(3, 9))
        replica.close()
    assert state_on_reopening(folder) == expected


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EOPNOTSUPP])
def test_file_system_that_sets_no_space_aside_is_written_to_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(code))
    replica = DiskReplica(folder)
    for lower in range(0, 60, 10):
        replica.handle(append(lower, lower + 10))
    expected = state(replica.replica)
    replica.close()
    assert state_on_reopening(folder) == expected


@pytest.mark.parametrize("name", ["lock", "00000001.segment"])
def test_file_without_permission_is_told_with_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    _, _, states = written(folder, [append(0, 3)])
    opened = os.open

    def refuse(path: Any, *given: Any) -> int:
        if str(path).endswith(name):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *given)

    with monkeypatch.context() as patches:
        patches.setattr(os, "open", refuse)
        with pytest.raises(StoreFailed, match=f"Permission denied.*{name}.*permissions"):
            DiskReplica(folder)
    assert state_on_reopening(folder) == states[-1]


def test_failure_while_closing_is_told_and_lets_go_of_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = DiskReplica(folder)
    replica.handle(append(0, 3))
    replica.note_memory_promise()
    with monkeypatch.context() as patches:
        patches.setattr(os, "fdatasync", failing(errno.EIO))
        with pytest.raises(StoreFailed):
            replica.close()
    replica = DiskReplica(folder)
    assert entries_of(replica.replica) == 3
    replica.close()


def test_append_after_a_body_was_damaged_is_still_taken(folder: Path) -> None:
    written(folder, [append(0, 3)])
    replica = DiskReplica(folder)
    path = segment_in(folder)
    ((offset, _),) = places_in(replica, path)
    path.write_bytes(changed(path.read_bytes(), offset))
    (span,) = [pack_span(log(3, 5))]
    assert decode(replica.handle(encode(contract.Append((span,), (), (), (), False)))).holdings == ((P, 0, 5),)
    replica.close()
