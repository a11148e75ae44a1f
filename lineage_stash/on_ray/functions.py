"""The code of remote functions, in the control plane: stored once, under its digest, and loaded once per process.

A function travels with the options that its tasks are placed by, so that whoever has to find a runner for a task of
which it knows only the payload, after a recovery say, finds them there.
"""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any, NamedTuple

import cloudpickle

from lineage_stash.capture import install
from lineage_stash.on_ray.control_plane import ControlPlane
from lineage_stash.on_ray.creation import LARGEST_CODE_BYTES, pack_placement

DIGEST_CHARACTERS = 32


class Function(NamedTuple):
    """What is on record of a remote function."""

    name: str
    code: bytes
    placement: str
    """The options that decide where its tasks may run; empty where any runner will do."""
    max_crashes: int
    retries: int
    """How often it is run again if it raises one of `retried`."""
    retried: bytes


def put_function(plane: ControlPlane, code: bytes, name: str, wanted: dict[str, Any], max_crashes: int) -> str:
    """Store the code of a function, and its options; their digest."""
    if len(code) > LARGEST_CODE_BYTES:
        raise ValueError(
            f"The remote function {name} is too large ({len(code) >> 20} MiB > {LARGEST_CODE_BYTES >> 20} MiB): it "
            "refers to large objects of the script. Pass these as arguments."
        )
    retried = wanted.get("retry_exceptions") or ()
    retries = wanted.get("max_retries") if retried else 0
    record = Function(name, code, pack_placement(wanted, of_task=True), max_crashes, 3 if retries is None else retries,
                      cloudpickle.dumps((Exception,) if retried is True else tuple(retried)))  # fmt: skip
    packed = cloudpickle.dumps(tuple(record))
    digest = hashlib.sha256(packed).hexdigest()[:DIGEST_CHARACTERS]
    plane.put_if_absent(f"functions/{digest}", packed)
    return digest


@lru_cache(maxsize=4096)
def read_function(plane: ControlPlane, digest: str) -> Function:
    """What is on record under a digest."""
    packed = plane.get(f"functions/{digest}")
    if packed is None:
        raise LookupError(f"the code of function {digest} is not in the control plane: was the cluster's GCS replaced?")
    return Function(*cloudpickle.loads(packed))


@lru_cache(maxsize=1024)
def load_function(plane: ControlPlane, digest: str) -> Callable[..., Any]:
    """The function with this digest, ready to be called."""
    record = read_function(plane, digest)
    function: Callable[..., Any] = cloudpickle.loads(record.code)
    if isinstance(function, FunctionType):
        install.cover(function)
    return with_retries(function, record) if record.retries else function


def with_retries(function: Callable[..., Any], record: Function) -> Callable[..., Any]:
    """The same function, run again when it raises what it is to be run again for."""
    retried = cloudpickle.loads(record.retried)

    def run(*args: Any, **kwargs: Any) -> Any:
        left = record.retries
        while True:
            try:
                return function(*args, **kwargs)
            except retried:
                if not left:
                    raise
                left -= 1

    return run
