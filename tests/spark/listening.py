"""A listener of Spark's that counts the tasks that ran."""

from typing import Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession


class TaskCounter:
    """Counts, for each job, how many tasks have ended well."""

    def __init__(self, spark: SparkSession) -> None:
        self.tasks = 0
        self._context = spark.sparkContext
        ensure_callback_server_started(self._context._gateway)
        self._context._jsc.sc().addSparkListener(self)

    def close(self) -> None:
        """Count no more."""
        self._context._jsc.sc().removeSparkListener(self)

    def settle(self) -> int:
        """How many tasks have ended, when the listener has heard of all that did."""
        self._context._jsc.sc().listenerBus().waitUntilEmpty()
        return self.tasks

    def onTaskEnd(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """A task has ended."""
        if event.taskInfo().successful():
            self.tasks += 1

    def __getattr__(self, name: str) -> Any:
        """All else that a listener may hear of."""
        if name.startswith("on"):
            return lambda *_: None
        raise AttributeError(name)

    class Java:
        """What py4j needs to know."""

        implements = ("org.apache.spark.scheduler.SparkListenerInterface",)
