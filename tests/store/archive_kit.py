"""What the tests of archives share: places to keep one in, states that can be compared, and what is at a place."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lineage_stash.store import archive, archive_chain
from lineage_stash.store.archive import ArchiveReplica
from lineage_stash.store.archive_bodies import ArchivedBody
from lineage_stash.store.compaction import copy_index
from lineage_stash.store.groups import Buffer
from lineage_stash.store.objects import Objects
from lineage_stash.store.replica import Replica
from tests.store.contract_suite import P
from tests.store.disk_kit import state

KEY = b"a key of thirty-two random bytes"
IDENTITY = "cluster/archive"


def opened(url: str, *, key: bytes = KEY, identity: str = IDENTITY, **options: Any) -> ArchiveReplica:
    """An archive with the key and the identity of the tests."""
    return ArchiveReplica(url, key=key, identity=identity, **options)


def kill(replica: ArchiveReplica) -> None:
    """End a replica as a signal would: nothing more is written."""
    replica._usable = False
    replica.close()


def forget_what_is_at_hand(replica: ArchiveReplica) -> None:
    """Have bodies read from the place again."""
    for name in list(replica._vault._cache._contents):
        replica._vault._cache.drop(name)


def state_of(replica: Replica) -> tuple[Any, ...]:
    """All that a replica holds, with its bodies."""
    copy = copy_index(replica)
    for log in copy.logs.values():
        log.spans = [span._replace(body=_body(span.body)) for span in log.spans]
    for kept in copy.chunks.values():
        kept.update({digest: chunk._replace(body=_body(chunk.body)) for digest, chunk in kept.items()})
    return state(copy)


def _body(body: Any) -> bytes:
    return bytes(body.read() if isinstance(body, ArchivedBody) else body)


def state_on_reopening(url: str) -> tuple[Any, ...]:
    """All that is in an archive."""
    replica = opened(url)
    found = state_of(replica.replica)
    replica.close()
    return found


def files_in(folder: Path, kind: str = "*") -> list[Path]:
    """An archive's objects in a local folder, in order."""
    return sorted(path for path in folder.glob(f"{kind}/*") if path.is_file())


# Processes that are killed.

APPENDS_FOREVER = """
import sys
from tests.store.archive_kit import opened
from tests.store.contract_suite import P
from tests.store.disk_kit import append, truncate

replica = opened(sys.argv[1], segment_bytes=1 << 19)
upper = replica.replica.logs[P].upper if P in replica.replica.logs else 0
while True:
    replica.handle_all([append(upper, upper + 3), truncate(max(0, upper - 30))])
    upper += 3
    print(upper, flush=True)
"""


def check_killed_writers(url: str, commits_each: tuple[int, ...]) -> None:
    """Kill one process after the other, each after so many commits; all that they confirmed is there each time."""
    confirmed = 0
    for commits in commits_each:
        command = [sys.executable, "-c", APPENDS_FOREVER, url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as child:
            assert child.stdout is not None
            said = [child.stdout.readline() for _ in range(commits)]
            child.kill()
            said += child.stdout.readlines()
        confirmed = max([confirmed, *[int(line) for line in said if line.endswith("\n")]])
        replica = opened(url)
        assert confirmed <= replica.replica.logs[P].upper <= confirmed + 3
        assert state_of(replica.replica), "every body can be read"
        kill(replica)


# A place in memory, in which every request can be stopped at.


class Crash(BaseException):
    """The process is gone: nothing handles this."""


class MemoryObjects(Objects):
    """Objects in a dictionary; `before` and `after` are called with what is asked for, one request at a time."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self.contents = contents
        self.before: Callable[[str], None] = lambda _: None
        self.after: Callable[[str], None] = lambda _: None

    def list(self, folder: str) -> dict[str, int]:
        self.before(f"list {folder}")
        here = f"{folder}/"
        return {name.removeprefix(here): len(at) for name, at in self.contents.items() if name.startswith(here)}

    def read(self, name: str, offset: int, length: int) -> bytes:
        self.before(f"read {name}")
        if name not in self.contents:
            raise FileNotFoundError(name)
        return self.contents[name][offset : offset + length]

    def make_folders(self, folders: Sequence[str]) -> None:
        pass

    def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        self.before(f"put {name}")
        self.contents[name] = b"".join(pieces)
        self.after(f"put {name}")

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            self.before(f"remove {name}")
            self.contents.pop(name, None)
            self.after(f"remove {name}")


class OneAfterTheOther:
    """In place of a pool of threads."""

    def __init__(self, _: int) -> None:
        self.map = map

    def __enter__(self) -> "OneAfterTheOther":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@contextmanager
def kept_in(objects: Objects) -> Iterator[None]:
    """Have archives that are opened here keep their objects there, whatever the URL."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(archive, "open_objects", lambda _: objects)
        patches.setattr(archive_chain, "ThreadPoolExecutor", OneAfterTheOther)
        yield


class Turns:
    """Several threads that take turns at every request to the place, in an order that a seed decides."""

    def __init__(self, seed: int, *programs: Callable[[], None]) -> None:
        self._random = Random(seed)
        self._goes_on = self._random.choice([0.5, 0.8, 0.95])
        """How often a thread has several turns in a row: some races need one that is far ahead."""
        self._changed = threading.Condition()
        self._turn = 0
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(program,)) for program in programs]
        self._waiting = list(range(len(programs)))

    def run(self) -> None:
        """Run all programs to their ends."""
        self._turn = self._random.choice(self._waiting)
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def take(self) -> None:
        """Let the others do something, perhaps; to be called at every request."""
        me = self._threads.index(threading.current_thread())
        with self._changed:
            self._pass_on()
            self._changed.wait_for(lambda: self._turn == me)

    def _pass_on(self) -> None:
        if self._waiting and (self._turn not in self._waiting or self._random.random() > self._goes_on):
            self._turn = self._random.choice(self._waiting)
            self._changed.notify_all()

    def _run(self, program: Callable[[], None]) -> None:
        me = self._threads.index(threading.current_thread())
        with self._changed:
            self._changed.wait_for(lambda: self._turn == me)
        try:
            program()
        except BaseException as failure:  # noqa: BLE001  raised again by whoever waits
            self._failures.append(failure)
        finally:
            with self._changed:
                self._waiting.remove(me)
                self._pass_on()
