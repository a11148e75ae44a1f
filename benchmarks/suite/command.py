"""`python -m benchmarks suite`: measure the cells of a profile, each in a process of its own, one record each.

What has a record at this commit already is not run again, so that a suite that was interrupted goes on; `--again` runs
all anew. Raw records stay in the folder; `python -m benchmarks report` makes the report of them.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.suite import cells, peers
from benchmarks.suite.records import Cell, Record, name_of, now, read, write
from benchmarks.suite.report.command import RECORDS
from benchmarks.suite.running import environment, run_cell
from benchmarks.suite.systems import CLASSES
from benchmarks.suite.workloads import NAMES, workload_of
from lineage_stash.testing import signals

WITHIN_S = 240.0
TOLD_LINES = 12


def main(arguments: Sequence[str]) -> int:
    """Parse the command line and do it."""
    asked = parser().parse_args(arguments)
    if asked.cell:
        return child(msgspec.json.decode(asked.cell, type=Cell), asked.records)
    chosen = chosen_cells(asked)
    if not chosen:
        print(f"no cell matches --only {' '.join(asked.only)}")
        return 2
    if asked.list:
        print("\n".join(name_of(cell) for cell in chosen))
        return 0
    asked.records.mkdir(parents=True, exist_ok=True)
    plan = asked.records.parent / "plan.json"
    plan.write_bytes(msgspec.json.encode([name_of(cell) for cell in chosen]))
    records = [run_or_read(cell, asked, f"[{number}/{len(chosen)}]") for number, cell in enumerate(chosen, 1)]
    bad = [record for record in records if record.status in ("wrong", "failed")]
    print(f"{len(records)} cells, {len(bad)} of them wrong or failed: {asked.records}")
    return 1 if bad else 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--quick", action="store_true", help="some fifty cells, about 15 minutes (the default)")
    made.add_argument("--full", action="store_true", help="all cells, with several seeds; about an hour")
    made.add_argument(
        "--only", nargs="*", default=[], metavar="WORD", help="only cells with all of these in their names"
    )
    made.add_argument("--list", action="store_true", help="print the cells and run none")
    made.add_argument("--again", action="store_true", help="also those that have a record of this commit")
    made.add_argument("--records", type=Path, default=RECORDS, help=f"where records go (default {RECORDS})")
    one = made.add_argument_group("one cell of your own")
    one.add_argument("--workload", choices=NAMES)
    one.add_argument("--system", choices=[*CLASSES, *cells.RIVALS], default="stash")
    one.add_argument("--variant", default="", help="of the system, as max_failures=2,level=memory")
    one.add_argument("--inject", default="", metavar="SCRIPT", help='failures, as "kill:actor:counter-1@50%%"')
    one.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="parameters of the workload")
    one.add_argument("--seed", type=int, default=0)
    made.add_argument("--cell", help=argparse.SUPPRESS)
    return made


def chosen_cells(asked: argparse.Namespace) -> list[Cell]:
    """The cells that were asked for."""
    if asked.workload:
        values = dict(word.split("=", 1) for word in asked.set)
        known = workload_of(asked.workload).PARAMETERS
        typed = {name: type(known[name].default)(value) if name in known else value for name, value in values.items()}
        return [Cell(workload=asked.workload, system=asked.system, variant=asked.variant, parameters=typed,
                     failure=asked.inject, seed=asked.seed)]  # fmt: skip
    profile = cells.full() if asked.full else cells.quick()
    return [cell for cell in profile if all(word in name_of(cell) for word in asked.only)]


def run_or_read(cell: Cell, asked: argparse.Namespace, place: str) -> Record:
    """The record of a cell, from its file if it is of this commit."""
    path = asked.records / f"{name_of(cell)}.json"
    here = environment()
    if path.exists() and not asked.again:
        record = read(path)
        if (record.environment.commit, record.environment.is_changed) == (here.commit, here.is_changed):
            print(f"{place} {name_of(cell)}: measured already", flush=True)
            return record
    print(f"{place} {name_of(cell)} ...", end=" ", flush=True)
    began_at = time.monotonic()
    why, is_skipped = run_child(cell, asked.records)
    if why:
        status = "skipped" if is_skipped else "failed"
        write(Record(cell=cell, environment=here, started_at=now(), status=status, why=why), asked.records)  # type: ignore[arg-type]
    record = read(path)
    print(f"{in_one_line(record)} ({time.monotonic() - began_at:.0f} s)", flush=True)
    return record


def in_one_line(record: Record) -> str:
    """What came out, for whoever watches."""
    parts = [record.status if record.status != "ok" else record.delivered]
    if "all" in record.latency:
        parts.append(f"p50 {record.latency['all'].p50_ms:.3g} ms, p99 {record.latency['all'].p99_ms:.3g} ms")
    parts += [f"{name} {value:,.0f}" for name, value in record.figures.items()]
    parts += [f"pause of {group} {value:,.0f} ms" for group, value in record.pause_ms.items()]
    return ", ".join([*parts, *([record.why] if record.why else [])])


# one cell


SKIPPED = 3


def child(cell: Cell, folder: Path) -> int:
    """Run one cell in this process."""
    try:
        record = run_cell(cell)
    except peers.Absent as absent:
        print(absent, file=sys.stderr)
        return SKIPPED
    write(record, folder)
    return 0


def run_child(cell: Cell, folder: Path) -> tuple[str, bool]:
    """Run one cell in a process of its own, and end all of it if it takes too long.

    Why there is no record, and whether that is because something is not installed.
    """
    words = ["-m", "benchmarks", "suite", "--cell", msgspec.json.encode(cell).decode(), "--records", str(folder)]
    process = subprocess.Popen([sys.executable, *words], start_new_session=True, text=True, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, env={**os.environ, "RAY_ADDRESS": ""})  # fmt: skip
    try:
        _, said = process.communicate(timeout=WITHIN_S)
    except subprocess.TimeoutExpired:
        signals.signal_all(signals.with_descendants([process.pid]), signal.SIGKILL)
        process.communicate()
        return f"it took more than {WITHIN_S:g} s", False
    if process.returncode == 0:
        return "", False
    lines = [line for line in said.splitlines() if line.strip()]
    if process.returncode != SKIPPED:
        print("\n".join(lines[-TOLD_LINES:]), file=sys.stderr)
    return lines[-1] if lines else f"it ended with code {process.returncode}", process.returncode == SKIPPED
