"""The doctor's examination: measures this machine, this environment and the cluster, and has each finding judged."""

import os
import resource
import shutil
import statistics
import sys
import time
from importlib import metadata
from pathlib import Path
from tempfile import NamedTemporaryFile

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from lineage_stash import java
from lineage_stash.cli import doctor
from lineage_stash.cli.asking import NoAnswer, ask_coordinator, ask_replica
from lineage_stash.cli.cluster import Cluster
from lineage_stash.cli.doctor import Check, Folder
from lineage_stash.cli.records import Records, read, unclaimed
from lineage_stash.on_ray.registry import REPLICA, Place

DISTRIBUTION = "lineage_stash"
VERSIONED = ("ray", "pyarrow", "cloudpickle")
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
    )


def judge_versions() -> tuple[Check, ...]:
    """This Python and the packages that must fit it, against what the project declares."""
    wanted = {found.name: found.specifier for found in map(Requirement, metadata.requires(DISTRIBUTION) or ())}
    python = SpecifierSet(metadata.metadata(DISTRIBUTION)["Requires-Python"])
    running = ".".join(map(str, sys.version_info[:3]))
    return (
        doctor.judge_version("Python", running, python),
        *(doctor.judge_version(package, _installed(package), wanted[package]) for package in VERSIONED),
    )


def examine_cluster(cluster: Cluster) -> tuple[Check, ...]:
    """What can be said from a node of a cluster."""
    reached = doctor.ok("cluster", f"joined at {cluster.address}")
    records = read(cluster.plane)
    if not records.has_services:
        return (reached, doctor.problem("services", "none run in this cluster", START_SERVICES))
    return (
        reached,
        doctor.judge_secret(records.secret is not None),
        _check_coordinator(records, cluster.node),
        *(_check_replica(records, name, cluster.node) for name in sorted(records.replicas) or (REPLICA,)),
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


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# services


def _check_coordinator(records: Records, own_node: str) -> Check:
    place = records.places.get(records.coordinator or "")
    if place is None or records.secret is None:
        return doctor.judge_coordinator(None, None, "")
    try:
        standing = ask_coordinator(place.address_from(own_node), records.secret)
    except NoAnswer as error:
        return doctor.judge_coordinator(records.coordinator, None, str(error))
    return doctor.judge_coordinator(records.coordinator, standing.took_ms, "")


def _check_replica(records: Records, name: str, own_node: str) -> Check:
    place = records.places.get(name)
    if place is None or records.secret is None:
        return doctor.judge_replica(name, None, "not registered")
    try:
        return doctor.judge_replica(name, ask_replica(place.address_from(own_node), records.secret), "")
    except NoAnswer as error:
        return doctor.judge_replica(name, None, str(error))


# storage


def check_storage(records: Records, own_node: str) -> tuple[Check, ...]:
    place = records.places.get(REPLICA)
    if place is None or records.storage is None:
        return ()
    if place.node != own_node:
        where = f"{records.storage} is on another node, {place.node}: run this there to measure it"
        return (doctor.ok("space of the store", where),)
    try:
        space = doctor.judge_space(records.storage, shutil.disk_usage(records.storage).free)
    except OSError as error:
        missing = f"{records.storage}: {error.strerror}"
        return (doctor.problem("space of the store", missing, "the store is lost: start the cluster again"),)
    try:
        return space, doctor.judge_sync(measure_sync_ms(Path(records.storage)), "")
    except OSError as error:
        return space, doctor.judge_sync(None, f"{records.storage}: {error.strerror}")


def measure_sync_ms(folder: Path) -> float:
    """How long it takes to make a little more of a file durable in this folder; the median of some tries."""
    took_ms = []
    # The store removes what ends like this when it opens its folder, should we not get to it.
    with NamedTemporaryFile(dir=folder, prefix="doctor-", suffix=".unfinished", buffering=0) as file:
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
    return (*((coordinator,) if coordinator is not None else ()), *records.replicas.values())


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
