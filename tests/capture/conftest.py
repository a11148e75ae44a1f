"""Every test here leaves the process as it was; most run with the stand-ins in their places."""

import time
from collections.abc import Iterator

import pytest

from lineage_stash.capture import install


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest) -> Iterator[None]:
    real = time.time
    if "replay_check" not in request.node.path.name:
        install.install()
    yield
    install.uninstall()
    assert time.time is real
