"""Creation: what the registry keeps of an actor so that any of its lives can be started, and how a host is started.

Rules:
- An actor's id is its creator's with a number, so that a replayed creator creates the same actor again, and finds it.
- What a task creates belongs to whoever the task runs for, and has an id below that one's: it may outlive the task.
- Class and options are put on record before anything is started; whoever finds the record may start the host. Of two
  hosts for one life, one claims it and the other one goes.
- A host keeps Ray's default of one CPU to be placed and none to run, unless the user says otherwise. One that is
  started for a recovery takes none, as spares do: it is bound to a node, and would wait there for a CPU to be free.
"""

import hashlib
import json
import os
import signal
from concurrent.futures import Future
from functools import lru_cache
from typing import Any, NamedTuple

import cloudpickle
import ray
from ray.exceptions import ActorUnavailableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from lineage_stash.capture import install
from lineage_stash.capture.here import paused
from lineage_stash.capture.pickling import dumps
from lineage_stash.core.ids import FIRST_INCARNATION, Incarnation, PeerId
from lineage_stash.on_ray.control_plane import ControlPlane
from lineage_stash.on_ray.telling import tell_crash
from lineage_stash.shell import address_of

RAY_NAMESPACE = "lineage_stash"

MOST_ATTEMPTS = 10
"""How often a host is asked to run: more often than a network that works at all loses a call."""

ASKED_AGAIN: dict[str, Any] = {"max_task_retries": -1}
"""For calls of Ray's that may be made twice: one that is lost on its way is made again while the process is there."""

HOST_ENVIRONMENT = {"env_vars": {"PYTHONHASHSEED": "0"}}
"""The order of a set of strings must be the same in every life."""

PLACEMENT_OPTIONS = (
    "num_cpus", "num_gpus", "resources", "memory", "accelerator_type", "scheduling_strategy", "label_selector",
    "fallback_strategy", "placement_group", "placement_group_bundle_index", "placement_group_capture_child_tasks",
)  # fmt: skip

CLASSES = "classes/"
"""How the keys of classes begin; their digests follow."""

RUNNERS = "/runner-"
"""What the ids of runners have between that of their caller and their own part."""

NO_WISHES: dict[str, tuple[Any, ...]] = {
    "num_cpus": (0, 1), "placement_group": ("default",), "placement_group_bundle_index": (-1,),
}  # fmt: skip
"""Values that say no more than leaving the option out."""

LARGEST_CODE_BYTES = 95 * 1024 * 1024
"""As in Ray: whatever is larger should be an argument."""


class Creation(NamedTuple):
    """What is on record of an actor."""

    peer: str
    creator: str
    class_name: str
    class_digest: str
    detached: bool
    checkpoint_every: int | None
    max_crashes: int
    durability: str
    """How durable its commits are; empty where it is as the cluster's are."""
    placement: str
    """The options that decide where a host may run, pickled and in hex; empty where any will do."""
    name: str = ""
    namespace: str = ""
    """Where its name is known, and where it looks for others'."""


def id_below(creator: PeerId, class_name: str, number: int) -> PeerId:
    """The id of an actor: the same whenever its creator creates it."""
    owner, _, runner = creator.partition(RUNNERS)
    return PeerId("-".join([f"{owner}/{class_name}", *([runner.replace("/", "-")] if runner else []), str(number)]))


def pack_placement(options: dict[str, Any], *, of_task: bool = False) -> str:
    """Those of the options that Ray needs to place a host; a task has a CPU unless it says that it needs none."""
    wishes = {name: options[name] for name in PLACEMENT_OPTIONS if options.get(name) is not None}
    wishes = {name: wish for name, wish in wishes.items() if wish not in NO_WISHES.get(name, ())}
    if of_task and options.get("num_cpus") == 0:
        wishes["num_cpus"] = 0
    environment = options.get("runtime_env")
    if environment:
        wishes["runtime_env"] = environment
    return pack_options(wishes)


def pack_options(options: dict[str, Any]) -> str:
    """Options as they are kept on record."""
    return cloudpickle.dumps(options).hex() if options else ""


def unpack_placement(placement: str) -> dict[str, Any]:
    """The options that were packed."""
    options: dict[str, Any] = cloudpickle.loads(bytes.fromhex(placement)) if placement else {}
    return options


def put_on_record(plane: ControlPlane, creation: Creation) -> Creation:
    """Make a creation known; the one that stands."""
    return Creation(*json.loads(plane.put_if_absent(f"actors/{creation.peer}", json.dumps(creation).encode())))


def read_creation(plane: ControlPlane, peer: PeerId) -> Creation | None:
    """What is on record of an actor."""
    found = plane.get(f"actors/{peer}")
    return None if found is None else Creation(*json.loads(found))


def put_class(plane: ControlPlane, cls: type) -> str:
    """Store the code of a class; its digest."""
    try:
        code = dumps(cls)
    except Exception as error:
        raise TypeError(
            f"Could not serialize the actor class {cls.__name__}: {error}. It refers to an object that belongs to this "
            "process: make that in the constructor, or in the method that needs it."
        ) from error
    if len(code) > LARGEST_CODE_BYTES:
        raise ValueError(
            f"The actor {cls.__name__} is too large ({len(code) >> 20} MiB > {LARGEST_CODE_BYTES >> 20} MiB): its "
            "methods refer to large objects of the script. Pass these as arguments."
        )
    digest = hashlib.sha256(code).hexdigest()[:32]
    plane.put_if_absent(f"{CLASSES}{digest}", code)
    return digest


def load_class(plane: ControlPlane, digest: str) -> type:
    """The class with this digest."""
    code = plane.get(f"{CLASSES}{digest}")
    if code is None:
        raise LookupError(f"the code of class {digest} is not in the control plane: was the cluster's GCS replaced?")
    return cloudpickle.loads(code)  # type: ignore[no-any-return]


def load_recorded_class(plane: ControlPlane, digest: str) -> type:
    """The same, with clocks and draws captured in what it refers to."""
    with paused():
        cls = load_class(plane, digest)
        install.cover(cls)
    return cls


def wishes_of(creation: Creation) -> dict[str, Any]:
    """The options that decide where a host may run."""
    return unpack_placement(creation.placement)


@lru_cache(maxsize=256)
def host_class(class_name: str) -> Any:
    """What Ray starts for an actor; Ray's tools show it under the name of the user's class."""
    from lineage_stash.on_ray.host import Host

    return ray.remote(type(class_name, (Host,), {}))


def host_environment(given: dict[str, Any] | None) -> dict[str, Any]:
    """The user's runtime environment, with what every life needs."""
    given = given or {}
    return {**given, "env_vars": {**HOST_ENVIRONMENT["env_vars"], **given.get("env_vars", {})}}


def start_host(creation: Creation, incarnation: Incarnation, node: str | None = None, attempt: int = 1) -> None:
    """Start a host for a life of an actor, on a node, or wherever Ray finds room for it."""
    address = address_of(PeerId(creation.peer), incarnation)
    options = wishes_of(creation)
    environment = host_environment(options.pop("runtime_env", None))
    if node is not None:
        options = {**(options or {"num_cpus": 0}), **bound_to(node)}
    name = f"host {address}" if attempt == 1 else f"host {address} ({attempt})"
    host = host_class(creation.class_name).options(
        name=name, namespace=RAY_NAMESPACE, lifetime="detached", get_if_exists=True,
        runtime_env=environment, max_concurrency=2, **options,
    ).remote(address)  # fmt: skip
    ask_to_run(host)


def start_spare(name: str, node: str | None) -> None:
    """Start a host without an actor, on a node, or wherever Ray wants it."""
    from lineage_stash.on_ray.host import Host

    host = ray.remote(Host).options(
        name=name, namespace=RAY_NAMESPACE, lifetime="detached", get_if_exists=True, num_cpus=0,
        runtime_env=HOST_ENVIRONMENT, max_concurrency=2, **({} if node is None else bound_to(node)),
    ).remote(None)  # fmt: skip
    ask_to_run(host)


def ask_to_run(host: Any, attempts: int = MOST_ATTEMPTS) -> None:
    """Have a host live its life, and ask again if the call was lost on its way; asking twice is no harm.

    Ray's own retries would do it too, and tell the user of every process that has ended.
    """

    def on_done(asked: "Future[None]") -> None:
        if attempts > 1 and isinstance(asked.exception(), ActorUnavailableError):
            ask_to_run(host, attempts - 1)

    host.run.remote().future().add_done_callback(on_done)


def bound_to(node: str) -> dict[str, Any]:
    """The option that has Ray start something on this node, and ask no other one about it."""
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def host_runner(runner: str) -> None:
    """Live the first life of a runner, as a task of Ray's, until its caller ends it."""
    from lineage_stash.on_ray.host import Life
    from lineage_stash.on_ray.plain import record_plain_ray
    from lineage_stash.on_ray.present import adopt
    from lineage_stash.on_ray.process import Process

    install.install()
    record_plain_ray()
    address = address_of(PeerId(runner), FIRST_INCARNATION)
    raise_in_task = signal.signal(signal.SIGTERM, _die)
    try:
        Life(Process(address), PeerId(runner), FIRST_INCARNATION).run(is_task=True)
    except Exception:  # noqa: BLE001 - whatever it was, this life is over
        tell_crash("a runner")
        os._exit(1)  # an idle process with open links would look alive
    finally:
        signal.signal(signal.SIGTERM, raise_in_task)
        adopt(None)


def _die(_signal: int, _frame: object) -> None:
    """Die at once, and be recovered: the SystemExit that Ray would raise is what a task ends by when it wants to."""
    os._exit(128 + signal.SIGTERM)


def start_runner(runner: PeerId, options: dict[str, Any]) -> Any:
    """Have Ray find room for a runner; the ref of the task of Ray's that is its host."""
    return ray.remote(host_runner).options(max_retries=0, name=f"runner {runner}", **options).remote(runner)
