"""Compaction: the live state is written to a file of its own, beside the replica, which goes on all the while.

Rules:
- The state is that of one moment: a shallow copy of the index, made in between two requests. What is copied from then
  on are bodies, which never change.
- A body keeps its checksum when it is copied, and is checked on the way. One that is damaged ends the compaction: the
  old files stay as they are, for whoever repairs them.
- Places are moved only after the state file has its name, and old files are removed only after that, by the replica.
- The thread works no more than half of the time, and never long at a stretch: it shares an interpreter with the one
  that answers.
"""

import os
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

from lineage_stash.core.ids import Incarnation, PeerId
from lineage_stash.store.bodies import Place
from lineage_stash.store.contract import Append, Chunk, Fence, PutCheckpoint, PutChunks, Request, Seal, Span
from lineage_stash.store.faults import BodyDamaged
from lineage_stash.store.files import STATE, UNFINISHED, FileHeader, OpenFile
from lineage_stash.store.groups import Kind, Record, pack_confirmation, pack_group
from lineage_stash.store.replica import NO_EPOCH, Log, Replica
from lineage_stash.store.requests import make_record
from lineage_stash.store.states import digests_in

BODIES_PER_RECORD = 64
BODY_BYTES_PER_RECORD = 1024 * 1024
"""A record takes about a millisecond to write."""
UNSYNCED_BYTES = 2 * 1024 * 1024
"""Synced in between, because a large sync holds up those of the replica (measured in the design page)."""
MOVES_AT_A_STRETCH = 2000
FIRST_PAUSE_S = 0.001
"""Lets whoever started the thread go on first."""

HEAD_BYTES = 64
"""About what a body takes besides itself."""
CHECKPOINT_BYTES = 256

Kept = TypeVar("Kept", Span, Chunk)


def live_bytes(replica: Replica) -> int:
    """About how large the state is when written."""
    spans = [span.body_bytes for log in replica.logs.values() for span in log.spans]
    chunks = [chunk.body_bytes for kept in replica.chunks.values() for chunk in kept.values()]
    checkpoints = [
        CHECKPOINT_BYTES + len(checkpoint.state)
        + sum([len(payload) for _, calls in checkpoint.calls_to for payload in calls.payloads])
        + sum([len(result) for _, calls in checkpoint.calls_to for _, result in calls.results])
        + sum([len(reply) for _, calls in checkpoint.calls_from for reply in calls.replies])
        + sum([len(output) for _, output in checkpoint.outputs])
        for kept in replica.checkpoints.values() for checkpoint in kept
    ]  # fmt: skip
    heads = HEAD_BYTES * (len(spans) + len(chunks) + 2 * len(replica.logs) + len(replica.fenced))
    return sum(spans) + sum(chunks) + sum(checkpoints) + heads


def copy_index(replica: Replica) -> Replica:
    """The state of this moment; bodies and places are not copied."""
    copy = Replica()
    copy.epoch, copy.sealed, copy.fenced = replica.epoch, replica.sealed, dict(replica.fenced)
    copy.checkpoints = {peer: list(kept) for peer, kept in replica.checkpoints.items()}
    copy.chunks = {peer: dict(kept) for peer, kept in replica.chunks.items()}
    for peer, log in replica.logs.items():
        copied = copy.logs[peer] = Log()
        copied.base, copied.segments, copied.spans = log.base, log.segments, list(log.spans)
    return copy


# The state as requests.


def state_requests(replica: Replica) -> Iterator[Request]:
    """Requests that bring a new replica into the state of this one, if they are handled in its epoch."""
    if replica.epoch > NO_EPOCH:
        yield Append((), (), (), (), False)
    for peer, log in replica.logs.items():
        yield Append((), ((peer, log.segments),), ((peer, log.base),), (), True)
        for spans in _portions(log.spans):
            yield Append(tuple(spans), (), (), (), True)
    # Checkpoints go before the fences, which would refuse those of the fenced.
    for peer in {**replica.checkpoints, **replica.chunks}:
        yield from _checkpoint_requests(replica, peer)
    if replica.fenced:
        yield Fence(tuple((peer, Incarnation(below - 1)) for peer, below in replica.fenced.items()), ())
    if replica.sealed:
        yield Seal(replica.epoch)


def _checkpoint_requests(replica: Replica, peer: PeerId) -> Iterator[Request]:
    """Each checkpoint after its chunks, because it drops those that none needs; and then the others."""
    chunks = dict(replica.chunks.get(peer, {}))
    for checkpoint in replica.checkpoints.get(peer, ()):
        needed = [chunks.pop(digest) for digest in digests_in(checkpoint) if digest in chunks]
        for portion in _portions(needed):
            yield PutChunks(peer, tuple(portion))
        yield PutCheckpoint(checkpoint)
    for portion in _portions(list(chunks.values())):
        yield PutChunks(peer, tuple(portion))


def _portions(kept: Iterable[Kept]) -> Iterator[list[Kept]]:
    portion: list[Kept] = []
    portion_bytes = 0
    for each in kept:
        if portion and (len(portion) == BODIES_PER_RECORD or portion_bytes + each.body_bytes > BODY_BYTES_PER_RECORD):
            yield portion
            portion, portion_bytes = [], 0
        portion.append(each)
        portion_bytes += each.body_bytes
    if portion:
        yield portion


class Compaction:
    """One state, on its way into the file with a number."""

    def __init__(self, index: Replica, path: Path, number: int, identity: str, *, promised: bool) -> None:
        self.state: OpenFile | None = None
        """The file, once everything is in it and every place leads there."""
        self._index = index
        self._path = path
        self._header = FileHeader.new(STATE, number, identity, 0)
        self._promised = promised
        # Two lists and no pairs: many new pairs would have the garbage collector look through the whole index.
        self._places: list[Place] = []
        self._offsets: list[int] = []

    def steps(self) -> Generator[None, None, None]:
        """Write the file, give it its name, and have the places lead there."""
        with ExitStack() as undo:
            file = OpenFile.begin(self._path)
            undo.callback(file.close)
            undo.callback(_remove_unfinished, file)
            yield from self._write(file)
            file.finish(self._path)
            yield from self._move(file)
            undo.pop_all()
        self.state = file

    def _write(self, file: OpenFile) -> Iterator[None]:
        file.write([self._header.content], 0)
        file.size = self._header.size
        synced = 0
        if self._promised:
            self._add(file, Record(Kind.PROMISED), [])
        for request in state_requests(self._index):
            self._add(file, *make_record(request, self._index.epoch))
            yield
            if file.size - synced > UNSYNCED_BYTES:
                file.sync()
                synced = file.size
                yield
        content = pack_confirmation(self._header.seed, file.size, 0)
        file.write([content], file.size)
        file.size += len(content)

    def _add(self, file: OpenFile, record: Record, places: list[Place]) -> None:
        pieces, offsets = pack_group([record], self._header.seed, file.size, 0)
        file.write(pieces, file.size)
        file.size += sum(map(len, pieces))
        if places:
            self._places += places
            self._offsets += offsets

    def _move(self, file: OpenFile) -> Iterator[None]:
        for at in range(0, len(self._places), MOVES_AT_A_STRETCH):
            yield
            stretch = slice(at, at + MOVES_AT_A_STRETCH)
            for place, offset in zip(self._places[stretch], self._offsets[stretch], strict=True):
                place.where = (file, offset)


def _remove_unfinished(file: OpenFile) -> None:
    # Once it has its name it is a good state, and may stay.
    if file.path.name.endswith(UNFINISHED):
        with suppress(OSError):
            os.unlink(file.path)


class Worker:
    """Takes steps in a thread of its own, with a pause after each that is as long as the step."""

    def __init__(self, steps: Generator[None, None, None]) -> None:
        self.failure: OSError | BodyDamaged | None = None
        self._steps = steps
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stash compaction", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether all steps were taken, or one failed."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait until it is done."""
        self._thread.join()

    def stop(self) -> None:
        """Take no further step."""
        self._is_stopped.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        try:
            while not self._is_stopped.wait(pause_s):
                began = time.monotonic()
                next(self._steps)
                pause_s = time.monotonic() - began
        except StopIteration:
            pass
        except (OSError, BodyDamaged) as failure:
            self.failure = failure
        finally:
            self._steps.close()
