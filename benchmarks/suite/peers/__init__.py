"""The systems that a user would pick instead, each in an environment of its own: `make peers` makes them.

A competitor is a script, `NAME_stream.py`, that counts the stream of `stream.py` by its own means and writes down when
each message was done. It runs in a process group of its own, which is gone when `run` returns or raises. What it
measured is returned as it wrote it; whether the counts are true is for the caller to compare, by `stream.Stream.truth`.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lineage_stash.java import java_home

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
ENVIRONMENTS = ROOT / "benchmarks" / ".peers"

NAMES = ("pyflink", "bytewax", "dbos", "spark")
WITH_EFFECTS = ("pyflink", "dbos")
"""Those that can show when an output of theirs that is never repeated may be seen."""

OURS = ("spark",)
"""Those that run in the environment of this project."""

START_AND_STOP_S = 120.0
"""What a run may take besides its stream."""

LAST_LINES = 5


class Absent(Exception):
    """A competitor is not installed."""


def interpreter(name: str) -> Path:
    """The Python that a competitor runs on."""
    if name not in NAMES:
        raise ValueError(f"no competitor is called {name}; there are {', '.join(NAMES)}")
    return Path(sys.executable) if name in OURS else ENVIRONMENTS / name / "bin" / "python"


def is_there(name: str) -> bool:
    """Whether a competitor can be run; an environment counts when it is complete."""
    return interpreter(name).exists() and (name in OURS or (ENVIRONMENTS / name / ".stamp").exists())


def run(name: str, parameters: dict[str, Any], effects: bool = False, timeout_s: float | None = None) -> dict[str, Any]:
    """Run a competitor with the fields of `stream.Stream` as parameters; what it has measured."""
    if not is_there(name):
        raise Absent(f"{name} is not installed: make peers")
    if effects and name not in WITH_EFFECTS:
        raise ValueError(f"{name} has no output that is exactly once; those that have: {', '.join(WITH_EFFECTS)}")
    stream_s = float(parameters.get("seconds", 10.0)) + float(parameters.get("warm_up_s", 0.0))
    with tempfile.TemporaryDirectory(prefix="peer-") as folder:
        out = Path(folder) / "result.json"
        command = [str(interpreter(name)), str(FOLDER / f"{name}_stream.py"), "--out", str(out)]
        command += [f"--{key.replace('_', '-')}={value}" for key, value in parameters.items()]
        _finish(name, command + ["--effects"] * effects, timeout_s or 2 * stream_s + START_AND_STOP_S, folder)
        return json.loads(out.read_text(encoding="utf-8"))


def _finish(name: str, command: list[str], timeout_s: float, folder: str) -> None:
    """Run a command to its end, with its temporary files in a folder that the caller removes."""
    environment = os.environ | {"TMPDIR": folder, "JAVA_HOME": str(java_home())}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_group(process)
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:]
    if code != 0:
        how = f"took more than {timeout_s:g} s" if code is None else f"ended with {code}"
        raise RuntimeError("\n".join([f"{name} {how}", *said]))


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End whatever the process has started, and itself; it leads its group, so the group has its number."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # all are gone
    process.wait()
