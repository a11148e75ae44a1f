"""What a program can ask about where it runs, as in Ray; and the context that `init` returns.

What differs between two lives of an actor (its node, its process, which life it is) is observed, so that a replay sees
what the first run saw.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ray
from ray.runtime_context import RuntimeContext

from lineage_stash.on_ray.actors import ActorHandle, actor_id_of
from lineage_stash.on_ray.host import Life
from lineage_stash.on_ray.lending import Tie
from lineage_stash.on_ray.methods import methods_of
from lineage_stash.on_ray.present import Now
from lineage_stash.on_ray.program import end_actor


class ActorContext(RuntimeContext):  # type: ignore[misc]
    """Ray's context, as an actor's methods see it: of the actor, not of the process that it lives in."""

    def __init__(self, life: Life) -> None:
        super().__init__(ray.get_runtime_context().worker)
        self._life = life

    def get_actor_id(self) -> str:
        """The id of this actor, in hex."""
        return str(self.actor_id.hex())

    @property
    def actor_id(self) -> Any:
        """The id of this actor."""
        return actor_id_of(self._life.id)

    def get_actor_name(self) -> str:
        """The name of this actor; empty if it has none."""
        return self._life.creation.name

    @property
    def namespace(self) -> str:
        """Where this actor's names are looked for."""
        return self._life.namespace

    @property
    def current_actor(self) -> ActorHandle:
        """A handle of this actor, which does not keep it alive."""
        life = self._life
        return ActorHandle(Tie(life.id, life.creation.class_name, methods_of(life.program.cls)))

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether the call that asks was first run in a later life than the first."""
        return bool(self._life.observe(lambda: self._life.incarnation > 0))

    def get_job_id(self) -> str:
        """The id of the Ray job of the script that this actor belongs to."""
        driver = self._life.id.partition("/")[0]

        def read() -> str:
            run = self._life.process.plane.get(f"runs/{driver}")
            return str(json.loads(run)["job_id"]) if run is not None else str(RuntimeContext.get_job_id(self))

        return str(self._life.observe(read))

    @property
    def job_id(self) -> Any:
        """The same, as Ray's kind of id."""
        return ray.JobID.from_hex(self.get_job_id())

    def get_node_id(self) -> str:
        """The id of the node that the call that asks was first run on."""
        return str(self._observe(RuntimeContext.get_node_id))

    def get_worker_id(self) -> str:
        """The id of the process that the call that asks was first run in."""
        return str(self._observe(RuntimeContext.get_worker_id))

    def get_task_id(self) -> str | None:
        """The id of the Ray task that this life is; calls have none."""
        task_id: str | None = self._observe(RuntimeContext.get_task_id)
        return task_id

    def _observe(self, read: Callable[[RuntimeContext], Any]) -> Any:
        return self._life.observe(lambda: read(self))


def get_runtime_context() -> Any:
    """Where the caller runs: in an actor, in a script, or in a worker of Ray."""
    return ActorContext(Now.runtime) if isinstance(Now.runtime, Life) else ray.get_runtime_context()


def exit_actor() -> None:
    """End the actor that calls this after the present call, which fails, as those do that it has not begun."""
    if not isinstance(Now.runtime, Life):
        raise TypeError(
            "exit_actor API is called on a non-actor worker. Call this API inside an actor methods if you'd like to "
            "exit the actor gracefully."
        )
    end_actor()


class Context(Mapping[str, Any]):
    """What `init` returns: Ray's context, which in a `with` statement ends with `shutdown`."""

    def __init__(self, of_ray: Any, leave: Callable[..., None]) -> None:
        self._of_ray = of_ray
        self._leave = leave

    def __getattr__(self, name: str) -> Any:
        if name == "_of_ray":
            raise AttributeError(name)
        return getattr(self._of_ray, name)

    def __getitem__(self, key: str) -> Any:
        return self._of_ray.address_info[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._of_ray.address_info)

    def __len__(self) -> int:
        return len(self._of_ray.address_info)

    def __repr__(self) -> str:
        return repr(self._of_ray)

    def __enter__(self) -> "Context":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._leave(failed=kind is not None)

    def disconnect(self) -> None:
        """Leave."""
        self._leave(failed=False)
