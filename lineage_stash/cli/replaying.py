"""Replaying: an actor's history run again on this machine, with its own code or with other code, and what comes of it.

With its own code the state is what it was at that index: the machine compares every step with the log. With other code
both are run, and told is the first call of which the reply, the readings or the state differ. Where the own code cannot
be had, as from files, the log alone is the judge: it knows digests of what was done, so that it can be said where
something else was done, but not what had been done.
"""

import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, NamedTuple

import cloudpickle

from lineage_stash.capture import install
from lineage_stash.cli.logs import LogView
from lineage_stash.cli.sources import NotFound, Source
from lineage_stash.cli.words import call_in_words, shortened, value_in_words
from lineage_stash.core.checkpoint import Checkpoint, age
from lineage_stash.core.entry import Entry
from lineage_stash.core.ids import PeerId
from lineage_stash.on_ray import offline, payloads
from lineage_stash.on_ray.creation import RUNNERS
from lineage_stash.on_ray.offline import Ended, OfflineLife, Past
from lineage_stash.on_ray.plain import record_plain_ray
from lineage_stash.on_ray.present import Now, adopt
from lineage_stash.on_ray.program import DIGEST_CHARACTERS, PICKLE
from lineage_stash.on_ray.refs import saving
from lineage_stash.on_ray.upgrading import attributes_of
from lineage_stash.store.states import digests_in, unpack_state

MOST_COMPARED_STATES = 5000
"""Calls after each of which the state is compared; of longer histories only the last state is."""


AHEAD = 4096
"""Replies that are asked for at once: the next ones are wanted next."""


class Replayed(NamedTuple):
    """What a history came to."""

    code: str
    lower: int
    """Where the checkpoint is that it began from; 0 if there is none."""
    reached: int
    """How far it came."""
    calls: int
    last: str
    """The last call that was run to its end, and its reply."""
    state: dict[str, str]
    ended: Ended | None
    """Why it did not come to the end."""


class Difference(NamedTuple):
    """Where two codes part."""

    at: int
    call: str
    words: str
    what: str
    first: str
    other: str


class Report(NamedTuple):
    """What was replayed, and what differs."""

    peer: str
    where: str
    to: int
    own: Replayed | None
    """With the actor's own code; None where it cannot be had."""
    other: Replayed | None
    difference: Difference | None


class _Step(NamedTuple):
    outcome: offline.Outcome
    state: dict[str, tuple[bytes, str]]


def replay(source: Source, peer: PeerId, to: int | None, other: str | None) -> Report:
    """Run the history of an actor up to an index, and if other code is named through that as well."""
    past, lower, upper = history_of(source, peer, to)
    digest = _own_digest(source, past)
    own_code = _own_class(source, digest)
    if own_code is None and other is None:
        raise NotFound(f"the code of {peer} is not in {source.where}: it was in the control plane of its cluster; give "
                       "it with --with module:Class")  # fmt: skip
    with _ready(), redirect_stdout(sys.stderr):
        own = own_steps = None
        if own_code is not None:
            own, own_steps = _run(source, past, own_code, lambda found: _load(source, found), digest, lower,
                                  compares=other is not None)  # fmt: skip
        if other is None:
            return Report(peer, source.where, upper, own, None, None)
        other_code = find_class(other)
        comparison = _Comparison(own_steps)
        second, _ = _run(source, past, other_code, lambda _: other_code, "", lower, compares=True,
                         on_step=comparison.compare)  # fmt: skip
        difference = comparison.difference or _last_difference(own, second)
    return Report(peer, source.where, upper, own, second, difference)


def history_of(source: Source, peer: PeerId, to: int | None) -> tuple[Past, int, int]:
    """What is to be run: from the newest checkpoint that is not behind the index on."""
    view = LogView(source, peer)
    if "/" not in peer:
        raise NotFound(f"{peer} is a script: one with a run id is replayed when it is started again under that id")
    if RUNNERS in peer:
        raise NotFound(f"{peer} runs tasks, and has no state: replay whoever has called them")
    upper = view.upper if to is None else to
    if upper > view.upper:
        raise NotFound(f"the log of {peer} ends at index {view.upper} in {source.where}")
    fitting = [made for made in view.item.checkpoints if made.upper <= upper and not made.final]
    checkpoint = max(fitting, key=age, default=None)
    lower = 0 if checkpoint is None else checkpoint.upper
    if lower < view.base:
        raise NotFound(f"{peer} cannot be rebuilt at index {upper}: its log is truncated below {view.base}, and no "
                       "checkpoint before that is kept")  # fmt: skip
    entries: tuple[Entry, ...] = tuple(entry for _, _, entry in view.entries(lower, upper))
    chunks = {} if checkpoint is None else _chunks(source, peer, checkpoint)
    return Past(peer, checkpoint, chunks, entries), lower, upper


def _chunks(source: Source, peer: PeerId, checkpoint: Checkpoint) -> dict[bytes, bytes]:
    digests = digests_in(checkpoint)
    found = source.chunks(peer, digests)
    if len(found) < len(set(digests)):
        raise NotFound(f"the state of {peer} at index {checkpoint.upper} is not all there: chunks of it are missing")
    return found


# code


def _own_digest(source: Source, past: Past) -> str:
    """By which digest the code is known that the history begins with."""
    if past.checkpoint is not None:
        state = unpack_state(past.checkpoint.state, past.chunks)
        if state[:1] != PICKLE:
            return state[:DIGEST_CHARACTERS].decode()
    return source.class_digest(past.peer)


def _own_class(source: Source, digest: str) -> type | None:
    return None if not digest or source.fact(f"classes/{digest}") is None else _load(source, digest)


def _load(source: Source, digest: str) -> type:
    code = source.fact(f"classes/{digest}")
    if code is None:
        raise NotFound(f"the code of class {digest} is not in {source.where}")
    _import_from_here()
    try:
        found: type = cloudpickle.loads(code)
    except Exception as error:
        raise NotFound(f"the actor's code cannot be loaded here ({type(error).__name__}: {error}): run this where its "
                       "modules can be imported, or set PYTHONPATH") from error  # fmt: skip
    install.cover(found)
    return found


def find_class(spelled: str) -> type:
    """A class by `module:Class`, also one that was made remote."""
    module, _, name = spelled.partition(":")
    if not module or not name:
        raise NotFound(f"{spelled!r} names no class: write module:Class")
    _import_from_here()
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise NotFound(f"{spelled} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(found, "_cls", found)
    if not isinstance(found, type):
        raise NotFound(f"{spelled} is not a class")
    install.cover(found)
    return found


def _import_from_here() -> None:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())


# effects


def find_effect(source: Source, peer: PeerId, number: int) -> int:
    """Where in the log of an actor the effect with a key was: its history is run again, because the log has no keys."""
    past, lower, _ = history_of(source, peer, None)
    cls = _own_class(source, digest := _own_digest(source, past))
    if cls is None:
        raise NotFound(f"a log has no keys of effects, and the code of {peer}, which can find {peer}!{number}, is not "
                       f"in {source.where}: look for it with `stash log`, and give PEER:INDEX")  # fmt: skip
    with _ready(), redirect_stdout(sys.stderr):
        life = OfflineLife(past, cls, lambda found: _load(source, found), _Supply(source, peer), _ignore, digest)
        adopt(life)
        life.run()
    if number not in life.numbered:
        since = f" since the checkpoint at {lower}" if lower else ""
        raise NotFound(f"{peer} has had no effect with the number {number}{since}")
    return life.numbered[number]


def _ignore(_outcome: offline.Outcome, _instance: Any) -> None:
    """Nobody compares."""


# running


@contextmanager
def _ready() -> Iterator[None]:
    """Clocks and draws are captured while a history runs, and this process is the actor."""
    was_installed, before = install.is_installed(), Now.runtime
    install.install()
    record_plain_ray()
    try:
        yield
    finally:
        adopt(before)
        if not was_installed:
            install.uninstall()


class _Supply:
    """What a source has, for one actor."""

    def __init__(self, source: Source, peer: PeerId) -> None:
        self._source = source
        self._peer = peer
        self.fact = source.fact
        self._replies: dict[PeerId, dict[int, bytes]] = {}

    def calls(self, caller: PeerId, lower: int, upper: int) -> dict[int, bytes]:
        return self._source.calls(caller, self._peer, lower, upper)

    def replies(self, callee: PeerId, lower: int, upper: int) -> dict[int, bytes]:
        known = self._replies.setdefault(callee, {})
        if any(seqno not in known for seqno in range(lower, upper)):
            known |= self._source.replies(callee, self._peer, lower, max(upper, lower + AHEAD))
        return {seqno: known[seqno] for seqno in range(lower, upper) if seqno in known}

    def parcels(self, giver: PeerId, lower: int, upper: int) -> dict[int, bytes]:
        return self._source.parcels(giver, self._peer, lower, upper)


class _Recording:
    """What comes of a history, call by call."""

    def __init__(self, *, keeps: bool, with_states: bool, goes_on: Callable[[_Step], bool]) -> None:
        self.calls = 0
        self.last: offline.Outcome | None = None
        self.steps: list[_Step] = []
        self.life: OfflineLife | None = None
        self._keeps = keeps
        self._with_states = with_states
        self._goes_on = goes_on

    def on_called(self, outcome: offline.Outcome, _: Any) -> None:
        """Take in a call that was run, or in which the history ended."""
        assert self.life is not None, "calls come from a life"
        if outcome.reply is not None:
            self.calls += 1
            self.last = outcome
        if self._keeps:
            self.steps.append(_Step(outcome, _state(self.life) if self._with_states else {}))
            if not self._goes_on(self.steps[-1]) and self.life.ended is None:
                self.life.ended = Ended("differs", outcome.at, "it differs from here on")


def _run(source: Source, past: Past, cls: type, load: Callable[[str], type], digest: str, lower: int, *,
         compares: bool, on_step: Callable[[_Step], bool] = lambda _: True
         ) -> tuple[Replayed, list[_Step]]:  # fmt: skip
    recording = _Recording(
        keeps=compares, with_states=len(past.entries) <= MOST_COMPARED_STATES, goes_on=on_step
    )  # fmt: skip
    life = recording.life = OfflineLife(past, cls, load, _Supply(source, past.peer), recording.on_called, digest)
    adopt(life)
    life.run()
    last = recording.last
    told = "" if last is None else f"{call_in_words(last.payload).text} → {value_in_words(last.reply or b'')}"
    shown = {name: text for name, (_, text) in _state(life).items()}
    code = _title(life.program.cls)
    return Replayed(code, lower, life.position, recording.calls, told, shown, life.ended), recording.steps


def _title(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _state(life: OfflineLife) -> dict[str, tuple[bytes, str]]:
    """Each part of the state: a digest to compare, and how it looks."""
    instance = life.program.instance
    if instance is None:
        return {}
    with saving(life):
        saves = getattr(instance, "__ray_save__", None)
        parts = {"__ray_save__()": saves()} if saves is not None else attributes_of(instance)
        return {f"self.{name}": (_digest(value), shortened.repr(value)) for name, value in parts.items()}


def _digest(value: Any) -> bytes:
    try:
        return hashlib.blake2b(cloudpickle.dumps(value), digest_size=16).digest()
    except Exception:  # noqa: BLE001 - the user's class may fail in any way
        return shortened.repr(value).encode()


# comparing


class _Comparison:
    """Compares step by step with what the own code did."""

    def __init__(self, own: list[_Step] | None) -> None:
        self._own = iter(own) if own is not None else None
        self.difference: Difference | None = None

    def compare(self, step: _Step) -> bool:
        """Whether this step is what it was; remembers the first that is not."""
        if self._own is None:
            return True
        first = next(self._own, None)
        if first is not None:
            self.difference = _compare(first, step)
        return self.difference is None


def _compare(first: _Step, other: _Step) -> Difference | None:
    at, call = first.outcome.at, first.outcome.call
    words = call_in_words(first.outcome.payload).text
    before, after = first.outcome.reply, other.outcome.reply
    if before is None or after is None:
        return None  # one of them did not come to its end, and says why
    if not _are_same(before, after):
        return Difference(at, call, words, "its reply", value_in_words(before), value_in_words(after))
    for part in sorted(first.state.keys() | other.state.keys()):
        old, new = first.state.get(part, (b"", "nothing")), other.state.get(part, (b"", "nothing"))
        if old[0] != new[0]:
            return Difference(at, call, words, f"{part} after it", old[1], new[1])
    return None


def _are_same(before: bytes, after: bytes) -> bool:
    if before == after:
        return True
    if payloads.head_of(before) is None or payloads.head_of(before) != payloads.head_of(after):
        return False
    if payloads.is_error(before):
        return True  # the same kind of error; texts and tracebacks name lines of code
    try:
        return bool(payloads.unpack_value(before) == payloads.unpack_value(after))
    except Exception:  # noqa: BLE001 - values of a user's class, or arrays, that cannot be compared so
        return False


def _last_difference(own: Replayed | None, other: Replayed) -> Difference | None:
    """What differs at the end, where no single step did or could be compared."""
    ended = other.ended
    if ended is not None and ended.kind == "strayed":
        return Difference(ended.at, "", "", "what it did", "as the log has it", ended.text)
    for part in sorted(own.state.keys() | other.state.keys()) if own is not None else ():
        old, new = own.state.get(part, "nothing") if own is not None else "", other.state.get(part, "nothing")
        if old != new:
            return Difference(other.reached, "", "", f"{part} at the end", old, new)
    return None
