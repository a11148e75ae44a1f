"""The dispatcher: finds runners for the tasks of one peer.

Rules:
- A runner has one task at a time. Which one it gets is a determinant of the caller's, logged by its machine.
- Runners are kept for a while after their last task, because most tasks do not come alone; then they are ended, and
  what they held is Ray's again.
- Ray is asked for a runner while tasks wait that no runner is on its way for; how many run at once is Ray's to decide.
- A runner whose host never comes up is asked for again, as long as tasks wait.
"""

import secrets
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import ray

from lineage_stash.core import events
from lineage_stash.core.ids import FIRST_INCARNATION, PeerId
from lineage_stash.on_ray import payloads
from lineage_stash.on_ray.creation import (
    RUNNERS,
    Creation,
    host_environment,
    put_on_record,
    start_host,
    start_runner,
    wishes_of,
)
from lineage_stash.on_ray.functions import Function, read_function
from lineage_stash.on_ray.groups import inherit_placement
from lineage_stash.on_ray.links import Links
from lineage_stash.shell import address_of

if TYPE_CHECKING:
    from lineage_stash.on_ray.runtime import Runtime

KEPT_S = 0.5
"""How long an idle runner is kept: about as long as Ray keeps a worker that it has leased."""

MOST_COMING = 8
"""Runners of one kind that Ray is asked for at once."""

LOOK_S = 0.5
"""How often to look whether Ray has given up on a runner."""

NOBODYS = "of a former life"
"""The kind of runners that get no further task."""

CHECKPOINT_EVERY = 100
"""Entries of a runner between checkpoints: it has no state, so that one costs little, and saves running tasks again."""


class Runner:
    """One runner, as its caller sees it."""

    def __init__(self, peer: PeerId, kind: str, host: Any) -> None:
        self.peer = peer
        self.kind = kind
        self.host = host
        self.idle_since: float | None = None
        self.is_up = False


class Dispatcher:
    """Tasks that wait, by the kind of runner that they need, and the runners that there are."""

    def __init__(self, runtime: "Runtime") -> None:
        self.runtime = runtime
        self.waiting: dict[str, deque[int]] = {}
        self.kinds: dict[str, Function] = {}
        self.runners: dict[PeerId, Runner] = {}
        self.looked_at = 0.0
        self._looked_after: set[str] = set()
        """The kinds of which somebody is about to look whether there are runners enough."""

    @property
    def _prefix(self) -> str:
        return f"{self.runtime.id}{RUNNERS}"

    # tasks

    def offer(self, task: int) -> None:
        """A task has its arguments, and wants a runner."""
        process = self.runtime.process
        payload = self.runtime.peer.program.values.waiting[task].payload
        digest, _ = payloads.returns_of(payloads.name_of(payload))
        known = self.kinds.get(digest)
        if known is not None:
            self._line_up(task, known)
            return

        def on_read(function: Function) -> None:
            self.kinds[digest] = self.kinds[kind_of(function)] = function
            self._line_up(task, function)

        process.registry.ask(lambda: read_function(process.plane, digest), on_read)

    def forget(self, task: int) -> None:
        """A task is not wanted any more."""
        for waiting in self.waiting.values():
            if task in waiting:
                waiting.remove(task)

    def _line_up(self, task: int, function: Function) -> None:
        if task not in self.runtime.peer.program.values.waiting:
            return  # it was cancelled meanwhile
        kind = kind_of(function)
        self.waiting.setdefault(kind, deque()).append(task)
        self._look_after(kind)

    def _look_after(self, kind: str) -> None:
        """Have it looked at soon, once for all tasks that line up until then."""
        if kind not in self._looked_after:
            self._looked_after.add(kind)
            self.runtime.process.loop.post(lambda: self._dispatch(kind))

    def _dispatch(self, kind: str) -> None:
        self._looked_after.discard(kind)
        waiting = self.waiting[kind]
        for runner in self.runners.values():
            if not waiting:
                return
            if runner.kind == kind and runner.idle_since is not None:
                self._assign(runner, waiting.popleft())
        coming = sum(1 for runner in self.runners.values() if runner.kind == kind and not runner.is_up)
        for _ in range(min(len(waiting), MOST_COMING) - coming):
            self._ask_for(kind)

    def _assign(self, runner: Runner, task: int) -> None:
        runner.idle_since = None
        self.runtime.shell.feed(events.TaskAssigned(task, runner.peer))

    def on_message(self) -> None:
        """Replies may have come: whoever has answered is free."""
        now = time.monotonic()
        for runner in list(self.runners.values()):
            if self._has_ended(runner.peer):
                del self.runners[runner.peer]
            elif runner.is_up and runner.idle_since is None and not self.runtime.awaits_answer(runner.peer):
                self._is_free(runner, now)

    def _has_ended(self, peer: PeerId) -> bool:
        """Whether a runner was given up, or ended with a task that was cancelled: it must not be given another one."""
        counterpart = self.runtime.peer.counterparts.get(peer)
        return counterpart is not None and counterpart.outbox.last_words is not None

    def retire(self, peer: PeerId) -> None:
        """Give a runner no further task."""
        if peer in self.runners:
            self.runners[peer].kind = NOBODYS

    def _is_free(self, runner: Runner, now: float) -> None:
        runner.idle_since = now
        waiting = self.waiting.get(runner.kind)
        if waiting:
            self._assign(runner, waiting.popleft())

    # runners

    def _ask_for(self, kind: str) -> None:
        peer = PeerId(f"{self._prefix}{secrets.token_hex(4)}")
        function = self.kinds[kind]
        creation = Creation(peer, self.runtime.id, "task runner", "", False, CHECKPOINT_EVERY, function.max_crashes, "",
                            inherit_placement(function.placement, self.runtime.placement))  # fmt: skip
        runner = self.runners[peer] = Runner(peer, kind, None)
        process = self.runtime.process

        def start() -> Any:
            put_on_record(process.plane, creation)
            return self._start(creation)

        def on_started(host: Any) -> None:
            runner.host = host

        process.registry.ask(start, on_started)

    def _start(self, creation: Creation) -> Any:
        """Start a host; where processes do not talk over connections of their own, one that Ray can call."""
        if not isinstance(self.runtime.process.links, Links):
            start_host(creation, FIRST_INCARNATION)
            return None
        options = wishes_of(creation)
        environment = host_environment(options.pop("runtime_env", None))
        return start_runner(PeerId(creation.peer), {**options, "runtime_env": environment})

    def on_arrival(self, address: str) -> None:
        """A process has opened a link: it may be a runner that has come up."""
        peer = PeerId(address.rpartition("@")[0])
        if peer.startswith(self._prefix) and "/" not in peer[len(self._prefix) :]:
            runner = self.runners.get(peer) or self._adopt(peer)
            if not runner.is_up:
                runner.is_up = True
                if peer not in self.runtime.peer.counterparts:
                    self._is_free(runner, time.monotonic())
                if self.waiting.get(runner.kind):
                    self._look_after(runner.kind)  # no more than some are asked for at once

    def _adopt(self, peer: PeerId) -> Runner:
        """A runner of this peer's former life: it may finish what it has, and is ended after that."""
        runner = self.runners[peer] = Runner(peer, NOBODYS, None)
        return runner

    def on_ticked(self) -> None:
        """End runners that have had nothing to do, and ask again for those that did not come."""
        if not self.runners:
            return
        now = time.monotonic()
        program = self.runtime.peer.program
        is_replaying = program.is_replaying  # then there may be calls to come for any of them
        for runner in list(self.runners.values()):
            if runner.idle_since is None or now - runner.idle_since <= KEPT_S:
                continue
            if not is_replaying and not program.values.is_planned(runner.peer):
                self._end(runner)
        if now - self.looked_at > LOOK_S:
            self.looked_at = now
            missing = [runner for runner in self.runners.values() if not runner.is_up and runner.host is not None]
            if missing:
                look = partial(_those_over, missing)
                self.runtime.process.registry.ask(look, self._ask_again)

    def _end(self, runner: Runner) -> None:
        """Have a runner go when nobody needs it; should it not hear this, it comes back, and is told again."""
        del self.runners[runner.peer]
        self.runtime.shell.feed(events.RunnerDropped(runner.peer))
        incarnation = self.runtime.peer.history.incarnation(runner.peer)
        self.runtime.process.control(address_of(runner.peer, incarnation), retire=True)

    def _ask_again(self, failed: list[Runner]) -> None:
        for runner in failed:
            if runner.is_up or self.runners.get(runner.peer) is not runner:
                continue  # it has come up since, or this was said before: looking took longer than the pause between
            del self.runners[runner.peer]
            if self.waiting.get(runner.kind):
                self._dispatch(runner.kind)


def kind_of(function: Function) -> str:
    """What runners of a function's tasks have in common."""
    return f"{function.max_crashes}:{function.placement}"


def _those_over(runners: list[Runner]) -> list[Runner]:
    """Those of which Ray has ended the task that was to be their host."""
    return [runner for runner in runners if ray.wait([runner.host], timeout=0)[0]]
