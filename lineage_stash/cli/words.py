"""Calls, values and readings in words, as far as they say by themselves what they are. Nothing of a user's is opened.

Plain values are shown, shortened. Of anything else its type is: it would have to be unpickled, which runs code.
"""

import marshal
import pickle
import re
import reprlib
from collections.abc import Callable
from io import BytesIO
from typing import Any, NamedTuple

from lineage_stash.capture import readings
from lineage_stash.core.handles import without_names
from lineage_stash.core.parcels import unwrap
from lineage_stash.on_ray import payloads
from lineage_stash.on_ray.lending import bare

UNKNOWN = "?"
"""Stands for a method that nobody who answers knows."""

STAND_IN = re.compile(r"\bArgument\b")
"""What a call has in the place of a ref among its arguments."""

FUNCTION = re.compile("[0-9a-f]{32}")
"""How a task names its function."""

OUTCOMES = {
    "v": "a value of type {kind}", "e": "raised {kind}", "d": "its callee was dead", "n": "its callee strayed",
    "c": "its process died every time", "x": "cancelled",
}  # fmt: skip
"""What the first letter of an opaque reply says."""

Naming = Callable[[str], str]
"""The name of a function by its digest."""

shortened = reprlib.Repr()
shortened.maxlevel, shortened.maxstring, shortened.maxother, shortened.maxlong = 3, 60, 60, 40


class Called(NamedTuple):
    """What a payload says about its call."""

    method: str
    text: str
    """The method with its arguments."""
    first_ref: int
    refs: int
    """Which of the caller's parcels are in its arguments."""


class PartitionRecord(NamedTuple):
    """A partition of a Spark stage, as whoever got it has it on record."""

    stage: str
    number: int
    rows: int
    host: str

    def __str__(self) -> str:
        return f"partition {self.number} of {self.stage} ({self.rows} rows, computed on {self.host})"


def call_in_words(wrapped: bytes, naming: Naming = lambda digest: f"function {digest[:8]}") -> Called:
    """The method and the arguments of a call."""
    named_outside, first, count = unwrap(wrapped)
    payload = without_names(named_outside)
    head = payloads.head_of(payload)
    if head is not None:
        spelled, _, kinds = head.partition("(")
        method = _name(payloads.returns_of(spelled)[0], naming)
        return Called(method, f"{method}({STAND_IN.sub('ref', kinds)}", first, count)
    spelled, args, *named = marshal.loads(payload[1:])
    method = _name(payloads.returns_of(spelled)[0], naming)
    words = [*map(shortened.repr, args)]
    words += [f"{name}={shortened.repr(value)}" for name, value in (named[0] if named else {}).items()]
    return Called(method, f"{method}({', '.join(words)})", first, count)


def _name(method: str, naming: Naming) -> str:
    return naming(method) if FUNCTION.fullmatch(method) else method


def value_in_words(wrapped: bytes) -> str:
    """What a reply or a parcel is."""
    outside, _, refs = unwrap(wrapped)
    value = bare(outside)
    if not value:
        return "nothing: whoever was to send it is gone"
    head = payloads.head_of(value)
    if head is None:
        return shortened.repr(payloads.unpack_plain(value))
    partition = partition_in(value)
    if partition is not None:
        return str(partition)
    if head.startswith("p"):
        return f"{head[1:]} values"
    said = OUTCOMES.get(head[:1], "something that this version does not know").format(kind=head[1:])
    return said + (f" with {refs} refs in it" if refs else "")


def reading_in_words(reading: bytes) -> str:
    """What a program was told from outside, or did."""
    action = readings.action_in(reading)
    if action is not None:
        return f"did: {action}"
    kind = readings.kind_of(reading)
    if kind == readings.OBSERVED:
        return f"observed {value_in_words(reading)}"
    if reading[0] == readings.RAISED:
        return f"{kind} raised an error"
    return f"{kind} said {shortened.repr(readings.unpack(reading))}"


class _PartitionOnly(pickle.Unpickler):
    """Opens a pickle of a partition's record and no other, and gives the record where the table would be read."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("lineage_stash.on_spark.partitions", "open_table"):
            return tuple
        raise pickle.UnpicklingError(f"{module}.{name} is none of a partition's")


def partition_in(value: bytes) -> PartitionRecord | None:
    """The partition of a Spark stage that a value stands for; None if it stands for something else."""
    if payloads.head_of(value) != "vPartition":
        return None
    try:
        known = _PartitionOnly(BytesIO(payloads.pickle_in(value))).load()
        stage, number, rows, _, _, host, _ = known
    except (pickle.UnpicklingError, ValueError, TypeError, EOFError):
        return None
    return PartitionRecord(stage, number, rows, host)
