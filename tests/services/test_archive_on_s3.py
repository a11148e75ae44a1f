"""An archive in S3, through pyarrow and over HTTP: moto's server, a process of its own, installed when it is needed.

What this shows is that the requests are right and that answers are understood. That listings show what was written, and
that what was written stays, are promises of the real S3.
"""

import os
import subprocess
import urllib.request
import venv
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import FileSystem

from lineage_stash.codec import decode, encode
from lineage_stash.core.ids import Index
from lineage_stash.store import archive_bodies, contract
from lineage_stash.store.archive import ArchiveTakenOver, ArchiveUnreachable
from lineage_stash.store.archive_faults import ArchiveDamaged, ArchivedBodyDamaged, ArchiveKeyWrong
from lineage_stash.store.faults import StoreFailed
from lineage_stash.testing.inject import wait_until
from tests.services.machines import free_port
from tests.store.archive_kit import (
    check_killed_writers,
    forget_what_is_at_hand,
    kill,
    opened,
    state_of,
    state_on_reopening,
)
from tests.store.contract_suite import P, Q, StoreContract, Verbs
from tests.store.disk_kit import append, chunk, entries_of, truncate

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]

SERVER = ("moto[s3]>=5.2,<6", "flask>=3,<4", "flask-cors>=6,<7")
INSTALLED = Path(__file__).parents[2] / "build" / "s3-server"
START_S = 120.0
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "somebody",
    "AWS_SECRET_ACCESS_KEY": "something",
    "AWS_EC2_METADATA_DISABLED": "true",
}
NUMBERS = count()


def install_server() -> Path:
    """The server's program; it is left where it is for the next time."""
    program = INSTALLED / "bin" / "moto_server"
    if not program.exists():
        venv.create(INSTALLED, with_pip=True)
        command = [INSTALLED / "bin" / "python", "-m", "pip", "install", "--quiet", *SERVER]
        installing = subprocess.run(command, capture_output=True, text=True, check=False)
        if installing.returncode:
            pytest.skip(f"moto's server cannot be installed: {installing.stderr.strip().splitlines()[-1]}")
    return program


class S3Server:
    """A server in memory, on a port of this machine."""

    def __init__(self, program: Path) -> None:
        self.port = free_port()
        command = [program, "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers, "moto's server answers", START_S)
        self.ask("PUT", "archives")

    def _answers(self) -> bool:
        try:
            self.ask("GET", "moto-api")
        except OSError:
            return False
        return True

    def ask(self, method: str, path: str, content: bytes | None = None) -> bytes:
        """An answer to a plain request."""
        url, headers = f"http://127.0.0.1:{self.port}/{path}", {"Content-Type": "text/plain"}
        with urllib.request.urlopen(urllib.request.Request(url, content, headers, method=method)) as answer:
            body: bytes = answer.read()
            return body

    def permit(self, requests: float) -> None:
        """Let so many more requests pass, whoever asks."""
        self.ask("POST", "moto-api/reset-auth", str(requests).encode())

    def url(self, path: str) -> str:
        """Where an archive is."""
        return f"s3://{path}?scheme=http&region=us-east-1&endpoint_override=127.0.0.1:{self.port}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    server = S3Server(install_server())
    with pytest.MonkeyPatch.context() as patches:
        for name, value in CREDENTIALS.items():
            patches.setenv(name, value)
        yield server
    server.kill()


@pytest.fixture
def s3_url(s3_server: S3Server) -> str:
    return s3_server.url(f"archives/{next(NUMBERS)}")


class InS3(Verbs):
    """A replica in S3."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.replica = opened(url)

    def ask(self, request: contract.Request) -> tuple[Any, ...]:
        return (decode(self.replica.handle(encode(request))),)


class Reopened(InS3):
    """A replica that is recovered before every request."""

    def ask(self, request: contract.Request) -> tuple[Any, ...]:
        kill(self.replica)
        self.replica = opened(self.url)
        return super().ask(request)


@pytest.mark.parametrize("kind", [InS3, Reopened])
class TestInS3(StoreContract):
    @pytest.fixture
    def store(self, s3_url: str, kind: type[InS3]) -> Iterator[Verbs]:
        store = kind(s3_url)
        yield store
        store.replica.close()


def content_of(url: str, name: str) -> tuple[Any, str, bytes]:
    filesystem, root = FileSystem.from_uri(url)
    path = f"{root}/{name}"
    with filesystem.open_input_stream(path) as stream:
        return filesystem, path, stream.read()


def test_compaction_leaves_few_objects_and_the_whole_state(s3_url: str) -> None:
    replica = opened(s3_url, segment_bytes=1 << 19)
    replica.handle(append(0, 9, peer=Q))
    for lower in range(0, 600, 20):
        replica.handle_all([append(lower, lower + 20), truncate(lower)])
    for _ in range(3):
        replica.wait_for_compaction()
        replica.apply([])
    assert (replica.damaged, replica.compaction_failure) == ([], None)
    assert replica._chain.base > 0
    assert len(replica._vault.objects.list("groups")) == 31 - replica._chain.base
    forget_what_is_at_hand(replica)
    expected = state_of(replica.replica)
    replica.close()
    assert state_on_reopening(s3_url) == expected


def test_large_bodies_are_uploaded_in_parts_and_read_by_range(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_bodies, "LARGEST_CACHED_BYTES", 1 << 20)
    replica = opened(s3_url)
    contents = [os.urandom(12 << 20), os.urandom(9 << 20)]
    replica.handle_all([encode(contract.PutChunks(P, tuple(map(chunk, contents)))), append(0, 5)])
    kill(replica)
    replica = opened(s3_url)
    assert entries_of(replica.replica) == 5
    assert [bytes(kept.body.read()) for kept in replica.replica.chunks[P].values()] == contents
    replica.close()


def test_former_owner_commits_nothing_once_another_has_opened(s3_url: str) -> None:
    former = opened(s3_url)
    former.handle(append(0, 3))
    successor = opened(s3_url)
    assert entries_of(successor.replica) == 3
    with pytest.raises(ArchiveTakenOver):
        former.handle(append(3, 5))
    successor.handle(append(3, 4))
    kill(successor)
    replica = opened(s3_url, expect_existing=True)
    assert entries_of(replica.replica) == 4
    replica.close()


def test_changed_and_missing_objects_are_told(s3_url: str) -> None:
    replica = opened(s3_url)
    for lower in range(3):
        replica.handle(append(lower, lower + 1))
    body, where = replica.replica.logs[P].spans[1].body, replica.replica.logs[P].spans[1].body.where
    filesystem, path, content = content_of(s3_url, where[0].name)
    with filesystem.open_output_stream(path) as stream:
        stream.write(content[: where[1]] + bytes(body.length))
    forget_what_is_at_hand(replica)
    with pytest.raises(ArchivedBodyDamaged, match="it is not what was written"):
        replica.handle(encode(contract.Read(P, Index(0))))
    filesystem.delete_file(path)
    with pytest.raises(ArchivedBodyDamaged, match="the object is not there"):
        replica.handle(encode(contract.Read(P, Index(0))))
    kill(replica)
    with pytest.raises(ArchiveDamaged, match=r"groups/00000002-… is damaged: it is not there"):
        opened(s3_url)
    with pytest.raises(ArchiveKeyWrong):
        opened(s3_url, key=b"another key that is long enough")


def test_bucket_that_is_not_there_is_told(s3_server: S3Server) -> None:
    with pytest.raises(ArchiveUnreachable, match=r"bucket does not exist.*See that the folder or bucket is there"):
        opened(s3_server.url("nobodys-bucket/archive"))


def test_place_without_permission_is_told(s3_server: S3Server, s3_url: str) -> None:
    replica = opened(s3_url)
    s3_server.permit(0)
    try:
        with pytest.raises(ArchiveUnreachable, match=r"it may list, read, write and remove objects there"):
            opened(s3_url)
        with pytest.raises(StoreFailed, match=r"cannot go on.*it may list, read, write and remove"):
            replica.handle(append(0, 1))
    finally:
        s3_server.permit(float("inf"))


def test_server_that_is_not_there_is_told(s3_server: S3Server) -> None:
    port = free_port()
    with pytest.raises(ArchiveUnreachable, match=r"this node reaches it"):
        opened(s3_server.url("archives/x").replace(str(s3_server.port), str(port)))


def test_process_that_is_killed_keeps_everything_it_has_confirmed(s3_url: str) -> None:
    check_killed_writers(s3_url, (1, 30, 60))
