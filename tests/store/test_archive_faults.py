"""Whatever happens to an archive's objects, nothing confirmed is lost silently or read wrong, and messages help."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from lineage_stash import __version__
from lineage_stash.codec import decode, encode
from lineage_stash.core.ids import Index
from lineage_stash.store import archive_compaction, contract
from lineage_stash.store.archive import ArchiveReplica, ArchiveUnreachable
from lineage_stash.store.archive_faults import (
    ArchiveDamaged,
    ArchivedBodyDamaged,
    ArchiveEmptied,
    ArchiveForeign,
    ArchiveFormatUnknown,
    ArchiveKeyWrong,
    BodyUnreachable,
)
from lineage_stash.store.disk import StoreDamaged, StoreEmptied, StoreForeign
from lineage_stash.store.faults import StoreError, StoreFailed
from lineage_stash.store.objects import open_objects, without_secrets
from lineage_stash.store.sealed import FORMAT, PREFIX, Sealer
from tests.store.archive_kit import (
    IDENTITY,
    KEY,
    MemoryObjects,
    files_in,
    forget_what_is_at_hand,
    kept_in,
    kill,
    opened,
    state_of,
    state_on_reopening,
)
from tests.store.contract_suite import P, Q, checkpoint
from tests.store.disk_kit import Eager, append, chunk, entries_of, failing, truncate, use

READ = encode(contract.Read(P, Index(0)))


@pytest.fixture(autouse=True)
def _nothing_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def url(folder: Path) -> str:
    return f"file://{folder}"


def write_sample(url: str) -> Any:
    """An archive with a state in two objects and three groups after it; what it holds."""
    with pytest.MonkeyPatch.context() as patches:
        use(Eager, patches)
        patches.setattr(archive_compaction, "PART_BYTES", 300)
        replica = opened(url, segment_bytes=1)
        replica.handle_all([append(0, 9), truncate(6), append(0, 5, peer=Q)])
        for _ in range(3):
            replica.apply([])
        replica._compact_above = 1 << 30
        replica.handle(encode(contract.PutChunks(Q, (chunk(b"content" * 20),))))
        replica.handle(encode(contract.PutCheckpoint(checkpoint(8, state=b"s" * 40_000))))
        replica.handle(append(9, 12))
    assert replica._chain.base == 1
    expected = state_of(replica.replica)
    kill(replica)
    return expected


@pytest.fixture
def sample(url: str) -> Any:
    return write_sample(url)


def changed(content: bytes, at: int) -> bytes:
    """Content with one bit changed, each time another one."""
    return content[:at] + bytes((content[at] ^ 1 << at % 8,)) + content[at + 1 :]


def positions(content: bytes) -> list[int]:
    """Where to try a fault: everywhere, or here and there in what is long."""
    return [*range(min(1000, len(content))), *range(1000, len(content), 997), len(content) - 1]


# Changed, cut, moved and missing objects.


def read_or_refused(contents: dict[str, bytes]) -> Any:
    """What an archive with these objects holds, or what it says instead."""
    with kept_in(MemoryObjects(dict(contents))):
        try:
            return state_on_reopening("")
        except StoreError as refusal:
            return refusal


@pytest.fixture
def contents() -> dict[str, bytes]:
    with kept_in(objects := MemoryObjects({})):
        write_sample("")
    return objects.contents


def test_sample_has_one_of_everything(contents: dict[str, bytes]) -> None:
    folders = [name.partition("/")[0] for name in sorted(contents)]
    assert folders == ["groups"] * 3 + ["manifests"] + ["owners"] + ["states"] * 2
    assert not isinstance(read_or_refused(contents), StoreError)


def test_bit_that_is_changed_anywhere_is_told(contents: dict[str, bytes]) -> None:
    kinds = set()
    for name, content in contents.items():
        for at in positions(content):
            found = read_or_refused({**contents, name: changed(content, at)})
            assert isinstance(found, ArchiveDamaged | ArchivedBodyDamaged), (name, at)
            kinds.add(type(found))
    assert kinds == {ArchiveDamaged, ArchivedBodyDamaged}


def test_object_that_is_cut_or_made_longer_is_told(contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        for cut in (*[content[:at] for at in positions(content)], content + b"x"):
            assert isinstance(read_or_refused({**contents, name: cut}), ArchiveDamaged), (name, len(cut))


def test_object_under_another_name_is_told(contents: dict[str, bytes]) -> None:
    for name in contents:
        for other in contents:
            if other != name:
                assert isinstance(read_or_refused({**contents, name: contents[other]}), ArchiveDamaged), (name, other)


def test_object_that_is_missing_is_told_unless_it_is_the_last(contents: dict[str, bytes]) -> None:
    *_, last = sorted(name for name in contents if name.startswith("groups/"))
    for name in contents:
        found = read_or_refused({other: content for other, content in contents.items() if other != name})
        told = not name.startswith("owners/") and name != last
        assert isinstance(found, StoreDamaged) == told, name


def test_missing_objects_are_named_with_what_to_do(url: str, folder: Path, sample: Any) -> None:
    for kind, finding in (
        ("groups", r"groups/00000002-.* is damaged: it is not there, and later ones are"),
        ("states", r"states/00000001-.* is damaged: it is not there"),
        ("manifests", r"groups/00000001-.* is damaged: it is not there, and later ones are"),
    ):
        first = files_in(folder, kind)[0]
        moved = first.rename(folder / "moved")
        with pytest.raises(StoreDamaged, match=rf"{finding}.*Nothing was removed.*Put back a good copy.*another URL"):
            opened(url)
        moved.rename(first)
        assert state_on_reopening(url) == sample


def test_last_groups_that_are_missing_are_told_if_they_were_there_at_an_earlier_opening(
    url: str, folder: Path, sample: Any
) -> None:
    kill(opened(url))
    last = files_in(folder, "groups")[-1]
    moved = last.rename(folder / "moved")
    with pytest.raises(StoreDamaged, match=r"groups/00000004-… is damaged: it was there once"):
        opened(url)
    moved.rename(last)
    assert state_on_reopening(url) == sample


@pytest.mark.usefixtures("sample")
def test_state_without_manifest_and_groups_is_not_an_empty_archive(url: str, folder: Path) -> None:
    for kind in ("groups", "manifests", "owners"):
        shutil.rmtree(folder / kind)
    with pytest.raises(StoreDamaged, match="it was there once"):
        opened(url)


def test_group_in_whose_place_is_a_late_one_is_missed(url: str, folder: Path) -> None:
    former = opened(url)
    former.handle(append(0, 1))
    successor = opened(url)
    with suppress(StoreError):
        former.handle(append(1, 2))
    successor.handle(append(1, 3))
    successor.handle(append(3, 4))
    kill(successor)
    late, committed = files_in(folder, "groups")[1:3]
    committed.unlink()
    with pytest.raises(StoreDamaged, match=f"{committed.name} is damaged: it is not there"):
        opened(url)
    assert late.exists()


# Somebody else's.


def test_archive_of_another_key_is_refused_and_left_as_it_is(url: str, folder: Path, sample: Any) -> None:
    before = {path: path.read_bytes() for path in files_in(folder)}
    with pytest.raises(ArchiveKeyWrong, match=r"written with another key\. Nothing was changed\. Open .* with the key"):
        opened(url, key=b"another key that is long enough")
    assert {path: path.read_bytes() for path in files_in(folder)} == before
    assert issubclass(ArchiveKeyWrong, StoreForeign)
    assert state_on_reopening(url) == sample


@pytest.mark.usefixtures("sample")
def test_archive_of_another_store_is_refused_and_left_as_it_is(url: str, folder: Path) -> None:
    before = {path: path.read_bytes() for path in files_in(folder)}
    with pytest.raises(ArchiveForeign, match=r"belongs to 'cluster/archive', and this is 'other'\. Nothing was"):
        opened(url, identity="other")
    assert {path: path.read_bytes() for path in files_in(folder)} == before


@pytest.mark.parametrize("left", ["groups", "manifests"])
def test_another_key_is_noticed_whatever_is_left_of_an_archive(url: str, folder: Path, left: str) -> None:
    write_sample(url)
    for kind in {"groups", "manifests", "owners", "states"} - {left}:
        shutil.rmtree(folder / kind)
    with pytest.raises(ArchiveKeyWrong):
        opened(url, key=b"another key that is long enough")
    assert [path.name for path in folder.iterdir()] == [left]


@pytest.mark.usefixtures("sample")
@pytest.mark.parametrize("number", [FORMAT - 1, FORMAT + 1])
def test_older_and_newer_formats_are_told_apart_from_damage(url: str, folder: Path, number: int) -> None:
    for path in files_in(folder):
        content = path.read_bytes()
        start = content[:8] + number.to_bytes(4, "big") + content[12 : PREFIX.size - 4]
        path.write_bytes(start + crc32(start).to_bytes(4, "big") + content[PREFIX.size :])
    with pytest.raises(
        ArchiveFormatUnknown,
        match=f"in format {number}.*{__version__}, which reads format {FORMAT}.*Open it",
    ):
        opened(url)


def test_key_that_can_be_guessed_is_refused(url: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"at least 16 random bytes, such as secrets.token_bytes\(32\)"):
        opened(url, key=b"short")
    assert not folder.exists()


def test_emptied_archive_is_not_taken_for_a_new_one(url: str, folder: Path) -> None:
    with pytest.raises(ArchiveEmptied, match=r"although there was one.*Put its objects back"):
        opened(url, expect_existing=True)
    assert not folder.exists()
    assert issubclass(ArchiveEmptied, StoreEmptied)
    kill(opened(url))
    kill(opened(url, expect_existing=True))


def test_names_that_are_not_ours_are_ignored_and_left_alone(url: str, folder: Path, sample: Any) -> None:
    token = "0123456789abcdef"
    foreign = [
        folder / "README",
        folder / "groups" / ".DS_Store",
        folder / "groups" / "00000099-00000001",
        folder / "groups" / f"000000099-00000001-{token}",
        folder / "groups" / f"{'9' * 30}-00000001-{token}",
        folder / "groups" / f"٠٠٠٠٠٠٩٩-00000001-{token}",
        folder / "groups" / f"00000099-00000001-{token}.unfinished.txt",
        folder / "owners" / f"99999999-{token.upper()}",
        folder / "owners" / f"099999999-{token}",
        folder / "states" / f"00000099-00000001-{token}",
        folder / "manifests" / "newest",
    ]
    for path in foreign:
        path.write_bytes(b"somebody else's")
    (folder / "groups" / f"00000099-00000001-{token}").mkdir()
    replica = opened(url)
    assert state_of(replica.replica) == sample
    replica.handle(append(12, 13))
    replica.close()
    assert all(path.read_bytes() == b"somebody else's" for path in foreign)


def test_listing_that_leads_out_of_the_folder_is_not_followed() -> None:
    contents: dict[str, bytes] = {}
    read: list[str] = []
    objects = MemoryObjects(contents)
    objects.before = read.append
    with kept_in(objects):
        kill(opened(""))
        for escaping in ("../../etc/passwd", "..", f"../00000001-00000001-{'0' * 16}", "/etc/passwd"):
            contents[f"groups/{escaping}"] = contents[f"owners/{escaping}"] = b"evil"
        read.clear()
        kill(opened(""))
    assert [what for what in read if ".." in what or "etc" in what] == []


@pytest.mark.usefixtures("sample")
def test_link_in_place_of_an_object_is_damage(url: str, folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"not an object" * 50)
    group = files_in(folder, "groups")[0]
    group.unlink()
    group.symlink_to(secret)
    with pytest.raises(ArchiveDamaged, match="does not begin as an archive's objects do"):
        opened(url)
    assert secret.read_bytes() == b"not an object" * 50


def test_former_process_leaves_unfinished_files_that_the_next_removes(url: str, folder: Path) -> None:
    kill(opened(url))
    unfinished = [
        folder / "groups" / f"00000001-00000001-{'0' * 16}.unfinished",
        folder / "states" / f"00000001-00000001-{'0' * 16}-00000000.unfinished",
    ]
    for path in unfinished:
        path.write_bytes(b"half")
    kill(opened(url))
    assert not any(path.exists() for path in unfinished)


# While it is open.


def test_body_that_is_changed_after_the_opening_is_told_and_everything_else_goes_on(url: str, folder: Path) -> None:
    replica = opened(url)
    replica.handle_all([append(0, 5), append(0, 3, peer=Q)])
    (path,) = files_in(folder, "groups")
    good = path.read_bytes()
    place = replica.replica.logs[P].spans[0].body.where[1]
    path.write_bytes(good[:place] + b"forged" + good[place + 6 :])
    forget_what_is_at_hand(replica)
    with pytest.raises(
        ArchivedBodyDamaged, match=rf"body at byte {place} of groups/.*is not what was written.*Put back"
    ):
        replica.handle(READ)
    assert [type(damage) for damage in replica.damaged] == [ArchivedBodyDamaged]
    assert decode(replica.handle(encode(contract.Read(Q, Index(0))))).spans
    assert decode(replica.handle(append(5, 6))).holdings[0][2] == 6
    path.write_bytes(good)
    assert len(decode(replica.handle(READ)).spans) == 2, "a good copy was put back"
    replica.close()


def test_forged_body_with_a_forged_checksum_of_the_same_kind_is_told(url: str, folder: Path) -> None:
    """Who can write to the place and knows this program, but not the key."""
    replica = opened(url)
    replica.handle(append(0, 5))
    (span,) = replica.replica.logs[P].spans
    digest = Sealer(b"the attacker's own key, long enough", IDENTITY).digest(b"forged")
    assert digest != Sealer(KEY, IDENTITY).digest(b"forged")
    (path,) = files_in(folder, "groups")
    content = path.read_bytes()
    path.write_bytes(content.replace(span.body.digest, digest))
    kill(replica)
    with pytest.raises(ArchiveDamaged, match="its seal does not match"):
        opened(url)


def test_body_whose_object_is_removed_after_the_opening_is_told(url: str, folder: Path) -> None:
    replica = opened(url)
    replica.handle(append(0, 5))
    files_in(folder, "groups")[0].unlink()
    forget_what_is_at_hand(replica)
    with pytest.raises(ArchivedBodyDamaged, match="the object is not there"):
        replica.handle(READ)
    assert len(replica.damaged) == 1
    replica.close()


def test_damaged_body_ends_a_compaction_and_all_objects_stay(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(Eager, monkeypatch)
    replica = opened(url, segment_bytes=1)
    replica.handle_all([append(0, 5), append(0, 3, peer=Q)])
    (path,) = files_in(folder, "groups")
    path.write_bytes(changed(path.read_bytes(), replica.replica.logs[P].spans[0].body.where[1]))
    forget_what_is_at_hand(replica)
    for lower in range(5, 9):
        replica.handle(append(lower, lower + 1))
    assert len(replica.damaged) == 1
    assert (len(files_in(folder, "groups")), files_in(folder, "manifests")) == (5, [])
    replica.close()


def test_place_that_cannot_be_read_for_a_while_is_not_damage(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Eager, monkeypatch)
    replica = opened(url, segment_bytes=1 << 20)
    replica.handle(append(0, 5))
    forget_what_is_at_hand(replica)
    with monkeypatch.context() as patches:
        patches.setattr(replica._vault.objects, "read", failing(errno.ETIMEDOUT))
        with pytest.raises(BodyUnreachable, match=r"cannot be read now: .*timed out.*Ask again"):
            replica.handle(READ)
        replica.segment_bytes = replica._compact_above = 1
        replica.handle(append(5, 6))
        replica.apply([])
        assert isinstance(replica.compaction_failure, BodyUnreachable)
    assert replica.damaged == []
    assert decode(replica.handle(READ)).spans
    for _ in range(5):
        replica.apply([])
        replica._compact_above = 1
    assert (replica.compaction_failure, replica._chain.base) == (None, 2)
    replica.close()


@pytest.mark.parametrize("call", ["put", "list"])
def test_commit_that_fails_is_not_answered_and_opening_again_finds_out(
    url: str, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    replica = opened(url)
    replica.handle(append(0, 3))
    with monkeypatch.context() as patches:
        patches.setattr(replica._vault.objects, call, failing(errno.ENOSPC))
        with pytest.raises(StoreFailed, match=r"cannot go on: .*No space left.*what was answered before is there"):
            replica.handle(append(3, 5))
    with pytest.raises(StoreFailed, match="open it again to learn what it has"):
        replica.handle(READ)
    replica.close()
    replica = opened(url)
    assert entries_of(replica.replica) == (3 if call == "put" else 5)
    replica.close()


def test_owner_whose_claim_was_removed_does_not_go_on(url: str, folder: Path) -> None:
    replica = opened(url)
    files_in(folder, "owners")[0].unlink()
    with pytest.raises(StoreFailed, match=r"owners/00000001-.* was removed, or listings .* do not show"):
        replica.handle(append(0, 1))
    replica.close()


def test_compaction_that_fails_is_tried_again(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Eager, monkeypatch)
    replica = opened(url, segment_bytes=1)
    replica.handle_all([append(0, 9), truncate(8)])
    with monkeypatch.context() as patches:
        patches.setattr(replica._vault.objects, "put", failing(errno.EIO))
        for _ in range(2):
            replica.apply([])
        assert isinstance(replica.compaction_failure, OSError)
    replica.handle(append(9, 10))
    for _ in range(3):
        replica.apply([])
    assert replica.compaction_failure is None
    assert len(files_in(folder, "manifests")) == 1
    expected = state_of(replica.replica)
    replica.close()
    assert state_on_reopening(url) == expected


# URLs.


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "nowhere://bucket/folder",
            r"at nowhere://bucket/folder cannot be opened.*install fsspec and",
        ),
        ("folder/archive", r"empty scheme.*Write it as file:///folder or s3://bucket/folder"),
        ("file:///tmp/ä", r"Write it as file:///folder"),
        ("s3://[bad", r"s3://… cannot be opened"),
    ],
)
def test_url_that_leads_nowhere_is_told(url: str, message: str) -> None:
    with pytest.raises(ArchiveUnreachable, match=message):
        opened(url)


def test_folder_whose_parent_is_missing_is_not_made(tmp_path: Path) -> None:
    """A disk that is not mounted, most likely."""
    with pytest.raises(ArchiveUnreachable, match=r"No such file or directory.*See that the folder or bucket is there"):
        opened(f"file://{tmp_path}/not/mounted")
    assert list(tmp_path.iterdir()) == []


def test_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(b"a file")
    with pytest.raises(ArchiveUnreachable, match=r"See that the folder or bucket is there"):
        opened(f"file://{tmp_path}/archive")


def test_secrets_in_a_url_are_never_shown() -> None:
    assert without_secrets("s3://key:secret@bucket/x?endpoint_override=h&y=secret") == "s3://key:***@bucket/x"
    assert without_secrets("file:///tmp/a%20b") == "file:///tmp/a%20b"
    for url in ("nowhere://key:secret@bucket/x", "s3://key:secret@bucket/x?unknown_option=secret", "s3://k:secret@[x"):
        with pytest.raises(ArchiveUnreachable) as told:
            open_objects(url)
        assert "secret" not in str(told.value)


AS_NOBODY = """
import os, sys
from lineage_stash.store.archive import ArchiveReplica
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
ArchiveReplica(sys.argv[1], identity="cluster/archive", key=bytes(32))
"""


@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_place_without_permission_is_told(nobodys_folder: Path, mode: int) -> None:
    nobodys_folder.chmod(mode)
    command = [sys.executable, "-c", AS_NOBODY, f"file://{nobodys_folder}/archive"]
    finished = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )  # fmt: skip
    nobodys_folder.chmod(0o700)
    assert finished.returncode == 1
    assert "ArchiveUnreachable" in finished.stderr
    assert "Permission denied" in finished.stderr
    assert "it may list, read, write and remove objects there" in finished.stderr


@pytest.fixture
def nobodys_folder() -> Iterator[Path]:
    """A folder that anybody can get to, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="lineage_stash-") as name:
        if os.geteuid() == 0:
            os.chown(name, 65534, 65534)
        yield Path(name)


def test_sealer_gives_each_store_and_key_its_own_digests() -> None:
    assert Sealer(KEY, "a").digest(b"x") != Sealer(KEY + b"!", "a").digest(b"x")


def test_replica_is_the_one_that_was_asked_for(url: str) -> None:
    replica = ArchiveReplica(url, identity=IDENTITY, key=KEY)
    assert replica.url == url
    assert (replica.live_bytes, replica.disk_bytes, replica.forgot, replica.damaged) == (0, 0, False, [])
    replica.close()
