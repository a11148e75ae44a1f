"""The first slice of Ray's verbs, on a real cluster and without failures."""

import time

import pytest
import ray as plain_ray

import lineage_stash as ray

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(120)]


@ray.remote
class Counter:
    """Counts."""

    def __init__(self, start: int = 0, *, step: int = 1) -> None:
        self.value = start
        self.step = step

    def add(self, times: int = 1) -> int:
        self.value += times * self.step
        return self.value

    def fail(self, text: str) -> None:
        raise KeyError(text)

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "awake"

    def echo(self, *args: object, **kwargs: object) -> tuple[object, ...]:
        return (*args, kwargs)

    def add_to(self, other: "ray.ActorHandle", times: int) -> int:
        return int(ray.get(other.add.remote(times)))

    def add_to_all(self, others: list["ray.ActorHandle"]) -> int:
        refs = [other.add.remote() for other in others]
        ready, rest = ray.wait(refs, num_returns=len(refs))
        assert not rest
        return sum(ray.get(ready))

    def create(self, start: int) -> "ray.ActorHandle":
        return Counter.options(num_cpus=0).remote(start)

    def draw(self) -> float:
        return float(ray.observe(time.time))


@pytest.fixture
def counter() -> "ray.ActorHandle":
    return Counter.options(num_cpus=0).remote(10)


def test_calls_of_one_caller_run_in_order_and_once(counter: "ray.ActorHandle") -> None:
    refs = [counter.add.remote() for _ in range(3000)]
    assert ray.get(refs) == list(range(11, 3011))


def test_arguments_of_every_kind_come_through(counter: "ray.ActorHandle") -> None:
    import numpy as np

    class Local:
        def __init__(self, value: int) -> None:
            self.value = value

    array = np.arange(300_000)
    values = [None, True, 7, 2**80, 1.5, "täxt", b"bytes", (1, [2]), {"k": {3}}, "x" * 100_000]
    result = ray.get(counter.echo.remote(*values, array, Local(5), key="word"))
    assert list(result[: len(values)]) == values
    assert np.array_equal(result[len(values)], array)
    assert result[len(values) + 1].value == 5
    assert result[-1] == {"key": "word"}


def test_constructor_takes_keywords() -> None:
    counter = Counter.options(num_cpus=0).remote(1, step=5)
    assert ray.get(counter.add.remote(times=2)) == 11


def test_exception_is_the_users_and_rays_and_has_the_remote_traceback(counter: "ray.ActorHandle") -> None:
    with pytest.raises(KeyError, match="what") as raised:
        ray.get(counter.fail.remote("what"))
    assert isinstance(raised.value, plain_ray.exceptions.RayTaskError)
    assert "in fail" in str(raised.value)
    assert ray.get(counter.add.remote()) == 11


def test_value_can_be_asked_for_again(counter: "ray.ActorHandle") -> None:
    ref = counter.add.remote()
    assert ray.get(ref) == ray.get(ref) == ray.get([ref, ref])[1] == 11


def test_ref_as_argument_is_resolved(counter: "ray.ActorHandle") -> None:
    assert ray.get(counter.add.remote(counter.add.remote())) == 22


def test_ref_inside_another_object_is_passed_on(counter: "ray.ActorHandle") -> None:
    ref = counter.add.remote()
    ((passed,), _) = ray.get(counter.echo.remote([ref]))
    assert passed == ref
    assert ray.get(passed) == 11


def test_get_times_out_and_the_call_goes_on(counter: "ray.ActorHandle") -> None:
    ref = counter.sleep.remote(1.0)
    with pytest.raises(plain_ray.exceptions.GetTimeoutError):
        ray.get(ref, timeout=0.05)
    assert ray.get(ref, timeout=60) == "awake"


def test_wait_returns_what_has_come(counter: "ray.ActorHandle") -> None:
    other = Counter.options(num_cpus=0).remote()
    slow, quick = counter.sleep.remote(2.0), other.add.remote()
    assert ray.wait([slow, quick], timeout=60) == ([quick], [slow])
    assert ray.wait([slow], timeout=0) == ([], [slow])
    assert ray.wait([slow, quick], num_returns=2, timeout=60) == ([slow, quick], [])


def test_actors_call_actors_and_create_them(counter: "ray.ActorHandle") -> None:
    child = ray.get(counter.create.remote(100))
    assert ray.get(counter.add_to.remote(child, 5)) == 105
    assert ray.get(child.add.remote()) == 106


def test_actor_waits_for_several_actors(counter: "ray.ActorHandle") -> None:
    others = [Counter.options(num_cpus=0).remote(start) for start in (1, 2)]
    assert ray.get(counter.add_to_all.remote(others)) == 5


def test_named_actor_is_found_and_its_name_is_taken() -> None:
    named = Counter.options(name="treasury", num_cpus=0).remote(7)
    assert ray.get_actor("treasury") == named
    assert ray.get(ray.get_actor("treasury").add.remote()) == 8
    with pytest.raises(ValueError, match="get_if_exists"):
        Counter.options(name="treasury").remote()
    assert Counter.options(name="treasury", get_if_exists=True).remote() == named
    with pytest.raises(ValueError, match="nobody"):
        ray.get_actor("nobody")


def test_killed_actor_fails_its_callers_and_frees_its_name() -> None:
    doomed = Counter.options(name="doomed", num_cpus=0).remote()
    assert ray.get(doomed.add.remote()) == 1
    ray.kill(doomed)
    with pytest.raises(plain_ray.exceptions.RayActorError, match="killed"):
        ray.get(doomed.add.remote(), timeout=60)
    with pytest.raises(plain_ray.exceptions.RayActorError):
        ray.get(doomed.add.remote(), timeout=60)
    again = Counter.options(name="doomed", num_cpus=0).remote(50)
    assert ray.get(again.add.remote()) == 51


def test_killed_actor_does_not_finish_the_call_that_it_runs() -> None:
    doomed = Counter.options(num_cpus=0).remote()
    ray.get(doomed.add.remote())
    running = doomed.sleep.remote(3600)
    ray.wait([running], timeout=0.2)
    ray.kill(doomed)
    with pytest.raises(plain_ray.exceptions.RayActorError, match="killed"):
        ray.get(running, timeout=60)


def test_failing_constructor_fails_every_call() -> None:
    @ray.remote(num_cpus=0)
    class Broken:
        def __init__(self) -> None:
            raise RuntimeError("no way")

        def use(self) -> None: ...

    with pytest.raises(plain_ray.exceptions.RayActorError, match="no way"):
        ray.get(Broken.remote().use.remote(), timeout=60)


def test_observe_gives_what_the_world_said(counter: "ray.ActorHandle") -> None:
    before = time.time()
    assert before <= ray.get(counter.draw.remote()) <= time.time()


def test_what_cannot_be_recovered_is_refused_at_the_decorator() -> None:
    class Async:
        async def method(self) -> None: ...

    with pytest.raises(TypeError, match="plain method"):
        ray.remote(Async)
    with pytest.raises(TypeError, match="a function or a class"):
        ray.remote(num_cpus=1)(3)
    with pytest.raises(ValueError, match="num_cpu"):
        ray.remote(num_cpu=1)(Counter._cls)


def test_mistakes_say_what_to_write_instead(counter: "ray.ActorHandle") -> None:
    with pytest.raises(TypeError, match=r"Counter\.remote"):
        Counter()
    with pytest.raises(TypeError, match=r"\.add\.remote"):
        counter.add()
    with pytest.raises(AttributeError, match="nothing"):
        counter.nothing  # noqa: B018
    with pytest.raises(ValueError, match="list of ObjectRefs"):
        ray.get(3)


def test_whatever_is_not_a_verb_here_is_rays_own() -> None:
    assert ray.cluster_resources()["CPU"] == 2
    assert ray.exceptions.RayTaskError is plain_ray.exceptions.RayTaskError
    assert ray.util.placement_group is plain_ray.util.placement_group
    with pytest.raises(AttributeError):
        ray.no_such_thing  # noqa: B018


def test_threads_of_a_driver_wait_side_by_side(counter: "ray.ActorHandle") -> None:
    from concurrent.futures import ThreadPoolExecutor

    others = [Counter.options(num_cpus=0).remote() for _ in range(2)]

    def count(other: "ray.ActorHandle") -> int:
        return [int(ray.get(other.add.remote(), timeout=60)) for _ in range(300)][-1]

    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(count, [counter, *others])) == [300, 300, 310]
