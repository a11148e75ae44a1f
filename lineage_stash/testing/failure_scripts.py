"""The language of failures: what is to happen to whom and when, as one line of text. Pure: causes nothing itself.

    script  = failure {"," failure}
    failure = verb ":" kind [":" who] [":" delay] "@" moment ["for" time]
            | "random" ":" count [":" kind {"+" kind}] "@" moment
            | "rpc" ":" who [":" count]
    who     = name {"+" name} | "any" ["*" count] | "all"
    moment  = point ["-" point]
    point   = number "%" | time
    time    = number ("ms" | "s")

Rules:
- `FORMS` is the table of what can be said. Whatever is not in it is a `ScriptError`, which shows the place.
- A moment of two points is drawn between them; `random` (which may be said for `any`) and `any` are drawn too. The same
  script and seed are the same plan, and with the same names there the same victims.
- Per cent are of the program's progress, times are from when the injection began.
- A name that has one of `: + @ ,` in it, or is a word of the language, is put into single quotes.
"""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

RANDOM = "random"
RPC = "rpc"
ANY = ("any", "random")
ALL = "all"
DRAWS = 2**32

NUMBER = re.compile(r"\d+(\.\d+)?")
POINT = re.compile(r"(\d+(?:\.\d+)?)(%|ms|s)")
TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")
DRAWN = re.compile(r"(?:any|random)(?:\*([1-9]\d*))?")


class Form(NamedTuple):
    """How one thing that can happen is said, and what it is."""

    means: str
    lasts: bool = False
    """Whether it is over some day: after the time that it is said to last for, or else with the injection."""
    default_for_s: float | None = None
    """How long it lasts if that is not said; None for until the injection ends."""
    has_delay: bool = False
    """Whether a delay must be said."""
    default_who: str = "any"


KILL = Form("`kill -9`")
STOP = Form("SIGSTOP; when it is over, SIGCONT: a zombie, if it was taken for dead", lasts=True)

FORMS: dict[tuple[str, str], Form] = {
    ("kill", "actor"): KILL,
    ("kill", "replica"): KILL,
    ("kill", "coordinator"): KILL,
    ("kill", "node"): Form("`kill -9` of all processes of a node, but not of the head"),
    ("kill", "gcs"): Form("`kill -9`; when it is over, started again. Needs Redis behind it", True, 1.0),
    ("kill", "driver"): Form("`kill -9`; when it is over, started again under the same run id", True, 1.0),
    ("kill", "spark-executor"): KILL,
    ("kill", "spark-master"): KILL,
    ("kill", "spark-application"): Form("`kill -9` of Spark's driver"),
    ("stop", "actor"): STOP,
    ("stop", "replica"): STOP,
    ("stop", "coordinator"): STOP,
    ("stop", "node"): STOP,
    ("stop", "gcs"): STOP,
    ("stop", "driver"): STOP,
    ("stop", "spark-executor"): STOP,
    ("pause", "replica"): Form("answers nothing, and stays connected", lasts=True),
    ("slow", "replica"): Form("answers later by a delay", lasts=True, has_delay=True),
    ("fill", "disk"): Form("the kernel refuses every write of a replica to a file", lasts=True, default_who="all"),
}  # fmt: skip
"""What can happen, by verb and by kind of target; `random` and `rpc` are forms of their own."""

VERBS = tuple(dict.fromkeys(verb for verb, _ in FORMS))
RANDOM_KINDS = tuple(kind for verb, kind in FORMS if verb == "kill")

CORE, NODES = "CoreWorkerService.grpc_client", "NodeManagerService.grpc_client"
FACTS, LIVES = "ray::rpc::InternalKVGcsService.grpc_client", "ray::rpc::ActorInfoGcsService.grpc_client"

RPC_METHODS: dict[str, tuple[str, ...]] = {
    "control-plane": (f"{FACTS}.InternalKVPut", f"{FACTS}.InternalKVGet", f"{FACTS}.InternalKVMultiGet"),
    "actors": (
        f"{LIVES}.RegisterActor", f"{LIVES}.CreateActor", f"{LIVES}.GetActorInfo", f"{LIVES}.GetNamedActorInfo",
        f"{LIVES}.KillActorViaGcs",
    ),
    "workers": (
        f"{CORE}.PushTask", f"{CORE}.GetObjectStatus", f"{CORE}.WaitForActorRefDeleted",
        f"{NODES}.RequestWorkerLease", f"{NODES}.ReturnWorkerLease", f"{NODES}.KillLocalActor",
    ),
}  # fmt: skip
"""What Ray's processes ask of each other, by groups, in the names that Ray 2.60 has for it."""

RPC_VARIABLE = "RAY_testing_rpc_failure"
RPC_DEFAULT_COUNT = 3
RPC_CHANCE = {"req_failure_prob": 15, "resp_failure_prob": 15, "in_flight_failure_prob": 15}
"""Of a request that is lost, of its answer that is lost, and of an answer that is lost while it is still being worked
on; in per cent of the calls of a method, until the number of failures is reached."""

RPC_SURE = {"num_lower_bound_resp_failures": 1}
"""For the control plane, which asks so seldom that a chance would often pass by: one lost answer is certain."""


class ScriptError(ValueError):
    """A script that says nothing that can be done; shows the place, and what is possible there."""

    def __init__(self, script: str, lower: int, upper: int, why: str) -> None:
        marks = " " * lower + "^" * max(1, upper - lower)
        super().__init__(f"{why}\n    {script}\n    {marks}")
        self.script, self.lower, self.why = script, lower, why


class Moment(NamedTuple):
    """When something is due."""

    amount: float
    is_fraction: bool
    """Of the program's progress, from 0 to 1; otherwise seconds since the injection began."""

    def is_due(self, progress: float | None, elapsed_s: float) -> bool:
        """Whether it has come."""
        if self.is_fraction:
            return progress is not None and progress >= self.amount
        return elapsed_s >= self.amount

    def __str__(self) -> str:
        return f"{100 * self.amount:g}%" if self.is_fraction else f"{self.amount:g}s"


class Who(NamedTuple):
    """Whom it happens to: these, or so many that are drawn, or without either all of them."""

    names: tuple[str, ...] = ()
    drawn: int = 0

    def choose(self, there: Sequence[str], draw: int) -> list[str]:
        """Of those who are there; whether the named are among them is for others to find out."""
        if self.names:
            return list(self.names)
        if not self.drawn:
            return sorted(there)
        if len(there) < self.drawn:
            raise LookupError(f"{self.drawn} were to be drawn, and there are {len(there)}: {', '.join(there)}")
        return random.Random(draw).sample(sorted(there), self.drawn)

    def __str__(self) -> str:
        if self.names:
            return "+".join(map(quoted, self.names))
        return ALL if not self.drawn else ANY[0] if self.drawn == 1 else f"{ANY[0]}*{self.drawn}"


@dataclass(frozen=True)
class Planned:
    """One failure that is to happen."""

    verb: str
    kind: str
    who: Who
    at: Moment | None
    """None for what must be so before Ray starts."""
    for_s: float | None = None
    """How long; None for what does not end, or ends with the injection."""
    delay_ms: float = 0.0
    draw: int = 0
    """The seed of what is drawn when it happens."""
    count: int = 0
    """How many calls of each method fail."""

    @property
    def form(self) -> Form:
        """Its row of the table."""
        return FORMS[self.verb, self.kind]

    def __str__(self) -> str:
        """As a script says it, with what was drawn."""
        if self.verb == RPC:
            return f"{RPC}:{self.who}:{self.count}"
        delay = f":{self.delay_ms:g}ms" if self.delay_ms else ""
        lasting = "" if self.for_s is None else f"for{self.for_s:g}s"
        return f"{self.verb}:{self.kind}:{self.who}{delay}@{self.at}{lasting}"


def quoted(name: str) -> str:
    """A name as a script has it."""
    return f"'{name}'" if DRAWN.fullmatch(name) or name == ALL or set(name) & set(":+@,'") else name


def parse(script: str, seed: int = 0) -> list[Planned]:
    """What a script says, with what is left to chance drawn from the seed; raises ScriptError."""
    reader = _Reader(script, random.Random(seed))
    planned: list[Planned] = []
    while not reader.is_at_end:
        planned += reader.failure()
        if not reader.is_at_end:
            reader.expect(",", "the next failure")
            reader.need_more()
    return planned


def environment(plan: Sequence[Planned]) -> dict[str, str]:
    """What must be in the environment before Ray starts; nothing for most plans."""
    failing: dict[str, dict[str, int]] = {}
    for planned in plan:
        for group in planned.who.choose(tuple(RPC_METHODS), planned.draw) if planned.verb == RPC else ():
            chance = RPC_SURE if group == "control-plane" else RPC_CHANCE
            failing |= {method: {"num_failures": planned.count, **chance} for method in RPC_METHODS[group]}
    return {RPC_VARIABLE: json.dumps(failing)} if failing else {}


class _Reader:
    """Goes through a script from left to right, and knows where it is."""

    def __init__(self, script: str, chance: random.Random) -> None:
        self._script = script
        self._at = 0
        self._began = 0
        self._chance = chance
        self._skip_spaces()

    @property
    def is_at_end(self) -> bool:
        """Whether there is no more."""
        return self._at >= len(self._script)

    # failures

    def failure(self) -> list[Planned]:
        """The next failure, or several that were drawn."""
        verb = self._word(":@,")
        if verb == RANDOM:
            return self._random()
        if verb == RPC:
            return [self._rpc()]
        if verb not in VERBS:
            raise self._wrong(f"there is no failure {verb!r}: {', '.join((*VERBS, RANDOM, RPC))}")
        kinds = [kind for each, kind in FORMS if each == verb]
        self.expect(":", f"what to {verb}: {', '.join(kinds)}")
        kind = self._word(":@,")
        if kind not in kinds:
            raise self._wrong(f"{kind!r} is nothing to {verb}: {', '.join(kinds)}")
        form = FORMS[verb, kind]
        who = self._who() if self._is_name_next(form) else _who_of(form.default_who)
        delay_ms = self._delay_ms() if form.has_delay else 0.0
        at = self._moment()
        return [Planned(verb, kind, who, at, self._lasting(form), delay_ms, self._draw())]

    def _random(self) -> list[Planned]:
        self.expect(":", "how many")
        count = self._count()
        kinds = self._names() if self._has(":") else ["actor"]
        for kind in kinds:
            if kind not in RANDOM_KINDS:
                raise self._wrong(f"{kind!r} is nothing to kill: {', '.join(RANDOM_KINDS)}")
        lower, upper = self._window()
        moments = sorted(_between(lower, upper, self._chance).amount for _ in range(count))
        drawn = [(self._chance.choice(kinds), Moment(amount, lower.is_fraction)) for amount in moments]
        return [
            Planned("kill", kind, Who(drawn=1), at, FORMS["kill", kind].default_for_s, 0.0, self._draw())
            for kind, at in drawn
        ]

    def _rpc(self) -> Planned:
        self.expect(":", f"whose calls: {', '.join((*RPC_METHODS, ALL))}")
        who = self._who()
        for group in who.names:
            if group not in RPC_METHODS:
                raise self._wrong(f"there is no group of calls {group!r}: {', '.join((*RPC_METHODS, ALL))}")
        count = self._count() if self._has(":") else RPC_DEFAULT_COUNT
        return Planned(RPC, RPC, who, None, draw=self._draw(), count=count)

    # parts of a failure

    def _is_name_next(self, form: Form) -> bool:
        """Go past the sign before a name, if there is one; a delay is not a name."""
        is_delay = form.has_delay and TIME.match(self._script, self._at + 1) is not None
        return not is_delay and self._has(":")

    def _who(self) -> Who:
        began = self._at
        names = self._names()
        said = self._script[began : self._at].strip()
        if DRAWN.fullmatch(said) or said == ALL:
            return _who_of(said)
        doubled = [name for name in names if names.count(name) > 1]
        if doubled:
            raise ScriptError(self._script, began, self._at, f"{doubled[0]!r} is named twice")
        return Who(tuple(names))

    def _names(self) -> list[str]:
        names = [self._word("+:@,")]
        while self._has("+"):
            names.append(self._word("+:@,"))
        return names

    def _delay_ms(self) -> float:
        self.expect(":", "how slow, as in 100ms")
        return 1e3 * self._time("a delay, as 100ms or 2s")

    def _lasting(self, form: Form) -> float | None:
        began = self._at
        if not self._has("for"):
            return form.default_for_s
        for_s = self._time("how long, as 500ms or 3s")
        if not form.lasts:
            raise ScriptError(self._script, began, self._at, "what this does is not over after a time")
        return for_s

    def _moment(self) -> Moment:
        lower, upper = self._window()
        return lower if lower == upper else _between(lower, upper, self._chance)

    def _window(self) -> tuple[Moment, Moment]:
        self.expect("@", "when: as 50%, 10s, or between two as 10%-90%")
        lower = self._point()
        if not self._has("-"):
            return lower, lower
        upper = self._point()
        if upper.is_fraction != lower.is_fraction or upper.amount < lower.amount:
            raise self._wrong(f"a window ends after it began, and in the same unit: {lower}-{upper} does not")
        return lower, upper

    def _point(self) -> Moment:
        found = self._match(POINT, "a moment, as 50% or 10s")
        amount, unit = float(found[1]), found[2]
        if unit == "%" and amount > 100:
            raise self._wrong("more than 100% are never reached")
        return Moment(amount / {"%": 100, "ms": 1000, "s": 1}[unit], unit == "%")

    def _time(self, what: str) -> float:
        found = self._match(TIME, what)
        return float(found[1]) / (1000 if found[2] == "ms" else 1)

    def _count(self) -> int:
        count = self._match(NUMBER, "a number")[0]
        if not count.isdecimal() or int(count) < 1:
            raise self._wrong("a number of failures is 1 or more")
        return int(count)

    def _draw(self) -> int:
        return self._chance.randrange(DRAWS)

    # letters

    def expect(self, sign: str, what: str) -> None:
        """Go past a sign, after which something must follow."""
        if not self._has(sign):
            raise ScriptError(self._script, self._at, self._at + 1, f"here belongs {sign!r}, and {what}")

    def need_more(self) -> None:
        """Something must follow."""
        if self.is_at_end:
            raise ScriptError(self._script, self._at, self._at, "here belongs another failure")

    def _has(self, sign: str) -> bool:
        """Go past a sign, if it is the next."""
        if not self._script.startswith(sign, self._at):
            return False
        self._at += len(sign)
        self._skip_spaces()
        return True

    def _match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.match(self._script, self._at)
        if found is None:
            raise ScriptError(self._script, self._at, self._at + 1, f"here belongs {what}")
        self._began, self._at = self._at, found.end()
        self._skip_spaces()
        return found

    def _word(self, ends: str) -> str:
        """All up to one of these signs, or what is between quotes."""
        self._began = self._at
        if self._script.startswith("'", self._at):
            closing = self._script.find("'", self._at + 1)
            if closing < 0:
                raise ScriptError(self._script, self._at, len(self._script), "this quote is never closed")
            word, self._at = self._script[self._at + 1 : closing], closing + 1
        else:
            while not self.is_at_end and self._script[self._at] not in ends:
                self._at += 1
            word = self._script[self._began : self._at].strip()
        if not word:
            raise self._wrong("here belongs a name")
        self._skip_spaces()
        return word

    def _skip_spaces(self) -> None:
        while not self.is_at_end and self._script[self._at].isspace():
            self._at += 1

    def _wrong(self, why: str) -> ScriptError:
        """About what was read last."""
        return ScriptError(self._script, self._began, len(self._script[: self._at].rstrip()), why)


def _who_of(said: str) -> Who:
    found = DRAWN.fullmatch(said)
    return Who() if found is None else Who(drawn=int(found[1] or 1))


def _between(lower: Moment, upper: Moment, chance: random.Random) -> Moment:
    return Moment(chance.uniform(lower.amount, upper.amount), lower.is_fraction)
