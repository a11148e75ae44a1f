"""What the table calls refused or not covered: refused is refused, and what is not covered is as the table says."""

import datetime
import gc
import locale
import os
import random
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from lineage_stash.on_ray.api import remote
from lineage_stash.on_ray.program import ActorProgram
from tests.capture.replaying import record

at_module_level = random.Random()


def test_async_methods_functions_and_threaded_actors_are_refused() -> None:
    class Async:
        async def method(self) -> None: ...

    async def coroutine() -> None: ...

    class Plain: ...

    with pytest.raises(TypeError, match="is async"):
        remote(Async)
    with pytest.raises(ValueError, match="async def"):
        remote(coroutine)
    with pytest.raises(ValueError, match="max_concurrency"):
        remote(max_concurrency=2)(Plain)


def test_identity_of_process_machine_and_files_is_not_captured() -> None:
    def read() -> Any:
        return (
            os.getpid(),
            threading.get_ident(),
            os.uname().nodename,
            os.getcwd(),
            os.environ.get("HOME"),
            os.stat("/"),
        )

    said, tape = record(read)
    assert tape.log == []
    assert said == read()


def test_generator_at_module_level_is_not_captured() -> None:
    assert record(at_module_level.random)[1].log == []
    assert record(at_module_level.random)[1].belongings.pack() is None


def test_finalizer_reads_wherever_it_happens_to_run() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            time.time()

    def leave_behind() -> None:
        Cycle()

    gc.collect()
    gc.disable()
    try:
        assert record(leave_behind)[1].log == []
        assert record(gc.collect)[1].kinds == ["time.time"]
    finally:
        gc.enable()


def test_clocks_and_draws_in_c_are_not_captured() -> None:
    seen, tape = record(lambda: np.datetime64("now"))
    assert tape.log == []
    assert abs(seen.astype(datetime.datetime) - datetime.datetime.utcnow()) < datetime.timedelta(minutes=1)


def test_other_processes_read_for_themselves() -> None:
    program = [sys.executable, "-c", "import time; print(time.time())"]
    assert record(lambda: subprocess.run(program, check=True, timeout=60, capture_output=True))[1].log == []


def test_zone_and_locale_of_a_given_time_are_those_of_the_machine() -> None:
    said, tape = record(lambda: (time.localtime(0), datetime.datetime.fromtimestamp(0), locale.getlocale()))
    assert tape.log == []
    assert said == (time.localtime(0), datetime.datetime.fromtimestamp(0), locale.getlocale())


class Restored:
    def __init__(self) -> None:
        self.saved_at = self.restored_at = 0.0

    def __ray_save__(self) -> float:
        return time.time()

    def __ray_restore__(self, saved_at: float) -> None:
        self.saved_at, self.restored_at = saved_at, time.time()


def test_hooks_of_checkpoints_see_the_real_clock() -> None:
    runtime: Any = None  # nothing of it is needed without refs
    program = ActorProgram(Restored, runtime)
    program.instance = Restored()
    checkpoint = program._pack()
    restored = ActorProgram(Restored, runtime)
    restored.restore(checkpoint)
    assert 0 < restored.instance.saved_at <= restored.instance.restored_at <= time.time()
