"""Which named actors there are."""

import ray

from lineage_stash.on_ray.creation import RAY_NAMESPACE
from lineage_stash.on_ray.names import list_names
from lineage_stash.on_ray.present import current


def list_named_actors(all_namespaces: bool = False) -> list[str] | list[dict[str, str]]:
    """The names of this namespace, or those of all with their namespaces; plain Ray actors' too, the services' not."""
    runtime = current()

    def read() -> list[tuple[str, str]]:
        plain = [(each["namespace"], each["name"]) for each in ray.util.list_named_actors(all_namespaces=True)]
        return list_names(runtime.process.plane) + [pair for pair in plain if pair[0] != RAY_NAMESPACE]

    found: list[tuple[str, str]] = runtime.observe(read)
    if all_namespaces:
        return [{"name": name, "namespace": namespace} for namespace, name in found]
    return [name for namespace, name in found if namespace == runtime.namespace]
