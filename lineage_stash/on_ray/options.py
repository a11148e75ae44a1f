"""Options of actors, tasks and methods: checked as Ray checks them, and what cannot be recovered is refused.

Ray's own tables say which options there are and which values they take; besides `control_plane.py` this is the only
module that imports what is private to Ray. A refusal says what to do instead.
"""

import inspect
from collections.abc import Callable
from typing import Any

from ray._common import ray_option_utils
from ray._private import auto_init_hook

from lineage_stash.on_ray.levels import parse_level
from lineage_stash.on_ray.methods import is_method

DECORATOR_ERROR: str = ray_option_utils.remote_args_error_string
"""What is wrong with `@remote()` and `@remote(3)`."""

METHOD_OPTIONS = frozenset((
    "name", "num_returns", "max_task_retries", "retry_exceptions", "concurrency_group", "enable_task_events",
    "tensor_transport", "_generator_backpressure_num_objects", "_labels",
))  # fmt: skip
"""What Ray takes in `handle.method.options(...)`."""


REFUSED_OF_METHODS = {
    "retry_exceptions": "an exception is an answer like any other. Repeat what failed inside the method.",
    "concurrency_group": "the order in which threads run cannot be replayed. Create several actors instead.",
    "tensor_transport": "values travel with their calls. Leave the option out.",
}
"""What makes no sense, or cannot be recovered, and what to do instead."""


NO_DAGS = "graphs are not recovered: call .remote(...), or use plain ray for what is to be bound"
"""What is wrong with `bind`."""


def is_cython(function: object) -> bool:
    """Whether this is a function that Cython has compiled."""
    return type(function).__name__ == "cython_function_or_method"


def connects_by_itself() -> bool:
    """Whether a script that has not called `init` is initialized on first use: `RAY_ENABLE_AUTO_CONNECT`."""
    return bool(auto_init_hook.enable_auto_connect)


def _check_count(name: str, value: object, *, fewest: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"The type of keyword '{name}' must be int or None, but received type {type(value)}")
    if value < fewest:
        raise ValueError(f"The keyword '{name}' only accepts None or an integer from {fewest} on, not {value}")


def _check_durability(_: str, value: object) -> None:
    if value:
        if not isinstance(value, str):
            raise TypeError(f"The type of keyword 'durability' must be str, but received type {type(value)}")
        parse_level(value)


OWN_OPTIONS: dict[str, Callable[[str, object], None]] = {
    "checkpoint_every": lambda name, value: _check_count(name, value, fewest=1),
    "max_crashes": lambda name, value: _check_count(name, value, fewest=1),
    "durability": _check_durability,
}
"""What only this package has, with what is checked of each."""

TASKS_OWN_OPTIONS = frozenset(("max_crashes", "durability"))


def check_task_options(options: dict[str, Any], *, in_options: bool = False, is_generator: bool | None = None) -> None:
    """Raise what Ray raises for options that a remote function cannot have; `in_options` is for `.options(...)`."""
    _check_known(options, {*ray_option_utils.task_options, *TASKS_OWN_OPTIONS}, "remote functions")
    ray_option_utils.validate_task_options(_check_own(options), in_options, is_generator)
    _refuse_dynamic(options.get("num_returns"), ValueError)


def check_actor_options(options: dict[str, Any], *, in_options: bool = False) -> None:
    """Raise what Ray raises for options that an actor cannot have, and refuse what cannot be recovered."""
    _check_known(options, {*ray_option_utils.actor_options, *OWN_OPTIONS}, "actors")
    ray_option_utils.validate_actor_options(_check_own(options), in_options)
    _refuse_unrecoverable(options)


def check_method_options(options: dict[str, Any], *, is_generator: bool = False) -> None:
    """Raise what Ray raises for options that one call of a method cannot have."""
    for name in options:
        if name not in METHOD_OPTIONS:
            raise TypeError(f"Invalid option keyword {name} for actor methods. Valid ones are {sorted(METHOD_OPTIONS)}")
    for name in ("num_returns", "name"):
        if name in options:
            ray_option_utils.task_options[name].validate(name, options[name])
    ray_option_utils.validate_num_returns(is_generator, options.get("num_returns"), stacklevel=4)
    _refuse_dynamic(options.get("num_returns"), ValueError)
    for name, advice in REFUSED_OF_METHODS.items():
        if options.get(name):
            raise ValueError(f"{name} is not supported: {advice}")


def _check_known(options: dict[str, Any], known: set[str], whose: str) -> None:
    for name in options:
        if name not in known:
            raise ValueError(f"Invalid option keyword {name} for {whose}. Valid ones are {sorted(known)}.")


def _check_own(options: dict[str, Any]) -> dict[str, Any]:
    """Check this package's own options; the others."""
    for name, check in OWN_OPTIONS.items():
        if name in options:
            check(name, options[name])
    return {name: value for name, value in options.items() if name not in OWN_OPTIONS}


# what cannot be recovered


def _refuse_unrecoverable(options: dict[str, Any]) -> None:
    instead = (
        "The order in which threads run cannot be replayed: leave the option out and create several actors instead, or "
        "use plain ray.remote for this class."
    )
    if (options.get("max_concurrency") or 1) > 1:
        raise ValueError(f"max_concurrency={options['max_concurrency']} is not supported. {instead}")
    if options.get("concurrency_groups"):
        raise ValueError(f"concurrency_groups are not supported. {instead}")
    if options.get("enable_tensor_transport"):
        raise ValueError("enable_tensor_transport is not supported: leave it out, or use plain ray.remote")
    if (options.get("max_pending_calls") or -1) > 0:
        raise ValueError(
            "max_pending_calls is not supported: leave it out. A script that submits faster than its actors run waits "
            "by itself when too much is under way."
        )


def _refuse_dynamic(num_returns: object, error: type[Exception], where: str = "") -> None:
    if num_returns == "dynamic":
        raise error(
            f"{where}num_returns='dynamic' is not supported: leave it out. A generator's values come one by one."
        )


def check_actor_class(cls: type) -> None:
    """Refuse a class with methods whose runs cannot be repeated."""
    for name, member in inspect.getmembers(cls, is_method):
        function = inspect.unwrap(member)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{cls.__name__}.{name} is async: the order in which coroutines resume cannot be replayed yet. Make "
                "it a plain method, or use plain ray.remote for this class."
            )
        _refuse_dynamic(getattr(function, "__ray_num_returns__", None), TypeError, f"{cls.__name__}.{name}: ")
        for option, advice in REFUSED_OF_METHODS.items():
            if getattr(function, f"__ray_{option}__", None):
                raise TypeError(f"{cls.__name__}.{name}: {option} is not supported: {advice}")
