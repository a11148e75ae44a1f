"""The control plane: small, rare facts in Ray's GCS. The only module that touches Ray's private key-value store.

Rules:
- `put_if_absent` answers with the value that stands. A request that was repeated can find its own value there: values
  that must be unique carry a token of their writer, and whoever wrote compares.
- With Redis behind the GCS these facts survive the GCS process; without, they end with it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.exceptions import RayError
from ray.experimental import internal_kv

NAMESPACE = b"lineage_stash"


class ControlPlaneAway(Exception):
    """The GCS has not answered. Whether a write has happened is not known; asking again is safe."""


class ControlPlane:
    """Keys are text, values are bytes. Talks to the cluster that this process belonged to when it was made."""

    def __init__(self) -> None:
        self._gcs: Any = internal_kv.internal_kv_get_gcs_client()
        if self._gcs is None:
            raise ControlPlaneAway("this process is connected to no Ray cluster: call init() first")

    def get(self, key: str) -> bytes | None:
        """The value of a key."""
        with _away_told():
            value: bytes | None = self._gcs.internal_kv_get(key.encode(), NAMESPACE)
        return value

    def put(self, key: str, value: bytes) -> None:
        """Set a key."""
        with _away_told():
            self._gcs.internal_kv_put(key.encode(), value, True, NAMESPACE)

    def put_if_absent(self, key: str, value: bytes) -> bytes:
        """Set a key unless it has a value; the value that stands."""
        while True:
            with _away_told():
                added = self._gcs.internal_kv_put(key.encode(), value, False, NAMESPACE)
            if added:
                return value
            standing = self.get(key)
            if standing is not None:
                return standing

    def delete(self, key: str) -> None:
        """Forget a key."""
        with _away_told():
            self._gcs.internal_kv_del(key.encode(), False, NAMESPACE)

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with `prefix`, in order."""
        with _away_told():
            found = self._gcs.internal_kv_keys(prefix.encode(), NAMESPACE)
        return sorted(key.decode() for key in found)

    def get_all(self, prefix: str) -> dict[str, bytes]:
        """All keys that begin with `prefix`, with their values; one request for any number of them."""
        keys = [key.encode() for key in self.keys(prefix)]
        if not keys:
            return {}
        with _away_told():
            found = self._gcs.internal_kv_multi_get(keys, NAMESPACE)
        return {key.decode(): found[key] for key in keys if key in found}


@contextmanager
def _away_told() -> Iterator[None]:
    """Have one error for all the ways in which Ray's client says that there is no answer."""
    try:
        yield
    except (RayError, OSError, RuntimeError) as error:
        raise ControlPlaneAway(f"the GCS did not answer: {error}") from error
