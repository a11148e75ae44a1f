"""Store folders on this machine's disks: which there are, which of them clusters have left behind, and removing these.

A folder is somebody's as long as
- a process has it locked. Looking must not lock it, not even for a moment: a replica that came just then would find its
  folder in use and give it up. So the kernel is asked who has locks;
- it is of the store of the cluster that we have joined, whose replica may be about to be started again;
- the Ray session that it lies in is up;
- or it lies elsewhere, and a Ray cluster runs on this machine that we have not joined and that may have it.

Whatever is left then was left by a cluster that is gone. What is removed are files with the names of a store's, in that
folder itself and under its lock: no links are followed, and what has another name stays.

Not seen: clusters on other machines that use a disk of this one, and a cluster that is down and will be back because
its facts are in Redis.
"""

import fcntl
import json
import os
import re
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from lineage_stash.cli.removing import Failed, NotRemoved
from lineage_stash.on_ray.recovery_file import FILE as RECOVERIES
from lineage_stash.on_ray.registry import REPLICAS
from lineage_stash.store.files import FORMAT_WITH_TEXT, LONGEST_TEXT_BYTES, MAGIC, PREFIX
from lineage_stash.store.folder import FILE_NAME, UNFINISHED_NAME

LOCK = "lock"
STORE_FOLDER = "lineage_stash"
"""How the folder is called that has the replicas' in a Ray session's."""

SESSION = re.compile(r"(.*/session_[^/]+)/.*")
RAYLET_SOCKET = re.compile(r"--raylet_socket_name=(.*)/sockets/[^/]*")
BLOCK_BYTES = 512
CONNECT_S = 1.0


class FolderState(StrEnum):
    """Whose a folder is."""

    IN_USE = "in use"
    UNCLEAR = "unclear"
    LEFT = "left"


class StoreFolder(NamedTuple):
    """A replica's folder as it was found."""

    path: str
    state: FolderState
    reason: str
    """Why it is not left."""
    bytes: int
    """What it takes of the disk."""
    written_at: float
    identity: str
    """Which store's which replica wrote it; empty if it does not say."""


class Surroundings(NamedTuple):
    """What is up on this machine."""

    store: str | None
    """The store of the cluster that we have joined."""
    session: str
    sessions: frozenset[str]
    """The folders of all Ray sessions that have a node here."""


class Contents(NamedTuple):
    """What is in a store folder."""

    files: dict[str, int]
    """The store's own files, and the bytes of each."""
    others: tuple[str, ...]
    written_at: float
    identity: str


# finding


def session_folders() -> list[Path]:
    """Where Ray has its sessions on this machine, unless it was told otherwise."""
    temporary = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    return sessions_in(Path(temporary) / "ray")


def sessions_in(folder: Path) -> list[Path]:
    """The folders of Ray sessions in a folder."""
    return folders_in(folder, "session_")


def roots_in(sessions: Iterable[Path]) -> list[Path]:
    """Where these sessions would have stores."""
    return [session / STORE_FOLDER for session in sessions]


def find(roots: Iterable[Path], around: Surroundings) -> list[StoreFolder]:
    """The store folders in some folders, and these themselves where they are any; each of them once."""
    paths = {os.path.realpath(path): None for root in roots for path in (root, *folders_in(root, REPLICAS))}
    locked = locked_inodes()
    found = []
    for path in paths:
        with suppress(NotRemoved, OSError):
            found.append(examine(path, around, locked))
    return sorted(found)


def examine(path: str, around: Surroundings, locked: frozenset[int]) -> StoreFolder:
    """What a folder is; raises `NotRemoved` if it is no store's."""
    with opened(path) as descriptor:
        contents = look_into(path, descriptor)
        is_locked = LOCK in contents.files and os.stat(LOCK, dir_fd=descriptor, follow_symlinks=False).st_ino in locked
    state, reason = judge(path, contents.identity, is_locked=is_locked, around=around)
    return StoreFolder(path, state, reason, sum(contents.files.values()), contents.written_at, contents.identity)


def judge(path: str, identity: str, *, is_locked: bool, around: Surroundings) -> tuple[FolderState, str]:
    """Whose a folder is, and why."""
    if is_locked:
        return FolderState.IN_USE, "a replica has it open"
    if around.store is not None and identity.partition("/")[0] == around.store:
        return FolderState.IN_USE, "it is of the cluster that runs"
    session = session_of(path)
    if session and (session in around.sessions or is_up(session)):
        return FolderState.IN_USE, "its Ray session is up"
    if not session and around.sessions - {around.session}:
        return FolderState.UNCLEAR, "a Ray cluster runs on this machine that may have it: give its --address, or end it"
    return FolderState.LEFT, ""


def session_of(path: str) -> str:
    """The Ray session that a folder lies in; empty if in none."""
    within = SESSION.fullmatch(path)
    return within[1] if within is not None and Path(within[1], "sockets").is_dir() else ""


def folders_in(folder: Path, prefix: str) -> list[Path]:
    """The folders, and no links to any, whose names begin like this."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(each) for each in entries if each.name.startswith(prefix)
                          and each.is_dir(follow_symlinks=False))  # fmt: skip
    except OSError:
        return []


# what is up


def live_sessions() -> frozenset[str]:
    """The sessions of all Ray nodes that run on this machine, as their processes say."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for argument in (process / "cmdline").read_bytes().split(b"\0"):
                if named := RAYLET_SOCKET.fullmatch(argument.decode(errors="replace")):
                    found.add(os.path.realpath(named[1]))
    return frozenset(found)


def is_up(session: str) -> bool:
    """Whether anybody answers at the sockets of a session, also one whose processes cannot be seen from here."""
    return any(_is_answered(str(path)) for path in Path(session, "sockets").glob("*"))


def _is_answered(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(CONNECT_S)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # a socket that we may not use is somebody's
        return True


def locked_inodes() -> frozenset[int]:
    """The files that anybody has locked, by number; one of the same number on another disk does no harm here."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return frozenset()
    fields = [line.split() for line in lines]
    return frozenset(int(of[5].rpartition(":")[2]) for of in fields if len(of) > 5 and of[1] == "FLOCK")


# looking into one, and removing it


@contextmanager
def opened(path: str) -> Iterator[int]:
    """A folder, and no link to one, as a descriptor, so that all that is done to it is done to this one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise NotRemoved(f"{path} cannot be looked into ({error.strerror}): give the folder itself") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def look_into(path: str, descriptor: int) -> Contents:
    """What is in a folder; raises `NotRemoved` if it is no store's."""
    files: dict[str, int] = {}
    others: list[str] = []
    identities: list[str] = []
    written_at = os.fstat(descriptor).st_mtime
    for name in sorted(os.listdir(descriptor)):
        found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        is_numbered = FILE_NAME.fullmatch(name) is not None
        if not stat.S_ISREG(found.st_mode) or not (is_numbered or name == LOCK or UNFINISHED_NAME.fullmatch(name)):
            others.append(name)
            continue
        if is_numbered:
            identities.append(_identity(path, name, descriptor))
        files[name] = found.st_blocks * BLOCK_BYTES
        written_at = max(written_at, found.st_mtime)
    has_begun = LOCK in files and not others and os.path.basename(path).startswith(REPLICAS)
    if not identities and not has_begun:
        raise NotRemoved(f"{path} is not the folder of a store: there is no file of a replica in it")
    return Contents(files, tuple(others), written_at, next(filter(None, identities), ""))


def _identity(path: str, name: str, folder: int) -> str:
    """Whose a file says that it is; raises if it is no file of a store."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        start = os.pread(descriptor, PREFIX.size, 0)
        if start[: len(MAGIC)] != MAGIC:
            raise NotRemoved(f"{path}/{name} does not begin as a store's files do: look at it, and remove it yourself")
        if len(start) < PREFIX.size:
            return ""
        _, format_number, text_bytes, _ = PREFIX.unpack(start)
        if format_number < FORMAT_WITH_TEXT:
            return ""
        with suppress(ValueError):
            said = json.loads(os.pread(descriptor, min(text_bytes, LONGEST_TEXT_BYTES), PREFIX.size))
            return str(said.get("identity", ""))
        return ""
    finally:
        os.close(descriptor)


def remove(path: str) -> int:
    """Remove the files of a store's replica, and its folder if that is empty then; how many bytes were freed.

    Whether the folder is left must have been judged before; here it is only locked.
    """
    with opened(path) as folder:
        contents = look_into(path, folder)
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in contents.files:
                if name != LOCK:
                    os.unlink(name, dir_fd=folder)
            os.unlink(LOCK, dir_fd=folder)
        except BlockingIOError as error:
            raise NotRemoved(f"{path} is in use: a replica has it open") from error
        except OSError as error:
            raise Failed(f"{path} could not be emptied: {error.strerror}") from error
        finally:
            os.close(lock)
    with suppress(OSError):  # what has another name is in it
        os.rmdir(path)
    _remove_recoveries(Path(path).parent)
    return sum(contents.files.values())


def _remove_recoveries(storage: Path) -> None:
    """With the last replica goes what lies beside them of recoveries."""
    if not folders_in(storage, REPLICAS) and not (storage / RECOVERIES).is_symlink():
        with suppress(OSError):
            (storage / RECOVERIES).unlink()
