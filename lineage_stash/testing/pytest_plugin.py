"""A fixture for tests of your own programs. In conftest.py: `pytest_plugins = ["lineage_stash.testing.pytest_plugin"]`.

It is no entry point: pytest would load it, and with it this package, in every run of everybody who has it installed.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from lineage_stash.testing.failures import Injector, Targets, inject

InjectFailures = Callable[..., Injector]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The seed of all that scripts leave to chance."""
    parser.addoption("--inject-seed", type=int, default=0, help="what failures are drawn from (default 0)")


@pytest.fixture
def inject_failures(request: pytest.FixtureRequest) -> Iterator[InjectFailures]:
    """Begin to inject a script of failures; at the end of the test, one that has not happened is an error."""
    with ExitStack() as begun:

        def begin(script: str, *, progress: Callable[[], float] | None = None,
                  targets: Targets | None = None) -> Injector:  # fmt: skip
            seed: int = request.config.getoption("--inject-seed")
            return begun.enter_context(inject(script, progress=progress, targets=targets, seed=seed))

        yield begin
