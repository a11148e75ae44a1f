"""What Spark's side asks of Ray: free resources, actors that are not ours by name, and this node's Java and logs.

A question is answered within its limit, or raises TimeoutError: a cluster that hangs must not hang its askers. One that
fails because the cluster is gone raises ConnectionError.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ANSWER_S = 10.0
"""How long a question to the cluster may take: a busy GCS answers in less."""


class Resources(NamedTuple):
    """What tasks and actors can be given."""

    cpus: float
    memory_bytes: float


def is_connected() -> bool:
    """Whether this process takes part in a cluster."""
    return bool(ray.is_initialized())


def is_remote_client() -> bool:
    """Whether this process only speaks with a cluster from outside (`ray://`)."""
    return bool(ray.util.client.ray.is_connected())


def total_resources() -> Resources:
    """What the cluster has."""
    return _resources(ray.cluster_resources)


def largest_node() -> Resources:
    """The most that one node has: what is larger than that runs nowhere."""
    nodes = [node["Resources"] for node in _ask(ray.nodes, "Ray's nodes") if node["Alive"]]
    return Resources(*[max((node.get(name, 0.0) for node in nodes), default=0.0) for name in ("CPU", "memory")])


def free_resources() -> Resources:
    """What nobody uses now."""
    return _resources(ray.available_resources)


def _resources(ask: Callable[[], dict[str, float]]) -> Resources:
    found = _ask(ask, "Ray's resources")
    return Resources(found.get("CPU", 0.0), found.get("memory", 0.0))


def namespace() -> str:
    """In which names are unique."""
    return str(ray.get_runtime_context().namespace)


def actor_names() -> set[str]:
    """The names of all actors in this script's namespace that are alive or being restarted."""
    return set(_ask(ray.util.list_named_actors, "the names of Ray's actors"))


def end_actors(names: set[str]) -> None:
    """End actors by name, for good; those that are gone are gone."""
    for name in sorted(names):
        try:
            ray.kill(within(ANSWER_S, partial(ray.get_actor, name), f"the actor {name}"), no_restart=True)
        except (ValueError, ray.exceptions.RayError):
            continue


def make_actor_class(plain: type) -> Any:
    """A class of plain Ray actors."""
    return ray.remote(plain)


def on_this_node() -> Any:
    """Where to place an actor that should be where its script is, and live as long as that."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)


def result_of(ref: Any) -> Any:
    """What a plain call gave. It has no limit: it is for those who were given one themselves."""
    return ray.get(ref)


def has_ended(ref: Any, timeout_s: float) -> bool:
    """Whether a plain call came to its end, well or not, in this time."""
    return bool(ray.wait([ref], timeout=timeout_s)[0])


def logs_folder() -> Path:
    """Where the processes of this node write their logs."""
    return Path(ray.get_runtime_context().worker.node.get_logs_dir_path())


def java_of_node() -> Path | None:
    """The `java` that this node's workers are started with; None where Ray was started without one, and has none."""
    socket = ray.get_runtime_context().worker.node.raylet_socket_name
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if f"--raylet_socket_name={socket}" not in words:
                continue
            environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "--java_worker_command=" in words:
            return None
        path = next((entry[5:] for entry in environment if entry.startswith("PATH=")), os.defpath)
        found = shutil.which("java", path=path)
        return Path(found).resolve() if found else None
    raise LookupError(f"no raylet has the socket {socket}")


def _ask(ask: Callable[[], Any], what: str) -> Any:
    try:
        return within(ANSWER_S, ask, what)
    except ray.exceptions.RayError as error:
        raise ConnectionError(f"{what}: {error}") from error


def within(timeout_s: float, ask: Callable[[], Any], what: str) -> Any:
    """What `ask` says, asked in a thread of its own, which is left behind if it does not come back in time."""
    answers: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(ask())
        except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
            errors.append(error)

    thread = threading.Thread(target=run, name=f"asking for {what}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"{what}: no answer within {timeout_s:g} s")
    return answers[0]


def wait_until(condition: Callable[[], bool], timeout_s: float, every_s: float = 0.1) -> bool:
    """Whether a condition came true in this time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True
