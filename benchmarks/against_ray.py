"""Stash actors against plain Ray actors, side by side in one run on one machine: what it costs, and what it gives.

Every figure is a ratio of two measurements that were taken in turns, a window of one and a window of the other, so that
whatever else the machine does falls on both. Latencies are of single calls, one at a time: there is no queue to omit.
"""

import gc
import os
import signal
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import ray as plain
from rich.console import Console
from rich.table import Table

import lineage_stash as stash
from lineage_stash.testing import inject

HOPS = 8
MEGABYTE = np.arange(1 << 17)
PATIENCE_S = 300.0


class Counter:
    """The workload: little work, some state."""

    def __init__(self) -> None:
        self.total = 0
        self.blob = b""

    def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    def size(self, array: Any) -> int:
        return int(array.nbytes)

    def grow(self, size_bytes: int) -> int:
        self.blob = bytes(size_bytes)
        return len(self.blob)

    def blob_and_total(self) -> tuple[int, int]:
        return len(self.blob), self.total


class StashHop:
    """One link of a chain of stash actors."""

    def __init__(self, following: Any) -> None:
        self.following = following

    def go(self, value: int) -> int:
        return value if self.following is None else stash.get(self.following.go.remote(value + 1))  # type: ignore[no-any-return]


class PlainHop:
    """One link of a chain of plain actors."""

    def __init__(self, following: Any) -> None:
        self.following = following

    def go(self, value: int) -> int:
        return value if self.following is None else plain.get(self.following.go.remote(value + 1))  # type: ignore[no-any-return]


class Sizes(NamedTuple):
    """How much of everything; small in the test of this file."""

    windows: int = 5
    single_calls: int = 400
    pipelined_calls: int = 30_000
    chain_calls: int = 60
    large_calls: int = 150
    replayed_calls: int = 100_000
    few_calls: int = 10_000
    many_calls: int = 1_000_000
    state_bytes: int = 10_000_000
    recoveries: int = 3
    pause_s: float = 1.0


class Figure(NamedTuple):
    """One measured bar."""

    measure: str
    ours: str
    theirs: str
    ratio: str
    bar: str
    is_met: bool


class Side(NamedTuple):
    """One of the two systems."""

    get: Callable[..., Any]
    counter: Any


def times_us(side: Side, calls: int) -> list[float]:
    """How long single calls take, one after the other."""
    taken = []
    for _ in range(calls):
        started = time.perf_counter()
        side.get(side.counter.add.remote(1))
        taken.append((time.perf_counter() - started) * 1e6)
    return taken


def calls_per_second(side: Side, calls: int) -> float:
    """How many small calls a second are answered when nobody waits in between."""
    started = time.perf_counter()
    side.get([side.counter.add.remote(1) for _ in range(calls)])
    return calls / (time.perf_counter() - started)


def megabytes_per_second(side: Side, calls: int) -> float:
    """How much of arguments of a megabyte each gets through."""
    started = time.perf_counter()
    side.get([side.counter.size.remote(MEGABYTE) for _ in range(calls)])
    return calls * MEGABYTE.nbytes / 1e6 / (time.perf_counter() - started)


def joined(windows: list[list[float]]) -> list[float]:
    """All values of all windows."""
    return [value for window in windows for value in window]


def percentile(values: list[float], share: float) -> float:
    """The value below which so large a share lies."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def in_turns(sizes: Sizes, ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[list[Any], list[Any]]:
    """Measure one side and the other, window by window, with a pause for what each leaves behind."""
    pairs = [(_rested(sizes, ours), _rested(sizes, theirs)) for _ in range(sizes.windows)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _rested(sizes: Sizes, window: Callable[[], Any]) -> Any:
    gc.collect()
    time.sleep(sizes.pause_s)
    return window()


def at_most(measure: str, ours: float, theirs: float, bar: float, unit: str) -> Figure:
    """A figure that should be small."""
    return _figure(measure, ours, theirs, f"≤ {bar:g} ×", ours / theirs <= bar, unit)


def at_least(measure: str, ours: float, theirs: float, bar: float, unit: str) -> Figure:
    """A figure that should be large."""
    return _figure(measure, ours, theirs, f"≥ {bar:g} ×", ours / theirs >= bar, unit)


def _figure(measure: str, ours: float, theirs: float, bar: str, is_met: bool, unit: str) -> Figure:
    return Figure(measure, _shown(ours, unit), _shown(theirs, unit), f"{ours / theirs:.3g} ×", bar, is_met)


def _shown(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def measure_latency(sizes: Sizes, ours: Side, theirs: Side) -> list[Figure]:
    """One call at a time."""
    times_us(ours, sizes.single_calls), times_us(theirs, sizes.single_calls // 4)
    mine, rays = in_turns(
        sizes, lambda: times_us(ours, sizes.single_calls * 3), lambda: times_us(theirs, sizes.single_calls)
    )
    mine, rays = joined(mine), joined(rays)
    return [
        at_most("one call at a time, p50", percentile(mine, 0.5), percentile(rays, 0.5), 0.15, "µs"),
        at_most("one call at a time, p99", percentile(mine, 0.99), percentile(rays, 0.99), 0.3, "µs"),
    ]


def measure_throughput(sizes: Sizes, ours: Side, theirs: Side) -> list[Figure]:
    """Small calls and large ones, as fast as they go."""
    calls_per_second(ours, sizes.pipelined_calls)
    few = sizes._replace(windows=min(sizes.windows, 3))  # a window takes plain Ray more than ten seconds
    mine, rays = in_turns(few, lambda: calls_per_second(ours, sizes.pipelined_calls),
                          lambda: calls_per_second(theirs, sizes.pipelined_calls))  # fmt: skip
    megabytes_per_second(ours, sizes.large_calls), megabytes_per_second(theirs, sizes.large_calls)
    large, rays_large = in_turns(sizes, lambda: megabytes_per_second(ours, sizes.large_calls),
                                 lambda: megabytes_per_second(theirs, sizes.large_calls))  # fmt: skip
    median = statistics.median
    return [
        at_least("small calls, pipelined", median(mine), median(rays), 30, "calls/s"),
        at_least("arguments of 1 MB", median(large), median(rays_large), 1.0, "MB/s"),
    ]


def measure_chain(sizes: Sizes) -> list[Figure]:
    """A call that goes through eight actors and back."""
    mine = theirs = None
    for _ in range(HOPS):
        mine = stash.remote(num_cpus=0)(StashHop).remote(mine)
        theirs = plain.remote(num_cpus=0)(PlainHop).remote(theirs)
    assert mine is not None
    assert theirs is not None

    def once(get: Callable[..., Any], first: Any) -> float:
        started = time.perf_counter()
        assert get(first.go.remote(0)) == HOPS - 1
        return (time.perf_counter() - started) * 1e6

    once(stash.get, mine), once(plain.get, theirs)
    ours, rays = in_turns(sizes, lambda: [once(stash.get, mine) for _ in range(sizes.chain_calls)],
                          lambda: [once(plain.get, theirs) for _ in range(sizes.chain_calls)])  # fmt: skip
    figure = at_most(f"chain of {HOPS} actors, p50", statistics.median(joined(ours)),
                     statistics.median(joined(rays)), 0.15, "µs")  # fmt: skip
    stash.kill(mine)
    plain.kill(theirs)
    return [figure]


def measure_bad_store(sizes: Sizes, ours: Side) -> list[Figure]:
    """The same calls while the store is away, or late."""
    figures = []
    for name, disturbance in (("store paused", {"pause": True}), ("100 ms added to appends", {"delay_ms": 100.0})):

        def disturbed(disturbance: dict[str, Any] = disturbance) -> list[float]:
            inject.disturb_store(**disturbance)
            taken = times_us(ours, sizes.single_calls * 8)
            inject.disturb_store()
            return taken

        bad, normal = in_turns(sizes, disturbed, lambda: times_us(ours, sizes.single_calls * 8))
        figures.append(at_most(f"p50 with {name}, against normal", statistics.median(joined(bad)),
                               statistics.median(joined(normal)), 1.05, "µs"))  # fmt: skip
    return figures


def first_answer_s(kill: Callable[[], Any], ask: Callable[[], Any]) -> float:
    """From a kill to the first correct answer."""
    started = time.perf_counter()
    kill()
    ask()
    return time.perf_counter() - started


def measure_recovery(sizes: Sizes) -> list[Figure]:
    """Kill -9 of an actor with a checkpoint of some size, with a spare at hand and without."""
    rays = statistics.median(_restarts_of_ray(sizes))
    figures = []
    for name, placement, bar in (("a spare", {}, 0.5), ("no spare", {"resources": {"never_a_spare": 0.001}}, 2.0)):
        ours = statistics.median(_recoveries(sizes, placement))
        measure = f"kill -9 to first answer, {sizes.state_bytes // 10**6} MB checkpoint, {name}"
        figures.append(at_most(measure, ours * 1e3, rays * 1e3, bar, "ms"))
    return figures


def _restarts_of_ray(sizes: Sizes) -> list[float]:
    """How long an empty actor is away that Ray restarts."""
    actor = plain.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Pid).remote()
    taken = []
    for _ in range(sizes.recoveries):
        pid = plain.get(actor.pid.remote())
        taken.append(first_answer_s(partial(os.kill, pid, signal.SIGKILL), lambda: plain.get(actor.pid.remote())))
    plain.kill(actor)
    return taken


def _recoveries(sizes: Sizes, placement: dict[str, Any]) -> list[float]:
    """How long a stash actor is away, whose next answer must be right."""
    actor = stash.remote(num_cpus=0, checkpoint_every=1000, **placement)(Counter).remote()
    check(stash.get(actor.grow.remote(sizes.state_bytes)), sizes.state_bytes)
    stash.get([actor.add.remote(1) for _ in range(1500)])
    taken = []
    for number in range(sizes.recoveries):
        time.sleep(3.0)  # until a spare is there again, and the machine is quiet
        ask = partial(_check_next, actor, 1501 + number)
        taken.append(first_answer_s(partial(inject.kill_process, actor), ask))
    check(stash.get(actor.blob_and_total.remote()), (sizes.state_bytes, 1500 + sizes.recoveries))
    stash.kill(actor)
    return taken


def _check_next(actor: Any, expected: int) -> None:
    check(stash.get(actor.add.remote(1)), expected)


class Pid:
    """A plain actor that says which process it is."""

    def pid(self) -> int:
        return os.getpid()


def check(answer: Any, expected: Any) -> None:
    """A wrong answer is no answer."""
    if answer != expected:
        raise AssertionError(f"{answer} is not {expected}")


def measure_replay(sizes: Sizes) -> list[Figure]:
    """How fast a log without a checkpoint is replayed."""
    from lineage_stash.on_ray.control_plane import ControlPlane

    actor = stash.remote(num_cpus=0, checkpoint_every=None)(Counter).remote()
    stash.get([actor.add.remote(1) for _ in range(sizes.replayed_calls)])
    inject.kill_process(actor)
    check(stash.get(actor.add.remote(1), timeout=PATIENCE_S), sizes.replayed_calls + 1)
    records: list[dict[str, Any]] = []

    def is_on_record() -> bool:
        import json

        found = ControlPlane().get_all("recoveries/")
        records[:] = [json.loads(value) for key, value in found.items() if key.endswith(actor._peer)]
        return bool(records)

    inject.wait_until(is_on_record, "the recovery is on record")
    stash.kill(actor)
    rate = records[-1]["replayed"] / records[-1]["replay_ms"] * 1e3
    return [Figure("small calls replayed", f"{rate:,.0f} calls/s", "", "", "≥ 50,000 calls/s", rate >= 50_000)]


def resident_bytes(pid: int) -> int:
    """What a process keeps in memory."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure_memory(sizes: Sizes) -> list[Figure]:
    """Whether a million calls take more memory than ten thousand."""
    actor = stash.remote(num_cpus=0)(Counter).remote()

    def run(calls: int) -> None:
        for _ in range(calls // 1000):
            stash.get([actor.add.remote(1) for _ in range(1000)])

    run(sizes.few_calls)
    pids = {"actor": inject.pid_of(actor), "driver": os.getpid(), "replica": inject.replica_pid()}
    few = {name: resident_bytes(pid) for name, pid in pids.items()}
    run(sizes.many_calls - sizes.few_calls)
    many = {name: resident_bytes(pid) for name, pid in pids.items()}
    stash.kill(actor)
    return [
        at_most(f"resident memory of the {name} after {sizes.many_calls:,} calls against {sizes.few_calls:,}",
                many[name] / 1e6, few[name] / 1e6, 1.2, "MB") for name in pids
    ]  # fmt: skip


def measure(sizes: Sizes) -> list[Figure]:
    """Everything, on a cluster of its own."""
    stash.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
               resources={"never_a_spare": 1})  # fmt: skip
    try:
        memory = measure_memory(sizes)
        ours = Side(stash.get, stash.remote(num_cpus=0)(Counter).remote())
        theirs = Side(plain.get, plain.remote(num_cpus=0)(Counter).remote())
        figures = measure_latency(sizes, ours, theirs)
        figures += measure_throughput(sizes, ours, theirs)
        figures += measure_bad_store(sizes, ours)
        stash.kill(ours.counter)
        plain.kill(theirs.counter)
        figures += measure_chain(sizes)
        figures += measure_replay(sizes)
        figures += measure_recovery(sizes)
    finally:
        stash.shutdown()
    return figures + memory


def show(figures: list[Figure]) -> None:
    """Print the table."""
    table = Table(title="lineage_stash against plain Ray, same run, same machine")
    for heading in ("measure", "lineage_stash", "plain Ray or normal", "ratio", "bar", ""):
        table.add_column(heading)
    for figure in figures:
        table.add_row(*figure[:5], "met" if figure.is_met else "missed")
    Console(width=150).print(table)


def main(sizes: Sizes | None = None) -> list[Figure]:
    """Measure and print."""
    figures = measure(sizes or Sizes())
    show(figures)
    return figures
