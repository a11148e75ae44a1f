"""Processes of this machine, as the kernel sees them: whether they run, what descends from them, and signals to them.

A signal that was sent has not arrived: `kill` and `stop` wait until the kernel says that it has.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

UP_WITHIN_S = 60.0

TAKES_EFFECT_WITHIN_S = 60.0
"""A process that waits for its disk is not killed or stopped before it has the answer."""

STOPPED = ("T", "t")
ENDED = ("Z", "X")
"""Dead, and nobody has waited for it yet."""


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = UP_WITHIN_S) -> None:
    """Wait on a condition, and say what it was if it does not come true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(0.01)


def status_of(pid: int) -> list[str] | None:
    """What the kernel says of a process, from its state on; None if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_running(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has waited for has."""
    status = status_of(pid)
    return status is not None and status[0] not in ENDED


def is_stopped(pid: int) -> bool:
    """Whether a process stands still until it is continued."""
    status = status_of(pid)
    return status is not None and status[0] in STOPPED


def parent_of(pid: int) -> int | None:
    """The parent of a process, unless it has ended."""
    status = status_of(pid)
    return None if status is None else int(status[1])


def command_of(pid: int) -> list[bytes]:
    """The command line of a process; one empty word if it has none or has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1] or [b""]
    except (FileNotFoundError, ProcessLookupError):
        return [b""]


def environment_of(pid: int) -> dict[bytes, bytes]:
    """The environment that a process was started with."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().rstrip(b"\0").split(b"\0")
    return dict(variable.split(b"=", 1) for variable in variables if b"=" in variable)


def all_processes() -> list[int]:
    """All processes of this machine."""
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdecimal()]


def with_descendants(roots: Sequence[int]) -> list[int]:
    """Processes, and all that descend from them, as far as they run."""
    children: dict[int, list[int]] = {}
    for pid in all_processes():
        if (parent := parent_of(pid)) is not None:
            children.setdefault(parent, []).append(pid)
    found = list(roots)
    for pid in found:  # grows meanwhile
        found.extend(children.get(pid, ()))
    return [pid for pid in found if is_running(pid)]


def signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to processes, as far as they have not ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def kill(pids: Sequence[int]) -> None:
    """`kill -9` processes at once, and wait until all are gone."""
    signal_all(pids, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, pids)), f"the end of {_listed(pids)}", TAKES_EFFECT_WITHIN_S)


def stop(pids: Sequence[int]) -> None:
    """Have processes stand still; nothing of them answers, and no connection ends."""
    signal_all(pids, signal.SIGSTOP)
    wait_until(lambda: all(is_stopped(pid) or not is_running(pid) for pid in pids), f"the halt of {_listed(pids)}",
               TAKES_EFFECT_WITHIN_S)  # fmt: skip


def resume(pids: Sequence[int]) -> None:
    """Have processes that stand still go on; those that were killed meanwhile do not."""
    signal_all(pids, signal.SIGCONT)
    wait_until(lambda: not any(map(is_stopped, pids)), f"that {_listed(pids)} goes on", TAKES_EFFECT_WITHIN_S)


def _listed(pids: Sequence[int]) -> str:
    return f"process {' and '.join(map(str, pids))}"
