"""Which processes of this machine belong to a Spark application, found by the marks that they were started with.

Every JVM of an application has two Java properties on its command line: which application it is, and its part in it.
The Python processes of the executors have the application in their environment. So the processes are found even when
those who started them are dead, and no process of anybody else is ever taken for one of ours.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

APPLICATION = "lineage_stash.spark.application"
PART = "lineage_stash.spark.part"
VARIABLE = "LINEAGE_STASH_SPARK_APPLICATION"

DRIVER = "driver"
"""Spark's driver: the JVM that the script talks to, a child of the script."""
MASTER = "master"
"""RayDP's master: the Ray actor RayDPSparkMaster, a Python process."""
MASTER_JVM = "master-jvm"
"""Its child, which created the Ray actor of the application master and is a Ray job of its own."""
APP_MASTER = "app-master"
"""The Ray actor RAY_APP_MASTER, in Java, which creates executors, and owns them."""
EXECUTOR = "executor"
"""A Ray actor raydp-executor-N, in Java."""
PYTHON = "python"
"""pyspark.daemon and its children, which run Python functions for an executor."""

ENTRY_POINT = "org.apache.spark.deploy.raydp.AppMasterEntryPoint"


class Process(NamedTuple):
    """One process of an application."""

    application: str
    part: str
    pid: int


def application_id(script_pid: int, number: int) -> str:
    """The name of the nth application that a script starts, unique on its machine."""
    return f"{script_pid}.{number}"


def marks(application: str, part: str) -> str:
    """The Java options that mark a JVM."""
    return f"-D{APPLICATION}={application} -D{PART}={part}"


def find_processes(application: str | None = None, script_pid: int | None = None) -> list[Process]:
    """The processes of one application, or of all that a script has started; by default all of this script's."""
    prefix = f"{script_pid or os.getpid()}."
    return [
        process
        for process in _all_processes()
        if (process.application == application if application else process.application.startswith(prefix))
    ]


def _all_processes() -> Iterator[Process]:
    for folder in sorted(Path("/proc").iterdir(), key=lambda path: (len(path.name), path.name)):
        if folder.name.isdecimal():
            yield from _recognize(folder, int(folder.name))


def _recognize(folder: Path, pid: int) -> Iterator[Process]:
    """This process, if it is one of an application's, and RayDP's master if this is its child."""
    words = _strings(folder / "cmdline")
    if Path(words[0]).name == "java" and (application := _property(words, APPLICATION)) is not None:
        part = _part(words)
        yield Process(application, part, pid)
        if part == MASTER_JVM and (parent := _parent(folder)) > 1:
            yield Process(application, MASTER, parent)
    elif "pyspark.daemon" in words:
        for entry in _strings(folder / "environ"):
            if entry.startswith(f"{VARIABLE}="):
                yield Process(entry.partition("=")[2], PYTHON, pid)
    elif (given := _option_of_submit(words)) is not None:
        yield Process(given, DRIVER, pid)  # the shell script that is about to become the driver


def _part(words: list[str]) -> str:
    if ENTRY_POINT in words:
        return MASTER_JVM
    return _property(words, PART) or DRIVER


def _property(words: list[str], name: str) -> str | None:
    """The value of a Java property."""
    return next((word.partition("=")[2] for word in words if word.startswith(f"-D{name}=")), None)


def _option_of_submit(words: list[str]) -> str | None:
    """The application whose driver a command is to start."""
    options = "spark.driver.extraJavaOptions="
    mark = f"-D{APPLICATION}="
    given = next((word for word in words if word.startswith(options) and mark in word), None)
    return None if given is None else given.partition(mark)[2].partition(" ")[0]


def _strings(path: Path) -> list[str]:
    """What the kernel says of a process, which may be gone, or not ours."""
    try:
        return path.read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return [""]


def _parent(folder: Path) -> int:
    try:
        status = (folder / "stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(status.rpartition(")")[2].split()[1])
