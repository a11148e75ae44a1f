"""Structured Streaming into actors: every micro-batch of a query reaches them exactly once.

    def deliver(batch, batch_id, counters):
        return [counters[batch_id % len(counters)].add.remote(batch)]

    query = (
        session.readStream.text(folder).writeStream
        .foreachBatch(foreach_batch(deliver, counters, name="words"))
        .option("checkpointLocation", checkpoint).start()
    )

Rules:
- Spark delivers a batch again when it cannot know whether it was delivered: after a restart of the query or of the
  script. Which batches were delivered is known by the *feeder*, a recovered actor: it takes each one once, by the id of
  the query, which is in the checkpoint folder, and its `batch_id`, and drops whatever comes again.
- `deliver` runs in the feeder, as a part of its calls: what it calls is called exactly once, whoever dies on the way.
- Spark is told that a batch was delivered when all that `deliver` has called is answered and committed.
- A batch travels by its content, through the script and into the log of the feeder, because Spark may be unable to make
  it again: batches should be of some megabytes at most.
- An error in `deliver`, or in what it called, is the outcome of its batch: the query stops with it, and stops with the
  same error whenever it comes to that batch again. What should be tried again is tried inside.
- The feeder lives as long as the actors of its run, or with `detached=True` until it is killed, and is found by its
  name in the namespace: so a script without a run id that is started again must say both.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

import lineage_stash as stash
from lineage_stash.capture.here import paused
from lineage_stash.exceptions import RayActorError
from lineage_stash.on_ray import outsiders
from lineage_stash.on_ray.present import current

QUERY = "sql.streaming.queryId"
"""Where Spark says, to the thread of a batch, which query it is of: the same over all restarts from one checkpoint."""

MOST_COURIERS = 5
"""How many couriers may die in a row over one batch."""

Deliver = Callable[..., Sequence[Any] | None]


class BatchFailed(RuntimeError):
    """A batch could not be delivered; the text says why."""


class Feeder:
    """The recovered actor that has batches delivered, each once."""

    def __init__(self, deliver: Deliver, arguments: tuple[Any, ...]) -> None:
        self._deliver = deliver
        self._arguments = arguments
        self._delivered: dict[str, int] = {}
        """By query, the last batch: batches of a query come in order."""
        self._failed: dict[str, str] = {}

    def feed(self, query: str, batch_id: int, batch: Any) -> bool:
        """Have a batch delivered, unless it was; whether it was delivered now."""
        if batch_id <= self._delivered.get(query, -1):
            return False
        if query not in self._failed:
            try:
                stash.get(list(self._deliver(batch, batch_id, *self._arguments) or ()))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the outcome of this batch
                self._failed[query] = f"batch {batch_id} of the query {query} has failed: {error}"
        if query in self._failed:
            raise BatchFailed(self._failed[query])
        self._delivered[query] = batch_id
        stash.commit()
        return True

    def delivered(self) -> dict[str, int]:
        """The last batch of each query."""
        return dict(self._delivered)


class Courier:
    """A plain Ray actor that brings batches to the feeder.

    Spark calls from threads of its own, and a script that has a run id makes its calls in one. So somebody else makes
    these, who may be lost at any time: a batch that is brought twice is taken once.
    """

    def __init__(self, feeder: str, namespace: str) -> None:
        stash.init()
        self._feeder = stash.get_actor(feeder, namespace)

    def bring(self, query: str, batch_id: int, batch: Any) -> bool:
        """Bring a batch; returns when it was delivered for good."""
        delivered: bool = stash.get(self._feeder.feed.remote(query, batch_id, batch))
        return delivered


class Feed:
    """What Spark calls with every batch."""

    def __init__(self, feeder: Any, name: str, namespace: str) -> None:
        self.feeder = feeder
        self._name = name
        self._namespace = namespace
        self._courier: Any = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Have a batch delivered, once; returns when it was."""
        query = frame.sparkSession.sparkContext.getLocalProperty(QUERY)
        if query is None:
            raise BatchFailed("a batch belongs to no query: pass what foreach_batch returns to foreachBatch itself")
        with paused():
            self._bring(query, batch_id, table_of(frame))

    def _bring(self, query: str, batch_id: int, batch: Any) -> None:
        for remaining in reversed(range(MOST_COURIERS)):
            try:
                if self._courier is None:
                    make = outsiders.make_actor_class(Courier).options(num_cpus=0)
                    self._courier = make.remote(self._name, self._namespace)
                outsiders.result_of(self._courier.bring.remote(query, batch_id, batch))
                return
            except RayActorError:
                self._courier = None
                if not remaining:
                    raise


def table_of(frame: DataFrame) -> pa.Table:
    """The rows of a batch."""
    batches = frame._collect_as_arrow()
    return pa.Table.from_batches(batches) if batches else to_arrow_schema(frame.schema).empty_table()


def foreach_batch(deliver: Deliver, *arguments: Any, name: str, detached: bool = False) -> Feed:
    """What to pass to Spark's `foreachBatch`: feeds a stream's batches into actors, each exactly once.

    `deliver(batch, batch_id, *arguments)` gets each batch as an Arrow table, calls actors with it, and returns the refs
    of these calls; `arguments` are what it needs for that, such as handles. `name` is the feeder's, one for a stream.
    `detached` is for scripts that have no run id: the feeder, and the actors that it feeds, then outlive their script.
    """
    actor = stash.remote(num_cpus=0)(Feeder)
    options: dict[str, Any] = {"name": f"feeder-{name}", "get_if_exists": True}
    if detached:
        options["lifetime"] = "detached"
    feeder = actor.options(**options).remote(deliver, arguments)
    return Feed(feeder, options["name"], current().namespace)
