"""Failures on purpose, at a moment that a script names: `kill:actor:counter-3@50%`. Signals are real.

For tests and benchmarks of your own programs, on the machine where their processes run. What is said how is in
`failure_scripts`; whom it can happen to is a matter of `Targets`: `Processes` for anything with a pid, and
`inject_program.Program` for a running program of this library, which `inject` takes by itself.

Rules:
- What is in `injected` has happened: the kernel has said that a process is gone or stands still, a replica that it
  answers nothing. Whatever of a plan has not happened when the injection ends is raised then, as `NotCaused`.
- What lasts is over when the injection ends at the latest: nothing stays stopped, paused or full.
- A failure that takes time, because somebody must come up first, holds up no other.
"""

import os
import resource
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Protocol

from lineage_stash.testing import signals
from lineage_stash.testing.failure_scripts import (
    FORMS,
    RPC,
    Moment,
    Planned,
    ScriptError,
    Who,
    environment,
    parse,
)

__all__ = [
    "CAUSES", "Injected", "Injector", "Moment", "NotCaused", "Planned", "Processes", "ScriptError", "Targets", "Who",
    "environment", "inject", "parse",
]  # fmt: skip

COMES_BACK_S = 10.0
"""How long to wait for a process that is being replaced: longer than Ray takes to start one."""

LOOK_AGAIN_S = 0.02

LOOK_EVERY_S = 0.005
"""How often to look whether something is due: a tenth of the time in which a death is noticed."""

Pids = int | Sequence[int]


class NotCaused(Exception):
    """Failures of the plan that have not happened, and why."""

    def __init__(self, missing: Mapping[Planned, str]) -> None:
        super().__init__("; ".join(f"{planned} {why}" for planned, why in missing.items()))
        self.missing = dict(missing)


@dataclass
class Injected:
    """A failure that has really happened to one target."""

    second: float
    """Since the injection began."""
    what: str
    """Verb and kind, as `kill:actor`."""
    target: str
    pids: list[int] = field(default_factory=list)
    until: float | None = None
    """When it was over, for what lasts."""


class Targets(Protocol):
    """Whom failures can happen to. Names are those of the scripts; whoever is not there raises LookupError."""

    def kinds(self) -> Sequence[str]:
        """Which kinds of targets there are."""

    def names(self, kind: str) -> Sequence[str]:
        """All of a kind that are there now."""

    def pids(self, kind: str, name: str) -> Sequence[int]:
        """The processes of one; waits for whoever is about to come up."""

    def start_again(self, kind: str, name: str) -> None:
        """Start one again that was killed and that nobody else starts again."""

    def disturb(self, name: str, *, pause: bool, delay_ms: float) -> None:
        """Have a replica answer nothing, or late, or as always; returns when it does."""


class Processes:
    """Anything with a pid, by kind and name: `Processes(actor={"counter-1": pid_of_counter_1})`.

    A function is asked each time, since a process that is killed may be followed by another.
    """

    def __init__(self, **named: Mapping[str, Callable[[], Pids]]) -> None:
        self._named = {kind.replace("_", "-"): names for kind, names in named.items()}

    def kinds(self) -> Sequence[str]:
        """Those that were given."""
        return tuple(self._named)

    def names(self, kind: str) -> Sequence[str]:
        """Those that were given."""
        return tuple(self._named[kind])

    def pids(self, kind: str, name: str) -> Sequence[int]:
        """What the function says now."""
        if name not in self._named[kind]:
            raise LookupError(f"there is no {kind} {name!r}: {', '.join(self._named[kind])}")
        found = self._named[kind][name]()
        return (found,) if isinstance(found, int) else found

    def start_again(self, kind: str, name: str) -> None:
        """Not known here; whoever knows it makes a class of this."""
        raise LookupError(f"nobody has said how to start the {kind} {name!r} again")

    def disturb(self, name: str, *, pause: bool, delay_ms: float) -> None:
        """Not known here."""
        raise LookupError(f"nobody has said how to disturb {name!r} (pause={pause}, delay_ms={delay_ms:g})")


# what happens


Hit = dict[str, list[int]]
"""Whom it happens to, with their processes."""


class Cause(NamedTuple):
    """How a failure is made to happen, and to be over; both return when it is so."""

    begin: Callable[[Targets, Planned, Hit], None]
    end: Callable[[Targets, Planned, Hit], None] | None = None


def _pids(hit: Hit) -> list[int]:
    return [pid for pids in hit.values() for pid in pids]


def _kill(_: Targets, __: Planned, hit: Hit) -> None:
    signals.kill(_pids(hit))


def _start_again(targets: Targets, planned: Planned, hit: Hit) -> None:
    for name in hit:
        targets.start_again(planned.kind, name)


def _stop(_: Targets, __: Planned, hit: Hit) -> None:
    signals.stop(_pids(hit))


def _resume(_: Targets, __: Planned, hit: Hit) -> None:
    signals.resume(_pids(hit))


def _disturb(targets: Targets, planned: Planned, hit: Hit) -> None:
    for name in hit:
        targets.disturb(name, pause=planned.verb == "pause", delay_ms=planned.delay_ms)


def _calm(targets: Targets, _: Planned, hit: Hit) -> None:
    """One that was killed meanwhile is followed by one that nobody has disturbed."""
    for name, pids in hit.items():
        try:
            targets.disturb(name, pause=False, delay_ms=0.0)
        except Exception:
            if any(map(signals.is_running, pids)):
                raise


def _most_bytes_per_file(pid: int) -> int:
    return resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]


def _fill(_: Targets, __: Planned, hit: Hit) -> None:
    """Python ignores the signal that comes with it, so that every write to a file fails with EFBIG."""
    for pid in _pids(hit):
        most = _most_bytes_per_file(pid)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, most))


def _empty(_: Targets, __: Planned, hit: Hit) -> None:
    for pid in filter(signals.is_running, _pids(hit)):
        most = _most_bytes_per_file(pid)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))


KILL, STOP, DISTURB = Cause(_kill), Cause(_stop, _resume), Cause(_disturb, _calm)
BY_VERB = {"kill": KILL, "stop": STOP, "pause": DISTURB, "slow": DISTURB, "fill": Cause(_fill, _empty)}
STARTED_AGAIN = dict.fromkeys((("kill", "gcs"), ("kill", "driver")), Cause(_kill, _start_again))

CAUSES: dict[tuple[str, str], Cause] = {form: BY_VERB[form[0]] for form in FORMS} | STARTED_AGAIN
"""How each thing that can be said is made to happen."""


# when it happens


class Injector:
    """Causes the failures of a plan while its block runs, each at its moment, in threads of its own.

    `progress` says how far the program is, from 0 to 1; it is asked by another thread. Without it, moments are times.
    """

    def __init__(self, plan: Sequence[Planned], targets: Targets, progress: Callable[[], float] | None = None, *,
                 clock: Callable[[], float] = time.monotonic) -> None:  # fmt: skip
        self.plan = list(plan)
        self.injected: list[Injected] = []
        self._targets = targets
        self._progress = progress
        self._clock = clock
        self._began_at = 0.0
        self._missing: dict[Planned, str] = {}
        self._over = threading.Event()
        self._causing: list[threading.Thread] = []
        self._watching = threading.Thread(target=self._watch, name="failures", daemon=True)
        self._refuse_the_impossible()

    def _refuse_the_impossible(self) -> None:
        """What can be known now to be impossible is not left to a run of hours to show."""
        kinds = self._targets.kinds()
        for planned in self.plan:
            if planned.at is not None and planned.at.is_fraction and self._progress is None:
                raise ValueError(f"{planned}: per cent of what? Pass progress=, a function from 0 to 1, or say seconds")
            if planned.verb != RPC and planned.kind not in kinds:
                raise ValueError(f"{planned}: there is no {planned.kind} here, only {', '.join(kinds)}")
        for name, wanted in environment(self.plan).items():
            if os.environ.get(name) != wanted:
                raise ValueError(
                    f"Ray reads {name} when it starts: put `environment(plan)` into os.environ before `ray.init`"
                )

    @property
    def elapsed_s(self) -> float:
        """Since the injection began."""
        return self._clock() - self._began_at

    def __enter__(self) -> "Injector":
        self._began_at = self._clock()
        self.injected += [Injected(0.0, RPC, str(planned.who)) for planned in self.plan if planned.at is None]
        self._watching.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self._over.set()
        self._watching.join()
        for thread in self._causing:
            thread.join()
        if not self._missing:
            return
        missing = NotCaused(self._missing)
        if error is None:
            raise missing
        error.add_note(str(missing))

    def _watch(self) -> None:
        """Begin what is due until nothing is left, or until the block is over."""
        left = [planned for planned in self.plan if planned.at is not None]
        progress, why = 0.0, ""
        while left and not why and not self._over.wait(LOOK_EVERY_S):
            try:
                progress = progress if self._progress is None else self._progress()
            except Exception as error:  # noqa: BLE001 - it is the caller's function, and told at the end
                why = f"progress raised {type(error).__name__}: {error}"
            for planned in [each for each in left if each.at and each.at.is_due(progress, self.elapsed_s)]:
                left.remove(planned)
                self._start(planned)
        reached = "" if self._progress is None else f", at {100 * progress:.3g}%"
        for planned in left:
            self._missing[planned] = f"has not happened: {why or f'all was over after {self.elapsed_s:.3g} s{reached}'}"

    def _start(self, planned: Planned) -> None:
        thread = threading.Thread(target=self._carry_out, args=(planned,), name=str(planned), daemon=True)
        self._causing.append(thread)
        thread.start()

    def _carry_out(self, planned: Planned) -> None:
        """Have one failure happen, and be over."""
        cause = CAUSES[planned.verb, planned.kind]
        caused: list[Injected] = []
        try:
            hit = self._find(planned)
            second = self.elapsed_s
            cause.begin(self._targets, planned, hit)
            caused += [Injected(second, f"{planned.verb}:{planned.kind}", name, pids) for name, pids in hit.items()]
            self.injected += caused
            if cause.end is not None:
                self._over.wait(planned.for_s)
                cause.end(self._targets, planned, hit)
                for each in caused:
                    each.until = self.elapsed_s
        except Exception as error:  # noqa: BLE001 - whatever it was, it is told at the end
            how = "has happened, and is not over" if caused else "has not happened"
            self._missing[planned] = f"{how}: {type(error).__name__}: {error}"

    def _find(self, planned: Planned) -> Hit:
        """Whom to hit; one whose process has just died is waited for, because it may be about to come back."""
        names = planned.who.choose(self._targets.names(planned.kind), planned.draw)
        deadline = time.monotonic() + COMES_BACK_S
        while True:
            hit = {name: list(self._targets.pids(planned.kind, name)) for name in names}
            absent = [name for name, pids in hit.items() if not pids or not all(map(signals.is_running, pids))]
            if hit and not absent:
                return hit
            if not hit or time.monotonic() > deadline or self._over.wait(LOOK_AGAIN_S):
                raise LookupError(f"no process of {planned.kind} {' and '.join(absent) or '(any)'} runs")


def inject(script: str, *, progress: Callable[[], float] | None = None, targets: Targets | None = None,
           seed: int = 0) -> Injector:  # fmt: skip
    """Cause the failures of a script while a block runs; without targets, to the program that this script runs.

    `with inject("kill:actor:counter@2s"): ...` raises at the end of the block what has not happened.
    """
    if targets is None:
        from lineage_stash.testing.inject_program import Program  # loads Ray

        targets = Program()
    return Injector(parse(script, seed), targets, progress)
