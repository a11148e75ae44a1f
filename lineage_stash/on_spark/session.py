"""Spark sessions on Ray that start when they are needed, can be started again, and leave nothing behind.

    with spark_session(executors=2) as session:
        session.read.parquet("...").groupBy("key").count().show()

Rules:
- Spark starts at the first use, once; a program that finds its results in the stash never starts it.
- Nothing hangs: a start, an end and a question have limits, and what is missing is named.
- `restart` makes a new application under the same settings. DataFrames, columns and UDFs belong to the application in
  which they were made: make them in the function that uses them.
- A session of the user's is only lent: it is neither stopped nor started again.
- When the block ends, or the script does, so do all processes and Ray jobs of the application. After `kill -9` of the
  script they end by themselves, because the driver reads a pipe from it and Ray ends the actors of a job that is gone.
"""

import atexit
import itertools
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from pyspark.sql import SparkSession

from lineage_stash.capture.here import paused
from lineage_stash.on_ray import outsiders
from lineage_stash.on_spark.application import Application, SparkNotStarted, SparkTimedOut, answers, count_executors
from lineage_stash.on_spark.settings import Settings, make_settings

__all__ = ["SparkNotStarted", "SparkOnRay", "SparkTimedOut", "spark_session"]

START_S = 120.0

_numbers = itertools.count(1)


def spark_session(app_name: str = "lineage_stash", *, spark: SparkSession | None = None, executors: int | None = None,
                  executor_cores: int | None = None, executor_memory: str | int | None = None,
                  configs: Mapping[str, str] | None = None, eager: bool = False, timeout_s: float = START_S,
                  progress: bool | None = None) -> "SparkOnRay":  # fmt: skip
    """Spark on the Ray cluster that this script has joined, as a context manager.

    `spark` is a session that is there already, and is only used; the other options are about one that is started:
    `executors` (1), the cores and the memory of each (by default what fits the cluster, with one CPU left to Ray), and
    `configs`, which wins over all defaults. Partitions are deterministic by default: adaptive execution is off, their
    number follows from the settings, and the time zone is UTC.
    `eager` starts Spark now and not at its first use; `timeout_s` (120) is how long that may take; `progress` shows
    Spark's bar (by default where stderr is a terminal).
    """
    session = SparkOnRay(
        spark, app_name, {"executors": executors, "executor_cores": executor_cores,
                          "executor_memory": executor_memory, "configs": dict(configs or {})},
        timeout_s, sys.stderr.isatty() if progress is None else progress,
    )  # fmt: skip
    if eager:
        _ = session.spark
    return session


class SparkOnRay:
    """Spark on Ray, or the user's own session. What is not here is the live `SparkSession`'s."""

    def __init__(self, lent: SparkSession | None, app_name: str, wanted: Mapping[str, Any], timeout_s: float,
                 progress: bool) -> None:  # fmt: skip
        self._lent = lent
        self._app_name = app_name
        self._wanted = wanted
        self._timeout_s = timeout_s
        self._progress = progress
        self._lock = threading.RLock()
        self._settings: Settings | None = None
        self._application: Application | None = None
        self._is_stopped = False
        self.before_leaving: list[Callable[[], None]] = []
        """What has to be finished before the block may end in peace."""
        self.on_release: list[Callable[[], None]] = []
        """What to do when what was computed here is needed no more."""
        self.conductor: object | None = None
        """Who has stages computed here, once there are any."""

    @property
    def spark(self) -> SparkSession:
        """The live session; Spark is started if it was not."""
        if self._lent is not None:
            return self._lent
        with self._lock, paused():
            if self._is_stopped:
                raise SparkNotStarted("this Spark session was stopped: make another one with spark_session()")
            if self._application is None:
                return self._start()
            assert self._application.session is not None, "an application is kept only once it has started"
            return self._application.session

    @property
    def settings(self) -> Settings:
        """Sizes and configuration, the same for every application that is started here."""
        with self._lock, paused():
            if self._settings is None:
                _check_ray()
                self._settings = make_settings(self._app_name, **self._wanted)
            return self._settings

    def pin(self, parallelism: int) -> None:
        """Have as many partitions as the first life of this script, whatever the cluster has become since."""
        if self.is_ours:
            self._settings = replace(self.settings, parallelism=parallelism)

    @property
    def is_ours(self) -> bool:
        """Whether Spark is started and ended here; the user's own is not."""
        return self._lent is None

    @property
    def is_started(self) -> bool:
        """Whether there is an application, well or not."""
        return self._lent is not None or self._application is not None

    @property
    def is_stopped(self) -> bool:
        """Whether it has ended for good."""
        return self._is_stopped

    def is_alive(self) -> bool:
        """Whether there is an application, and actions on it can come to an end. Answers within seconds."""
        with paused():
            if self._lent is not None:
                return answers(self._lent)
            application = self._application
            return application is not None and application.is_alive()

    def executors_up(self) -> int:
        """How many executors have registered with Spark's driver; of a local session of the user's, one."""
        with paused():
            return count_executors(self.spark)

    def has(self, spark: SparkSession | None) -> bool:
        """Whether this is the live session."""
        with self._lock:
            live = self._lent if self._application is None else self._application.session
            return spark is not None and spark is live

    def restart(self, gone: SparkSession | None = None) -> SparkSession:
        """End what is left of the application, and start another one under the same settings.

        Of several threads that have found the same application gone, the first one starts another, which all get.
        """
        if self._lent is not None:
            raise SparkNotStarted(
                "this Spark session was given to spark_session(), which cannot start it again: make a new session and "
                "pass that one, or leave `spark` out, and it is started, and started again, by itself"
            )
        with self._lock, paused():
            if self._application is not None and (gone is None or self.has(gone)):
                self._end()
            return self.spark

    def stop(self) -> None:
        """End Spark, with all of its processes; again does nothing. A session of the user's goes on."""
        with self._lock, paused():
            self._is_stopped = True
            if self._application is not None:
                self._end()

    def again(self) -> "SparkOnRay":
        """Another session under the same settings, which starts when it is needed."""
        if self._lent is not None:
            return self
        another = SparkOnRay(None, self._app_name, self._wanted, self._timeout_s, self._progress)
        another._settings = self._settings
        return another

    def release(self) -> None:
        """Forget the partitions of all stages that were computed here, and remove their files.

        Without it they stay for as long as the cluster does. Whoever opens one later has it computed again.
        """
        for release in self.on_release:
            release()

    def _start(self) -> SparkSession:
        _check_ray()
        application = Application(self.settings, next(_numbers), progress=self._progress)
        session = application.start(self._timeout_s)
        self._application = application
        atexit.register(self._end)
        address = application.ui_address()
        where = f", UI at {address}" if address else ""
        print(f"spark: {self.settings} on Ray{where}", file=sys.stderr, flush=True)
        return session

    def _end(self) -> None:
        application, self._application = self._application, None
        atexit.unregister(self._end)
        if application is not None:
            application.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        if kind is None:
            for finish in self.before_leaving:
                finish()
        self.stop()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.spark, name)


def _check_ray() -> None:
    if not outsiders.is_connected():
        raise SparkNotStarted(
            "Spark runs on Ray, and this script has joined no cluster: call lineage_stash.init() first"
        )
    if outsiders.is_remote_client():
        raise SparkNotStarted("Spark cannot be started through Ray's client (ray://): submit the script as a job")
