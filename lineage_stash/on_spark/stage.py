"""Stages: functions that run in Spark, as a part of the lineage. One ref for each partition of what they return.

Rules:
- A stage's lineage is its function and its inputs. A partition that is lost is computed again from these, only that
  one, and in another Spark application where the first one is gone.
- What a partition was is logged like the answer of a call: its record, or, where the plan is not sure to give the
  same again (plans.py), its content, which is committed before anybody gets it.
- Partitions come in the order of their numbers, each as soon as it is there.
- A script that is resumed computes nothing again that was computed and is still there.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

import lineage_stash as stash
from lineage_stash.on_ray.present import current
from lineage_stash.on_ray.refs import ObjectRef
from lineage_stash.on_spark.conducting import Conductor, StageRun
from lineage_stash.on_spark.partitions import Partition, Record, await_record, open_table
from lineage_stash.on_spark.session import SparkOnRay


class Keeper:
    """The recovered actor that answers for the partitions of a script's stages."""

    def partition(self, stage: str, number: int) -> Partition:
        """A partition, as soon as it was computed; whoever opens it gets the table."""
        return Partition(Record(*stash.observe(_await, stage, number)))

    def content(self, stage: str, number: int) -> "pa.Table":
        """The same by its content, which is committed before anybody sees it."""
        content = stash.observe(_read, stage, number)
        stash.commit()
        return pa.ipc.open_stream(content).read_all()


def _await(stage: str, number: int) -> tuple[Any, ...]:
    return tuple(await_record(current().process.plane, stage, number))


def _read(stage: str, number: int) -> bytes:
    table = open_table(_await(stage, number))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


class Stage:
    """A function from a Spark session and inputs to a DataFrame; calling it gives one ref for each partition."""

    def __init__(self, function: Callable[..., DataFrame], *, durable: bool) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.durable = durable

    def __call__(self, session: SparkOnRay, *inputs: Any, **named: Any) -> list[ObjectRef]:
        """Have it computed; the partitions are refs of Arrow tables."""
        runtime = current()
        stage = f"{runtime.id}:{self.function.__name__}-{runtime.next_created()}"
        inputs = tuple([_resolved(value) for value in inputs])
        named = {name: _resolved(value) for name, value in named.items()}
        run = StageRun(session, stage, functools.partial(self.function, **named), inputs, durable=self.durable)
        session.pin(stash.observe(run.parallelism))
        count, durable = stash.observe(run.plan)
        conductor = Conductor.of(session)
        keeper = conductor.keeper or _start_keeper(conductor)
        conductor.add(run, count)
        method = keeper.content if durable else keeper.partition
        return [method.remote(stage, number) for number in range(count)]


def _start_keeper(conductor: Conductor) -> Any:
    conductor.keeper = stash.remote(num_cpus=0)(Keeper).remote()
    return conductor.keeper


def _resolved(value: Any) -> Any:
    """An input as a stage can keep it: refs are replaced by what they stand for."""
    if isinstance(value, ObjectRef):
        return stash.get(value)
    if isinstance(value, Sequence) and value and all(isinstance(each, ObjectRef) for each in value):
        return stash.get(list(value))
    return value


def spark_stage(function: Callable[..., DataFrame] | None = None, *, durable: bool = False) -> Any:
    """Make a function a stage: it gets a Spark session and its inputs, and returns a DataFrame.

    Arrow tables among the inputs, and refs of such, come to it as DataFrames. `durable` has every partition written to
    the store before its first reader, whatever the plan: for functions that read what changes.
    """
    if function is None:
        return functools.partial(spark_stage, durable=durable)
    return Stage(function, durable=durable)
