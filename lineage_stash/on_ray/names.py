"""Names of actors: who has which, in the control plane.

A name belongs to one actor until that one is killed or has ended; then whoever comes next may take it. What was found
under a name is a determinant: actors ask through `observe`.
"""

import json
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from ray.exceptions import ActorAlreadyExistsError

from lineage_stash.core.ids import PeerId
from lineage_stash.on_ray.control_plane import ControlPlane


class Bearer(NamedTuple):
    """The actor that has a name, with all that a handle of it needs."""

    peer: str
    class_name: str
    methods: str


def _key(name: str, namespace: str) -> str:
    return f"names/{quote(namespace, safe='')}/{name}"


def check_name(name: object, namespace: object) -> None:
    """Raise what Ray raises for what cannot be a name or a namespace."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name must be None or a string, got: '{type(name)}'.")
    if name == "":
        raise ValueError("Actor name cannot be an empty string.")
    if namespace is not None and not isinstance(namespace, str):
        raise TypeError("namespace must be None or a string.")
    if namespace == "":
        raise ValueError('"" is not a valid namespace. Pass None to not specify a namespace.')


def put_name(plane: ControlPlane, name: str, namespace: str, bearer: Bearer, options: dict[str, Any]) -> Bearer:
    """Give an actor its name; whoever has it now, which is another one where that exists and was asked for."""
    key, value = _key(name, namespace), json.dumps(bearer).encode()
    standing = Bearer(*json.loads(plane.put_if_absent(key, value)))
    if standing.peer == bearer.peer:
        return bearer
    if has_ended(plane, PeerId(standing.peer)):
        plane.put(key, value)
        return bearer
    if options.get("get_if_exists"):
        return standing
    raise ActorAlreadyExistsError(
        f"The name {name} (namespace={namespace}) is already taken: choose another name, get the existing actor with "
        f"get_actor({name!r}), or say get_if_exists=True."
    )


def rename_methods(plane: ControlPlane, name: str, namespace: str, bearer: Bearer) -> None:
    """Whoever has this name has other methods now."""
    found = plane.get(_key(name, namespace))
    if found is not None and json.loads(found)[0] == bearer.peer:
        plane.put(_key(name, namespace), json.dumps(bearer).encode())


def find_name(plane: ControlPlane, name: str, namespace: str) -> Bearer:
    """The actor that has a name."""
    found = plane.get(_key(name, namespace))
    if found is not None:
        bearer = Bearer(*json.loads(found))
        if not has_ended(plane, PeerId(bearer.peer)):
            return bearer
    raise ValueError(
        f"Failed to look up actor with name '{name}': nobody has it in the namespace {namespace!r}. Was it created, "
        "with this name and in this namespace, and is it still there?"
    )


def has_ended(plane: ControlPlane, peer: PeerId) -> bool:
    """Whether an actor was killed or has retired."""
    return plane.get(f"killed/{peer}") is not None or plane.get(f"retired/{peer}") is not None


def list_names(plane: ControlPlane) -> list[tuple[str, str]]:
    """The namespace and the name of every actor that has one and is still there."""
    found = plane.get_all("names/")
    if not found:
        return []
    ended = {key.partition("/")[2] for prefix in ("killed/", "retired/") for key in plane.keys(prefix)}
    bearers = {key.removeprefix("names/"): json.loads(value)[0] for key, value in found.items()}
    split = [key.partition("/") for key, peer in bearers.items() if peer not in ended]
    return [(unquote(namespace), name) for namespace, _, name in split]
