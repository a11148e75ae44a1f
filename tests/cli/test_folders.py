"""Store folders: whose they are, and that nothing is ever removed that is not a store's."""

import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from lineage_stash.cli import folders
from lineage_stash.cli.collecting import remove_folder
from lineage_stash.cli.folders import FolderState, StoreFolder, Surroundings
from lineage_stash.cli.removing import NotRemoved
from lineage_stash.store.disk import DiskReplica

NOTHING_UP = Surroundings(None, "", frozenset())


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no Ray cluster ran on this machine."""
    monkeypatch.setattr(folders, "live_sessions", frozenset)


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """The folder of a Ray session that is over."""
    found = tmp_path / "ray" / "session_1"
    (found / "sockets").mkdir(parents=True)
    return found


def make_store(folder: Path, identity: str = "store-1/replica-0") -> Path:
    """A folder that a real replica has written and left."""
    DiskReplica(folder, identity=identity).close()
    return folder


def find(*roots: Path, around: Surroundings = NOTHING_UP) -> list[StoreFolder]:
    return folders.find(roots, around)


def states(*roots: Path, around: Surroundings = NOTHING_UP) -> list[FolderState]:
    return [folder.state for folder in find(*roots, around=around)]


# finding


def test_folders_in_sessions_are_found_once_with_size_age_and_identity(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_store(session / "lineage_stash" / "replica-0")
    (session.parent / "session_latest").symlink_to(session)
    (session.parent / "session_2").mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(session.parents[1]))
    (found,) = find(*folders.roots_in(folders.session_folders()), folder)
    assert (found.path, found.state, found.reason) == (str(folder), FolderState.LEFT, "")
    assert found.identity == "store-1/replica-0"
    assert found.bytes > 0
    assert found.written_at == max(path.stat().st_mtime for path in (folder, *folder.iterdir()))


def test_temporary_folder_is_looked_for_as_ray_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ray" / "session_5").mkdir(parents=True)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert folders.session_folders() == [tmp_path / "ray" / "session_5"]


def test_folder_that_is_no_stores_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "replica-0").mkdir()
    (tmp_path / "replica-0" / "00000001.segment").write_bytes(b"somebody else's")
    (tmp_path / "replica-1").mkdir()
    (tmp_path / "replica-1" / "notes.txt").write_text("mine")
    assert find(tmp_path, tmp_path / "gone") == []


def test_replica_that_had_only_begun_is_found(tmp_path: Path) -> None:
    (tmp_path / "replica-0").mkdir()
    (tmp_path / "replica-0" / "lock").touch()
    assert states(tmp_path) == [FolderState.LEFT]


# whose it is


def test_folder_that_a_replica_has_open_is_in_use_and_looking_does_not_lock_it(tmp_path: Path) -> None:
    replica = DiskReplica(tmp_path / "replica-0", identity="store-1/replica-0")
    try:
        assert states(tmp_path) == [FolderState.IN_USE]
    finally:
        replica.close()
    assert states(tmp_path) == [FolderState.LEFT]


def test_folder_of_the_cluster_that_runs_is_in_use_while_its_replica_is_restarted(tmp_path: Path) -> None:
    make_store(tmp_path / "replica-0")
    make_store(tmp_path / "replica-1", "store-2/replica-1")
    around = Surroundings("store-1", "/tmp/ray/session_9", frozenset(("/tmp/ray/session_9",)))
    assert states(tmp_path, around=around) == [FolderState.IN_USE, FolderState.LEFT]


@pytest.fixture
def raylet(session: Path) -> Iterator[socket.socket]:
    """Somebody who listens where a node of a session does."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(session / "sockets" / "raylet"))
        yield listener


def test_folder_of_a_session_that_answers_is_in_use(session: Path, raylet: socket.socket) -> None:
    make_store(session / "lineage_stash" / "replica-0")
    assert states(session / "lineage_stash") == [FolderState.LEFT], "nobody listens at a socket that is only there"
    raylet.listen()
    assert states(session / "lineage_stash") == [FolderState.IN_USE]


def test_folder_of_a_session_whose_node_runs_is_in_use(session: Path) -> None:
    make_store(session / "lineage_stash" / "replica-0")
    around = Surroundings(None, "", frozenset((str(session),)))
    assert states(session / "lineage_stash", around=around) == [FolderState.IN_USE]


def test_folder_elsewhere_is_unclear_while_a_cluster_runs_that_may_have_it(tmp_path: Path) -> None:
    make_store(tmp_path / "session_fake" / "replica-0")
    around = Surroundings("store-2", "/tmp/ray/session_9", frozenset(("/tmp/ray/session_8", "/tmp/ray/session_9")))
    assert states(tmp_path / "session_fake", around=around) == [FolderState.UNCLEAR]


# removing


def test_left_folder_is_removed_whole(tmp_path: Path) -> None:
    folder = make_store(tmp_path / "replica-0")
    (folder / "00000002.state.unfinished").write_bytes(b"half")
    (removed,) = remove_folder(folder, None)
    assert (removed.kind, removed.name) == ("folder", str(folder))
    assert removed.bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_all_replicas_of_a_storage_are_removed_or_none_if_one_is_in_use(tmp_path: Path) -> None:
    make_store(tmp_path / "replica-0")
    replica = DiskReplica(tmp_path / "replica-1", identity="store-1/replica-1")
    with pytest.raises(NotRemoved, match=r"replica-1 is not left behind: a replica has it open"):
        remove_folder(tmp_path, None)
    assert (tmp_path / "replica-0" / "lock").exists()
    replica.close()
    assert len(remove_folder(tmp_path, None)) == 2
    assert list(tmp_path.iterdir()) == []


def test_what_has_another_name_and_links_and_what_they_lead_to_stay(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "00000001.segment").write_bytes(b"lin-segm and more")
    folder = make_store(tmp_path / "replica-0")
    (folder / "notes.txt").write_text("mine")
    (folder / "00000007.segment").symlink_to(precious / "00000001.segment")
    (folder / "00000008.state").mkdir()
    (folder / "replica-5").symlink_to(precious)
    remove_folder(folder, None)
    assert sorted(os.listdir(folder)) == ["00000007.segment", "00000008.state", "notes.txt", "replica-5"]
    assert (precious / "00000001.segment").exists()


def test_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    folder = make_store(tmp_path / "replica-0")
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(NotRemoved, match="is a link"):
        remove_folder(tmp_path / "link", None)
    assert (folder / "lock").exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("notes.txt", "is not the folder of a store"),
        ("lock", "is not the folder of a store"),
        ("00000001.segment", "does not begin as a store's files do"),
    ],
)
def test_folder_that_is_no_stores_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(NotRemoved, match=reason):
        remove_folder(tmp_path, None)
    assert (tmp_path / name).read_bytes() == b"mine"


def test_file_that_only_has_the_name_of_a_stores_keeps_all_in_place(tmp_path: Path) -> None:
    folder = make_store(tmp_path / "replica-0")
    (folder / "00000009.segment").write_bytes(b"mine")
    for remove in (lambda: remove_folder(folder, None), lambda: folders.remove(str(folder))):
        with pytest.raises(NotRemoved, match=r"00000009\.segment does not begin as a store's files do"):
            remove()
    assert len(list(folder.iterdir())) > 2


def test_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotRemoved, match="No such file"):
        remove_folder(tmp_path / "gone", None)


def test_folder_that_is_locked_after_all_is_left_alone(tmp_path: Path) -> None:
    folder = make_store(tmp_path / "replica-0")
    before = sorted(os.listdir(folder))
    with (folder / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(NotRemoved, match="is in use"):
            folders.remove(str(folder))
    assert sorted(os.listdir(folder)) == before
