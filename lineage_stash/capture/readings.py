"""Readings: what a captured function said, as the bytes of an entry that also say which function it was.

Layout: `SAID` or `RAISED`, the number of the kind, the value marshalled or the error pickled. The first byte is none
that other readings begin with (`on_ray/payloads.py`), and all bytes of a value count in the digest of a replay.
"""

import marshal
import pickle
from collections.abc import Callable
from typing import Any

SAID, RAISED = 2, 3
MARSHAL_VERSION = 2
"""The last format that does not depend on which of the parts are one object."""

KINDS = (
    "time.time", "time.time_ns", "time.monotonic", "time.perf_counter", "time.process_time", "time.thread_time",
    "time.clock_gettime", "time.clock_gettime_ns", "time.localtime", "time.gmtime", "datetime.now", "datetime.utcnow",
    "os.times", "os.urandom", "os.getrandom", "uuid.uuid1", "uuid.getnode", "cancel",
)  # fmt: skip
"""What is told apart in a log; new ones go to the end, because a log holds their numbers."""

OBSERVED = "observe"
"""What the user asked for by hand; its bytes are not made here."""

PREFIXES = {kind: bytes((SAID, number)) for number, kind in enumerate(KINDS)}


def pack(prefix: bytes, take: Callable[[], Any]) -> bytes:
    """Take a reading; what it says, or how it failed."""
    try:
        return prefix + marshal.dumps(take(), MARSHAL_VERSION)
    except Exception as error:  # noqa: BLE001 - whatever it was, it is the outcome
        return bytes((RAISED, prefix[1])) + pickle.dumps(error)


def kind_of(reading: bytes) -> str:
    """Which function was read, or that the user observed something."""
    if not reading or reading[0] not in (SAID, RAISED):
        return OBSERVED
    return KINDS[reading[1]] if reading[1] < len(KINDS) else "something that this version does not know"


def unpack(reading: bytes) -> Any:
    """The value, or raise what the function raised."""
    if reading[0] == SAID:
        return marshal.loads(memoryview(reading)[2:])
    raise pickle.loads(memoryview(reading)[2:])
