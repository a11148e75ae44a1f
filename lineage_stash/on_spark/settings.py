"""What a Spark application is started with: its sizes, fitted to the cluster, and its configuration.

Rules:
- Settings are made once, and kept: an application that is started again has the same partitions as before.
- How many partitions there are follows from the settings alone, never from how many executors have come up yet.
- What the user says wins, always; Java options are added to ours instead of replacing them.
- One CPU is left to Ray where there are two: tasks that fetch Spark's results need one, and would wait for ever.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lineage_stash.java import opened_flags
from lineage_stash.on_ray import outsiders
from lineage_stash.on_ray.outsiders import Resources
from lineage_stash.on_spark import processes

DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
MASTER_OPTIONS = "spark.ray.raydp_app_master.extraJavaOptions"
PARTS = {DRIVER_OPTIONS: processes.DRIVER, EXECUTOR_OPTIONS: processes.EXECUTOR, MASTER_OPTIONS: processes.APP_MASTER}

MB = 2**20
LEAST_MEMORY_MB = 512
"""Spark refuses less than 450 MB."""
ENOUGH_MEMORY_MB = 2048
MOST_CORES = 8
"""Of one executor by default: more share one garbage collector badly."""

UNITS = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}


@dataclass(frozen=True)
class Settings:
    """All that decides what an application is, but for its number."""

    app_name: str
    executors: int
    executor_cores: int
    executor_memory_mb: int
    parallelism: int
    configs: Mapping[str, str]

    @property
    def cpus(self) -> float:
        """What all executors take of Ray's CPUs."""
        return float(self.executors * self.executor_cores)

    @property
    def memory_bytes(self) -> float:
        """What all executors take of Ray's memory."""
        return float(self.executors * self.executor_memory_mb * MB)

    def __str__(self) -> str:
        return f"{_count(self.executors, 'executor')} × {_count(self.executor_cores, 'core')}"


def make_settings(app_name: str, *, executors: int | None, executor_cores: int | None,
                  executor_memory: str | int | None, configs: Mapping[str, str]) -> Settings:  # fmt: skip
    """Fit what the user left open to the cluster."""
    for name, number in (("executors", executors), ("executor_cores", executor_cores)):
        if number is not None and number < 1:
            raise ValueError(f"{name}={number}: it must be at least 1")
    total, largest = outsiders.total_resources(), outsiders.largest_node()
    count = 1 if executors is None else executors
    cores = default_cores(total, largest, count) if executor_cores is None else executor_cores
    memory = default_memory_mb(total, count) if executor_memory is None else parse_memory_mb(executor_memory)
    # Not what is free: a script that is resumed later must find the same partitions.
    parallelism = max(2, count * cores if executors is not None and executor_cores is not None else int(total.cpus))
    return Settings(app_name, count, cores, memory, parallelism, dict(configs))


def default_cores(total: Resources, largest: Resources, executors: int) -> int:
    """A share of all CPUs but one, which one node has."""
    return max(1, min(MOST_CORES, (int(total.cpus) - 1) // executors, int(largest.cpus)))


def default_memory_mb(total: Resources, executors: int) -> int:
    """A share of a half of the memory that Ray gives away, no more than is good for small data."""
    share = int(total.memory_bytes / MB / 2 / executors)
    return max(LEAST_MEMORY_MB, min(ENOUGH_MEMORY_MB, share))


def parse_memory_mb(size: str | int) -> int:
    """1024 of "1g", "1024m", "1 GB", and of 1073741824, which is bytes."""
    text = str(size).strip().lower().removesuffix("b").removesuffix("i").strip()
    number, factor = (text[:-1], UNITS[text[-1]]) if text and text[-1] in UNITS else (text, 1 / MB)
    try:
        megabytes = int(float(number) * factor)
    except ValueError:
        raise ValueError(f"executor_memory={size!r} is not a size such as '1g' or '512m'") from None
    if megabytes < 1:
        raise ValueError(f"executor_memory={size!r} is less than a megabyte: say the unit, such as '1g' or '512m'")
    return megabytes


def all_configs(settings: Settings, application: str, log: Path, *, progress: bool) -> dict[str, str]:
    """Spark's configuration: ours, and the user's on top of it."""
    partitions = str(settings.parallelism)
    configs = {
        "spark.sql.adaptive.enabled": "false",  # it decides partitions by sizes and moments
        "spark.sql.shuffle.partitions": partitions,
        "spark.default.parallelism": partitions,  # else it is the cores of the executors that are there by then
        "spark.sql.leafNodeDefaultParallelism": partitions,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.showConsoleProgress": str(progress).lower(),
        "spark.log4j.config.file.name": str(write_log_settings(log)),
        f"spark.executorEnv.{processes.VARIABLE}": application,
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(own_paths()),
    }
    configs |= {key: _text(value) for key, value in settings.configs.items()}
    for key, part in PARTS.items():
        ours = f"{processes.marks(application, part)} {' '.join(opened_flags())}"
        configs[key] = f"{ours} {settings.configs.get(key, '')}".strip()
    return configs


def own_paths() -> list[str]:
    """Where the script's own modules are, which the executors' Python must find too; Ray does the same for workers."""
    installed = {sys.prefix, sys.base_prefix}
    folders = (os.path.abspath(path or os.getcwd()) for path in sys.path)
    return [path for path in folders if os.path.isdir(path) and not any(path.startswith(root) for root in installed)]


LOG_SETTINGS = """\
status = off
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
logger.loader.name = org.apache.hadoop.util.NativeCodeLoader
logger.loader.level = error
"""
"""The driver's warnings go to a file: what matters of them comes as an exception too."""


def write_log_settings(log: Path) -> Path:
    """The file that tells the driver where to log."""
    file = log.with_suffix(".properties")
    file.write_text(LOG_SETTINGS.format(log=log), encoding="utf-8")
    return file


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
