"""Partitions: what a Spark stage has computed, as files of Arrow's that any process of their machine can map.

Rules:
- A partition is one file in Arrow's own format, which appears at once and whole, and is never changed after that.
- Its record says how many rows it has, where it lies, and its digest. The digest is a fact for ever: a partition that
  is computed again and has another one is an error, because somebody may have seen the first.
- What travels through the stash is the record. Whoever opens it gets the table: mapped where the file is on the same
  machine, so that nothing is copied, and fetched through Ray's object store from any other one.
- A file that is gone is asked for in the control plane, and whoever has the stage computes it again.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from lineage_stash.capture.here import paused
from lineage_stash.on_ray.control_plane import ControlPlane
from lineage_stash.on_ray.far_files import PARTITIONS, folder_name, read_far_file, session_folder
from lineage_stash.on_ray.present import current
from lineage_stash.on_ray.telling import warn

LOOK_S = 0.05
"""How often to look for a record that is not there yet."""

TELL_AFTER_S = 20.0
"""How long to wait for a lost partition before telling people what is being waited for."""


class PartitionChanged(RuntimeError):
    """A partition was computed again, and is not what it was."""


class StageFailed(RuntimeError):
    """What a stage computes cannot be computed; the text says why."""


class Record(NamedTuple):
    """What is known of a partition."""

    stage: str
    number: int
    rows: int
    size_bytes: int
    digest: str
    host: str
    path: str

    def pack(self) -> bytes:
        """As the control plane has it."""
        return json.dumps(self).encode()


def unpack_record(packed: bytes) -> Record:
    """A record from the control plane."""
    return Record(*json.loads(packed))


class Partition:
    """A table that is not here: opened by whoever it is sent to."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def __reduce__(self) -> Any:
        return open_table, (tuple(self.record),)


# writing, in Spark's workers


def make_writer(stage: str, folder: str, schema: bytes, reports: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What Spark runs on each partition. It goes to Spark's workers by value: they need not have this package."""

    find_host = make_host_finder()

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import hashlib
        import os

        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context.partitionId()
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"{number:06d}.arrow")
        unfinished = f"{path}.{context.taskAttemptId()}"
        rows = 0
        with (
            pa.OSFile(unfinished, "wb") as sink,
            pa.ipc.new_file(sink, pa.ipc.read_schema(pa.py_buffer(schema))) as out,
        ):
            for batch in batches:
                rows += batch.num_rows
                out.write_batch(batch)
        with pa.memory_map(unfinished) as written:
            content = written.read_buffer()
            digest = hashlib.blake2b(content, digest_size=16).hexdigest()
            size = content.size
        os.replace(unfinished, path)
        reports.add([(stage, number, rows, size, digest, find_host(), path)])
        yield pa.record_batch([pa.array([number])], names=["number"])

    return write


def make_host_finder() -> Callable[[], str]:
    """How Ray calls the machine that a Spark worker runs on, as the executor above it was told; goes by value, too.

    The name of the machine is of no use: it often stands for a loopback address, or for another network than Ray's.
    """

    def find_host() -> str:
        import os
        import socket

        given = b"-Dray.node-ip="
        pid = os.getppid()
        while pid > 1:
            with open(f"/proc/{pid}/cmdline", "rb") as line:
                words = line.read().split(b"\0")
            for word in words:
                if word.startswith(given):
                    return word.removeprefix(given).decode()
            with open(f"/proc/{pid}/stat", "rb") as status:
                pid = int(status.read().rpartition(b")")[2].split()[1])
        return socket.gethostbyname(socket.gethostname())  # a local session of the user's

    return find_host


# opening, wherever the table is needed


def open_table(known: tuple[Any, ...]) -> pa.Table:
    """The table of a partition, however it is to be had."""
    record = Record(*known)
    with paused():
        while True:
            content = _content_here(record) or _content_there(record)
            if content is not None:
                return pa.ipc.open_file(content).read_all()
            record = _have_again(current().process.plane, record)


def title(record: Record) -> str:
    """A partition, for people."""
    return f"partition {record.number} of {record.stage}"


def _content_here(record: Record) -> "pa.Buffer | None":
    """The file, mapped; none if it is not on this machine."""
    try:
        if os.path.getsize(record.path) != record.size_bytes:
            return None
        return pa.memory_map(record.path).read_buffer()
    except (FileNotFoundError, PermissionError):
        return None


def _content_there(record: Record) -> "pa.Buffer | None":
    """The file, by Ray from the machine where it lies."""
    found = read_far_file(record.host, record.path, record.size_bytes)
    return None if found is None else pa.py_buffer(found)


# records


LOST = "lost-partitions"


def record_key(stage: str, number: int | str = "") -> str:
    """Under which key the record of a partition is; of all partitions of a stage, how these keys begin."""
    return f"partitions/{stage}/{number}"


def digest_key(stage: str, number: int | str = "") -> str:
    """Under which key the digest of a partition is; of all partitions of a stage, how these keys begin."""
    return f"digests/{stage}/{number}"


def released_key(stage: str) -> str:
    """Under which key it says that nobody needs the partitions of a stage any more."""
    return f"released-stages/{stage}"


def lost_key(stage: str, number: int | str = "") -> str:
    """Under which key a partition is asked for; of all partitions of a stage, how these keys begin."""
    return f"{LOST}/{stage}/{number}"


def find_lost(plane: ControlPlane, owner: str) -> dict[str, list[int]]:
    """Which partitions are asked for, by stage, of all stages that one script has called: one question for all."""
    found: dict[str, list[int]] = {}
    for key in plane.keys(f"{LOST}/{owner}:"):
        stage, _, number = key.removeprefix(f"{LOST}/").rpartition("/")
        found.setdefault(stage, []).append(int(number))
    return found


def failure_key(stage: str) -> str:
    """Under which key it says why a stage has failed."""
    return f"failed-stages/{stage}"


def await_record(plane: ControlPlane, stage: str, number: int) -> Record:
    """The record of a partition, when it has been computed; raises if the stage has failed."""
    while True:
        packed = plane.get(record_key(stage, number))
        if packed is not None:
            return unpack_record(packed)
        _raise_failure(plane, stage)
        time.sleep(LOOK_S)


def put_record(plane: ControlPlane, record: Record) -> None:
    """Make known that a partition is there; raises if it is not what it was."""
    digest = plane.put_if_absent(digest_key(record.stage, record.number), record.digest.encode()).decode()
    if digest != record.digest:
        raise PartitionChanged(
            f"{title(record)} was computed again, and is not what it was (digest {record.digest}, was {digest}): the "
            "stage depends on something that changes, such as its input files, the time or the order of rows. Sort "
            "within partitions by all columns, or declare the stage with durable=True."
        )
    plane.put(record_key(record.stage, record.number), record.pack())
    plane.delete(lost_key(record.stage, record.number))


def _have_again(plane: ControlPlane, record: Record) -> Record:
    """Ask for a lost partition, and wait until it is there again; raises if its stage has failed."""
    key = lost_key(record.stage, record.number)
    plane.put(key, record.pack())
    tell_at = time.monotonic() + TELL_AFTER_S
    while plane.get(key) is not None:
        _raise_failure(plane, record.stage)
        if time.monotonic() > tell_at:
            tell_at = float("inf")
            warn("partition lost", f"waiting for {title(record)}, which was lost with {record.host}; the script of its "
                 "stage computes it again: start that again if it has ended", stage=record.stage)  # fmt: skip
        time.sleep(LOOK_S)
    return await_record(plane, record.stage, record.number)


def _raise_failure(plane: ControlPlane, stage: str) -> None:
    failure = plane.get(failure_key(stage))
    if failure is not None:
        raise StageFailed(failure.decode())


def folder_of(stage: str) -> str:
    """Where the files of a stage are, on every machine that has some."""
    return str(session_folder() / PARTITIONS / folder_name(stage))
