"""Frames: the way back, from what actors and tasks have returned to a DataFrame of Spark's.

The tables go to Spark as they are, in Arrow's own format and in a few large pieces: nothing is converted by pandas, so
that types and missing values stay what they were. The DataFrame is a scan of these pieces, which Spark can repeat.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

PIECE = StructType([StructField("piece", BinaryType())])


def dataframe_of(spark: SparkSession, tables: Sequence[Any]) -> DataFrame:
    """All of the tables in one DataFrame, which has as many partitions as Spark has cores, not one for each table."""
    whole = pa.concat_tables(list(tables))
    count = spark.sparkContext.defaultParallelism
    rows = max(1, -(-whole.num_rows // count))
    pieces = [_pack(whole.slice(lower, rows)) for lower in range(0, max(1, whole.num_rows), rows)]
    return _scan_of(spark, pieces).mapInArrow(_make_reader(), from_arrow_schema(whole.schema))


def _scan_of(spark: SparkSession, pieces: list[bytes]) -> DataFrame:
    """One row for each piece, known to Spark as plain local rows: of an RDD it would not know that it can repeat it."""
    jvm = spark.sparkContext._jvm
    rows = jvm.java.util.ArrayList()
    for piece in pieces:
        cells = spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 1)
        cells[0] = piece
        rows.add(jvm.org.apache.spark.sql.RowFactory.create(cells))
    schema = spark._jsparkSession.parseDataType(PIECE.json())
    return DataFrame(spark._jsparkSession.createDataFrame(rows, schema), spark)


def _pack(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _make_reader() -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What Spark runs on the pieces. It goes to Spark's workers by value: they need not have this package."""

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for piece in batch.column(0):
                yield from pa.ipc.open_stream(piece.as_buffer())

    return read
