"""Scripts with a run id, in processes of their own: killed anywhere and started again, they go on where they were."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray as plain_ray

import lineage_stash as ray
from lineage_stash.cli.holdings import Holdings
from lineage_stash.cli.records import read, read_recoveries
from lineage_stash.cli.runs import RunState, describe
from lineage_stash.core.ids import PeerId
from lineage_stash.on_ray.api import current
from lineage_stash.on_ray.control_plane import ControlPlane
from lineage_stash.on_ray.resumable import ResumableDriver
from lineage_stash.testing import inject

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/examples/resume.py"
WITHIN_S = 60.0

PROGRAM = """
import os, random, sys, time, uuid
import lineage_stash as ray

def say(*words):
    print(*words, flush=True)

@ray.remote
class Ledger:
    def __init__(self):
        self.entries = []
    def add(self, number, pause_s=0.0):
        time.sleep(pause_s)
        self.entries.append(number)
        return sum(self.entries)
    def read(self):
        return self.entries
    def pid(self):
        return ray.observe(os.getpid)

@ray.remote
def add_later(ledger, number):
    return ray.get(ledger.add.remote(number))

random.seed(7)
ray.init(address=sys.argv[1], run_id=sys.argv[2], log_to_driver=False)
ledger = Ledger.remote()
say("pid", ray.get(ledger.pid.remote()))
say("drawn", time.time(), random.random(), uuid.uuid4())
for number in range(20):
    say("added", number, ray.get(ledger.add.remote(number)))
say("calling")
say("called", ray.get(ledger.add.remote(20, 1.0)))
refs = [ledger.add.remote(21), ledger.add.remote(22, 1.0)]
say("waiting")
ready, rest = ray.wait(refs, num_returns=2, timeout=0.3)
say("waited", len(ready), len(rest), ray.get(ledger.add.remote(23)))
tasks = [add_later.remote(ledger, number) for number in (24, 25)]
say("tasks")
say("done", len(ray.get(tasks)))
say("end", ray.get(ledger.read.remote()))
"""

HOLDING = """
import os, sys, threading
import lineage_stash as ray

os.environ["LINEAGE_STASH_RUN_ID"] = sys.argv[2]

@ray.remote
class Counter:
    def __init__(self):
        self.value = 0
    def add(self):
        self.value += 1
        return self.value

ray.init(address=sys.argv[1], log_to_driver=False)
counter = Counter.remote()
refused = []

def call():
    try:
        counter.add.remote()
    except RuntimeError as error:
        refused.append(str(error))

thread = threading.Thread(target=call)
thread.start()
thread.join()
print("holding", ray.get(counter.add.remote()), *refused, flush=True)
if sys.stdin.readline() == "fail\\n":
    raise ValueError("failed")
print("end", ray.get(counter.add.remote()))
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster that outlives the scripts, and a driver of our own in it."""
    plain_ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    ray.init()
    yield plain_ray.get_runtime_context().gcs_address
    ray.shutdown()
    plain_ray.shutdown()


class Script:
    """A program under a run id."""

    def __init__(self, folder: Path, address: str, run_id: str, program: str) -> None:
        self.path = folder / "program.py"
        self.path.write_text(program)
        self.arguments = [sys.executable, str(self.path), address, run_id]

    def start(self) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        return subprocess.Popen(self.arguments, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def run_until(self, word: str) -> list[str]:
        """Kill it when it says something that begins with a word; what it had said."""
        said: list[str] = []
        with self.start() as script:
            assert script.stdout is not None
            for line in script.stdout:
                said.append(line)
                if line.startswith(word):
                    script.send_signal(signal.SIGKILL)
                    break
            assert script.wait(WITHIN_S) == -signal.SIGKILL, script.stderr and script.stderr.read()
        return said

    def run(self, told: str = "") -> tuple[int, list[str], str]:
        """Run it to its end; its exit code, and what it said."""
        with self.start() as script:
            out, err = script.communicate(told, WITHIN_S)
            return script.returncode, out.splitlines(keepends=True), err


def test_script_that_is_killed_anywhere_goes_on_and_every_call_is_applied_once(tmp_path: Path, address: str) -> None:
    script = Script(tmp_path, address, "killed", PROGRAM)
    before: list[str] = []
    for word in ("added 7", "calling", "waiting", "tasks"):
        said = script.run_until(word)
        assert said[: len(before)] == before, "what was said before is said again"
        before = said
        if word == "calling":
            kill_while_its_driver_is_away(int(said[0].split()[1]))
    code, said, err = script.run()
    assert code == 0, err
    assert said[: len(before)] == before
    entries = [int(number) for number in re.findall(r"\d+", said[-1])]
    assert entries[:24] == list(range(24))
    assert sorted(entries[24:]) == [24, 25]
    code, said, err = script.run()
    assert (code, said) == (1, [])
    assert "RunFinishedError: the run 'killed' has finished" in err


def kill_while_its_driver_is_away(pid: int) -> None:
    """An actor of a script that is not there recovers by itself."""
    plane = current().process.plane
    known = len(read_recoveries(plane))
    os.kill(pid, signal.SIGKILL)
    inject.wait_until(lambda: len(read_recoveries(plane)) > known, "the recovery of the actor", WITHIN_S)


@pytest.mark.slow
def test_script_that_has_changed_is_stopped_before_it_does_anything(tmp_path: Path, address: str) -> None:
    script = Script(tmp_path, address, "changed", PROGRAM)
    script.run_until("added 7")
    script.path.write_text(PROGRAM.replace("ledger.add.remote(number)))", "ledger.add.remote(number + number // 5)))"))
    code, said, err = script.run()
    assert code == 1
    assert said[-1].startswith("added 4")
    assert "NondeterminismError" in err
    assert "it came to 'call Ledger-1.add(6)', where the log has 'call Ledger-1.add(5)'" in err
    script.path.write_text(PROGRAM)
    code, said, err = script.run()
    assert code == 0, err
    assert len(re.findall(r"\d+", said[-1])) == 26


@pytest.mark.slow
def test_run_that_is_in_use_is_refused_and_one_that_failed_or_was_terminated_can_be_resumed(
    tmp_path: Path, address: str
) -> None:
    script = Script(tmp_path, address, "held", HOLDING)
    with script.start() as holding:
        assert holding.stdout is not None
        line = holding.stdout.readline()
        assert line.startswith("holding 1 a script with a run id makes its calls in one thread")
        code, said, err = script.run()
        assert (code, said) == (1, [])
        assert "RunInUseError: the run 'held' is in use" in err
        _, err = holding.communicate("fail\n", WITHIN_S)
        assert "ValueError: failed" in err
        assert "the run 'held' is not finished" in err
    with script.start() as holding:
        assert holding.stdout is not None
        assert holding.stdout.readline() == line
        holding.terminate()
        _, err = holding.communicate("", WITHIN_S)
        assert "the run 'held' is not finished" in err
    code, said, err = script.run("go on\n")
    assert code == 0, err
    assert said == [line, "end 2\n"]


def test_page_about_resuming_shows_the_example_that_is_run(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/resume.md").read_text(encoding="utf-8"), re.DOTALL)
    assert shown == EXAMPLE.read_text(encoding="utf-8")
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setenv("CRASH", "1")
    said = []
    for code in (-signal.SIGKILL, 0):
        ran = subprocess.run(
            [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
        assert ran.returncode == code, ran.stderr
        said.append([line for line in ran.stdout.splitlines() if line[0].isdecimal() or line.startswith("began")])
        monkeypatch.delenv("CRASH", raising=False)
    assert said[0][-1] == "4 10"
    assert said[1][: len(said[0])] == said[0]
    assert said[1][-1] == "9 45"


@pytest.mark.slow
def test_run_that_is_abandoned_is_finished_and_its_actors_end(tmp_path: Path, address: str) -> None:
    script = Script(tmp_path, address, "abandoned", HOLDING)
    script.run_until("holding")
    plane = current().process.plane
    inject.wait_until(
        lambda: state_of_run(plane, "driver-abandoned") is RunState.AWAY, "the end of the script", WITHIN_S
    )
    ResumableDriver.abandon("abandoned")
    inject.wait_until(
        lambda: plane.get("retired/driver-abandoned/Counter-1") is not None, "the end of its actor", WITHIN_S
    )
    assert state_of_run(plane, "driver-abandoned") is RunState.ENDED
    assert "RunFinishedError" in script.run()[2]


def state_of_run(plane: ControlPlane, run: str) -> RunState:
    return describe(PeerId(run), read(plane), Holdings({}, {})).state


def test_run_id_that_cannot_be_one_is_refused(tmp_path: Path, address: str) -> None:
    code, _, err = Script(tmp_path, address, "a/b", HOLDING).run()
    assert code == 1
    assert "run_id='a/b': a run id is up to 100 letters" in err
