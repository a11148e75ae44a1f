"""Rows for Spark: lines of text, and tables of CSV and Parquet with typed columns; a bad row has a reason. And back:
tables of Arrow of the rows that actors have.

Rules:
- No row is dropped in silence: one that cannot be used has a reason, and goes to `bad/` of the output as it was read.
- A CSV file has a header, and one row on each line; it may be packed, as gzip or as the only file in a zip. The header
  of each file tells which column is where. Columns that nobody asks for are ignored.
- A Parquet file has columns of the same names; numbers and times may be text there too.
- What is read is the same whenever it is read, so that a lost partition is computed again.
"""

import csv
import gzip
import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from raydp_jobs.inputs import PARQUET, ZIP, JobError

LONGEST_SHOWN = 1000
"""How many bytes of a bad row are kept."""

KINDS = {"timestamp": "a time", "int": "a whole number", "double": "a number"}
"""How a reason names the types of Spark's that a column may have."""

SPLIT = "_not_as_its_header_says"
"""Where Spark puts a line that has more or fewer fields than its header."""


class Column(NamedTuple):
    """A column that a job needs, and whether a row without it is bad."""

    name: str
    kind: str = "string"
    required: bool = True


def check_columns(files: Sequence[str], columns: Sequence[Column]) -> None:
    """Refuse files that lack a column, before anything is started."""
    for file in files:
        header = _names(file) if file.endswith(PARQUET) else _fields(_header(file))
        missing = [column.name for column in columns if column.name not in header]
        if missing:
            raise JobError(f"cannot use {file}: it has no column {missing[0]!r}, only {', '.join(header) or 'nothing'}")


def lines_of(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """The lines of text files, packed ones too, and the file of each."""
    plain = [file for file in files if not file.endswith(ZIP)]
    packed = [file for file in files if file.endswith(ZIP)]
    frames = []
    if plain:
        read = spark.read.text(plain)
        frames.append(read.select(f.col("value").alias("row"), f.col("_metadata.file_path").alias("file")))
    if packed:
        read = spark.read.format("binaryFile").load(packed).select("path", "content")
        frames.append(read.mapInArrow(_make_unpacker(), "row string, file string"))
    return union_of(frames)


def table_of(spark: SparkSession, files: Sequence[str], columns: Sequence[Column], missing: str = "") -> DataFrame:
    """The rows of tables: these columns, then `file`, `row` as it was read, and `reason`, which good rows have not.

    A field that is empty, or is `missing`, has no value.
    """
    frames = [_from_csv(spark, header, alike, columns, missing) for header, alike in _by_header(files).items()]
    tables = [file for file in files if file.endswith(PARQUET)]
    if tables:
        read = spark.read.parquet(*tables)
        values = [f.col(f"`{column.name}`").alias(column.name) for column in columns]
        row = f.to_json(f.struct(*[f.col(f"`{name}`") for name in read.columns])).alias("row")
        untyped = read.select(*values, f.col("_metadata.file_path").alias("file"), row)
        frames.append(_typed(untyped, columns, f.lit(None)))
    return union_of(frames)


def bad_of(rows: DataFrame) -> DataFrame:
    """The bad rows among some, as they are written aside."""
    shown = f.decode(f.substring(f.col("row").cast("binary"), 1, LONGEST_SHOWN), "UTF-8")
    return rows.where("reason is not null").select("file", "reason", shown.alias("row"))


def union_of(frames: Sequence[DataFrame]) -> DataFrame:
    """The rows of all frames, those of the first one first."""
    return reduce(DataFrame.union, frames)


def arrow_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """Rows as a table; there may be none."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table([pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema)


def is_text(column: str) -> SparkColumn:
    """Whether the bytes of a column are UTF-8."""
    content = f.col(column).cast("binary")
    return f.encode(f.decode(content, "UTF-8"), "UTF-8") == content


def _from_csv(spark: SparkSession, header: str, files: Sequence[str], columns: Sequence[Column],
              missing: str) -> DataFrame:  # fmt: skip
    """The rows of files that have the same header."""
    lines = lines_of(spark, files).where((f.trim("row") != "") & (f.col("row") != f.lit(header)))
    schema = ", ".join(f"`{name}` string" for name in (*_fields(header), SPLIT))
    fields = f.from_csv("row", schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": SPLIT})
    split = lines.withColumn("fields", fields)
    values = [_present(f.trim(f"fields.`{column.name}`"), missing).alias(column.name) for column in columns]
    untyped = split.select(*values, "file", "row", f.col(f"fields.{SPLIT}").alias(SPLIT))
    wrong = f.when(~is_text("row"), "it is not UTF-8").when(
        f.col(SPLIT).isNotNull(), f"it has not {len(_fields(header))} fields as the header has"
    )
    return _typed(untyped, columns, wrong)


def _present(value: SparkColumn, missing: str) -> SparkColumn:
    return f.when((value != "") & (value != f.lit(missing)), value)


def _typed(untyped: DataFrame, columns: Sequence[Column], wrong: SparkColumn) -> DataFrame:
    """Typed columns, and the first thing that is wrong with each row."""
    reasons = [wrong]
    for column in columns:
        value = f.col(f"`{column.name}`")
        if column.required:
            reasons.append(f.when(value.isNull(), f"it has no {column.name}"))
        if column.kind in KINDS:
            is_other = value.isNotNull() & value.cast(column.kind).isNull()
            reasons.append(f.when(is_other, f"its {column.name} is not {KINDS[column.kind]}"))
    typed = [f.col(f"`{column.name}`").cast(column.kind).alias(column.name) for column in columns]
    return untyped.select(*typed, "file", "row", f.coalesce(*reasons).alias("reason"))


def _by_header(files: Sequence[str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for file in files:
        if not file.endswith(PARQUET):
            grouped.setdefault(_header(file), []).append(file)
    return grouped


def _header(file: str) -> str:
    """The first line of a CSV file, as Spark reads it."""
    with _told(file), _opened(file) as content:
        line: bytes = content.readline()
        return line.decode("utf-8").rstrip("\r\n")


def _names(file: str) -> list[str]:
    """The columns of a Parquet file."""
    with _told(file):
        names: list[str] = pq.read_schema(file).names
        return names


@contextmanager
def _told(file: str) -> Iterator[None]:
    """What is wrong with a file is its user's to repair."""
    try:
        yield
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise JobError(f"cannot read {file}: {str(error).splitlines()[0]}") from error


def _opened(file: str) -> Any:
    if file.endswith(ZIP):
        packed = zipfile.ZipFile(file)
        names = packed.namelist()
        if len(names) != 1:
            raise ValueError(f"a zip of one file is needed, and it has {len(names)}")
        return packed.open(names[0])
    return gzip.open(file) if file.endswith(".gz") else open(file, "rb")


def _fields(header: str) -> list[str]:
    return [name.strip() for name in next(csv.reader(io.StringIO(header)), [])]


def _make_unpacker() -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What Spark runs on zip files. It goes to Spark's workers by value: they need not have this package."""

    def unpack(batches: Iterator[Any]) -> Iterator[Any]:
        import io
        import zipfile

        import pyarrow as pa

        rows_at_once = 20_000
        for batch in batches:
            for path, content in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                packed = zipfile.ZipFile(io.BytesIO(content))
                lines = packed.read(packed.namelist()[0]).decode("utf-8", "replace").splitlines()
                for lower in range(0, len(lines), rows_at_once):
                    rows = lines[lower : lower + rows_at_once]
                    yield pa.record_batch([pa.array(rows), pa.array([path] * len(rows))], names=["row", "file"])

    return unpack
