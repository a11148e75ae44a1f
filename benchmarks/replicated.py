"""The replicated store under load: three replicas on three local nodes, each with a disk of its own as far as it knows.

Commits are measured through the client that every process uses, packing included. Lag and latencies are those of a real
actor called at a fixed rate, from the *scheduled* time of each call, so that whatever stalls is counted.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import lineage_stash as stash
from lineage_stash.codec import pack_span
from lineage_stash.core.batch import Range
from lineage_stash.core.entry import Entry, Ran
from lineage_stash.core.frontier import START
from lineage_stash.core.history import Beginning, Decision, History
from lineage_stash.core.ids import FIRST_INCARNATION, Incarnation, Index, Member, PeerId, Round, Seqno
from lineage_stash.core.policy import Policy
from lineage_stash.on_ray.api import current
from lineage_stash.on_ray.replica_sets import residences
from lineage_stash.restoring import restore
from lineage_stash.store.contract import Append
from lineage_stash.testing import inject
from lineage_stash.testing.inject_nodes import local_nodes

CLOCK_S = 1 / os.sysconf("SC_CLK_TCK")
"""How exactly processor time is known."""

NODES = 3
LOGS = 4
ENTRIES_PER_FLUSH = 1000
CALLER = PeerId("caller")
PATIENCE_S = 300.0


class Sizes(NamedTuple):
    """How much of everything; small in the test of this file."""

    entries: int = 10_000_000
    early_entries: int = 10_000
    window_entries: int = 200_000
    read_back_entries: int = 1_000_000
    rate: int = 20_000
    load_s: float = 5.0
    gentle_rate: int = 2_000
    state_bytes: int = 1 << 30
    long_calls: int = 10_000_000


class Figure(NamedTuple):
    """One row: what was measured, the figure, the bar, and whether it is reached."""

    what: str
    figure: str
    bar: str
    reached: bool


@contextmanager
def three_nodes() -> Iterator[None]:
    """A cluster of three nodes on this machine, and a store on all of them."""
    with local_nodes(NODES, include_dashboard=False) as nodes:
        stash.init(address=nodes.address, log_to_driver=False)
        try:
            yield
        finally:
            stash.shutdown()


# commits


class Writer:
    """Appends to one log, one flush under way at a time, as a peer does."""

    def __init__(self, name: str) -> None:
        self.peer = PeerId(name)
        self.upper = START
        self.idle = True
        self.committed = START

    def flush(self, count: int) -> None:
        """Send the next entries."""
        first = int(self.upper)
        entries: list[Entry] = [Ran(CALLER, Seqno(first + number), None, first + number, ()) for number in range(count)]
        piece = Range(self.peer, FIRST_INCARNATION, self.upper, tuple(entries))
        self.upper = Index(first + count)
        self.idle = False
        segments = ((self.peer, ((FIRST_INCARNATION, START),)),)
        store = current().process.store
        assert store is not None
        store.request(Append((pack_span(piece),), segments, (), (), False), self._on_committed)

    def _on_committed(self, _: Any) -> None:
        self.idle = True
        self.committed = self.upper


def commit(writers: list[Writer], total: int) -> float:
    """Append so many entries to each log, and wait until a majority of disks has them; the seconds it took."""
    process = current().process
    goals = {writer.peer: writer.upper + total // len(writers) for writer in writers}
    started = time.monotonic()
    while any(writer.committed < goals[writer.peer] for writer in writers):
        with process.lock:
            for writer in writers:
                if writer.idle and writer.upper < goals[writer.peer]:
                    writer.flush(min(ENTRIES_PER_FLUSH, goals[writer.peer] - writer.upper))
        process.wait()
    return time.monotonic() - started


def cost(writers: list[Writer], total: int) -> float:
    """The processor seconds that commits take, in this process and all replicas: what others do meanwhile is theirs."""
    pids = [os.getpid(), *inject.replica_pids().values()]
    before = sum(map(processor_s, pids))
    commit(writers, total)
    return sum(map(processor_s, pids)) - before


def processor_s(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * CLOCK_S


def measure_commits(sizes: Sizes) -> tuple[list[Figure], list[Writer]]:
    """Entries per second, and what the last ones cost beside the first."""
    writers = [Writer(f"bench-{number}") for number in range(LOGS)]
    commit(writers, sizes.early_entries)
    window = sizes.window_entries
    early = max(min(cost(writers, window) for _ in range(3)), CLOCK_S)
    began = time.monotonic()
    between = max(0, sizes.entries - sizes.early_entries - 6 * window)
    commit(writers, between)
    rate = between / (time.monotonic() - began) if between else 0.0
    late = min(cost(writers, window) for _ in range(3))
    return [
        Figure("entries committed per second, disks of 2 of 3", f"{rate:,.0f}", "200,000", rate >= 200_000),
        Figure(f"processor time per entry at {sizes.entries:,} against {sizes.early_entries:,}",
               f"{late / early:.2f} ×", "within 10 %", late / early <= 1.1),
    ], writers  # fmt: skip


def measure_reading(sizes: Sizes) -> Figure:
    """How long the log of a peer takes to be read back for its recovery."""
    writer = Writer("bench-read")
    commit([writer], sizes.read_back_entries)
    beginning = Beginning(writer.peer, Incarnation(1), writer.upper)
    history = History((Decision(Round(1), (beginning,), (), "bench"),))
    process = current().process
    found: list[Any] = []
    assert process.store is not None
    started = time.monotonic()
    with process.lock:
        restore(Member(writer.peer, process.node, True), Incarnation(1), history, Policy(), process.store, (),
                found.append)  # fmt: skip
    while not found:
        process.wait()
    took = time.monotonic() - started
    return Figure(f"reading back {sizes.read_back_entries:,} entries", f"{took:.2f} s", "1 s", took <= 1.0)


# a real actor at a fixed rate


class Counter:
    """The workload, which watches how far its own log is behind its commits."""

    def __init__(self) -> None:
        self.total = 0

    def add(self) -> int:
        self.total += 1
        return self.total

    def watch(self, seconds: float) -> None:
        """Sample the lag from another thread: how old the oldest uncommitted entry is."""
        self.lags: list[float] = []
        threading.Thread(target=self._watch, args=(time.monotonic() + seconds,), daemon=True).start()

    def _watch(self, ends_at: float) -> None:
        runtime = current()
        pause = threading.Event()
        pending: list[tuple[int, float]] = []
        while time.monotonic() < ends_at:
            pause.wait(0.001)
            now = time.monotonic()
            lineage = runtime.peer.lineage
            pending.append((lineage.upper, now))
            committed = lineage.committed.get(runtime.id, START)
            while pending and pending[0][0] <= committed:
                self.lags.append(now - pending.pop(0)[1])

    def lag_ms(self) -> list[float]:
        return [1e3 * lag for lag in self.lags]


def call_at(counter: Any, rate: int, seconds: float) -> list[float]:
    """Call at a fixed rate; the milliseconds from when each call was due to when its result was here."""
    process = current().process
    took: list[float] = []
    refs: list[tuple[float, Any]] = []
    started = time.monotonic()
    count = int(rate * seconds)
    sent = 0
    while sent < count or refs:
        now = time.monotonic() - started
        due = min(count, int(now * rate) + 1)
        while sent < due:
            refs.append((started + sent / rate, counter.add.remote()))
            sent += 1
        ready, _ = stash.wait([ref for _, ref in refs[:1]], timeout=0.001) if refs else ([], [])
        if ready:
            arrived = [pair for pair in refs if is_here(pair[1])]
            now = time.monotonic()
            took += [1e3 * (now - due_at) for due_at, _ in arrived]
            refs = refs[len(arrived) :]
        process.wait(0)
    return took


def is_here(ref: Any) -> bool:
    """Whether a result has come; one caller's results come in order."""
    callee, seqno, _ = ref.ref
    return bool(current().peer.counterparts[callee].outbox.answered > seqno)


def percentile(values: Sequence[float], share: float) -> float:
    """A percentile of some values."""
    return float(np.percentile(values, share))


def measure_lag(sizes: Sizes) -> Figure:
    """How long entries take from the log to a majority of disks."""
    counter = stash.remote(Counter).options(num_cpus=0, checkpoint_every=None).remote()
    stash.get(counter.add.remote(), timeout=PATIENCE_S)
    stash.get(counter.watch.remote(sizes.load_s))
    call_at(counter, sizes.rate, sizes.load_s)
    lags = stash.get(counter.lag_ms.remote(), timeout=PATIENCE_S)
    p99 = percentile(lags, 99)
    return Figure(f"flush lag p99 at {sizes.rate:,} calls/s (p50 {percentile(lags, 50):.0f} ms)", f"{p99:.0f} ms",
                  "50 ms", p99 <= 50)  # fmt: skip


def measure_losses(sizes: Sizes) -> list[Figure]:
    """What callers feel when one replica is killed, and when two are away."""
    counter = stash.remote(Counter).options(num_cpus=0).remote()
    stash.get(counter.add.remote(), timeout=PATIENCE_S)
    rate, seconds = sizes.gentle_rate, sizes.load_s
    quiet = call_at(counter, rate, seconds)
    os.kill(inject.replica_pids()[1], signal.SIGKILL)
    struck = call_at(counter, rate, seconds)
    inject.wait_until(inject.is_store_whole, "all replicas")
    first, second, _ = sorted(inject.replica_pids())
    inject.disturb_store(pause=True, replicas=(first, second))
    away = call_at(counter, rate, seconds)
    inject.disturb_store()
    total = stash.get(counter.add.remote(), timeout=PATIENCE_S)
    expected = 2 + 3 * int(rate * seconds)
    inject.kill_process(counter)
    after = stash.get(counter.add.remote(), timeout=PATIENCE_S)
    p99 = [percentile(values, 99) for values in (quiet, struck, away)]
    return [
        Figure("one replica killed: call p99 against before", f"{p99[1] / p99[0]:.2f} × ({p99[1]:.1f} ms)",
               "no call waits", max(struck) < 1000),
        Figure("two replicas away: call p99 against before", f"{p99[2] / p99[0]:.2f} × ({p99[2]:.1f} ms)",
               "calls go on", max(away) < 1000),
        Figure("calls counted after their return and a recovery", f"{after:,}", f"{expected + 1:,}",
               total == expected and after == expected + 1),
    ]  # fmt: skip


# a long run

CALLS_AT_ONCE = 20_000


def measure_long_run(sizes: Sizes) -> Figure:
    """How large the store gets while an actor is called for ever."""
    counter = stash.remote(Counter).options(num_cpus=0).remote()
    folders = [Path(home.folder) for home in residences(current().process.plane).values()]
    sizes_seen: list[int] = []
    started = time.monotonic()
    for _ in range(max(1, sizes.long_calls // CALLS_AT_ONCE)):
        stash.get([counter.add.remote() for _ in range(CALLS_AT_ONCE)], timeout=PATIENCE_S)
        sizes_seen.append(sum(map(bytes_in, folders)) // len(folders))
    rate = len(sizes_seen) * CALLS_AT_ONCE / (time.monotonic() - started)
    early, late = max(sizes_seen[: len(sizes_seen) // 2 + 1]), max(sizes_seen[len(sizes_seen) // 2 :])
    return Figure(f"largest store of a replica in {sizes.long_calls:,} calls ({rate:,.0f}/s)", f"{late / 1e6:.0f} MB",
                  f"no more than in the first half: {early / 1e6:.0f} MB", late <= 1.2 * early)  # fmt: skip


def bytes_in(folder: Path) -> int:
    """What a folder takes on the disk; files come and go meanwhile."""
    total = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total


# a large state


class Large:
    """A state of which little changes."""

    def __init__(self, size_bytes: int) -> None:
        self.state = np.random.default_rng(1).random(size_bytes // 8)

    def change(self) -> int:
        """Change 1 % in a row."""
        count = len(self.state) // 100
        self.state[count : 2 * count] += 1.0
        return count

    def sent_bytes(self) -> int:
        store = current().process.store
        assert store is not None
        return store.sent_bytes


def measure_checkpoint(sizes: Sizes) -> Figure:
    """How many bytes the second checkpoint of a large state takes beside the first."""
    large = stash.remote(Large).options(num_cpus=0, checkpoint_every=2).remote(sizes.state_bytes)
    sent = [0]
    for _ in range(2):
        stash.get([large.change.remote() for _ in range(2)], timeout=PATIENCE_S)
        sent.append(_settled(large, sent[-1]))
    share = (sent[2] - sent[1]) / (sent[1] - sent[0])
    return Figure(f"second checkpoint of {sizes.state_bytes >> 20} MB with 1 % changed", f"{share:.1%} of the first",
                  "5 %", share <= 0.05)  # fmt: skip


def _settled(large: Any, before: int) -> int:
    """The bytes sent, once they grow no more."""
    counts = [before, before - 1]
    deadline = time.monotonic() + PATIENCE_S
    while counts[-1] != counts[-2] or counts[-1] == before:
        if time.monotonic() > deadline:
            raise TimeoutError("no checkpoint was stored")
        time.sleep(1.0)
        counts.append(stash.get(large.sent_bytes.remote(), timeout=PATIENCE_S))
    return counts[-1]


def measure(sizes: Sizes) -> list[Figure]:
    """All of it."""
    with three_nodes():
        figures = [measure_lag(sizes)]
        figures.append(measure_long_run(sizes))
        figures += measure_losses(sizes)
        figures.append(measure_checkpoint(sizes))
        commits, _ = measure_commits(sizes)
        figures += commits
        figures.append(measure_reading(sizes))
    return figures


def main(argv: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks replicated", description=__doc__)
    for name, value in Sizes()._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    sizes = Sizes(**vars(parser.parse_args(list(argv))))
    table = Table("measured", "figure", "bar", "", title="The replicated store: 3 replicas on 3 local nodes")
    for figure in measure(sizes):
        table.add_row(figure.what, figure.figure, figure.bar, "ok" if figure.reached else "MISSED")
    Console().print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
