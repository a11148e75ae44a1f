"""Output commit: effects on the outside, which nobody can take back.

Rules:
- `commit()` returns when all that the caller depends on is committed: whatever dies from then on, none of it unhappens.
- An `@effect` runs after a commit, and how it ended is logged: a replay recalls that instead of running it again.
- If its process dies in the middle, or before its end is in a log that survives, it runs again, with the same key; so
  may a former life of the same actor that was taken for dead too early. It therefore happens exactly once where the
  outside takes each key once (an idempotency key, a primary key, the name of a file), and at least once elsewhere.
- The key is the peer's id and a number that is counted in its state: the same in every replay, and no other effect's.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

from lineage_stash.capture.here import here
from lineage_stash.on_ray.present import current

P = ParamSpec("P")
R = TypeVar("R")

KEY = "key"
"""The parameter that an effect may have, and is given its key in."""


class Key(NamedTuple):
    """Which effect it is, in every run of it."""

    peer: str
    number: int

    def __str__(self) -> str:
        return f"{self.peer}!{self.number}"


def commit() -> None:
    """Wait until all that the state of this script, actor or task depends on is committed."""
    (here.recorder or current()).commit()


def effect(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function one that acts on the outside: after a commit, with a `Key` in its parameter `key` if it has one.

    Its result, or the error it raised, is logged: a replay recalls it and does not run the function again.
    """
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{function.__qualname__} cannot be an effect: it would act only after it has returned.")
    takes_key = KEY in inspect.signature(function).parameters

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        result: R = act(function, args, kwargs, takes_key=takes_key)
        return result

    return run


def act(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, takes_key: bool) -> Any:
    """Carry out one effect; a function of its own, so that whoever pickles `run` by value finds it by name."""
    if here.observing:
        raise RuntimeError(
            f"{function.__qualname__} is an effect and was called inside an observation or another effect, which a "
            "replay does not run again: call it outside, or call a plain function there."
        )
    who = here.recorder or current()
    if takes_key and KEY not in kwargs:
        kwargs = {**kwargs, KEY: Key(who.id, who.next_created())}
    who.commit()
    return who.observe(functools.partial(function, *args, **kwargs))
