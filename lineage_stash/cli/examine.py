"""The doctor's examination: measures this machine, this environment and the cluster, and has each finding judged."""

import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from lineage_stash import java
from lineage_stash.cli import doctor, machine
from lineage_stash.cli.asking import NoAnswer, ask_coordinator, of_each, time_replica
from lineage_stash.cli.cluster import Cluster
from lineage_stash.cli.doctor import Check, Folder
from lineage_stash.cli.records import Records, read, unclaimed
from lineage_stash.cli.status import fault_of, out_of, promise_of
from lineage_stash.on_ray.registry import Place, replica_name
from lineage_stash.on_ray.replica_sets import ANYWHERE
from lineage_stash.store.contract import ReplicaId

DISTRIBUTION = "lineage_stash"
VERSIONED = ("ray", "pyarrow", "cloudpickle")
OF_SPARK = ("raydp", "pyspark")
JAVA_WITHIN_S = 20.0
JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""What a Java takes flags from besides its command line."""
CONNECT_WITHIN_S = 1.0
SYNCS = 5
SYNC_BYTES = 4096

CLAIM_WITHIN_S = 5.0
"""A host starts in about a second; an actor that waits longer waits for something else."""

LOOK_S = 0.1

START_SERVICES = "the first program that calls lineage_stash.init() starts them, and they stay"


def examine_machine() -> tuple[Check, ...]:
    """What can be said without a cluster."""
    home = _java_home()
    return (
        *judge_versions(),
        doctor.judge_java(None if home is None else java.major_version(home), str(home or "JAVA_HOME")),
        *(() if home is None else (machine.judge_java_flags(*try_java(home)),)),
        machine.judge_memory(**measure_memory()),
    )


def judge_versions() -> tuple[Check, ...]:
    """This Python and the packages that must fit it, against what the project declares."""
    wanted = {found.name: found.specifier for found in map(Requirement, metadata.requires(DISTRIBUTION) or ())}
    python = SpecifierSet(metadata.metadata(DISTRIBUTION)["Requires-Python"])
    running = ".".join(map(str, sys.version_info[:3]))
    return (
        doctor.judge_version("Python", running, python),
        *(doctor.judge_version(package, _installed(package), wanted[package]) for package in VERSIONED),
        *(machine.judge_spark_version(package, _installed(package), wanted[package]) for package in OF_SPARK),
    )


def examine_cluster(cluster: Cluster) -> tuple[Check, ...]:
    """What can be said from a node of a cluster."""
    reached = doctor.ok("cluster", f"joined at {cluster.address}")
    records = read(cluster.plane)
    if not records.has_services:
        return (reached, doctor.problem("services", "none run in this cluster", START_SERVICES))
    return (
        reached,
        doctor.judge_fact_storage(cluster.fact_storage),
        doctor.judge_secret(records.secret is not None),
        *_check_coordinator(records, cluster.node),
        machine.judge_ports(try_ports(records)),
        *check_replicas(records, cluster.node, cluster.alive_nodes),
        *check_storage(records, cluster.node),
        *_check_sockets_and_files(records, cluster.node),
        doctor.judge_loops(records.recoveries, time.time()),
        doctor.judge_unclaimed(_wait_for_claims(cluster, records), cluster.free_cpus),
    )


def _java_home() -> Path | None:
    try:
        return java.java_home()
    except ImportError:
        return None


def try_java(home: Path) -> tuple[str, dict[str, str]]:
    """What a Java has against the flags that Spark needs, and which others it is given by the environment."""
    given = {name: os.environ[name] for name in JAVA_VARIABLES if os.environ.get(name)}
    command = [str(home / "bin" / "java"), *java.opened_flags(), "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=JAVA_WITHIN_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error), given
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("Picked up", "NOTE:"))]
    return (" ".join(lines[:1]) or f"it ended with {done.returncode}") if done.returncode else "", given


def measure_memory() -> dict[str, int]:
    """How much memory this machine has, and how much of it and of its shared memory is free, in bytes."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    found = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 1}
    shared = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0
    return {"total": found["MemTotal"], "available": found["MemAvailable"], "shared": shared}


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# services


def _check_coordinator(records: Records, own_node: str) -> tuple[Check, ...]:
    """Whether it answers, and what its clock says."""
    place = records.places.get(records.coordinator or "")
    if place is None or records.secret is None:
        return (doctor.judge_coordinator(None, None, ""),)
    try:
        standing = ask_coordinator(place.address_from(own_node), records.secret)
    except NoAnswer as error:
        return (doctor.judge_coordinator(records.coordinator, None, str(error)),)
    answers = doctor.judge_coordinator(records.coordinator, standing.took_ms, "")
    return answers, machine.judge_clock(standing.ahead_s)


def try_ports(records: Records) -> dict[str, str]:
    """Whether each service can be reached from here over the network, as from other nodes; if not, why."""
    named = {"coordinator": records.places.get(records.coordinator or "")}
    named |= {replica_name(replica): records.place_of_replica(replica) for replica in records.replicas}
    listening = {name: place.tcp for name, place in named.items() if place is not None and place.tcp}
    with ThreadPoolExecutor(max_workers=max(1, len(listening))) as pool:
        return dict(zip(listening, pool.map(_try_port, listening.values()), strict=True))


def _try_port(address: str) -> str:
    host, _, port = address.removeprefix("tcp:").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_WITHIN_S).close()
    except OSError as error:
        return f"{host}:{port}: {error.strerror or error}"
    return ""


def check_replicas(records: Records, own_node: str, alive_nodes: frozenset[str]) -> tuple[Check, ...]:
    """Where the replicas are, and whether each of them answers."""
    current = records.replica_set
    if current is None:
        return (doctor.problem("replicas", "there are none", START_SERVICES),)
    nodes = tuple(records.residences[replica].node for replica in current.replicas if replica in records.residences)
    answers = of_each(current.everyone, lambda replica: _time(records, replica, own_node, alive_nodes))
    up = sum(isinstance(answers[replica], float) for replica in current.replicas)
    return (
        doctor.judge_placement(
            current.epoch, nodes, promise_of(records, alive_nodes), is_whole=not out_of(records, alive_nodes)
        ),
        *(
            doctor.judge_replica(
                replica_name(replica),
                answer if isinstance(answer, float) else None,
                answer if isinstance(answer, str) else "",
                has_majority=up >= current.majority,
            )
            for replica, answer in answers.items()
        ),
    )


def _time(records: Records, replica: ReplicaId, own_node: str, alive_nodes: frozenset[str]) -> float | str:
    """In how many milliseconds a replica answers, or why it does not."""
    fault = fault_of(records, replica, alive_nodes)
    place = records.place_of_replica(replica)
    if fault or place is None or records.secret is None:
        return fault.partition(". ")[0]
    try:
        return time_replica(place.address_from(own_node), records.secret)
    except NoAnswer as error:
        return str(error)


# storage


def check_storage(records: Records, own_node: str) -> tuple[Check, ...]:
    """The disks of the replicas that live on this node; those of others cannot be measured from here."""
    homes = [records.residences[replica] for replica in records.replicas if replica in records.residences]
    here = [home.folder for home in homes if home.node == own_node]
    if here:
        return tuple(check for folder in here for check in _check_folder(folder))
    elsewhere = ", ".join(sorted({home.node for home in homes} - {ANYWHERE}))
    return (doctor.ok("space of the store", f"on other nodes: run this on {elsewhere} to measure it"),) if homes else ()


def _check_folder(folder: str) -> tuple[Check, ...]:
    try:
        space = doctor.judge_space(folder, shutil.disk_usage(folder).free)
    except OSError as error:
        return (
            doctor.problem(
                "space of the store",
                f"{folder}: {error.strerror}",
                "what this replica had is lost: if it is not replaced within a minute, see the coordinator's log",
            ),
        )
    try:
        return space, doctor.judge_sync(measure_sync_ms(Path(folder)), "")
    except OSError as error:
        return space, doctor.judge_sync(None, f"{folder}: {error.strerror}")


def measure_sync_ms(folder: Path) -> float:
    """How long it takes to make a little more of a file durable in this folder; the median of some tries."""
    took_ms = []
    with TemporaryFile(dir=folder, buffering=0) as file:  # without a name: nothing can be left behind
        for _ in range(SYNCS):
            began_at = time.monotonic()
            file.write(bytes(SYNC_BYTES))
            os.fsync(file.fileno())
            took_ms.append(1e3 * (time.monotonic() - began_at))
    return statistics.median(took_ms)


# this machine, as the processes of the cluster see it


def _check_sockets_and_files(records: Records, own_node: str) -> tuple[Check, ...]:
    here = [place for place in _services(records) if place.node == own_node]
    folders = sorted({Path(place.unix.removeprefix("unix:")).parent for place in here if place.unix})
    return (
        *(doctor.judge_folder(look_at(folder), os.getuid()) for folder in folders),
        _check_open_files(here),
    )


def _services(records: Records) -> tuple[Place, ...]:
    coordinator = records.places.get(records.coordinator or "")
    found = (coordinator, *map(records.place_of_replica, records.replicas))
    return tuple(place for place in found if place is not None)


def look_at(folder: Path) -> Folder:
    try:
        found = folder.lstat()
    except OSError:
        return Folder(str(folder), False, 0, -1)
    return Folder(str(folder), folder.is_dir() and not folder.is_symlink(), found.st_mode, found.st_uid)


def _check_open_files(here: list[Place]) -> Check:
    """The limit of a service that runs here, since it has more files open than we have; else our own."""
    for place in here:
        try:
            soft, _ = resource.prlimit(place.pid, resource.RLIMIT_NOFILE)
        except (ProcessLookupError, PermissionError):
            continue
        return doctor.judge_open_files(soft, f"process {place.pid}")
    return doctor.judge_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0], "this shell")


def _wait_for_claims(cluster: Cluster, records: Records) -> tuple[str, ...]:
    """The actors that still have no process after the time that one takes to start."""
    waiting = unclaimed(records)
    deadline = time.monotonic() + CLAIM_WITHIN_S
    while waiting and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        still = unclaimed(read(cluster.plane))
        waiting = tuple(peer for peer in waiting if peer in still)
    return waiting
