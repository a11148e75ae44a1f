"""Who sees a line that tells of an event, and what of metrics that fail."""

import io
import logging
import sys
import threading
from collections.abc import Iterator, Mapping

import pytest

from lineage_stash.on_ray.metrics import VARIABLE, Publisher
from lineage_stash.on_ray.telling import log, tell, tell_crash, warn


@pytest.fixture
def handlers() -> Iterator[list[logging.Handler]]:
    """Handlers that are taken from all loggers afterwards."""
    added: list[logging.Handler] = []
    yield added
    for handler in added:
        logging.getLogger().removeHandler(handler)
        log.removeHandler(handler)


def test_line_is_on_stderr_after_the_name_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    tell("epoch", "store: 100 % there", epoch=2, name="whatever", text="too")
    assert capsys.readouterr().err == "lineage_stash: store: 100 % there\n"


def test_line_is_written_once_where_the_root_logger_writes_to_the_terminal(
    capsys: pytest.CaptureFixture[str], handlers: list[logging.Handler]
) -> None:
    handlers.append(logging.StreamHandler(sys.stderr))
    handlers[0].setFormatter(logging.Formatter("%(levelname)s %(event)s: %(message)s"))
    logging.getLogger().addHandler(handlers[0])
    warn("epoch", "begins")
    assert capsys.readouterr().err == "WARNING epoch: begins\n"


@pytest.mark.parametrize("name", ["lineage_stash", None])
def test_line_reaches_whoever_collects(
    name: str | None, capsys: pytest.CaptureFixture[str], handlers: list[logging.Handler]
) -> None:
    collected = io.StringIO()
    handlers.append(logging.StreamHandler(collected))
    logging.getLogger(name).addHandler(handlers[0])
    warn("epoch", "begins")
    assert collected.getvalue() == "begins\n"
    assert capsys.readouterr().err == ("" if name else "lineage_stash: begins\n")


def test_crash_is_told_with_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError("unforeseen")
    except ValueError:
        tell_crash("the coordinator")
    told = capsys.readouterr().err
    assert told.startswith("lineage_stash: the coordinator ends with an error")
    assert told.endswith("ValueError: unforeseen\n")


class Failing:
    """A source whose metrics nobody knows, or that fails itself."""

    def __init__(self, readings: Mapping[str, float] | None) -> None:
        self.tags: dict[str, str] = {}
        self.lock = threading.Lock()
        self._readings = readings
        self.asked = threading.Event()

    def read(self) -> Mapping[str, float]:
        self.asked.set()
        if self._readings is None:
            raise ZeroDivisionError("on purpose")
        return self._readings


@pytest.mark.parametrize("readings", [None, {"stash_nonsense": 1.0}])
def test_metrics_that_fail_are_told_of_once_and_break_nothing(
    readings: dict[str, float] | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "0.01")
    publisher, source = Publisher(), Failing(readings)
    publisher.add(source)
    assert source.asked.wait(10)
    publisher.remove(source)
    publisher.add(source)
    publisher.remove(source)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lineage_stash: metrics: there are no more of this process")


def test_metrics_that_are_off_ask_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    publisher, source = Publisher(), Failing(None)
    publisher.add(source)
    publisher.remove(source)
    assert not source.asked.is_set()
