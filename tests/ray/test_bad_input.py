"""What cannot be is said at once, in one error that says what it was, and nothing is lost by it."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray as plain_ray

import lineage_stash as ray
from lineage_stash.on_ray.control_plane import ControlPlane
from lineage_stash.on_ray.payloads import LARGEST_BYTES
from lineage_stash.on_ray.registry import COORDINATOR
from lineage_stash.on_ray.versions import VERSIONS, VersionMismatch, own_version
from lineage_stash.testing import inject
from tests.ray.checkpoints import checkpoint_of

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(120)]

PATIENCE_S = 60.0
AT_ONCE_S = 5.0


@ray.remote(num_cpus=0)
class Teller:
    """Counts the calls that it got."""

    def __init__(self, *_: Any) -> None:
        self.count = 0

    def echo(self, value: Any = None) -> Any:
        self.count += 1
        return value

    def lock(self) -> Any:
        self.count += 1
        return threading.Lock()

    def make(self, size: int) -> Any:
        self.count += 1
        return np.zeros(size, np.uint8)

    def keep_lock(self) -> None:
        self.kept = threading.Lock()

    def counted(self) -> int:
        return self.count

    def linger(self) -> None:
        time.sleep(600)

    def open(self, refs: "list[ray.ObjectRef]") -> Any:
        return ray.get(refs[0])


@ray.remote(num_cpus=0)
def echo(value: Any = None) -> Any:
    return value


@ray.remote(num_cpus=0)
def return_lock() -> Any:
    return threading.Lock()


class Endless:
    """Contains another one like itself, which does, and so on."""

    def __reduce__(self) -> Any:
        return Endless, (Endless(),)


TOO_LARGE = LARGEST_BYTES + 1


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    plain_ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray.init()
    yield
    ray.shutdown()
    plain_ray.shutdown()


@pytest.fixture(scope="module")
def teller(local_ray: None) -> "ray.ActorHandle":  # noqa: ARG001 - it is there first
    return Teller.remote()


UNPICKLABLE: dict[str, Callable[[], Any]] = {
    "a lock": threading.Lock, "a socket": socket.socket, "something endless": Endless
}  # fmt: skip


@pytest.mark.parametrize("make", UNPICKLABLE.values(), ids=UNPICKLABLE)
def test_argument_that_cannot_be_pickled_is_named_and_the_call_not_made(
    teller: "ray.ActorHandle", make: Callable[[], Any]
) -> None:
    before = ray.get(teller.counted.remote(), timeout=PATIENCE_S)
    bad = make()
    for call in (teller.echo.remote, echo.remote, Teller.remote):
        with pytest.raises(TypeError, match="Could not serialize the argument 1, of type"):
            call(bad)
    with pytest.raises(TypeError, match="Could not serialize the argument 'value', of type list"):
        teller.echo.remote(value=[bad])
    with pytest.raises(TypeError, match="Could not serialize the value"):
        ray.put(bad)
    assert ray.get(teller.counted.remote(), timeout=PATIENCE_S) == before
    if isinstance(bad, socket.socket):
        bad.close()


def test_deep_argument_is_an_error_and_no_crash(teller: "ray.ActorHandle") -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TypeError, match="deep recursion"):
        teller.echo.remote(deep)
    assert ray.get(teller.echo.remote(1), timeout=PATIENCE_S) == 1
    while deep:
        deep = deep.pop()


def test_actor_whose_constructor_could_not_be_called_does_not_keep_its_name() -> None:
    with pytest.raises(TypeError, match="Could not serialize"):
        Teller.options(name="unborn").remote(threading.Lock())
    with pytest.raises(ValueError, match="unborn"):
        ray.get_actor("unborn")


def test_code_that_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()

    class Holder:
        def method(self) -> Any:
            return lock

    def function() -> Any:
        return lock

    with pytest.raises(TypeError, match="Could not serialize the actor class Holder"):
        ray.remote(Holder).remote()  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="Could not serialize the function function"):
        ray.remote(function).remote()


def test_result_that_cannot_be_pickled_is_the_callers_error_and_the_actor_goes_on(teller: "ray.ActorHandle") -> None:
    before = ray.get(teller.counted.remote(), timeout=PATIENCE_S)
    for ref in (teller.lock.remote(), return_lock.remote()):
        with pytest.raises(TypeError, match="Could not serialize the value, of type lock"):
            ray.get(ref, timeout=PATIENCE_S)
    assert ray.get(teller.counted.remote(), timeout=PATIENCE_S) == before + 1


def test_actor_with_a_state_that_cannot_be_pickled_is_recovered_from_its_log() -> None:
    holder = Teller.options(checkpoint_every=1).remote()
    ray.get(holder.keep_lock.remote(), timeout=PATIENCE_S)
    assert ray.get([holder.echo.remote(number) for number in range(20)], timeout=PATIENCE_S) == list(range(20))
    inject.kill_process(holder)
    assert ray.get(holder.counted.remote(), timeout=PATIENCE_S) == 20
    found = checkpoint_of(holder)
    assert found is None or found.upper <= 1, "only what was before the lock could be copied"


@pytest.mark.parametrize("bad", [5, None, "ref", {1: 2}], ids=repr)
def test_what_is_no_ref_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="must either be an ObjectRef"):
        ray.get(bad)
    with pytest.raises(TypeError, match="which is not an"):
        ray.get([bad])
    with pytest.raises(TypeError, match="expected a list"):
        ray.wait([bad])
    with pytest.raises(ValueError, match="only supported for actors"):
        ray.kill(bad)
    with pytest.raises(TypeError, match="only supported for object refs"):
        ray.cancel(bad)


@pytest.mark.parametrize("bad", [5, "Teller", [Teller]], ids=["number", "text", "list"])
def test_what_is_no_class_and_no_function_cannot_be_remote(bad: Any) -> None:
    with pytest.raises(TypeError, match="decorator must be applied"):
        ray.remote(bad)
    with pytest.raises(TypeError, match="decorator must be applied"):
        ray.remote(num_cpus=0)(bad)


def test_options_that_nobody_knows_are_named() -> None:
    for wrong in (
        lambda: Teller.options(colour=1),
        lambda: echo.options(colour=1),
        lambda: ray.remote(colour=1)(Teller._cls),
    ):
        with pytest.raises(ValueError, match="Invalid option keyword colour"):
            wrong()


def test_classes_that_cannot_be_recovered_are_refused_when_they_are_decorated() -> None:
    class Threaded:
        pass

    class Coroutines:
        async def method(self) -> None: ...

    with pytest.raises(ValueError, match="create several actors"):
        ray.remote(max_concurrency=2)(Threaded)
    with pytest.raises(TypeError, match=r"Coroutines\.method is async"):
        ray.remote(Coroutines)


def test_killed_actor_says_so_however_often_it_is_called() -> None:
    killed = Teller.remote()
    ray.get(killed.echo.remote(), timeout=PATIENCE_S)
    ray.kill(killed)
    ray.kill(killed)
    for _ in range(2):
        with pytest.raises(ray.exceptions.RayActorError, match="it was killed"):
            ray.get(killed.echo.remote(), timeout=PATIENCE_S)


def test_actor_that_is_killed_before_it_begins_says_so_at_once_and_its_process_goes() -> None:
    killed = Teller.remote()
    ref = killed.echo.remote(1)
    ray.kill(killed)
    for each in (ref, killed.echo.remote(2)):
        with pytest.raises(ray.exceptions.RayActorError, match="it was killed"):
            ray.get(each, timeout=PATIENCE_S)
    plane = ControlPlane()
    inject.wait_until(lambda: plane.get(f"retired/{killed._peer}") is not None, "the end of a process")
    unplaced = Teller.options(num_cpus=1000).remote()
    waiting = unplaced.echo.remote(1)
    ray.kill(unplaced)
    with pytest.raises(ray.exceptions.RayActorError, match="it was killed"):
        ray.get(waiting, timeout=AT_ONCE_S)


SCRIPT = """
import lineage_stash as ray
from tests.ray.test_bad_input import Teller

ray.init(address={address!r}, namespace="ended", log_to_driver=False)
keeper = Teller.options(name="keeper", lifetime="detached").remote()
ray.get(keeper.echo.remote(1), timeout=60)
keeper.open.remote([Teller.remote().linger.remote()])
"""


def test_value_that_is_too_large_is_refused_at_once_wherever_it_comes_from() -> None:
    teller = Teller.remote()
    large = np.zeros(TOO_LARGE, np.uint8)
    for refused in (lambda: teller.echo.remote(large), lambda: echo.remote(large), lambda: ray.put([large])):
        with pytest.raises(ValueError, match="268 MB is the most"):
            refused()
    with pytest.raises(ValueError, match="pass it in parts"):
        ray.get(teller.make.remote(TOO_LARGE), timeout=PATIENCE_S)
    assert ray.get(teller.counted.remote(), timeout=PATIENCE_S) == 1


def test_ref_of_a_script_that_has_ended_is_an_error_for_whoever_has_it() -> None:
    script = SCRIPT.format(address=plain_ray.get_runtime_context().gcs_address)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100, cwd=Path(__file__).parents[2])
    keeper = ray.get_actor("keeper", namespace="ended")
    assert ray.get(keeper.echo.remote(2), timeout=PATIENCE_S) == 2, "it does not wait for what will never come"
    ray.kill(keeper)


def test_ref_of_a_session_that_has_ended_is_refused_at_once() -> None:
    kept = Teller.options(name="kept", lifetime="detached").remote()
    unknown, task, put, known = kept.echo.remote(1), echo.remote(2), ray.put(3), kept.echo.remote(4)
    ray.get(known, timeout=PATIENCE_S)
    ray.shutdown()
    began = time.monotonic()
    with pytest.raises(ValueError, match="from a session that has ended"):
        ray.get(unknown)
    assert not ray.is_initialized()
    ray.init()
    for wrong in (
        lambda: ray.get([unknown]), lambda: ray.get(task), lambda: ray.wait([unknown]), lambda: ray.cancel(task),
        lambda: kept.echo.remote(unknown), lambda: kept.echo.remote([unknown]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="from a session that has ended"):
            wrong()
    assert ray.get([put, known]) == [3, 4]
    assert ray.get(kept.echo.remote(put), timeout=PATIENCE_S) == 3
    assert time.monotonic() - began < 4 * AT_ONCE_S
    ray.kill(kept)


@pytest.mark.parametrize(("field", "other"), [("library", "0.0.1"), ("format", 1), ("python", "3.8")])
def test_cluster_of_another_version_is_refused_when_it_is_joined(field: str, other: Any) -> None:
    ray.shutdown()
    plane, key = ControlPlane(), f"{VERSIONS}{COORDINATOR}"
    noted = plane.get(key)
    assert noted is not None
    plane.put(key, json.dumps(own_version()._replace(**{field: other})).encode())
    began = time.monotonic()
    with pytest.raises(VersionMismatch, match=f"coordinator has .*{other}.*, and this script has"):
        ray.init()
    assert time.monotonic() - began < AT_ONCE_S
    plane.put(key, noted)
    ray.init()
