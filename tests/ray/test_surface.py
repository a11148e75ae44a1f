"""Actors look like Ray's: classes, handles, names, ends, and what is wrong is said where it is written."""

import gc
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray as plain_ray
from ray.actor import ActorClassInheritanceException

import lineage_stash as ray
from lineage_stash.testing.inject import kill_process, pid_of

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(120)]


def wait_until(is_so: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


def has_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


class Base:
    GREETING = "hello"

    def __init__(self, name: str = "nobody", *, loud: bool = False) -> None:
        self.name = name
        self.loud = loud
        self.calls = 0

    def greet(self, mark: str, times: int = 1) -> str:
        self.calls += 1
        text = f"{self.GREETING}, {self.name}" + mark * times
        return text.upper() if self.loud else text

    @classmethod
    def of(cls, name: str) -> str:
        return f"{cls.GREETING} of {name}"

    @staticmethod
    def double(value: int) -> int:
        return 2 * value


@ray.remote(num_cpus=0)
class Greeter(Base):
    """Greets."""

    @property
    def broken(self) -> str:
        raise RuntimeError("a property was called")

    def pid(self) -> int:
        return int(ray.observe(os.getpid))

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "awake"

    def leave(self) -> None:
        ray.actor.exit_actor()

    def leave_late(self, seconds: float) -> None:
        time.sleep(seconds)
        ray.actor.exit_actor()

    def leave_by_sys(self, code: int) -> None:
        sys.exit(code)

    def raise_bare(self) -> None:
        raise BaseException("bare")

    def about_me(self) -> dict[str, object]:
        context = ray.get_runtime_context()
        return {
            "actor_id": context.get_actor_id(), "name": context.get_actor_name(), "namespace": context.namespace,
            "job": context.get_job_id(), "node": context.get_node_id(), "me": context.current_actor,
            "reconstructed": context.was_current_actor_reconstructed,
        }  # fmt: skip

    def find(self, name: str) -> "ray.ActorHandle":
        return ray.get_actor(name)

    def create(self) -> tuple["ray.ActorHandle", int]:
        self.child = Greeter.remote("child")
        return self.child, ray.get(self.child.pid.remote())

    def keep(self, other: list["ray.ActorHandle"]) -> None:
        self.kept = other


@pytest.fixture(scope="module")
def greeter(cluster: None) -> "ray.ActorHandle":  # noqa: ARG001 - it has to be there first
    return Greeter.options(name="greeter").remote("you", loud=True)


# classes and methods


def test_inherited_class_and_static_methods_are_called_and_properties_are_left_alone(
    greeter: "ray.ActorHandle",
) -> None:
    refs = [greeter.greet.remote("!"), greeter.of.remote("me"), greeter.double.remote(4)]
    assert ray.get(refs) == ["HELLO, YOU!", "hello of me", 8]
    assert Greeter.GREETING == "hello"
    assert Greeter.of("all") == "hello of all"
    assert not hasattr(greeter, "broken")


def test_subclass_of_an_actor_class_is_refused_as_in_ray() -> None:
    with pytest.raises(
        ActorClassInheritanceException, match="Inheriting from actor classes is not currently supported"
    ):

        class Derived(Greeter):  # type: ignore[valid-type,misc]
            pass


def test_every_actor_answers_what_rays_actors_answer(greeter: "ray.ActorHandle") -> None:
    assert ray.get(greeter.__ray_ready__.remote()) is True
    before = ray.get(greeter.__ray_call__.remote(lambda self: self.calls))
    assert ray.get(greeter.__ray_call__.remote(lambda self, more: self.calls + more, more=2)) == before + 2
    with pytest.raises(TypeError, match="cannot be called directly"):
        greeter.__ray_ready__()


def test_wrong_arguments_fail_where_they_are_written(greeter: "ray.ActorHandle") -> None:
    for attempt in (
        lambda: greeter.greet.remote(),
        lambda: greeter.greet.remote("!", 1, 2),
        lambda: greeter.greet.remote("!", mark="?"),
        lambda: greeter.greet.remote("!", unknown=1),
        lambda: Greeter.remote("you", True),
        lambda: Greeter.remote(quiet=True),
    ):
        with pytest.raises(TypeError):
            attempt()
    assert ray.get(greeter.greet.remote(times=2, mark="!")) == "HELLO, YOU!!"


def test_handles_complete_compare_and_can_be_referred_to_weakly(greeter: "ray.ActorHandle") -> None:
    assert {"greet", "of", "double", "__init__", "__ray_call__"} <= set(dir(greeter))
    assert [name for name in dir(greeter.greet) if not name.startswith("_")] == ["bind", "options", "remote"]
    assert {"remote", "options", "greet"} <= set(dir(Greeter))
    again = ray.get_actor("greeter")
    assert again == greeter
    assert {again: 1}[greeter] == 1
    assert greeter != 1
    assert weakref.ref(greeter)() is greeter
    assert repr(greeter).startswith("Actor(Greeter, ")
    assert again._actor_id == greeter._actor_id
    with pytest.raises(AttributeError, match="nothing"):
        greeter.nothing  # noqa: B018


def test_methods_take_options_and_refuse_unknown_ones(greeter: "ray.ActorHandle") -> None:
    assert ray.get(greeter.double.options(name="twice", num_returns=1).remote(3)) == 6
    assert greeter.double.options(num_returns=0).remote(3) is None
    assert ray.get(greeter.double._remote(args=[5])) == 10
    with pytest.raises(TypeError, match="num_return"):
        greeter.double.options(num_return=1)
    with pytest.raises(ValueError, match="num_returns"):
        greeter.double.options(num_returns=-1)
    with pytest.raises(ValueError, match="generator"):
        greeter.double.options(num_returns="streaming")
    with pytest.raises(ValueError, match="inside the method"):
        greeter.double.options(retry_exceptions=True)


def test_method_that_yields_streams_also_where_that_is_said_once_more() -> None:
    class Counter:
        def count(self, upper: int) -> Iterator[int]:
            yield from range(upper)

    counter = ray.remote(Counter).options(num_cpus=0).remote()
    streamed = counter.count.options(num_returns="streaming").remote(3)
    assert [ray.get(ref) for ref in streamed] == [0, 1, 2]


def test_method_may_be_passed_like_its_handle(greeter: "ray.ActorHandle") -> None:
    called = greeter.__ray_call__.remote(lambda _, method: repr(method), greeter.double)
    assert ray.get(called).startswith("ActorMethod(Actor(Greeter")


# where one is


def test_context_of_an_actor_is_the_actors_own(greeter: "ray.ActorHandle") -> None:
    about = ray.get(greeter.about_me.remote())
    context = plain_ray.get_runtime_context()
    assert about == {
        "actor_id": greeter._actor_id.hex(), "name": "greeter", "namespace": context.namespace,
        "job": context.get_job_id(), "node": context.get_node_id(), "me": greeter, "reconstructed": False,
    }  # fmt: skip
    assert ray.get_runtime_context().get_job_id() == context.get_job_id()


# names


def test_names_are_per_namespace_and_found_from_actors(greeter: "ray.ActorHandle") -> None:
    assert ray.get(greeter.find.remote("greeter")) == greeter
    assert "greeter" in ray.util.list_named_actors()
    with pytest.raises(ValueError, match="Failed to look up actor with name 'greeter'"):
        ray.get_actor("greeter", namespace="elsewhere")
    with pytest.raises(ValueError, match="non-empty"):
        ray.get_actor("")
    with pytest.raises(ValueError, match="already taken") as raised:
        Greeter.options(name="greeter").remote()
    assert isinstance(raised.value, ray.exceptions.ActorAlreadyExistsError)
    with pytest.raises(ValueError, match="empty"):
        Greeter.options(name="").remote()
    with pytest.raises(ValueError, match="namespace"):
        Greeter.options(name="other", namespace="").remote()


# ends


def test_actor_that_exits_fails_that_call_and_the_later_ones_and_frees_its_name() -> None:
    leaver = Greeter.options(name="leaver").remote("you")
    before = leaver.greet.remote(".")
    leaving, after = leaver.leave.remote(), leaver.greet.remote(".")
    assert ray.get(before) == "hello, you."
    for ref in (leaving, after):
        with pytest.raises(ray.exceptions.ActorDiedError, match=r"exit_actor\(\) was called in leave\(\)"):
            ray.get(ref, timeout=60)

    def is_free() -> bool:
        try:
            return not ray.get_actor("leaver")
        except ValueError:
            return True

    wait_until(is_free)


def test_actor_that_dies_while_it_exits_exits_again() -> None:
    leaver = Greeter.remote("you")
    pid = ray.get(leaver.pid.remote())
    leaving = leaver.leave_late.remote(1.0)
    assert not ray.wait([leaving], timeout=0.3)[0]
    kill_process(leaver)
    with pytest.raises(ray.exceptions.RayActorError, match="exit_actor"):
        ray.get(leaving, timeout=60)
    assert has_gone(pid)


def test_system_exit_ends_the_actor_and_any_other_exception_does_not() -> None:
    leaver = Greeter.remote("you")
    with pytest.raises(BaseException, match="bare") as raised:
        ray.get(leaver.raise_bare.remote(), timeout=60)
    assert isinstance(raised.value, ray.exceptions.RayTaskError)
    assert ray.get(leaver.greet.remote("")) == "hello, you"
    with pytest.raises(ray.exceptions.RayActorError, match="exited with 3"):
        ray.get(leaver.leave_by_sys.remote(3), timeout=60)


def test_exit_outside_of_an_actor_is_refused() -> None:
    with pytest.raises(TypeError, match="non-actor"):
        ray.actor.exit_actor()


def test_actor_ends_after_its_calls_when_its_handle_is_dropped() -> None:
    dropped = Greeter.options(name="dropped").remote("you")
    weak = weakref.ref(dropped)
    pid = ray.get(dropped.pid.remote())
    slow = dropped.sleep.options(num_returns=1).remote(0.5)
    gc.disable()
    try:
        del dropped
        assert weak() is None
    finally:
        gc.enable()
    assert ray.get(slow, timeout=60) == "awake"
    wait_until(lambda: has_gone(pid))
    with pytest.raises(ValueError, match="Failed to look up"):
        ray.get_actor("dropped")
    assert ray.get(Greeter.remote("one line").greet.remote("")) == "hello, one line"


def test_actor_whose_handle_was_passed_on_stays(greeter: "ray.ActorHandle") -> None:
    passed = Greeter.remote("you")
    pid = ray.get(passed.pid.remote())
    ray.get(greeter.keep.remote([passed]))
    del passed
    kept = ray.get(greeter.__ray_call__.remote(lambda self: self.kept[0]))
    assert ray.get(kept.pid.remote()) == pid


def test_actor_whose_handle_came_back_ends_when_it_is_dropped(greeter: "ray.ActorHandle") -> None:
    lent = Greeter.remote("you")
    pid = ray.get(lent.pid.remote())
    ray.get(greeter.__ray_call__.remote(lambda _, handle: ray.get(handle.pid.remote()), lent))
    slow = greeter.__ray_call__.remote(lambda _, handle: ray.get(handle.sleep.remote(0.5)), lent)
    del lent
    assert ray.get(slow, timeout=60) == "awake"
    wait_until(lambda: has_gone(pid))


def test_actor_that_an_actor_has_created_ends_when_its_handle_is_dropped_there() -> None:
    parent = Greeter.remote("parent")

    def create(self: Any) -> int:
        self.kept = [Greeter.remote("child"), "still here"]
        return ray.get(self.kept[0].pid.remote())

    pid = ray.get(parent.__ray_call__.remote(create))
    assert ray.get(parent.__ray_call__.remote(lambda self: ray.get(self.kept[0].greet.remote("")))) == "hello, child"
    assert ray.get(parent.__ray_call__.remote(lambda self: self.kept.pop())) == "still here"
    assert not has_gone(pid)
    ray.get(parent.__ray_call__.remote(lambda self: self.kept.clear()))
    wait_until(lambda: has_gone(pid))
    assert ray.get(parent.greet.remote("")) == "hello, parent"


def test_actors_that_an_actor_has_created_end_with_it() -> None:
    parent = Greeter.remote("parent")
    child, pid = ray.get(parent.create.remote())
    assert ray.get(child.greet.remote("")) == "hello, child"
    ray.kill(parent)
    wait_until(lambda: has_gone(pid))
    with pytest.raises(ray.exceptions.RayActorError, match="created it is gone"):
        ray.get(child.greet.remote(""), timeout=60)


def test_kill_that_allows_a_restart_ends_the_process_only() -> None:
    victim = Greeter.remote("you")
    ray.get([victim.greet.remote("!"), victim.greet.remote("!")])
    pid = pid_of(victim)
    ray.kill(victim, no_restart=False)
    wait_until(lambda: has_gone(pid))
    assert ray.get(victim.__ray_call__.remote(lambda self: self.calls), timeout=60) == 2
    assert ray.get(victim.about_me.remote())["reconstructed"] is True
    with pytest.raises(ValueError, match="only supported for actors"):
        ray.kill("victim")


# init, get, wait


def test_init_again_is_an_error_unless_it_is_ignored() -> None:
    with pytest.raises(RuntimeError, match="twice"):
        ray.init()
    context = ray.init(ignore_reinit_error=True)
    assert context["node_id"] == plain_ray.get_runtime_context().get_node_id()
    assert context.address_info["node_id"] == context["node_id"]


def test_task_of_plain_ray_takes_part_by_itself(greeter: "ray.ActorHandle") -> None:
    assert ray.get(greeter.double.remote(1)) == 2

    @plain_ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
    def double_by_name(value: int) -> int:
        import lineage_stash

        return int(lineage_stash.get(lineage_stash.get_actor("greeter").double.remote(value)))

    assert plain_ray.get(double_by_name.remote(21), timeout=60) == 42


def test_get_and_wait_refuse_what_ray_refuses(greeter: "ray.ActorHandle") -> None:
    ref = greeter.double.remote(1)
    with pytest.raises(ValueError, match="Invalid type of object refs"):
        ray.get((ref,))
    with pytest.raises(TypeError, match=r"not an ray\.ObjectRef"):
        ray.get([ref, 3])
    assert ray.get([]) == []
    with pytest.raises(TypeError, match="single"):
        ray.wait(ref)
    with pytest.raises(TypeError, match="expected a list"):
        ray.wait((ref,))
    with pytest.raises(TypeError, match="containing"):
        ray.wait([1])
    with pytest.raises(ValueError, match="nonnegative"):
        ray.wait([ref], timeout=-1)
    with pytest.raises(ValueError, match="unique"):
        ray.wait([ref, ref])
    with pytest.raises(ValueError, match="Invalid number"):
        ray.wait([ref], num_returns=0)
    with pytest.raises(ValueError, match="num_returns cannot be greater"):
        ray.wait([ref], num_returns=2)
    assert ray.wait([]) == ([], [])


def test_refs_of_plain_ray_can_be_had_beside_ours(greeter: "ray.ActorHandle") -> None:
    plain = plain_ray.put(5)
    assert ray.get([plain, greeter.double.remote(1)]) == [5, 2]
    assert ray.wait([plain]) == ([plain], [])


# tools


def test_pool_spreads_work_and_gives_results_in_either_order() -> None:
    pool = ray.util.ActorPool([Greeter.remote(), Greeter.remote()])
    assert list(pool.map(lambda actor, value: actor.double.remote(value), range(5))) == [0, 2, 4, 6, 8]
    assert sorted(pool.map_unordered(lambda actor, value: actor.double.remote(value), range(5))) == [0, 2, 4, 6, 8]
    pool.submit(lambda actor, seconds: actor.sleep.remote(seconds), 0.3)
    with pytest.raises(TimeoutError):
        pool.get_next(timeout=0)
    assert pool.get_next() == "awake"
    assert not pool.has_next()
    idle = pool.pop_idle()
    assert idle is not None
    pool.push(idle)
    with pytest.raises(ValueError, match="already belongs"):
        pool.push(idle)


def test_queue_keeps_order_and_says_when_it_is_full_or_empty(greeter: "ray.ActorHandle") -> None:
    from lineage_stash.util.queue import Empty, Full, Queue

    queue = Queue(maxsize=2, actor_options={"num_cpus": 0})
    queue.put(1)
    queue.put_nowait_batch([2])
    assert queue.full()
    with pytest.raises(Full):
        queue.put(3, timeout=0.05)
    with pytest.raises(Full):
        queue.put_nowait(3)
    assert [queue.get(), queue.get_nowait()] == [1, 2]
    with pytest.raises(Empty):
        queue.get(timeout=0.05)
    with pytest.raises(Empty):
        queue.get_nowait_batch(1)
    with pytest.raises(ValueError, match="non-negative"):
        queue.get(timeout=-1)
    later = greeter.__ray_call__.remote(lambda _, shared: shared.get(timeout=30), queue)
    queue.put("for the actor")
    assert ray.get(later, timeout=60) == "for the actor"
    assert queue.empty()
    queue.shutdown()
