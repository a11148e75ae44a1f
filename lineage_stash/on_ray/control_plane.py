"""The control plane: small, rare facts in Ray's GCS. The only module that touches Ray's private key-value store.

Rules:
- `put_if_absent` answers with the value that stands. A request that was repeated can find its own value there: values
  that must be unique carry a token of their writer, and whoever wrote compares.
- With Redis behind the GCS these facts survive the GCS process; without, they end with it.
"""

from ray.experimental import internal_kv

NAMESPACE = b"lineage_stash"


class ControlPlane:
    """Keys are text, values are bytes."""

    def get(self, key: str) -> bytes | None:
        """The value of a key."""
        value: bytes | None = internal_kv._internal_kv_get(key.encode(), namespace=NAMESPACE)
        return value

    def put(self, key: str, value: bytes) -> None:
        """Set a key."""
        internal_kv._internal_kv_put(key.encode(), value, overwrite=True, namespace=NAMESPACE)

    def put_if_absent(self, key: str, value: bytes) -> bytes:
        """Set a key unless it has a value; the value that stands."""
        while internal_kv._internal_kv_put(key.encode(), value, overwrite=False, namespace=NAMESPACE):
            standing = self.get(key)
            if standing is not None:
                return standing
        return value

    def delete(self, key: str) -> None:
        """Forget a key."""
        internal_kv._internal_kv_del(key.encode(), namespace=NAMESPACE)

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with `prefix`, in order."""
        found = internal_kv._internal_kv_list(prefix.encode(), namespace=NAMESPACE)
        return sorted(key.decode() for key in found)

    def get_all(self, prefix: str) -> dict[str, bytes]:
        """All keys that begin with `prefix`, with their values; one request for any number of them."""
        keys = [key.encode() for key in self.keys(prefix)]
        if not keys:
            return {}
        found = internal_kv.internal_kv_get_gcs_client().internal_kv_multi_get(keys, NAMESPACE)
        return {key.decode(): found[key] for key in keys if key in found}
