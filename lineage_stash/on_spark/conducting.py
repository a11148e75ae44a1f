"""Conducting: has Spark compute the partitions of stages, the first time and whenever one is lost.

Rules:
- One thread per session does it, beside the script: no call of the user's waits for it, nothing of it is logged.
- No action on Spark is waited for without looking whether the application is well. If the thread ends, nobody waits.
- What is on record is not computed again. What somebody asks for, because its file is gone, is: that partition alone.
- An application that is gone is started again, in the user's session or, where that was stopped, in one of its own, and
  the stage's function is run in it once more. A stage that fails while the application is well has failed: that is
  said to whoever waits for its partitions.
"""

import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.accumulators import AddingAccumulatorParam
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from lineage_stash.on_ray import outsiders
from lineage_stash.on_ray.control_plane import ControlPlane, ControlPlaneAway
from lineage_stash.on_ray.far_files import remove_folder
from lineage_stash.on_ray.present import current
from lineage_stash.on_ray.telling import warn
from lineage_stash.on_spark.application import ALIVE_S, connection_closed
from lineage_stash.on_spark.frames import dataframe_of
from lineage_stash.on_spark.partitions import (
    PartitionChanged,
    Record,
    digest_key,
    failure_key,
    find_lost,
    folder_of,
    make_writer,
    put_record,
    record_key,
    released_key,
)
from lineage_stash.on_spark.plans import judge
from lineage_stash.on_spark.session import SparkNotStarted, SparkOnRay

LOOK_S = 0.2
"""How often to look for partitions that somebody has asked for."""

REPORT_S = 0.02
"""How often to look whether Spark has finished another partition."""

WATCH_S = 1.0
"""How often to look whether the application is well while a job runs; twice not well is gone."""

LONELY_S = 60.0
"""How long a job may be without any executor, as while Ray starts another one in the place of one that died."""

RESTART_S = 90.0
"""How long to try to start another application: Ray takes some 15 to 30 s to notice that a node is lost."""

MOST_APPLICATIONS = 4
"""In how many Spark applications a computation is tried."""


class ApplicationGone(RuntimeError):
    """The Spark application can bring nothing to an end any more."""


class Watch:
    """Looks whether a job can still come to its end: Spark itself waits for ever for executors that nobody starts."""

    def __init__(self, session: SparkOnRay) -> None:
        self._session = session
        self._doubts = 0
        self._looked_at = self._had_executors_at = time.monotonic()

    def look(self) -> None:
        """Raise if it cannot; asks only now and then."""
        now = time.monotonic()
        if now - self._looked_at < WATCH_S:
            return
        self._doubts = 0 if self._session.is_alive() else self._doubts + 1
        if self._doubts == 0 and self._has_executors():
            self._had_executors_at = now
        if self._doubts > 1:
            raise ApplicationGone("its driver, RayDP's master or all of its executors have ended")
        if now - self._had_executors_at > LONELY_S:
            raise ApplicationGone(f"it has had no executor for {LONELY_S:g} s")
        self._looked_at = time.monotonic()

    def _has_executors(self) -> bool:
        try:
            return bool(outsiders.within(ALIVE_S, self._session.executors_up, "Spark's executors"))
        except (TimeoutError, SparkNotStarted):
            return False


def watched(session: SparkOnRay, action: Callable[[], Any], meanwhile: Callable[[], None] = lambda: None) -> Any:
    """What an action on Spark returns. It may take as long as it needs while the application is well, and raises
    `ApplicationGone` if it is not: also planning waits for executors, where Spark reads schemas or lists many files.
    """
    spark = session.spark
    results: list[Any] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with connection_closed(spark.sparkContext._gateway):
                results.append(action())
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that can do something about it
            failures.append(error)

    thread = threading.Thread(target=run, name="spark action", daemon=True)
    watch = Watch(session)
    thread.start()
    is_running = True
    while is_running:
        thread.join(REPORT_S)
        is_running = thread.is_alive()
        meanwhile()
        if is_running:
            watch.look()
    if failures:
        raise failures[0]
    return results[0]


class StageRun:
    """One call of a stage."""

    def __init__(self, session: SparkOnRay, stage: str, function: Callable[..., DataFrame], inputs: tuple[Any, ...],
                 *, durable: bool) -> None:  # fmt: skip
        self.session = session
        self.stage = stage
        self.durable = durable
        self._function = function
        self._inputs = inputs
        self.used: SparkSession | None = None
        """In which application it was computed last, or was to be."""
        self._application: SparkSession | None = None
        self._rows: Any
        self._reports: Any

    def parallelism(self) -> int:
        """How many partitions there are where nobody says how many; of a session of the user's, as that has it."""
        return self.session.settings.parallelism if self.session.is_ours else 0

    def plan(self) -> tuple[int, bool]:
        """How many partitions it has, and whether these must be durable before anybody sees them."""
        for _ in range(MOST_APPLICATIONS - 1):
            self.used = self.session.spark
            try:
                return self._plan()
            except Exception as error:
                if not self.session.is_ours or not (isinstance(error, ApplicationGone) or is_gone(self)):
                    raise
                tell_gone(error, f"the plan of {self.stage}")
                restart(self.session, self.used)
        return self._plan()

    def _plan(self) -> tuple[int, bool]:
        def look() -> tuple[int, bool]:
            frame, durable = self._make_frame(self.session.spark)
            return frame.rdd.getNumPartitions(), durable

        planned: tuple[int, bool] = watched(self.session, look)
        return planned

    def _make_frame(self, spark: SparkSession) -> tuple[DataFrame, bool]:
        frame = self._function(spark, *[_as_input(spark, value) for value in self._inputs])
        if not isinstance(frame, DataFrame):
            raise TypeError(f"{self.stage}: a stage returns a DataFrame, and this one has returned {type(frame)}")
        borrowed = any(isinstance(value, DataFrame) for value in self._inputs)
        verdict = judge(frame)
        if verdict.needs_sort:
            frame = frame.sortWithinPartitions(*[f"`{name}`" for name in frame.columns])
        return frame, self.durable or borrowed or not verdict.repeatable

    def compute(self, numbers: list[int], on_record: Callable[[Record], None]) -> None:
        """Have Spark compute some partitions; each is reported when it is there."""
        spark = self.used = self.session.spark
        if self._application is not spark:
            watched(self.session, lambda: self._prepare(spark))
        taken = len(self._reports.value)

        def take() -> None:
            nonlocal taken
            reports = self._reports.value
            for report in reports[taken:]:
                on_record(Record(*report))
            taken = len(reports)

        watched(self.session, lambda: spark.sparkContext.runJob(self._rows, list, numbers), take)

    def _prepare(self, spark: SparkSession) -> None:
        frame, _ = self._make_frame(spark)
        self._reports = spark.sparkContext.accumulator([], AddingAccumulatorParam([]))
        folder = folder_of(self.stage)
        schema = to_arrow_schema(frame.schema).serialize().to_pybytes()
        written = frame.mapInArrow(make_writer(self.stage, folder, schema, self._reports), "number long")
        self._rows = written.rdd
        self._application = spark


def is_gone(run: StageRun) -> bool:
    """Whether the application that a stage was computed in is gone, or was replaced meanwhile for another stage."""
    return not run.session.has(run.used) or not run.session.is_alive()


def restart(session: SparkOnRay, gone: SparkSession | None) -> None:
    """Start another application; for a while again and again, because Ray goes on placing actors on a lost node."""
    deadline = time.monotonic() + RESTART_S
    while True:
        try:
            session.restart(gone)
            return
        except SparkNotStarted:
            if session.is_stopped or time.monotonic() > deadline:
                raise
            time.sleep(LOOK_S)


def tell_gone(error: Exception, what: str) -> None:
    """Say to people why it takes longer."""
    warn("spark gone", f"the Spark application is gone ({in_a_line(error)}); starting another one for {what}")


def _as_input(spark: SparkSession, value: Any) -> Any:
    tables = value if isinstance(value, list) else [value]
    return dataframe_of(spark, tables) if tables and all(isinstance(each, pa.Table) for each in tables) else value


class Conductor:
    """The thread that computes for one session, and for as long as the script lives."""

    def __init__(self, session: SparkOnRay) -> None:
        self.session = self._users = session
        self.keeper: Any = None
        self._runtime = current()
        self.plane: ControlPlane = self._runtime.process.plane
        self._changed = threading.Condition()
        self._new: list[tuple[StageRun, int]] = []
        self._is_computing = False
        self._is_over = False
        """Whether the thread has ended: then nothing is computed any more, and nobody may wait for it."""
        self._runs: list[StageRun] = []
        self._failed: set[str] = set()
        session.before_leaving.append(self.finish)
        session.on_release.append(self.release)
        threading.Thread(target=self._run, name="spark conductor", daemon=True).start()

    @classmethod
    def of(cls, session: SparkOnRay) -> "Conductor":
        """The one of a session."""
        if not isinstance(session.conductor, cls):
            session.conductor = cls(session)
        return session.conductor

    def add(self, run: StageRun, count: int) -> None:
        """Have a stage computed, and its partitions looked after."""
        if self._is_over:
            raise ConnectionError("the cluster that this script has joined is gone: start the script again")
        self.plane.delete(failure_key(run.stage))
        with self._changed:
            self._new.append((run, count))
            self._changed.notify_all()

    def finish(self) -> None:
        """Wait until all that was added is computed, or has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or (not self._new and not self._is_computing))

    def release(self) -> None:
        """Forget all partitions; that there were some is remembered, for a script that is resumed after this."""
        self.finish()
        for run in self._runs:
            self.plane.put(released_key(run.stage), b"")
            for prefix in (record_key(run.stage), digest_key(run.stage)):
                for key in self.plane.keys(prefix):
                    self.plane.delete(key)
            remove_folder(Path(folder_of(run.stage)))

    def _run(self) -> None:
        try:
            while not self._runtime.has_left:
                self._turn()
        except ControlPlaneAway:
            return  # the cluster is gone, or the script is leaving it
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _turn(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._new), LOOK_S)
            added, self._new, self._is_computing = self._new, [], True
        self._runs += [run for run, _ in added]
        try:
            self._look_after(added)
        except ControlPlaneAway:
            raise
        except Exception as error:  # noqa: BLE001 - nobody may wait for ever for what this thread does not compute
            for run in self._runs:
                self._fail(run, error)
        finally:
            with self._changed:
                self._is_computing = False
                self._changed.notify_all()

    def _look_after(self, added: list[tuple[StageRun, int]]) -> None:
        for run, count in added:
            if self.plane.get(released_key(run.stage)) is not None:
                continue
            known = self.plane.get_all(record_key(run.stage))
            self._have_computed(run, [at for at in range(count) if record_key(run.stage, at) not in known])
        asked_for = find_lost(self.plane, self._runtime.id)
        for run in self._runs:
            self._have_computed(run, asked_for.get(run.stage, []))
        self._give_back()

    def _have_computed(self, run: StageRun, numbers: list[int]) -> None:
        missing = dict.fromkeys(numbers)

        def on_record(record: Record) -> None:
            put_record(self.plane, record)
            missing.pop(record.number, None)

        for _ in range(MOST_APPLICATIONS):
            if not missing or run.stage in self._failed:
                return
            if self.session.is_stopped:
                self._use(self.session.again())
            try:
                run.compute(sorted(missing), on_record)
            except ControlPlaneAway:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits for the stage gets to know it
                self._take(run, error, len(missing))
        if missing:
            self._fail(run, RuntimeError(f"{MOST_APPLICATIONS} Spark applications ended before it was computed"))

    def _take(self, run: StageRun, error: Exception, missing: int) -> None:
        """A computation has failed: the stage with it, or only the application, and then there is another one."""
        ended = isinstance(error, ApplicationGone) or is_gone(run)
        if self.session.is_stopped and not isinstance(error, PartitionChanged):
            return  # by the user, meanwhile: the next attempt has a session of its own
        if isinstance(error, PartitionChanged | SparkNotStarted) or not ended or not self.session.is_ours:
            self._fail(run, error)
            return
        tell_gone(error, f"{missing} partition(s) of {run.stage}")
        try:
            restart(self.session, run.used)
        except SparkNotStarted as reason:
            self._fail(run, reason)

    def _use(self, session: SparkOnRay) -> None:
        self.session = session
        for run in self._runs:
            run.session = session

    def _give_back(self) -> None:
        """End an application that was started only because the user's had ended."""
        if self.session is not self._users:
            self.session.stop()

    def _fail(self, run: StageRun, error: BaseException) -> None:
        self._failed.add(run.stage)
        text = "".join(traceback.format_exception_only(error)).strip()
        self.plane.put(failure_key(run.stage), f"the Spark stage {run.stage} has failed: {text}".encode())


def in_a_line(error: BaseException) -> str:
    """What an error is, without the trace of Java's that may be in it."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]
