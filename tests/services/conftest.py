"""A Ray cluster with a Redis of its own, for all tests of a file."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray._raylet import Config

from tests.services.machines import RAY, Head, Redis


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder with a short name, because sockets in it must not have long ones."""
    path = Path(tempfile.mkdtemp(prefix="stash-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def redis(folder: Path) -> Iterator[Redis]:
    server = Redis(folder)
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def head(folder: Path, redis: Redis) -> Iterator[Head]:
    send_the_token()
    machine = Head(folder, redis)
    try:
        machine.start()
        yield machine
    finally:
        machine.kill()


def send_the_token() -> None:
    """Clusters of `ray start` want a token where there is one; clients send it only if the environment says so."""
    subprocess.run([RAY, "get-auth-token", "--generate"], check=True, capture_output=True)
    os.environ["RAY_AUTH_MODE"] = "token"
    Config.initialize("")  # Ray has read the environment when it was imported
