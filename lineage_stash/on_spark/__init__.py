"""Bulk work in Spark on the same Ray cluster, as a part of the same lineage.

The only folder of the library that imports pyspark and raydp.
"""

from lineage_stash.on_spark.frames import dataframe_of
from lineage_stash.on_spark.partitions import PartitionChanged, StageFailed
from lineage_stash.on_spark.session import SparkNotStarted, SparkOnRay, SparkTimedOut, spark_session
from lineage_stash.on_spark.stage import Stage, spark_stage
from lineage_stash.on_spark.streaming import BatchFailed, foreach_batch

__all__ = [
    "BatchFailed", "PartitionChanged", "SparkNotStarted", "SparkOnRay", "SparkTimedOut", "Stage", "StageFailed",
    "dataframe_of", "foreach_batch", "spark_session", "spark_stage",
]  # fmt: skip
