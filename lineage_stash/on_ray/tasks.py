"""Tasks as users see them: remote functions, as in Ray. Each call runs exactly once, whichever process dies."""

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any

from lineage_stash.capture.here import paused
from lineage_stash.capture.pickling import dumps
from lineage_stash.on_ray.control_plane import ControlPlane
from lineage_stash.on_ray.functions import put_function
from lineage_stash.on_ray.methods import STREAMING
from lineage_stash.on_ray.options import NO_DAGS, check_task_options
from lineage_stash.on_ray.present import current
from lineage_stash.on_ray.refs import ObjectRef, passing

MAX_CRASHES = 3
"""Lives that may die in the same task before it is given up, as in Ray."""


class RemoteFunction:
    """A function whose calls run elsewhere: call it with `.remote(...)`."""

    def __init__(self, function: Callable[..., Any], wanted: dict[str, Any]) -> None:
        check_task_options(wanted, is_generator=inspect.isgeneratorfunction(function))
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise ValueError(
                "'async def' should not be used for remote tasks. You can wrap the async function with "
                "`asyncio.run(f())`, in a plain function."
            )
        self._begin(function, wanted)

    def _begin(self, function: Callable[..., Any], wanted: dict[str, Any]) -> None:
        self._function = function
        self._options = wanted
        self._digest = ""
        self._carried = False
        """Whether the code travels with every call, because there are refs in it."""
        self._stored_in: ControlPlane | None = None
        """The cluster that has the code: another one may be joined later."""
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self._function)

    @property
    def _num_returns(self) -> int | str:
        wanted = self._options.get("num_returns")
        if wanted is None:
            return STREAMING if inspect.isgeneratorfunction(self._function) else 1
        returns: int | str = wanted
        return returns

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Have the function run; its result is claimed by the ref, or by one ref for each result."""
        self._signature.bind(*args, **kwargs)
        with paused():
            return self._submit(args, kwargs)

    def _submit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        runtime = current()
        plane = runtime.process.plane
        if self._stored_in is not plane:
            self._store(plane)
        if self._carried:
            args = (self._function, *args)
        return runtime.submit_task(self._digest, args, kwargs, self._num_returns)

    def _store(self, plane: ControlPlane) -> None:
        """Put the code on record; where it refers to values by refs, only what runs the code that a call brings."""
        crashes = self._options.get("max_crashes") or _crashes_allowed(self._options.get("max_retries"))
        found: list[ObjectRef] = []
        try:
            with passing(found):
                code = dumps(self._function)
        except Exception as error:
            raise TypeError(
                f"Could not serialize the function {self.__name__}: {error}. It refers to an object that belongs to "
                "this process: make that in the function, or pass what it is made of."
            ) from error
        self._carried = bool(found)
        if self._carried:
            code = dumps(_run_carried)
        self._digest = put_function(plane, code, self.__name__, self._options, crashes)
        self._stored_in = plane

    def options(self, **wanted: Any) -> "RemoteFunction":
        """The same function with other options."""
        check_task_options(wanted, in_options=True)
        return RemoteFunction(self._function, {**self._options, **wanted})

    def _remote(self, args: Any = (), kwargs: dict[str, Any] | None = None, **wanted: Any) -> Any:
        """Ray's long form of `options(...).remote(...)`."""
        return self.options(**wanted).remote(*(args or ()), **(kwargs or {}))

    def bind(self, *_args: Any, **_kwargs: Any) -> Any:
        """Refused: only calls are recovered."""
        raise NotImplementedError(NO_DAGS)

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise TypeError(
            f"Remote functions cannot be called directly. Instead of running '{self.__name__}()', try "
            f"'{self.__name__}.remote()'."
        )

    def __repr__(self) -> str:
        return f"RemoteFunction({self.__module__}.{self.__name__})"

    def __getstate__(self) -> tuple[Callable[..., Any], dict[str, Any]]:
        return self._function, self._options

    def __setstate__(self, state: tuple[Callable[..., Any], dict[str, Any]]) -> None:
        # A function that refers to itself may not be complete yet at this moment: it is looked at when it is needed.
        self._begin(*state)


def _run_carried(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a function that came with its call, so that the refs in it are passed on like those in its arguments."""
    return function(*args, **kwargs)


def _crashes_allowed(max_retries: int | None) -> int:
    """Lives that a task may take, as in Ray: one, and so many retries; without a limit, many."""
    if max_retries is None:
        return MAX_CRASHES + 1
    return 1_000_000 if max_retries < 0 else max_retries + 1
