"""What a second checkpoint uploads when 1 % of a large state has changed, and how fast states are cut and named.

The first checkpoint uploads everything. Of the second, chunks count that the first had not, and its manifest. An array
of floats is the state of which size and change are exact. Records in a dict or a list, an eighth of that size because
making them takes long, show what pickle does to a state: its frames begin after so many bytes and its batches after so
many items, so that what is inserted moves all that follow it.
"""

import argparse
import io
import pickle
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from lineage_stash.store.chunks import Manifest, join, split

MEGABYTE = 1 << 20
BAR_SHARE = 0.05
BAR_MB_PER_S = 300.0
"""A gigabyte in a few seconds."""
RECORD_BYTES = 46
PROTOCOL, PROTOCOL_BYTES = b"\x80", 2
FRAME, FRAME_HEADER_BYTES = b"\x95", 9

Floats = NDArray[np.float64]
Records = dict[str, tuple[float, str]]


class Figure(NamedTuple):
    """One row of the table."""

    state: str
    change: str
    size_bytes: int
    share: float


class Speed(NamedTuple):
    """How many megabytes a second each step takes in."""

    step: str
    megabytes_per_s: float
    bar: float | None


# arrays


def change_in_a_row(state: Floats, draws: np.random.Generator) -> None:
    """One stretch of 1 %."""
    lower, count = len(state) // 3, len(state) // 100
    state[lower : lower + count] = draws.random(count)


def change_in_100_places(state: Floats, draws: np.random.Generator) -> None:
    """A hundred stretches of 0.01 % each, anywhere."""
    count = len(state) // 10_000
    for lower in draws.integers(0, len(state) - count, 100):
        state[lower : lower + count] = draws.random(count)


def change_single_elements(state: Floats, draws: np.random.Generator) -> None:
    """1 % of the elements, each by itself."""
    state[draws.integers(0, len(state), len(state) // 100)] += 1.0


def change_1000_elements(state: Floats, draws: np.random.Generator) -> None:
    """A thousand elements, each by itself."""
    state[draws.integers(0, len(state), 1000)] += 1.0


ARRAY_CHANGES: dict[str, Callable[[Floats, np.random.Generator], None]] = {
    "1 % in a row": change_in_a_row,
    "1 % in 100 places": change_in_100_places,
    "1,000 single elements": change_1000_elements,
    "1 % single elements": change_single_elements,
}


def measure_array(size_bytes: int) -> list[Figure]:
    """An array of random floats."""
    draws = np.random.default_rng(0)
    state = draws.random(size_bytes // 8)
    known = named(pickle.dumps(state, protocol=5))
    figures = []
    for name, change in ARRAY_CHANGES.items():
        changed = state.copy()
        change(changed, draws)
        figures.append(figure("floats", name, pickle.dumps(changed, protocol=5), known))
    inserted = pickle.dumps(np.insert(state, 0, 0.5), protocol=5)
    return [*figures, figure("floats", "one inserted in front", inserted, known)]


# records


class WithoutFrames(io.BytesIO):
    """Leaves out the headers of a pickle's frames, if no object in it has 64 KB: such are written without a frame."""

    def write(self, written: Any) -> int:
        """Write a frame without its header, which readers do not need."""
        content = bytes(written)
        at = PROTOCOL_BYTES if content.startswith(PROTOCOL) else 0
        has_frame = content.startswith(FRAME, at)
        return super().write(content[:at] + content[at + FRAME_HEADER_BYTES :] if has_frame else content)


def pickled(state: object, file: io.BytesIO) -> bytes:
    """A pickle that is written to a file of some kind."""
    pickle.Pickler(file, protocol=5).dump(state)
    return file.getvalue()


def records(count: int) -> Records:
    """Small values under small keys."""
    draws = random.Random(0)
    return {f"key {number}": (draws.random(), str(draws.random())) for number in range(count)}


def changed_in_a_row(state: Records) -> Records:
    """1 % of the values, one after the other, some of them longer or shorter than before."""
    keys = list(state)
    lower, count = len(keys) // 3, len(keys) // 100
    return {**state, **{key: (state[key][0] + 1.0, "changed") for key in keys[lower : lower + count]}}


def changed_in_100_places(state: Records) -> Records:
    """A hundred values."""
    keys = random.Random(1).sample(list(state), 100)
    return {**state, **{key: (state[key][0] + 1.0, "changed") for key in keys}}


def measure_records(size_bytes: int) -> list[Figure]:
    """The same records in a dict and in a list, with the frames of their pickles and without."""
    state = records(size_bytes // 8 // RECORD_BYTES)
    items = list(state.items())
    changes: tuple[tuple[str, str, object, object], ...] = (
        ("dict of records", "1 % in a row", state, changed_in_a_row(state)),
        ("dict of records", "100 values", state, changed_in_100_places(state)),
        ("list of records", "one inserted in front", items, [("a", (0.5, "b")), *items]),
    )
    figures = []
    for file, remark in ((io.BytesIO, ""), (WithoutFrames, ", no frames")):
        for name, change, before, after in changes:
            known = named(pickled(before, file()))
            figures.append(figure(name + remark, change, pickled(after, file()), known))
    return figures


# measuring


def named(content: bytes) -> set[bytes]:
    """The digests of a content's chunks."""
    return set(Manifest.of(split(content)).digests)


def figure(state: str, change: str, content: bytes, known: set[bytes]) -> Figure:
    """The share of a content that has to be uploaded where some chunks are known."""
    manifest = Manifest.of(split(content))
    lengths = dict(zip(manifest.digests, manifest.lengths, strict=True))
    new_bytes = sum([length for digest, length in lengths.items() if digest not in known])
    return Figure(state, change, len(content), (new_bytes + len(manifest.pack())) / len(content))


def seconds(step: Callable[[], object], looks: int = 3) -> float:
    """How long a step takes: the best of several looks, because the machine is shared."""
    taken = []
    for _ in range(looks):
        started = time.perf_counter()
        step()
        taken.append(time.perf_counter() - started)
    return min(taken)


def measure_speed(name: str, content: bytes) -> list[Speed]:
    """How fast a content is cut, its chunks are named, and they are put together."""
    parts = split(content)
    manifest = Manifest.of(parts)
    stored = dict(zip(manifest.digests, parts, strict=True))
    split_s = seconds(lambda: split(content))
    named_s = seconds(lambda: Manifest.of(parts))
    joined_s = seconds(lambda: join(manifest, stored))
    return [
        Speed(f"split, {name}", len(content) / split_s / 1e6, None),
        Speed(f"digests, {name}", len(content) / named_s / 1e6, None),
        Speed(f"split and digests, {name}", len(content) / (split_s + named_s) / 1e6, BAR_MB_PER_S),
        Speed(f"join, {name}", len(content) / joined_s / 1e6, None),
    ]


def small_microseconds(size_bytes: int = 1000) -> float:
    """What a state that is one chunk takes, manifest included."""
    content = bytes(size_bytes)
    return seconds(lambda: [Manifest.of(split(content)).pack() for _ in range(1000)]) * 1000


def show(figures: Sequence[Figure], speeds: Sequence[Speed]) -> None:
    """Print each figure beside its bar."""
    table = Table(title="Second checkpoint: share of the state that is uploaded")
    for heading in ("state", "MB", "what changed", "uploaded", "bar", ""):
        table.add_column(heading)
    for row in figures:
        size = f"{row.size_bytes / MEGABYTE:,.0f}"
        verdict = _verdict(row.share < BAR_SHARE)
        table.add_row(row.state, size, row.change, f"{row.share:.2%}", f"{BAR_SHARE:.0%}", verdict)
    Console(width=100).print(table)
    for speed in speeds:
        bar = "none" if speed.bar is None else f"{speed.bar:.0f}, {_verdict(speed.megabytes_per_s >= speed.bar)}"
        print(f"{speed.step:26} {speed.megabytes_per_s:6.0f} MB/s (best of 3; bar: {bar})")
    print(f"{'a state of 1 KB':26} {small_microseconds():6.1f} µs   (best of 3; bar: none)")


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "missed"


def main(argv: Sequence[str] = ()) -> list[Figure]:
    """Measure and print; `--size-mb` says how large the state is."""
    parser = argparse.ArgumentParser(prog="checkpoint_bytes", description=main.__doc__)
    parser.add_argument(
        "--size-mb", type=int, default=1024, help="of the array (default: 1024); records take an eighth"
    )
    size_bytes = parser.parse_args(argv).size_mb * MEGABYTE
    speeds = measure_speed("noise", np.random.default_rng(0).bytes(size_bytes))
    speeds += measure_speed("zeros", bytes(size_bytes))
    figures = measure_array(size_bytes) + measure_records(size_bytes)
    show(figures, speeds)
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
