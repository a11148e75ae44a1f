"""Files on other machines of the cluster, brought over by Ray's object store."""

import shutil
from pathlib import Path
from typing import Any

import numpy
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

FETCH_S = 300.0
"""How long a file may take to come over: one that takes longer is taken for lost."""
REMOVED_S = 10.0
"""How long machines may take to remove a folder."""


PARTITIONS = "partitions"
"""How the folder in a session's is called that has the folders of Spark stages."""


def folder_name(stage: str) -> str:
    """How the folder of a stage is called; it begins with that of the run which the stage is of."""
    return stage.replace("/", "-").replace(":", "-")


def session_folder() -> Path:
    """The folder of this Ray session: the same path on every machine."""
    return Path(ray.get_runtime_context().worker.node.get_session_dir_path())


def own_host() -> str:
    """How Ray calls this machine."""
    return str(ray.util.get_node_ip_address())


def remove_folder(path: Path) -> None:
    """Remove a folder from every machine that is there now; a machine that does not answer keeps its own."""
    shutil.rmtree(path, ignore_errors=True)
    remove_elsewhere(path)


def remove_elsewhere(path: Path) -> None:
    """Remove a folder from every other machine of the cluster that this process has joined, if it has joined one."""
    if not ray.is_initialized():
        return
    others = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeManagerAddress"] != own_host()]
    bound = [NodeAffinitySchedulingStrategy(node, soft=False) for node in others]
    asked = [_remove_folder.options(scheduling_strategy=each).remote(str(path)) for each in bound]
    if asked:
        ray.wait(asked, num_returns=len(asked), timeout=REMOVED_S)


def read_far_file(host: str, path: str, size_bytes: int) -> Any:
    """The content of a file of this size, as a read-only array; None if it is not there, or the machine is not."""
    for node in ray.nodes():
        if node["Alive"] and node["NodeManagerAddress"] == host:
            bound = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            try:
                return ray.get(_read_file.options(scheduling_strategy=bound).remote(path, size_bytes), timeout=FETCH_S)
            except RayError:
                continue  # that node may be lost, and another one of the same machine may live
    return None


@ray.remote(num_cpus=0, max_retries=0)  # type: ignore[untyped-decorator]
def _remove_folder(path: str) -> None:
    """Runs on another machine."""
    shutil.rmtree(path, ignore_errors=True)


@ray.remote(num_cpus=0, max_retries=0)  # type: ignore[untyped-decorator]
def _read_file(path: str, size_bytes: int) -> Any:
    """Runs where the file lies."""
    try:
        content = numpy.fromfile(path, dtype=numpy.uint8)
    except OSError:
        return None
    return content if len(content) == size_bytes else None
