"""Clocks: a replay sees what the first run saw, other threads see the real one, and nothing else about them changes."""

import copy
import datetime
import email.utils
import os
import pickle
import subprocess
import sys
import threading
import time
import timeit
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from lineage_stash.capture.here import paused, recording
from tests.capture.replaying import Strayed, Tape, is_captured, record, repeat

EASTERN = datetime.timezone(datetime.timedelta(hours=5, minutes=30))

CLOCKS: dict[str, Callable[[], Any]] = {
    "time.time": lambda: time.time(),
    "time.time_ns": lambda: time.time_ns(),
    "time.monotonic": lambda: time.monotonic(),
    "time.monotonic_ns": lambda: time.monotonic_ns(),
    "time.perf_counter": lambda: time.perf_counter(),
    "time.perf_counter_ns": lambda: time.perf_counter_ns(),
    "time.process_time": lambda: time.process_time(),
    "time.process_time_ns": lambda: time.process_time_ns(),
    "time.thread_time": lambda: time.thread_time(),
    "time.thread_time_ns": lambda: time.thread_time_ns(),
    "time.clock_gettime": lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    "time.clock_gettime_ns": lambda: time.clock_gettime_ns(time.CLOCK_REALTIME),
    "os.times": lambda: os.times(),
    "timeit.default_timer": lambda: timeit.default_timer(),
    "email.utils": lambda: (email.utils.formatdate(), email.utils.localtime()),
}

DATES: dict[str, Callable[[], Any]] = {
    "datetime.datetime.now": lambda: datetime.datetime.now(),
    "datetime.datetime.now(tz)": lambda: datetime.datetime.now(EASTERN),
    "datetime.datetime.utcnow": lambda: datetime.datetime.utcnow(),
    "datetime.datetime.today": lambda: datetime.datetime.today(),
    "datetime.date.today": lambda: datetime.date.today(),
}


@pytest.mark.parametrize("name", CLOCKS)
def test_clock_is_captured(name: str) -> None:
    assert is_captured(CLOCKS[name])


def test_struct_time_of_now_is_captured_with_its_zone() -> None:
    for function in (time.localtime, time.gmtime):
        first, tape = record(function)
        again = repeat(function, tape)
        assert (again, again.tm_zone, again.tm_gmtoff) == (first, first.tm_zone, first.tm_gmtoff)
        assert abs(time.mktime(time.localtime()) - time.time()) < 60


def test_text_of_now_is_captured_and_that_of_a_given_time_is_not_touched() -> None:
    past = time.gmtime(0)
    assert is_captured(lambda: (time.ctime(), time.asctime(), time.strftime("%H:%M:%S %Z")))
    for function in (
        lambda: time.ctime(0), lambda: time.asctime(past), lambda: time.strftime("%c", past), lambda: time.gmtime(5),
    ):  # fmt: skip
        told, tape = record(function)
        assert tape.log == []
        assert told == function()


@pytest.mark.parametrize("name", DATES)
def test_date_is_captured(name: str) -> None:
    assert is_captured(DATES[name])


def test_dates_are_what_they_were_without_capture() -> None:
    now, _ = record(lambda: datetime.datetime.now())
    assert type(now) is datetime.datetime
    assert abs(now - datetime.datetime.now()) < datetime.timedelta(minutes=1)
    aware, _ = record(lambda: datetime.datetime.now(EASTERN))
    assert aware.tzinfo is EASTERN
    assert abs(aware - datetime.datetime.now(datetime.UTC)) < datetime.timedelta(minutes=1)
    assert type(record(datetime.date.today)[0]) is datetime.date
    assert isinstance(now, datetime.date)
    with pytest.raises(TypeError):
        record(lambda: datetime.datetime.now("UTC"))  # type: ignore[arg-type]


class Stamp(datetime.datetime):
    """A subclass of a user."""


class Day(datetime.date):
    """Another."""


def test_subclasses_of_dates_are_captured_and_keep_their_type() -> None:
    for function in (Stamp.now, Stamp.utcnow, Stamp.today, Day.today, lambda: Stamp.now(EASTERN)):
        first, tape = record(function)
        assert type(first) in (Stamp, Day)
        assert repeat(function, tape) == first


def test_dates_in_a_fold_come_back_with_it() -> None:
    twice = datetime.datetime(2026, 10, 25, 2, 30, fold=1)
    tape = Tape()
    from lineage_stash.capture import dates

    class Clock:
        def __get__(self, _: object, __: type) -> Callable[[], datetime.datetime]:
            return lambda: twice

    with recording(tape):
        assert dates._read(tape, "datetime.now", Clock()).fold == 1
        assert dates._as(Stamp, twice, None).fold == 1


def test_pandas_reads_the_clock_of_datetime() -> None:
    assert is_captured(lambda: (pd.Timestamp.now(), pd.Timestamp("now"), pd.Timestamp.today(), pd.Timestamp.now("UTC")))


def test_results_are_pickled_without_a_trace_of_this_package() -> None:
    results, _ = record(
        lambda: (datetime.datetime.now(), datetime.date.today(), time.localtime(), time.time, os.urandom)
    )
    program = "import pickle, sys; pickle.load(sys.stdin.buffer); sys.exit('lineage_stash' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], input=pickle.dumps(results), check=True, timeout=60)
    assert copy.deepcopy(time.time) is time.time


def test_function_held_by_a_class_does_not_become_a_method() -> None:
    class Holder:
        now = time.time

    assert is_captured(lambda: Holder().now())


def test_other_threads_see_the_real_clock() -> None:
    seen: list[float] = []

    def look() -> None:
        thread = threading.Thread(target=lambda: seen.append(time.time()))
        thread.start()
        thread.join()

    _, tape = record(look)
    assert tape.log == []
    assert len(seen) == 1


def test_paused_code_sees_the_real_clock() -> None:
    def look() -> float:
        with paused():
            return time.monotonic()

    assert record(look)[1].log == []


def test_standard_library_reads_for_itself_without_an_entry(caplog: pytest.LogCaptureFixture) -> None:
    import asyncio
    import logging
    import queue
    import tempfile

    def use() -> None:
        logging.getLogger("user").warning("a record has a time of its own")
        asyncio.run(asyncio.sleep(0.001))
        with pytest.raises(queue.Empty):
            queue.Queue[int]().get(timeout=0.001)
        tempfile.NamedTemporaryFile().close()

    assert record(use)[1].log == []
    assert "of its own" in caplog.text


def test_monotonic_clock_never_goes_back_in_another_life() -> None:
    tape = Tape()
    with recording(tape):
        before = time.monotonic()
    state = tape.belongings.pack()
    assert state is not None
    later = Tape()
    later.belongings.restore((None, None, {"time.monotonic": state[2]["time.monotonic"] + 10**15}))
    with recording(later):
        first, second = time.monotonic(), time.monotonic_ns()
    assert before + 10**6 <= first <= second / 1e9 < before + 10**6 + 60


def test_read_of_another_kind_than_the_log_has_strays() -> None:
    _, tape = record(time.time)
    with pytest.raises(Strayed, match=r"a read of os.urandom where the log has time.time"):
        repeat(lambda: os.urandom(4), tape)


def test_failed_read_fails_again() -> None:
    def fail() -> str:
        with pytest.raises(OSError, match="Invalid") as raised:
            time.clock_gettime(12345)
        return str(raised.value)

    assert is_captured(fail)


def test_forked_child_records_nothing() -> None:
    def fork() -> int:
        child = os.fork()
        if child == 0:
            time.time()
            os._exit(0 if not tape.log else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    tape = Tape()
    with recording(tape):
        assert fork() == 0


def test_process_id_is_not_captured() -> None:
    pid, tape = record(os.getpid)
    assert (pid, tape.log) == (os.getpid(), [])
