"""One small cluster for all tests of a file, and the assurance that none of its processes outlives it."""

from collections.abc import Iterator

import pytest

import lineage_stash


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    lineage_stash.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    lineage_stash.shutdown()
