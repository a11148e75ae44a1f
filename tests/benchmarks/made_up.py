"""Records that nobody measured: for tests of the report alone, and never for anything that people read."""

from random import Random
from typing import Any

from benchmarks.suite.records import (
    Cell,
    Environment,
    Injected,
    Latency,
    Lineage,
    Memory,
    Moment,
    Record,
    Recovery,
)

KILL = "kill:actor:counter-1@50%"
GUARANTEES = {
    "stash": ("precise", "state and effects exactly once"),
    "plain": ("gap", "none"),
    "ray-retry": ("repeating", "calls at least once, state from a file"),
    "sync-log": ("precise", "state exactly once"),
    "global-checkpoint": ("precise", "state exactly once"),
    "pyflink": ("precise", "state exactly once, output by transactions"),
    "bytewax": ("repeating", "state from a snapshot"),
}
MEDIANS = {
    "stash": 0.4, "plain": 2.4, "ray-retry": 2.6, "sync-log": 1.9, "global-checkpoint": 0.6, "pyflink": 3.1,
    "bytewax": 0.5,
}  # fmt: skip


def environment(**changes: Any) -> Environment:
    """A machine that does not exist."""
    return Environment(**{
        "commit": "c0ffee" * 6, "is_changed": False, "machine": "made up", "cores": 2, "memory_bytes": 8 << 30,
        "kernel": "6.0", "python": "3.11.9", "packages": {"ray": "2.60.0"}, "is_compiled": True, "load_before": 0.3,
        **changes,
    })  # fmt: skip


def latency(p50_ms: float, *, spread: float = 4.0, count: int = 5000) -> Latency:
    """A distribution that rises to `spread` times its median at p99."""
    quantiles = [p50_ms * (0.6 + 0.8 * (at / 200) ** 2 + (spread - 1.4) * (at / 200) ** 40) for at in range(201)]
    return Latency(
        count=count, mean_ms=p50_ms * 1.1, p50_ms=p50_ms, p90_ms=p50_ms * 1.5, p99_ms=p50_ms * spread,
        p999_ms=p50_ms * spread * 1.5, max_ms=p50_ms * spread * 2, quantiles_ms=quantiles,
    )  # fmt: skip


def record(workload: str, system: str, *, p50_ms: float | None = None, variant: str = "", failure: str = "",
           parameters: dict[str, Any] | None = None, **changes: Any) -> Record:  # fmt: skip
    """A record that ended well, with whatever is changed."""
    promised, words = GUARANTEES.get(system, ("unknown", ""))
    made: dict[str, Any] = {
        "cell": Cell(workload=workload, system=system, variant=variant, failure=failure, parameters=parameters or {}),
        "environment": environment(), "started_at": "2026-01-01T00:00:00Z", "seconds": 12.0, "status": "ok",
        "promised": promised, "delivered": promised, "guarantee": words,
        "latency": {} if p50_ms is None else {"all": latency(p50_ms)},
    }  # fmt: skip
    return Record(**{**made, **changes})


def ring(system: str, delays: dict[float, float], *, variant: str = "") -> list[Record]:
    """One run for each delay of the store, with its median."""
    return [
        record("ring", system, p50_ms=p50_ms, variant=variant, parameters={"actors": 8, "store_delay_ms": delay})
        for delay, p50_ms in delays.items()
    ]


def timeline(p50_ms: float, pause_ms: float, *, everyone: bool) -> list[Moment]:
    """Ten seconds with a failure in the middle."""
    draw, moments = Random(7), []
    for at in range(100):
        for group in ("affected", "others", "all"):
            waits = max(0.0, pause_ms - (at - 50) * 100) if at >= 50 and (group != "others" or everyone) else 0.0
            middle = p50_ms * (1 + 0.2 * draw.random()) + waits * 0.5
            done = 0 if waits else 50
            moments.append(Moment(second=at / 10, group=group, count=50, p50_ms=middle, p99_ms=middle * 2 + waits,
                                  max_ms=middle * 3 + waits, done=done))  # fmt: skip
    return moments


def killed(
    system: str, *, pause_ms: float, delivered: str | None = None, everyone: bool = False, **changes: Any
) -> Record:
    """A run of wordcount in which an actor was killed."""
    p50_ms = MEDIANS[system]
    others = 1.0 if not everyone else 20.0
    made = record("wordcount", system, p50_ms=p50_ms, failure=KILL, parameters={"rate": 500}, **{
        "before": {group: latency(p50_ms) for group in ("all", "affected", "others")},
        "after": {"all": latency(p50_ms * 2), "affected": latency(p50_ms * 4), "others": latency(p50_ms * others)},
        "pause_ms": {"affected": pause_ms, "others": pause_ms if everyone else 0.0, "all": pause_ms / 2},
        "timeline": timeline(p50_ms, pause_ms, everyone=everyone),
        "injected": [Injected(second=5.0, what="kill", target="actor:counter-1", pids=[4])],
        "recoveries": [Recovery(second=5.0, peer="counter-1", detect_ms=pause_ms * 0.1, gather_ms=pause_ms * 0.1,
                                settle_ms=pause_ms * 0.2, restore_ms=pause_ms * 0.3, replay_ms=pause_ms * 0.2,
                                resume_ms=pause_ms * 0.1, replayed=210)],
        **changes,
    })  # fmt: skip
    if delivered is not None:
        made.delivered = delivered  # type: ignore[assignment]
    return made


def all_kinds() -> list[Record]:
    """A report's worth of records: good, bad, and missing ones."""
    made = ring("stash", {0.0: 0.2, 1.0: 0.2, 5.0: 0.2, 100.0: 0.205})
    made += ring("sync-log", {0.0: 0.9, 1.0: 2.1, 5.0: 6.4, 100.0: 103.0})
    made += ring("plain", {0.0: 1.1, 100.0: 1.1})
    made += [
        record("wordcount", system, p50_ms=p50_ms, parameters={"rate": 500}, throughput_per_s=500.0,
               lineage=Lineage(calls=5000, forwarded_entries=9000, forwarded_bytes=140_000, flushed_entries=5000,
                               flushed_bytes=90_000, seconds=10.0) if system in ("stash", "sync-log") else None,
               memory=[Memory(second=float(at), process=who, resident_bytes=int(1e8 * (1 + 0.1 * at / 10)))
                       for at in range(10) for who in ("driver", "counter-0")])
        for system, p50_ms in MEDIANS.items()
    ]  # fmt: skip
    made += [
        record("wordcount", system, parameters={"rate": 0}, figures={"words_per_s": most})
        for system, most in (("stash", 400_000.0), ("plain", 9_000.0), ("bytewax", 300_000.0))
    ]
    made += [
        record("calls", "stash", variant=variant, p50_ms=p50_ms, parameters={"actors": actors})
        for variant, actors, p50_ms in (
            ("", 2, 0.14), ("", 8, 0.3), ("", 32, 0.8), ("max_failures=1", 8, 0.22), ("max_failures=2", 8, 0.25),
            ("max_failures=unlimited", 8, 0.31),
        )
    ]  # fmt: skip
    made += [
        killed("stash", pause_ms=180.0),
        killed("global-checkpoint", pause_ms=900.0, everyone=True),
        killed("plain", pause_ms=4000.0, everyone=True),
        killed("ray-retry", pause_ms=1500.0, delivered="gap", status="wrong", why="12 words are missing"),
        record("wordcount", "stash", variant="max_failures=1", failure="kill:node:1,2@50%", promised="detected",
               delivered="detected", injected=[Injected(second=5.0, what="kill", target="node:1")]),
        record("graph", "sync-log", status="failed", why="timed out after 60 s"),
        record("wordcount", "dbos", status="skipped", why="its environment is not there: make peers"),
    ]  # fmt: skip
    return made
