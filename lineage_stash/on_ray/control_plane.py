"""The control plane: small, rare facts in Ray's GCS. The only module that touches what is private to Ray.

Rules:
- A GCS that is away is waited for, as long as Ray itself does, and asked again; then `ControlPlaneAway` is raised, and
  nothing else. No request is left with Ray's client for long: one that is still under way a minute after a cluster has
  ended makes the client end this process.
- A GCS that comes back without its facts is another cluster: `ControlPlaneReplaced`, at once and for ever.
- `put_if_absent` answers with the value that stands. A request that was repeated, by Ray's client or here, can find its
  own value there: values that must be unique carry a token of their writer, and whoever wrote compares.
- With Redis behind the GCS these facts survive the GCS process; without, they end with it.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from ray._private.state import state
from ray.exceptions import AuthenticationError, RayError, RpcError
from ray.experimental import internal_kv

NAMESPACE = b"lineage_stash"

REQUEST_S = 3.0
"""How long one request may take: longer than a busy GCS needs, and short for whoever interrupts or leaves."""

LIMIT = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Ray's setting of how long a GCS may be away, after which Ray ends the processes that miss it."""

PATIENCE_S = float(os.environ.get(LIMIT, "60"))
"""How long to ask again: just as long, because nobody would be there after that."""

DEADLINE_EXCEEDED = 4
"""What gRPC calls a request that was not answered in time."""

WRONG_CLUSTER = "WrongClusterID"
"""What a GCS says to those who knew its predecessor, if it does not have its facts."""


class ControlPlaneAway(Exception):
    """The GCS has not answered. Whether a write has happened is not known; asking again is safe."""


class ControlPlaneReplaced(ControlPlaneAway):
    """The GCS has lost its facts: it answers, and does not know this process. Asking again is of no use."""


class ControlPlane:
    """Keys are text, values are bytes. Talks to the cluster that this process belonged to when it was made."""

    def __init__(self) -> None:
        self._gcs: Any = internal_kv.internal_kv_get_gcs_client()
        if self._gcs is None:
            raise ControlPlaneAway("this process is connected to no Ray cluster: call init() first")
        self.patience_s = PATIENCE_S

    def get(self, key: str) -> bytes | None:
        """The value of a key."""
        value: bytes | None = self._ask(self._gcs.internal_kv_get, key.encode())
        return value

    def put(self, key: str, value: bytes) -> None:
        """Set a key."""
        self._ask(self._gcs.internal_kv_put, key.encode(), value, True)

    def put_if_absent(self, key: str, value: bytes) -> bytes:
        """Set a key unless it has a value; the value that stands."""
        while True:
            if self._ask(self._gcs.internal_kv_put, key.encode(), value, False):
                return value
            standing = self.get(key)
            if standing is not None:
                return standing

    def delete(self, key: str) -> None:
        """Forget a key."""
        self._ask(self._gcs.internal_kv_del, key.encode(), False)

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with `prefix`, in order."""
        return sorted(key.decode() for key in self._ask(self._gcs.internal_kv_keys, prefix.encode()))

    def get_all(self, prefix: str) -> dict[str, bytes]:
        """All keys that begin with `prefix`, with their values; one request for any number of them."""
        return self.get_these(self.keys(prefix))

    def get_these(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Those of these keys that have a value, with it; one request for any number of them."""
        encoded = [key.encode() for key in keys]
        if not encoded:
            return {}
        found = self._ask(self._gcs.internal_kv_multi_get, encoded)
        return {key.decode(): found[key] for key in encoded if key in found}

    def _ask(self, request: Callable[..., Any], *arguments: Any) -> Any:
        """Make a request, and make it again while the GCS is away and patience lasts."""
        asked_at = time.monotonic()
        while True:
            try:
                return request(*arguments, NAMESPACE, timeout=REQUEST_S)
            except (RayError, OSError, RuntimeError) as error:
                if not is_unanswered(error) or time.monotonic() - asked_at >= self.patience_s:
                    raise in_our_words(error) from error


def draining_nodes() -> frozenset[str]:
    """The nodes that are about to go, which Ray tells its own libraries only."""
    return frozenset(state.get_draining_nodes())


def is_unanswered(error: Exception) -> bool:
    """Whether a request has failed for want of an answer in time, and took that time."""
    return isinstance(error, RpcError) and error.rpc_code == DEADLINE_EXCEEDED


def in_our_words(error: Exception) -> ControlPlaneAway:
    """What to raise for an error of Ray's client."""
    if isinstance(error, AuthenticationError) and WRONG_CLUSTER in str(error):
        return ControlPlaneReplaced(
            "the GCS was started again and has lost what it knew, this cluster with it: start the cluster and this "
            "program again. With Redis behind the GCS they survive: see docs/head-node.md."
        )
    return ControlPlaneAway(f"the GCS did not answer: {error}")
