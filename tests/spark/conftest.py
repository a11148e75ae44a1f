"""Ray runs its workers at niceness 15, and with them all actors, those that keep the log included: beside any other
busy process of the machine these wait minutes for seconds of CPU, and time limits say nothing about Spark.
"""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def workers_are_as_nice_as_others() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        yield
