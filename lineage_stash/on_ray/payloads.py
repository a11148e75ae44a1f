"""Payloads: calls, values and errors as bytes.

Rules:
- What is made of plain scalars is marshalled: fast, and the same bytes in every run, so that all of it counts in the
  digest that a replay is compared by. Anything else is pickled and opaque: only its head counts.
- Classes and functions of the user's script travel by value (cloudpickle), as they do in Ray.
- What is large is a rope: its head is as of all others, and the rest lies in shared memory, which all processes of a
  machine that the value comes to have in common. Whoever opens it gets arrays and tables that are views of that.
- Nothing here is opened before the connection it came over has proved that it knows the cluster's secret, and before
  the frame's checksum was right.
"""

import marshal
import pickle
import traceback
from collections.abc import Sequence
from itertools import chain
from struct import Struct
from typing import Any

import cloudpickle
from ray.exceptions import (
    ActorDiedError,
    OwnerDiedError,
    RayError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)

from lineage_stash.core.digest import HEAD_STARTS, OPAQUE
from lineage_stash.core.handles import without_names
from lineage_stash.core.parcels import unwrap
from lineage_stash.core.rope import parts_of, pieces_of, rope, weigh
from lineage_stash.core.values import CANCELLATION
from lineage_stash.on_ray.errors import NondeterminismError
from lineage_stash.wire.shared import Shared, has_room

PLAIN = 1
_PLAIN = bytes((PLAIN,))
_OPAQUE = bytes((OPAQUE,))
LONGEST_HEAD = 255
NAMED_ARGUMENTS = 3
"""How many parts a plain call has if some of its arguments are named."""
LARGEST_PLAIN_BYTES = 16 * 1024
"""Larger strings are treated as opaque: a checksum of a megabyte costs more than the call."""
LARGEST_BYTES = 256 * 1024 * 1024
"""Of one call or one value: it travels and is logged whole, beside what else waits in a stash, in one frame."""
SHARED_BYTES = 256 * 1024
"""From this size on, memory of its own costs less than the copies."""
ALIGNED_BYTES = 64
"""Where buffers begin, as those who compute with arrays want it; smaller ones are where they are."""
MOST_PLAIN_ITEMS = 32
MARSHAL_VERSION = 2
"""The last format that does not depend on which of the parts are one object."""

_SCALARS = frozenset((int, float, bool, type(None)))
_STRINGS = frozenset((str, bytes))
_BY_REFERENCE = frozenset(("numpy", "pyarrow", "pandas", "builtins"))

_LENGTHS = Struct("<QI")
_LENGTH = Struct("<Q")

VALUE, ERROR, DIED, STRAYED, CRASHED, PARTS = b"v", b"e", b"d", b"n", b"c", b"p"
CANCELLED = CANCELLATION[HEAD_STARTS:]
FAILURES = (ERROR, DIED, STRAYED, CRASHED, CANCELLED)

RETURNS = "\0"
"""Separates a method from how many values it returns, where that is not one."""


class ValueTooLarge(ValueError):
    """An argument, a result or a value to be put aside is too large; the text says what to do."""


class TaskCrashed(WorkerCrashedError):  # type: ignore[misc]
    """A task whose process died as often as it may."""

    def __str__(self) -> str:
        return str(self.args[0])


class RefOrphaned(OwnerDiedError):  # type: ignore[misc]
    """Whoever passed on a ref has gone for good before it had the value."""

    def __init__(self) -> None:
        super().__init__("", None, "")

    def __str__(self) -> str:
        return (
            "The value of this ref will never come: the script that passed it on crashed before it had the value. "
            "Start the script again, or have an actor make the call, because actors are recovered."
        )


def _is_plain(value: object) -> bool:
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind in _STRINGS:
        return len(value) <= LARGEST_PLAIN_BYTES  # type: ignore[arg-type]
    if kind is tuple or kind is list:
        return len(value) <= MOST_PLAIN_ITEMS and _are_plain(value)  # type: ignore[arg-type]
    if kind is dict:
        return len(value) <= MOST_PLAIN_ITEMS and all(  # type: ignore[arg-type]
            _is_plain_item(key) and _is_plain_item(item)
            for key, item in value.items()  # type: ignore[attr-defined]
        )
    return False


def _are_plain(values: Sequence[object]) -> bool:
    """Whether all items of a list or a tuple are plain; most lists are of one kind, and need no look at each."""
    kinds = set(map(type, values))
    if kinds <= _STRINGS:
        return not values or max(map(len, values)) <= LARGEST_PLAIN_BYTES  # type: ignore[arg-type]
    return kinds <= _SCALARS or all(map(_is_plain_item, values))


def _is_plain_item(value: object) -> bool:
    kind = type(value)
    return kind in _SCALARS or (kind in _STRINGS and len(value) <= LARGEST_PLAIN_BYTES)  # type: ignore[arg-type]


def _pickle(value: object) -> list[bytes]:
    """A pickle in pieces: large buffers (arrays, tables) stay apart, so that they are copied once, by whoever joins."""
    buffers: list[pickle.PickleBuffer] = []
    contains_more = isinstance(value, list | tuple | dict | set | frozenset) or callable(value)
    if type(value).__module__.partition(".")[0] in _BY_REFERENCE and not contains_more:
        main = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
    else:
        main = cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    lengths = _LENGTHS.pack(len(main), len(raw)) + b"".join(_LENGTH.pack(buffer.nbytes) for buffer in raw)
    pieces = [lengths, main]
    upper = len(lengths) + len(main)
    for buffer in raw:
        padding = _padding(upper, buffer.nbytes)
        pieces += (bytes(padding), buffer) if padding else (buffer,)  # type: ignore[arg-type]
        upper += padding + buffer.nbytes
    return pieces


def _padding(upper: int, size: int) -> int:
    """How many bytes to leave before a buffer of this size."""
    return -upper % ALIGNED_BYTES if size >= ALIGNED_BYTES else 0


def _unpickle(body: memoryview) -> Any:
    """What `_pickle` pickled; buffers are read-only views of the payload, as Ray's are of its object store."""
    length, count = _LENGTHS.unpack_from(body)
    lower = _LENGTHS.size + count * _LENGTH.size
    buffers = []
    upper = lower + length
    for number in range(count):
        (size,) = _LENGTH.unpack_from(body, _LENGTHS.size + number * _LENGTH.size)
        upper += _padding(upper, size)
        buffers.append(body[upper : upper + size])
        upper += size
    return pickle.loads(body[lower : lower + length], buffers=buffers)


def _opaque(head: bytes, start: bytes, *body: bytes) -> bytes:
    """A head that counts, what is always here, and what may be in shared memory."""
    size = sum(map(len, body))
    if size > LARGEST_BYTES:
        raise ValueTooLarge(
            f"{size / 1e6:.0f} MB in one call or one value, and {LARGEST_BYTES / 1e6:.0f} MB is the most: pass it in "
            "parts, or as the path of a file that all nodes can read"
        )
    head = head[:LONGEST_HEAD]
    here = b"".join((_OPAQUE, bytes((len(head),)), head, start))
    shared = Shared.made_of(body) if size >= SHARED_BYTES and has_room() else None
    return b"".join((here, *body)) if shared is None else rope(here, [(len(here), shared)])


def _rest(payload: bytes, start: int) -> memoryview:
    """What `_opaque` has put behind the start."""
    parts = parts_of(payload)
    return memoryview(parts[0][1]) if parts else memoryview(payload)[start:]


# calls


def pack_plain_call(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes | None:
    """A call of a method whose arguments are plain: there is nothing in them that anybody could refer to."""
    for value in args:
        if not _is_plain(value):
            return None
    if not kwargs:
        return _PLAIN + marshal.dumps((method, args), MARSHAL_VERSION)
    if all(map(_is_plain, kwargs.values())):
        return _PLAIN + marshal.dumps((method, args, kwargs), MARSHAL_VERSION)
    return None


def pack_call(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """A call of a method whose arguments may be anything."""
    plain = pack_plain_call(method, args, kwargs)
    if plain is not None:
        return plain
    kinds = ",".join([type(value).__qualname__ for value in (*args, *kwargs.values())])
    head = f"{method}({kinds})".encode()
    try:
        if len(args) == 1 and not kwargs:
            return _opaque(head, b"1" + _text(method), *_pickle(args[0]))
        return _opaque(head, b"n" + _text(method), *_pickle((args, kwargs)))
    except ValueTooLarge:
        raise
    except Exception as error:
        raise _unserializable(args, kwargs, error) from error


def _unserializable(args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> TypeError:
    """What is wrong with the arguments of a call; which one it is takes a second look."""
    for name, value in (*enumerate(args, 1), *kwargs.items()):
        try:
            _pickle(value)
        except Exception as cause:  # noqa: BLE001 - the user's class may fail in any way
            return TypeError(f"Could not serialize the argument {name!r}, {_kind(value)}: {cause}")
    return TypeError(f"Could not serialize the arguments: {error}")


def _kind(value: object) -> str:
    return f"of type {type(value).__qualname__}"


def _text(method: str) -> bytes:
    name = method.encode()
    return bytes((len(name),)) + name


def unpack_call(payload: bytes) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """The method, its arguments and its keyword arguments."""
    if payload[0] == PLAIN:
        call = marshal.loads(payload[1:])
        return call if len(call) == NAMED_ARGUMENTS else (*call, {})
    payload = without_names(payload)
    start = HEAD_STARTS + payload[1]
    method, body = _named(payload, start)
    if payload[start] == ord("1"):
        return method, (_unpickle(body),), {}
    args, kwargs = _unpickle(body)
    return method, args, kwargs


def _named(payload: bytes, start: int) -> tuple[str, memoryview]:
    end = start + 2 + payload[start + 1]
    return payload[start + 2 : end].decode(), _rest(payload, end)


def name_of(wrapped: bytes) -> str:
    """The method that a call is for, without opening its arguments; refs may be passed on with it."""
    payload, _, _ = unwrap(wrapped)
    if payload[0] == PLAIN:
        return str(marshal.loads(memoryview(payload)[1:])[0])
    payload = without_names(payload)
    return _named(payload, HEAD_STARTS + payload[1])[0]


def head_of(payload: bytes) -> str | None:
    """What an opaque payload says of itself: a call its method and the types of its arguments; None of a plain one."""
    if not payload or payload[0] != OPAQUE:
        return None
    return payload[HEAD_STARTS : HEAD_STARTS + payload[1]].decode(errors="replace")


def pickle_in(reply: bytes) -> memoryview:
    """The pickle in an opaque value, without the buffers beside it."""
    body = _rest(reply, HEAD_STARTS + reply[1])
    length, count = _LENGTHS.unpack_from(body)
    lower = _LENGTHS.size + count * _LENGTH.size
    return body[lower : lower + length]


def spell(method: str, returns: int | str) -> str:
    """A method, and how many values it returns."""
    return method if returns == 1 else f"{method}{RETURNS}{returns}"


def returns_of(spelled: str) -> tuple[str, int | str]:
    """The method, and how many values it returns."""
    method, _, returns = spelled.partition(RETURNS)
    return method, int(returns) if returns.isdigit() else returns or 1


# replies


def pack_parts(replies: list[bytes]) -> bytes:
    """The values of a call that returns several."""
    lengths = b"".join(_LENGTH.pack(weigh(reply)) for reply in replies)
    return _opaque(PARTS + str(len(replies)).encode(), lengths, *chain.from_iterable(map(pieces_of, replies)))


def part_of(reply: bytes, part: int) -> bytes:
    """One of several values; whatever else the reply says, it says of each of them."""
    if part < 0 or reply[:1] != _OPAQUE or reply[HEAD_STARTS : HEAD_STARTS + 1] != PARTS:
        return reply
    start = HEAD_STARTS + reply[1]
    count = int(reply[HEAD_STARTS + 1 : start])
    lengths = [_LENGTH.unpack_from(reply, start + number * _LENGTH.size)[0] for number in range(count)]
    lower = sum(lengths[:part])
    return bytes(_rest(reply, start + count * _LENGTH.size)[lower : lower + lengths[part]])


def is_error(reply: bytes) -> bool:
    """Whether a reply says that its call failed."""
    return not reply or (reply[0] == OPAQUE and reply[HEAD_STARTS : HEAD_STARTS + 1] in FAILURES)


def pack_plain_value(value: Any) -> bytes | None:
    """A value that is plain: there is nothing in it that anybody could refer to."""
    return _PLAIN + marshal.dumps(value, MARSHAL_VERSION) if _is_plain(value) else None


def pack_value(value: Any) -> bytes:
    """What a call returned, what a reading said, or a state."""
    plain = pack_plain_value(value)
    if plain is not None:
        return plain
    try:
        return _opaque(VALUE + type(value).__qualname__.encode(), b"", *_pickle(value))
    except ValueTooLarge:
        raise
    except Exception as error:
        raise TypeError(f"Could not serialize the value, {_kind(value)}: {error}") from error


def pack_error(function: str, error: BaseException) -> bytes:
    """What a call raised, with the traceback of where it did."""
    head = ERROR + type(error).__qualname__.encode()
    text = "".join(traceback.format_exception(error))
    if isinstance(error, RayTaskError):
        error = error.cause  # the call failed because another one did: callers want to catch what that one raised
    try:
        body = cloudpickle.dumps((function, text, error))
        pickle.loads(body)
    except Exception as unpicklable:  # noqa: BLE001 - the user's class may fail in any way
        note = f"{type(error).__qualname__} cannot be pickled ({unpicklable}); its traceback was:\n{text}"
        body = cloudpickle.dumps((function, text, RayError(note)))
    return _opaque(head, body)  # in one piece: it may be kept where only such can be


def pack_crash(text: str) -> bytes:
    """What callers of a task get whose process died every time."""
    return _opaque(CRASHED, text.encode())


def pack_death(text: str, *, strayed: bool = False) -> bytes:
    """The last words of an actor that is gone for good; because its replay strayed, or for another reason."""
    return _opaque(STRAYED if strayed else DIED, text.encode())


def is_plain(reply: bytes) -> bool:
    """Whether it is a value that is plain."""
    return reply[:1] == _PLAIN


def unpack_plain(reply: bytes) -> Any:
    """A plain value."""
    return marshal.loads(reply[1:])


def unpack_value(reply: bytes) -> Any:
    """The value, or raise what the call raised."""
    if not reply:
        raise RefOrphaned
    if reply[0] == PLAIN:
        return unpack_plain(reply)
    start = HEAD_STARTS + reply[1]
    kind = reply[HEAD_STARTS : HEAD_STARTS + 1]
    body = _rest(reply, start)
    if kind == VALUE:
        return _unpickle(body)
    if kind == DIED:
        died = ActorDiedError()
        died.error_msg = bytes(body).decode()
        raise died
    if kind == CRASHED:
        raise TaskCrashed(bytes(body).decode())
    if kind == CANCELLED:
        raise TaskCancelledError(error_message="The call was cancelled by ray.cancel().")
    if kind == STRAYED:
        raise NondeterminismError(error_msg=bytes(body).decode())
    function, text, error = pickle.loads(body)
    raise RayTaskError(function, text, error).as_instanceof_cause()
