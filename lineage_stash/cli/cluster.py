"""Joining a running cluster in order to look at it. The only module of this folder that imports Ray.

Rules:
- Whatever keeps us from joining is told in one line that says what to do; what Ray prints meanwhile is kept from the
  terminal, and searched for the reason, because its exceptions do not carry it.
- As in Ray, a token is sent to a cluster that was found on this machine, and to a given address only where the user
  has asked for token authentication.
- A process that takes part in a cluster already looks at that one, and stays in it.
"""

import logging
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple

import ray
from ray._private.authentication import authentication_utils as tokens
from ray._private.worker import global_worker
from ray.exceptions import AuthenticationError, RayError
from ray.experimental import internal_kv

from lineage_stash.core.ids import NodeId
from lineage_stash.on_ray.control_plane import ControlPlane, ControlPlaneAway
from lineage_stash.on_ray.creation import RAY_NAMESPACE
from lineage_stash.on_ray.registry import own_node

PROBE_S = 3.0
"""Longer than a connection takes between any two nodes of a cluster; Ray itself would try for minutes."""

PATIENCE_S = 6.0
"""How long to wait for a cluster that has been there: people look on, and may ask again."""

REFUSED_TOKEN = "InvalidAuthToken"

FAILURES = (ControlPlaneAway, RayError, OSError, RuntimeError)
"""What Ray raises when a cluster is not there, or is no longer."""


STORAGE_NOTE = (b"extra_usage_tag_gcs_storage", b"usage_stats")
"""Where the head of a cluster notes in which kind of storage its GCS keeps the cluster's facts: key and namespace."""

IN_MEMORY = "memory"


class NotJoined(Exception):
    """Why there is no cluster to look at, and what to do; one line."""


class NoCluster(NotJoined):
    """None was named, and none runs here."""


class Cluster(NamedTuple):
    """A cluster that this process has joined."""

    address: str
    node: NodeId
    plane: ControlPlane
    free_cpus: float
    alive_nodes: frozenset[str]
    session: str
    """Ray's folder for this cluster, on this machine."""
    fact_storage: str
    """In which kind of storage the GCS keeps the cluster's facts; empty if that is not known."""


@contextmanager
def joined(address: str | None) -> Iterator[Cluster]:
    """Be a part of the cluster at an address, or of the one that Ray finds."""
    is_guest = ray.is_initialized()
    if not is_guest:
        _join(address)
    try:
        yield _look_around()
    finally:
        if not is_guest:
            ray.shutdown()


def _look_around() -> Cluster:
    context = ray.get_runtime_context()
    plane = ControlPlane()
    plane.patience_s = PATIENCE_S
    key, namespace = STORAGE_NOTE
    storage = internal_kv._internal_kv_get(key, namespace=namespace)
    return Cluster(
        address=context.gcs_address,
        node=own_node(),
        plane=plane,
        free_cpus=ray.available_resources().get("CPU", 0.0),
        alive_nodes=alive_nodes(),
        session=context.worker.node.get_session_dir_path(),
        fact_storage="" if storage is None else storage.decode(),
    )


def alive_nodes() -> frozenset[str]:
    """The nodes that Ray has not given up."""
    return frozenset(node["NodeID"] for node in ray.nodes() if node["Alive"])


def is_token(authorization: str) -> bool:
    """Whether an `Authorization` header has the token of the cluster; never where clusters ask for none."""
    return bool(tokens.is_token_auth_enabled() and tokens.validate_request_token(authorization))


def _join(address: str | None) -> None:
    wanted = address or os.environ.get("RAY_ADDRESS") or "auto"
    if wanted != "auto":
        _probe(wanted)
    with tempfile.TemporaryFile() as said:
        try:
            with _errors_into(said):
                ray.init(address=wanted, namespace=RAY_NAMESPACE, log_to_driver=False, logging_level=logging.CRITICAL)
        except (*FAILURES, ValueError) as error:
            said.seek(0)
            raise explain(error, said.read().decode(errors="replace"), wanted) from error
    global_worker.threads_stopped.set()  # one of Ray's threads waits for errors, and spins once the cluster is gone


def _probe(address: str) -> None:
    """Refuse at once what cannot be the address of a cluster."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise NotJoined(
            f"{address!r} is not the address of a cluster: give host:port as `ray start` prints it, and run this on "
            "one of its nodes"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_S).close()
    except OSError as error:
        raise NotJoined(
            f"nothing answers at {address} ({error.strerror or error}): is the cluster up, and is this its address? "
            "See --address and RAY_ADDRESS"
        ) from error


def explain(error: Exception, said: str, address: str) -> NotJoined:
    """Why Ray did not let us join, and what to do."""
    if isinstance(error, AuthenticationError) or REFUSED_TOKEN in said:
        where = "the cluster" if address == "auto" else f"the cluster at {address}"
        return NotJoined(
            f"{where} asks for a token: set RAY_AUTH_MODE=token, as for `ray start`, and have its token in "
            "~/.ray/auth_token, RAY_AUTH_TOKEN_PATH or RAY_AUTH_TOKEN"
        )
    if address == "auto" and isinstance(error, ConnectionError) and error.__cause__ is None:
        return NoCluster(
            "no Ray cluster runs on this machine: start one with `ray start --head`, or give --address host:port"
        )
    reason = " ".join(str(error.__cause__ or error).split())
    return NotJoined(f"could not join the cluster ({address}): {reason}")


@contextmanager
def _errors_into(kept: IO[bytes]) -> Iterator[None]:
    """Send what this process writes to its standard error, Ray's compiled parts included, elsewhere."""
    sys.stderr.flush()
    original = os.dup(2)
    try:
        os.dup2(kept.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(original, 2)
        os.close(original)
