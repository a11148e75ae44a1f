"""Records: what one run of one cell has measured, as JSON; all that the report knows.

The types below are the schema: `msgspec.json.schema(Record)` prints it, and `SCHEMA` grows by one with every change
that an older reader would misread. Times are in the unit of their name; seconds count from the moment at which the
first record or call of the workload was due.
"""

import time
from pathlib import Path
from typing import Any, Literal

import msgspec

SCHEMA = 1

Group = Literal["all", "affected", "others"]
"""Of whom a latency is: of every key, of those on what failed (and downstream of it), or of the rest."""

Semantics = Literal["precise", "repeating", "convergent", "divergent", "gap", "detected", "unknown"]
"""What a run delivered. precise: as if nothing had failed. rollback recovery, in three kinds: repeating (the same
outputs, some twice), convergent (some outputs differ, then it is as without failure), divergent (it never is again).
gap: something is missing. detected: it stopped and said why. unknown: nobody could tell."""

Status = Literal["ok", "wrong", "failed", "skipped"]
"""ok: ran, and delivered what was promised. wrong: ran, and did not. failed: did not run to its end. skipped: was not
run, and `why` says what it needs."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """What is run: the same cell gives the same name, and a name is measured once per report."""

    workload: str
    system: str
    variant: str = ""
    """Of the system: `max_failures=2`, `level=remote`; empty for its defaults."""
    parameters: dict[str, Any] = {}
    """Of the workload: rate, seconds, sizes, store delay."""
    failure: str = ""
    """The script of failures, in the language of `lineage_stash.testing.failures`; empty for none."""
    seed: int = 0


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Where it ran."""

    commit: str
    is_changed: bool
    """Whether the checkout had changes that are in no commit."""
    machine: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    packages: dict[str, str]
    is_compiled: bool
    load_before: float


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of latencies, from the scheduled time of each record to its reply at whoever sent it."""

    count: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    quantiles_ms: list[float] = []
    """At 0, 0.5, 1, … 99.5 and 100 %, for drawing."""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One slice of the timeline of one group, by the scheduled times that fall into it."""

    second: float
    group: Group
    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    done: int
    """How many were answered in the slice, whenever they were due: throughput over time."""


class Injected(msgspec.Struct, frozen=True, kw_only=True):
    """A failure that has really been caused."""

    second: float
    what: str
    target: str
    pids: list[int] = []


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """One recovery, by phase; a phase that a system does not have is 0."""

    second: float
    peer: str
    detect_ms: float = 0.0
    gather_ms: float = 0.0
    settle_ms: float = 0.0
    restore_ms: float = 0.0
    replay_ms: float = 0.0
    resume_ms: float = 0.0
    replayed: int = 0


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """What was written down, by all processes together."""

    calls: int
    forwarded_entries: int
    forwarded_bytes: int
    flushed_entries: int
    flushed_bytes: int
    seconds: float


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What a process kept in memory at one time."""

    second: float
    process: str
    resident_bytes: int


class Record(msgspec.Struct, kw_only=True):
    """One run of one cell."""

    cell: Cell
    environment: Environment
    schema: int = SCHEMA
    started_at: str = ""
    seconds: float = 0.0
    status: Status = "failed"
    why: str = ""
    """Of a status that is not ok, in one line."""
    promised: Semantics = "unknown"
    delivered: Semantics = "unknown"
    guarantee: str = ""
    """What the system guarantees of state and of output, in its own docs' sense, in one line."""
    latency: dict[Group, Latency] = {}
    """Over the whole run without its warm-up."""
    before: dict[Group, Latency] = {}
    """Until the first failure; empty without one."""
    after: dict[Group, Latency] = {}
    """From the first failure on."""
    pause_ms: dict[Group, float] = {}
    """The longest time around the first failure in which the group got no reply at all, less the longest before it."""
    throughput_per_s: float = 0.0
    timeline: list[Moment] = []
    injected: list[Injected] = []
    recoveries: list[Recovery] = []
    lineage: Lineage | None = None
    memory: list[Memory] = []
    figures: dict[str, float] = {}
    """What only this workload has, with the unit last in each name."""


def name_of(cell: Cell) -> str:
    """A name for files and flags: readable, and different for different cells."""
    parts = [cell.workload, cell.system, cell.variant]
    parts += [f"{name}={value}" for name, value in sorted(cell.parameters.items())]
    parts += [cell.failure, f"seed={cell.seed}" if cell.seed else ""]
    readable = "--".join(part for part in parts if part)
    return "".join(letter if letter.isalnum() or letter in "-=._" else "_" for letter in readable)


def write(record: Record, folder: Path) -> Path:
    """Put a record into a folder, whole or not at all; where."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name_of(record.cell)}.json"
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1))
    partial.replace(path)
    return path


def read(path: Path) -> Record:
    """A record from its file."""
    record = msgspec.json.decode(path.read_bytes(), type=Record)
    if record.schema != SCHEMA:
        raise ValueError(f"{path} has schema {record.schema}, and this reads {SCHEMA}: measure it again")
    return record


def read_all(folder: Path) -> list[Record]:
    """All records of a folder, in the order of their names."""
    return [read(path) for path in sorted(folder.glob("*.json"))]


def now() -> str:
    """The present time, for `started_at`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
