"""Plans: whether a lost partition of a DataFrame, computed again, has the same rows in the same order.

The rule, in one place:
- Scans, maps, filters and whatever else goes row by row keep the order of their input.
- A hash exchange gives each partition the same rows, but in the order in which they arrive. A sort within partitions by
  all columns after it fixes the order, and where there is no sort such a one is added; so it is after joins and
  aggregates.
- Not computed again, but written durably before their first reader: what is random or reads the clock, exchanges by
  range or in turn, limits and samples, sorts by some columns only (rows that are equal in these may change places),
  aggregates of floating point numbers (the order of additions shows), DataFrames that were made of data in the script's
  memory or of RDDs, and every kind of plan that is not named here.

Whether a user's Python function is deterministic only its user knows: Spark takes it for that unless it was declared
`asNondeterministic()`. Should one of them not be, the digest of the partition tells, and the stage stops.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

ROW_BY_ROW = (
    "WholeStageCodegenExec", "InputAdapter", "ColumnarToRowExec", "ProjectExec", "FilterExec", "GenerateExec",
    "ExpandExec", "BatchEvalPythonExec", "ArrowEvalPythonExec", "PythonMapInArrowExec", "MapInPandasExec",
)  # fmt: skip
SCANS = ("FileSourceScanExec", "BatchScanExec", "RangeExec", "LocalTableScanExec")
MIXING = (
    "ShuffleExchangeExec", "BroadcastExchangeExec", "ReusedExchangeExec", "HashAggregateExec", "SortAggregateExec",
    "ObjectHashAggregateExec", "SortMergeJoinExec", "BroadcastHashJoinExec", "ShuffledHashJoinExec", "SortExec",
    "UnionExec", "CoalesceExec",
)  # fmt: skip
KNOWN = frozenset((*ROW_BY_ROW, *SCANS, *MIXING))

EXACT_AGGREGATES = frozenset(("count", "min", "max", "sum", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor"))
INEXACT_TYPES = ("float", "double")
CLOCKS = ("current_timestamp(", "current_date(", "localtimestamp(", "now(")
EXCHANGES = ("HashPartitioning", "SinglePartition$")


class Verdict(NamedTuple):
    """Whether partitions can be computed again, whether a sort must be added for that, and why."""

    repeatable: bool
    needs_sort: bool
    reason: str


def judge(frame: DataFrame) -> Verdict:
    """Apply the rule to a DataFrame."""
    execution = frame._jdf.queryExecution()
    nodes = list(_walk(execution.executedPlan()))
    reason = next(filter(None, map(_objection, nodes)), "")
    analyzed = execution.analyzed().toString()
    clock = next((clock for clock in CLOCKS if clock in analyzed), None)
    if clock is not None:
        reason = f"it reads the clock by {clock}) of Spark's"
    if not reason and _is_partial_sort(_source(execution.executedPlan())):
        reason = "it is sorted by some columns only"
    if reason:
        return Verdict(False, False, reason)
    if _keeps_order(execution.executedPlan()):
        return Verdict(True, False, "")
    unordered = [field.name for field in frame.schema.fields if not _has_order(field.dataType)]
    if unordered:
        return Verdict(False, False, f"its rows cannot be sorted by column {unordered[0]}, which has no order")
    return Verdict(True, True, "")


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for child in _items(node.children()):
        yield from _walk(child)


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _objection(node: Any) -> str:
    """Why what a node makes may be another thing the next time; empty if it is not."""
    kind = _kind(node)
    if kind not in KNOWN:
        return f"nothing is known of how Spark runs {node.nodeName()!s}"
    if kind in ROW_BY_ROW and not node.deterministic():
        return f"something in it is random: {node.nodeName()!s}"
    if kind == "ShuffleExchangeExec":
        partitioning = str(node.outputPartitioning().getClass().getSimpleName())
        return "" if partitioning in EXCHANGES else f"rows are spread by {partitioning}"
    return _inexact_aggregate(node) if kind.endswith("AggregateExec") else ""


def _inexact_aggregate(node: Any) -> str:
    for expression in _items(node.aggregateExpressions()):
        function = expression.aggregateFunction()
        name = str(function.prettyName())
        is_rounded = name == "sum" and str(function.dataType().simpleString()) in INEXACT_TYPES
        if is_rounded or name not in EXACT_AGGREGATES:
            return f"what {name}() gives depends on the order of rows"
    return ""


def _keeps_order(node: Any) -> bool:
    """Whether the order of rows is that of a scan, or of a sort within partitions."""
    return _kind(_source(node)) in (*SCANS, "SortExec")


def _source(node: Any) -> Any:
    """Where the rows get the order that they have in the end."""
    while _kind(node) in ROW_BY_ROW:
        node = node.children().apply(0)
    return node


def _is_partial_sort(node: Any) -> bool:
    """Whether a sort leaves the order of some rows open."""
    if _kind(node) != "SortExec":
        return False
    sorted_by = {
        int(order.child().exprId().id())
        for order in _items(node.sortOrder())
        if _kind(order.child()).startswith("Attr")
    }
    return not {int(column.exprId().id()) for column in _items(node.output())} <= sorted_by


def _items(sequence: Any) -> Iterator[Any]:
    """The items of one of Scala's sequences."""
    for position in range(sequence.size()):
        yield sequence.apply(position)


def _has_order(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return all(_has_order(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_order(kind.elementType)
    return not isinstance(kind, MapType)
