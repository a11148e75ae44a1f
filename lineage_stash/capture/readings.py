"""Readings: what a captured function said, as the bytes of an entry that also say which function it was.

Layout: `SAID` or `RAISED`, the number of the kind, the value marshalled or the error pickled. The first byte is none
that other readings begin with (`on_ray/payloads.py`), and all bytes of a value count in the digest of a replay.

A script that can be resumed also logs what it does, so that a replay that does something else is noticed before it has
done it: `DID`, a checksum of all that counts, and the action in words.
"""

import marshal
import pickle
from collections.abc import Callable
from typing import Any

SAID, RAISED, DID = 2, 3, 4
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

ACTION = "an action of the script"
CHECKSUM_BYTES = 4

PREFIXES = {kind: bytes((SAID, number)) for number, kind in enumerate(KINDS)}


def pack(prefix: bytes, take: Callable[[], Any]) -> bytes:
    """Take a reading; what it says, or how it failed."""
    try:
        return prefix + marshal.dumps(take(), MARSHAL_VERSION)
    except Exception as error:  # noqa: BLE001 - whatever it was, it is the outcome
        return bytes((RAISED, prefix[1])) + pickle.dumps(error)


def pack_action(words: str, checksum: int) -> bytes:
    """What a script does next."""
    return bytes((DID,)) + checksum.to_bytes(CHECKSUM_BYTES, "little") + words.encode()


def action_in(reading: bytes) -> str | None:
    """What a script did next, in words; None where this is something else."""
    return reading[1 + CHECKSUM_BYTES :].decode() if reading and reading[0] == DID else None


def kind_of(reading: bytes) -> str:
    """Which function was read, or that the user observed something, or a script did."""
    if reading and reading[0] == DID:
        return ACTION
    if not reading or reading[0] not in (SAID, RAISED):
        return OBSERVED
    return KINDS[reading[1]] if reading[1] < len(KINDS) else "something that this version does not know"


def unpack(reading: bytes) -> Any:
    """The value, or raise what the function raised."""
    if reading[0] == SAID:
        return marshal.loads(memoryview(reading)[2:])
    raise pickle.loads(memoryview(reading)[2:])
