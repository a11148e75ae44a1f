"""Options are checked as Ray checks them; what cannot be recovered is refused with advice. No cluster is needed."""

from typing import Any

import pytest

import lineage_stash as ray
from lineage_stash.on_ray.options import check_task_options

pytestmark = pytest.mark.ray


class Plain:
    def method(self) -> None: ...


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"num_cpu": 1}, ValueError, "Invalid option keyword num_cpu for actors"),
        ({"max_restarts": 0.5}, TypeError, "The type of keyword 'max_restarts' must be"),
        ({"max_task_retries": -2}, ValueError, "only accepts None, 0, -1 or a positive integer"),
        ({"num_gpus": 1e-7}, ValueError, "cannot go beyond 0.0001"),
        ({"resources": {"CPU": 1}}, ValueError, "num_cpus"),
        ({"lifetime": "long"}, ValueError, "lifetime"),
        ({"get_if_exists": True}, ValueError, "name must be specified"),
        ({"label_selector": {"key": "in(a,, b)"}}, ValueError, "Invalid"),
        ({"max_concurrency": 2}, ValueError, "create several actors"),
        ({"concurrency_groups": {"io": 1}}, ValueError, "create several actors"),
        ({"max_pending_calls": 3}, ValueError, "leave it out"),
        ({"durability": "paper"}, ValueError, "durability='paper' is not known"),
        ({"checkpoint_every": "often"}, TypeError, "checkpoint_every"),
        ({"max_crashes": 0}, ValueError, "max_crashes"),
    ],
)
def test_actor_options_that_cannot_be_are_refused(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ray.remote(**options)(Plain)
    if "concurrency_groups" not in options:
        with pytest.raises(error, match=text):
            ray.remote(Plain).options(**options)


def test_options_that_say_nothing_are_accepted() -> None:
    options = {"max_concurrency": 1, "concurrency_groups": None, "max_pending_calls": -1, "placement_group": "default"}
    assert ray.remote(**options, num_cpus=1)(Plain).options(num_cpus=2, max_restarts=-1)._options["num_cpus"] == 2


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"max_restarts": 1}, ValueError, "Invalid option keyword max_restarts for remote functions"),
        ({"max_retries": 0.5}, TypeError, "The type of keyword 'max_retries' must be"),
        ({"num_returns": -1}, ValueError, "num_returns"),
        ({"num_returns": "dynamic"}, ValueError, "one by one"),
    ],
)
def test_task_options_that_cannot_be_are_refused(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        check_task_options(options)


def test_task_options_of_a_call_are_not_those_of_a_function() -> None:
    check_task_options({"max_calls": 1, "num_cpus": 2, "max_crashes": 2})
    with pytest.raises(ValueError, match=r"'max_calls' is not supported in '\.options"):
        check_task_options({"max_calls": 1}, in_options=True)


def test_decorator_without_options_or_with_other_things_is_refused() -> None:
    for attempt in (lambda: ray.remote(), lambda: ray.remote(3), lambda: ray.remote(Plain, Plain)):
        with pytest.raises(TypeError, match="must be applied"):
            attempt()


def test_methods_that_cannot_be_recovered_are_refused_with_their_class() -> None:
    class Retrying:
        @ray.method(retry_exceptions=True)  # type: ignore[untyped-decorator]
        def method(self) -> None: ...

    with pytest.raises(TypeError, match=r"Retrying\.method: retry_exceptions is not supported"):
        ray.remote(Retrying)


def test_method_options_are_rays() -> None:
    with pytest.raises(AssertionError, match="Unexpected keyword"):
        ray.method(num_return=2)

    class Several:
        @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
        def pair(self) -> tuple[int, int]:
            return 1, 2

    assert ray.remote(Several)._methods.by_name["pair"].num_returns == 2
