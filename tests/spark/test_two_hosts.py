"""Two machines that do not see each other's files: a partition is fetched, computed again, and removed where it lies.

The second machine is a node with an address and a mount of its own, so that what is written there is not here. Only
those who may mount can have one.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray as plain_ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import lineage_stash as ray
from lineage_stash.on_ray.far_files import PARTITIONS, session_folder
from lineage_stash.on_spark import spark_session
from lineage_stash.testing.signals import signal_all, with_descendants
from tests.spark.jobs import wait_for
from tests.spark.test_stage import PATIENCE_S, WordCounter, truth, words

pytestmark = [
    pytest.mark.ray, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400),
    # py4j leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]  # fmt: skip

SECOND_HOST = "127.0.0.2"
MAY_MOUNT = ("unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt")
BEHIND_A_MOUNT = 'mount -t tmpfs tmpfs "$1" && shift && exec "$@"'


def may_mount() -> bool:
    try:
        return subprocess.run(MAY_MOUNT, capture_output=True, timeout=10).returncode == 0
    except OSError:
        return False


@contextmanager
def second_host(log: Path) -> Iterator[str]:
    """Another node of the cluster that this script has joined; its id."""
    folder = session_folder() / PARTITIONS
    folder.mkdir(exist_ok=True)
    known = {node["NodeID"] for node in plain_ray.nodes()}
    address = plain_ray.get_runtime_context().gcs_address
    command = ("unshare", "--mount", "sh", "-c", BEHIND_A_MOUNT, "sh", str(folder),
               str(Path(sys.executable).with_name("ray")), "start", "--block", f"--address={address}",
               f"--node-ip-address={SECOND_HOST}", "--num-cpus=3")  # fmt: skip
    with log.open("w") as output:
        # What `ray start` notes of the last cluster on this machine goes to the folder of the log.
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "RAY_TMPDIR": str(log.parent)}
        )
    try:
        wait_for(lambda: len(plain_ray.nodes()) > len(known), f"a second host: {log.read_text()}", 100.0)
        (node,) = [node["NodeID"] for node in plain_ray.nodes() if node["NodeID"] not in known]
        yield node
    finally:
        signal_all(with_descendants([process.pid]), signal.SIGKILL)
        process.wait()


@plain_ray.remote(num_cpus=0)
def files_in(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).rglob("*.arrow"))


@plain_ray.remote(num_cpus=0)
def remove(path: str) -> None:
    os.unlink(path)


@pytest.mark.long
@pytest.mark.skipif(not may_mount(), reason="needs the right to mount")
def test_partitions_on_another_machine_are_fetched_computed_again_and_removed(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("\n".join(f"line {number} of many, {number % 7} again" for number in range(500)))
    ray.init(address="local", num_cpus=0, include_dashboard=False, log_to_driver=False)
    try:
        with second_host(tmp_path / "log") as node, spark_session(executor_cores=2, executors=1) as session:
            there = {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
            folder = str(session_folder() / PARTITIONS)

            def files() -> list[str]:
                found: list[str] = plain_ray.get(files_in.options(**there).remote(folder), timeout=PATIENCE_S)
                return found

            refs = words(session, str(text))
            counter = WordCounter.remote()
            ray.get([counter.add.remote(ref) for ref in refs], timeout=PATIENCE_S)
            assert ray.get(counter.all.remote(), timeout=PATIENCE_S) == truth(text)
            rows = [table.num_rows for table in ray.get(refs, timeout=PATIENCE_S)]
            assert list(Path(folder).rglob("*.arrow")) == [], "nothing is here"
            assert len(files()) == len(refs)

            plain_ray.get(remove.options(**there).remote(files()[0]), timeout=PATIENCE_S)
            counted = ray.get([WordCounter.remote().add.remote(ref) for ref in refs], timeout=PATIENCE_S)
            assert counted == rows
            assert len(files()) == len(refs)

            session.release()
            wait_for(lambda: not files(), "the other machine has removed its partitions", PATIENCE_S)
    finally:
        ray.shutdown()
