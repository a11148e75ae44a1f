"""A pool of actors that work is spread over, as in `ray.util.ActorPool`.

Work that finds no idle actor waits in the pool until a result has been taken. Results come in the order in which work
was submitted, or in the order in which it is done; one pool gives them in one order at a time.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import lineage_stash
from lineage_stash.on_ray.actors import ActorHandle
from lineage_stash.on_ray.refs import ObjectRef

Work = Callable[[ActorHandle, Any], ObjectRef]


class ActorPool:
    """Gives each piece of work to an actor that is idle."""

    def __init__(self, actors: Iterable[ActorHandle]) -> None:
        self._idle = list(actors)
        self._busy: dict[ObjectRef, tuple[int, ActorHandle]] = {}
        self._by_number: dict[int, ObjectRef] = {}
        self._waiting: deque[tuple[Work, Any]] = deque()
        self._submitted = 0
        self._next = 0

    # all at once

    def map(self, fn: Work, values: Iterable[Any]) -> Iterator[Any]:
        """Apply `fn(actor, value)` to each value; the results, in the order of the values."""
        self._begin(fn, values)
        return self._results(self.get_next)

    def map_unordered(self, fn: Work, values: Iterable[Any]) -> Iterator[Any]:
        """Apply `fn(actor, value)` to each value; the results, as they come."""
        self._begin(fn, values)
        return self._results(self.get_next_unordered)

    def _begin(self, fn: Work, values: Iterable[Any]) -> None:
        """Leave behind what is not taken of earlier work, and submit this."""
        while self.has_next():
            try:
                self.get_next_unordered(timeout=0, ignore_if_timedout=True)
            except TimeoutError:
                continue
        for value in values:
            self.submit(fn, value)

    def _results(self, take: Callable[[], Any]) -> Iterator[Any]:
        while self.has_next():
            yield take()

    # one by one

    def submit(self, fn: Work, value: Any) -> None:
        """Have an idle actor do `fn(actor, value)`, now or when there is one."""
        if not self._idle:
            self._waiting.append((fn, value))
            return
        actor = self._idle.pop()
        ref = fn(actor, value)
        self._busy[ref] = (self._submitted, actor)
        self._by_number[self._submitted] = ref
        self._submitted += 1

    def has_next(self) -> bool:
        """Whether a result is still to be taken."""
        return bool(self._busy)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """The next result in the order of submission."""
        if not self.has_next():
            raise StopIteration("No more results to get")
        if self._next not in self._by_number:
            raise ValueError("It is not allowed to call get_next() after get_next_unordered().")
        ref = self._by_number[self._next]
        is_late = timeout is not None and not lineage_stash.wait([ref], timeout=timeout)[0]
        if is_late and not ignore_if_timedout:
            raise TimeoutError("Timed out waiting for result")
        self._next += 1
        return self._take(ref, is_late)

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Whichever result comes next."""
        if not self.has_next():
            raise StopIteration("No more results to get")
        ready, rest = lineage_stash.wait(list(self._busy), num_returns=1, timeout=timeout)
        if not ready and not ignore_if_timedout:
            raise TimeoutError("Timed out waiting for result")
        ref = ready[0] if ready else rest[0]
        self._next = max(self._next, self._busy[ref][0] + 1)
        return self._take(ref, is_late=not ready)

    def _take(self, ref: ObjectRef, is_late: bool) -> Any:
        number, actor = self._busy.pop(ref)
        del self._by_number[number]
        if is_late:
            self._return(actor)
            raise TimeoutError(f"Timed out waiting for result: the task {ref} is ignored")
        try:
            result = lineage_stash.get(ref)
        except lineage_stash.exceptions.RayTaskError:
            self._return(actor)
            raise
        self._return(actor)
        return result

    # actors

    def _return(self, actor: ActorHandle) -> None:
        self._idle.append(actor)
        if self._waiting:
            self.submit(*self._waiting.popleft())

    def has_free(self) -> bool:
        """Whether an actor is idle and no work waits for one."""
        return bool(self._idle) and not self._waiting

    def pop_idle(self) -> ActorHandle | None:
        """Take an idle actor out of the pool; None if there is none."""
        return self._idle.pop() if self.has_free() else None

    def push(self, actor: ActorHandle) -> None:
        """Put another actor into the pool."""
        if actor in self._idle or any(actor == busy for _, busy in self._busy.values()):
            raise ValueError("Actor already belongs to current ActorPool")
        self._return(actor)
