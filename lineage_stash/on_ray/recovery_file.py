"""Recoveries on a disk: the control plane's records of them end with the cluster, and its store's files do not.

Beside the folders of the replicas, on the coordinator's machine, there is one file with one recovery to a line. It is
for people who look afterwards: nothing depends on it, what cannot be written is left out, and so is what would make it
longer than `MOST_BYTES`.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from lineage_stash.on_ray.control_plane import ControlPlane

FILE = "recoveries.jsonl"

MOST_BYTES = 16 * 1024 * 1024
"""Some 30,000 recoveries."""


def keep(plane: ControlPlane, record: dict[str, Any]) -> None:
    """Put a recovery on record, in the control plane and beside the store."""
    value = json.dumps(record).encode()
    plane.put(f"recoveries/{record['round']:08d}/{record['peer']}", value)
    storage = plane.get("storage")
    if storage is not None:
        with suppress(OSError):
            append(Path(storage.decode()), value)


def append(storage: Path, line: bytes) -> None:
    """Add a line in one piece, so that of several writers none is in the middle of another; raises `OSError`."""
    descriptor = os.open(storage / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(descriptor).st_size + len(line) < MOST_BYTES:
            os.write(descriptor, line + b"\n")
    finally:
        os.close(descriptor)


def read(storage: Path) -> Iterator[bytes]:
    """The lines of a storage's file, whole ones and others; none if there is no file."""
    with suppress(OSError), (storage / FILE).open("rb") as file:
        yield from file.read(MOST_BYTES).splitlines()
