"""Running: one cell, from a system that is started to a record; in a process of its own, which `command` watches."""

import os
import platform
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from itertools import count
from typing import Any

import msgspec

import lineage_stash
from benchmarks.against_ray import resident_bytes
from benchmarks.suite import measuring, oracle, peers
from benchmarks.suite.cells import RIVALS
from benchmarks.suite.driving import Reply
from benchmarks.suite.oracle import Judged
from benchmarks.suite.peers.stream import Stream
from benchmarks.suite.records import Cell, Environment, Injected, Memory, Record, Recovery, now
from benchmarks.suite.systems import make_system
from benchmarks.suite.systems.base import System
from benchmarks.suite.workloads import workload_of
from benchmarks.suite.workloads.base import Measured
from benchmarks.suite.workloads.wordcount import lane_of

PACKAGES = ("ray", "raydp", "pyspark", "pyarrow", "numpy", "msgspec", "cloudpickle")
SAMPLE_EVERY_S = 1.0
LOOKED_FOR_EVERY = 4
"""Samples, after which a system is asked again which processes it has."""

NOTICED_WITHIN_S = 30.0
"""A recovery after a failure belongs to it; the time in between is that of detection."""


def environment() -> Environment:
    """Where this runs."""
    return Environment(
        commit=_git("rev-parse", "HEAD") or "unknown", is_changed=bool(_git("status", "--porcelain")),
        machine=platform.machine(), cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), kernel=platform.release(),
        python=platform.python_version(), packages={name: metadata.version(name) for name in PACKAGES},
        is_compiled=lineage_stash.is_compiled, load_before=round(os.getloadavg()[0], 2),
    )  # fmt: skip


def _git(*words: str) -> str:
    try:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def parameters_of(cell: Cell) -> dict[str, Any]:
    """Those of the cell, and the workload's defaults for the others."""
    known = workload_of(cell.workload).PARAMETERS
    unknown = [name for name in cell.parameters if name not in known]
    if unknown:
        raise ValueError(f"{cell.workload} has no parameter {', '.join(unknown)}; it has {', '.join(known)}")
    return {name: cell.parameters.get(name, parameter.default) for name, parameter in known.items()}


def run_cell(cell: Cell) -> Record:
    """Start the system, drive it, and stop it; the record."""
    record = Record(cell=cell, environment=environment(), started_at=now())
    began_at = time.monotonic()
    parameters = parameters_of(cell)
    if cell.system in RIVALS:
        measured = run_rival(cell, parameters, record)
    else:
        measured = run_ours(make_system(cell.system, cell.variant), cell, parameters, record)
    fill(record, measured, parameters)
    record.seconds = time.monotonic() - began_at
    return record


def run_ours(system: System, cell: Cell, parameters: Mapping[str, Any], record: Record) -> Measured:
    """On a system that takes the workload's own code."""
    record.promised, record.guarantee = system.guarantee
    system.start(store_delay_ms=parameters.get("store_delay_ms", 0.0))
    try:
        with Sampler(system, record.memory):
            measured: Measured = workload_of(cell.workload).run(system, cell, parameters)
        losses = system.losses()
        if losses:
            measured.judged = Judged("detected", losses)
        if measured.injection is not None:
            record.injected = measured.injection.injected
            record.recoveries = with_detection(system.recoveries(measured.injection.began_at), record.injected)
        record.lineage = system.lineage()
    finally:
        system.stop()
    return measured


def run_rival(cell: Cell, parameters: Mapping[str, Any], record: Record) -> Measured:
    """On a system that runs the same stream by its own means."""
    result = peers.run(cell.system, dict(parameters) | {"seed": cell.seed}, effects=cell.workload == "effects")
    record.promised, record.guarantee = result["promised"], result["guarantee"]
    stream = Stream(**parameters, seed=cell.seed)
    columns = zip(result["due_s"], result["done_s"], result["counter"], strict=True)
    replies = [Reply(number, lane_of(counter), due, done) for number, (due, done, counter) in enumerate(columns)]
    judged = oracle.judge_state(result["counts"], stream.truth(stream.records or result["records"]))
    if stream.rate:
        return Measured(judged, replies, warm_up_s=stream.warm_up_s, throughput_per_s=stream.rate)
    words_per_s = result["words_per_s"]
    return Measured(judged, throughput_per_s=words_per_s / stream.words, figures={"words_per_s": words_per_s})


def with_detection(recoveries: list[Recovery], injected: list[Injected]) -> list[Recovery]:
    """What a system calls detection begins with its notice; here it begins with the failure."""
    found = []
    for recovery in recoveries:
        earlier = [one.second for one in injected if 0 <= recovery.second - one.second < NOTICED_WITHIN_S]
        unnoticed_ms = 1e3 * (recovery.second - max(earlier)) if earlier else 0.0
        found.append(msgspec.structs.replace(recovery, detect_ms=recovery.detect_ms + unnoticed_ms))
    return found


def fill(record: Record, measured: Measured, parameters: Mapping[str, Any]) -> None:
    """Put into a record what was measured."""
    record.delivered, record.why = measured.judged
    record.throughput_per_s = measured.throughput_per_s
    record.figures = measured.figures
    if measured.latency is not None:
        record.latency = {"all": measured.latency}
    if measured.replies:
        _fill_from_replies(record, measured, parameters)
    if record.cell.failure and not record.injected:
        record.status, record.why = "failed", "no failure has happened"
    elif oracle.keeps(record.promised, record.delivered):
        record.status = "ok"
    else:
        record.status = "wrong"


def _fill_from_replies(record: Record, measured: Measured, parameters: Mapping[str, Any]) -> None:
    groups = measuring.grouped(measured.replies, measured.affected)
    record.latency = measuring.latencies(groups, measured.warm_up_s)
    record.timeline = measuring.timeline(groups, parameters["warm_up_s"] + parameters["seconds"])
    if record.injected:
        first_s = min(one.second for one in record.injected)
        record.before = measuring.latencies(groups, measured.warm_up_s, first_s)
        record.after = measuring.latencies(groups, first_s)
        record.pause_ms = measuring.pauses_ms(groups, first_s)


class Sampler:
    """Reads the memory of a system's processes while a block runs; a process that is gone has none."""

    def __init__(self, system: System, samples: list[Memory]) -> None:
        self._system = system
        self._samples = samples
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)

    def __enter__(self) -> None:
        self._began_at = time.monotonic()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _sample(self) -> None:
        processes: Mapping[str, int] = {}
        for number in count():
            if self._is_over.wait(SAMPLE_EVERY_S):
                return
            if number % LOOKED_FOR_EVERY == 1:
                processes = self._system.processes()
            self._read(processes)

    def _read(self, processes: Mapping[str, int]) -> None:
        second = round(time.monotonic() - self._began_at, 2)
        for name, pid in processes.items():
            with suppress(FileNotFoundError, ProcessLookupError):
                self._samples.append(Memory(second=second, process=name, resident_bytes=resident_bytes(pid)))
