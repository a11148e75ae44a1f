"""What the tests of replicas on disks share: requests, states that can be compared, and threads that take turns."""

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from lineage_stash.codec import encode, pack_span
from lineage_stash.core.batch import Range
from lineage_stash.core.entry import Entry, Ran, Read, Waited
from lineage_stash.core.history import Segments
from lineage_stash.core.ids import Epoch, Incarnation, Index, PeerId, Seqno
from lineage_stash.store import compaction, contract, segment
from lineage_stash.store.bodies import Place
from lineage_stash.store.chunks import Manifest
from lineage_stash.store.disk import BodyDamaged, DiskReplica
from lineage_stash.store.replica import Replica
from lineage_stash.store.states import IN_CHUNKS
from tests.store.contract_suite import FIRST_LIFE, P, Q, checkpoint, log


def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the files can be tested without waiting for the disk, which is what takes the time."""
    monkeypatch.setattr(segment, "ROOM_BYTES", 64)
    monkeypatch.setattr(segment, "FILE_HEADER_BYTES", 300)
    monkeypatch.setattr(segment, "RESERVED_BYTES", 1000)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)


class Stepper:
    """In place of a thread: takes one step whenever the replica looks whether it is done."""

    def __init__(self, steps: Generator[None, None, None]) -> None:
        self.failure: OSError | BodyDamaged | None = None
        self._steps = steps
        self._is_over = False

    @property
    def is_done(self) -> bool:
        self._step()
        return self._is_over

    def wait(self) -> None:
        while not self._is_over:
            self._step()

    def stop(self) -> None:
        self._steps.close()
        self._is_over = True

    def _step(self) -> None:
        try:
            next(self._steps)
        except StopIteration:
            self._is_over = True
        except (OSError, BodyDamaged) as failure:
            self.failure = failure
            self._is_over = True


class Eager(Stepper):
    """In place of a thread that is always faster."""

    def __init__(self, steps: Generator[None, None, None]) -> None:
        super().__init__(steps)
        self.wait()


class Idle(Stepper):
    """In place of a thread that never gets to do anything."""

    @property
    def is_done(self) -> bool:
        return False


def use(worker: type[Stepper], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have compactions done by such a worker."""
    monkeypatch.setattr(compaction, "Worker", worker)


# States.


def state(replica: Replica) -> tuple[Any, ...]:
    """All that a replica holds, with its bodies."""
    logs = {
        peer: (log.base, log.segments, [span._replace(body=_body(span.body)) for span in log.spans])
        for peer, log in replica.logs.items()
    }
    chunks = {
        peer: {digest: _body(chunk.body) for digest, chunk in kept.items()} for peer, kept in replica.chunks.items()
    }
    checkpoints = {peer: list(kept) for peer, kept in replica.checkpoints.items()}
    known_chunks = {peer: kept for peer, kept in chunks.items() if kept}
    return logs, dict(replica.fenced), checkpoints, known_chunks, replica.epoch, replica.sealed


def _body(body: Any) -> bytes:
    return bytes(body.read() if isinstance(body, Place) else body)


def entries_of(replica: Replica, peer: PeerId = P) -> int:
    """How many entries of a log a replica holds."""
    held = replica.logs[peer]
    return held.upper - held.base


def state_on_reopening(folder: Path) -> tuple[Any, ...]:
    """All that is in a folder."""
    replica = DiskReplica(folder)
    found = state(replica.replica)
    replica.close()
    return found


def files_in(folder: Path) -> list[str]:
    """The names of a replica's files, without the lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def segment_in(folder: Path) -> Path:
    """The only segment in a folder."""
    (path,) = folder.glob("*.segment")
    return path


# Requests.


def append(lower: int, upper: int, **peer: PeerId) -> bytes:
    """A frame that appends to a log."""
    return encode(contract.Append((pack_span(log(lower, upper, **peer)),), (), (), (), False))


def truncate(below: int) -> bytes:
    """A frame that truncates a log."""
    return encode(contract.Truncate(P, FIRST_LIFE, Index(below)))


def chunk(content: bytes) -> contract.Chunk:
    """A chunk as it is sent."""
    (digest,) = Manifest.of([content]).digests
    return contract.Chunk(digest, content, len(content))


def in_chunks(*contents: bytes) -> bytes:
    """The state of a checkpoint that refers to chunks."""
    return IN_CHUNKS + Manifest.of(contents).pack()


def story() -> Iterator[list[bytes]]:
    """Groups that grow the state, shrink it and let it be compacted, several times."""
    for turn in range(3):
        lower = 12 * turn
        content = b"chunk %d" % turn * 9
        yield [append(lower, lower + 6), append(lower, lower + 6, peer=Q)]
        yield [encode(contract.PutChunks(P, (chunk(content), chunk(b"never used"))))]
        stored = contract.PutCheckpoint(checkpoint(lower + 9, state=in_chunks(content)))
        yield [append(lower + 6, lower + 12), encode(stored)]
        yield [truncate(lower + 9)]
        later = pack_span(log(lower + 6, lower + 12, peer=Q))
        yield [encode(contract.Append((later,), (), ((Q, Index(lower + 11)),), (), False))]
    yield [encode(contract.Fence(((P, Incarnation(0)),), ()))]


# Random requests.

LIVES: Segments = (*FIRST_LIFE, (Incarnation(1), Index(4)), (Incarnation(2), Index(3)), (Incarnation(3), Index(9)))
CONTENTS = tuple(b"content %d" % number * (1 + number) for number in range(4))


def entry_of(life: int, index: int) -> Entry:
    """Every kind of entry, and one that is large."""
    needs = ((Q, Index(index)),) if index % 2 else ()
    kinds: tuple[Entry, ...] = (
        Ran(Q, Seqno(index), None, life, needs),
        Ran(P, Seqno(index), b"content %d" % index, life, ()),
        Read(b"life %d" % life, index, needs),
        Waited((index, 0), life, ()),
        Read(b"L" * 40_000, index, ()),
    )
    return kinds[index % len(kinds)]


peers = st.sampled_from([P, Q])
lives = st.integers(0, 3).map(Incarnation)
indexes = st.integers(0, 14).map(Index)
epochs = st.integers(0, 3).map(Epoch)
known_lives = st.integers(1, len(LIVES)).map(lambda known: LIVES[:known])
contents = st.sampled_from(CONTENTS)


@st.composite
def spans(draw: st.DrawFn) -> contract.Span:
    peer, life, lower, length = draw(peers), draw(lives), draw(indexes), draw(st.integers(0, 8))
    entries = tuple(entry_of(life, index) for index in range(lower, lower + length))
    span = pack_span(Range(peer, life, lower, entries))
    skipped, left_out = draw(st.sampled_from([(0, 0), (1, 0), (0, 1)])) if length > 1 else (0, 0)
    return span._replace(lower=Index(span.lower + skipped), upper=Index(span.upper - left_out))


def tuples_of(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(elements, max_size=2).map(tuple)


@st.composite
def checkpoints(draw: st.DrawFn) -> contract.PutCheckpoint:
    referring = st.lists(contents, min_size=1, max_size=2).map(lambda chosen: in_chunks(*chosen))
    content = draw(st.sampled_from([b"", b"s" * 9, b"s" * 40_000]) | referring)
    made = checkpoint(draw(indexes), life=draw(lives), final=draw(st.booleans()), state=content)
    return contract.PutCheckpoint(made._replace(peer=draw(peers)), draw(st.booleans()))


requests: st.SearchStrategy[contract.Request] = st.one_of(
    st.builds(
        contract.Append, tuples_of(spans()), tuples_of(st.tuples(peers, known_lives)),
        tuples_of(st.tuples(peers, indexes)), tuples_of(peers), st.booleans(), st.none() | st.tuples(peers, lives),
    ),
    st.builds(lambda span: contract.Append((span,), (), (), (), False), spans()),
    st.builds(contract.Read, peers, indexes),
    st.builds(contract.Truncate, peers, known_lives, indexes),
    st.builds(contract.Fence, tuples_of(st.tuples(peers, lives)), tuples_of(st.tuples(peers, indexes))),
    checkpoints(),
    st.builds(contract.GetCheckpoint, peers),
    st.builds(contract.PutChunks, peers, tuples_of(contents.map(chunk))),
    st.builds(contract.GetChunks, peers, tuples_of(contents.map(lambda content: chunk(content).digest))),
    st.builds(contract.Forget, tuples_of(peers)),
    st.builds(contract.Seal, epochs),
    st.builds(contract.List, st.just(PeerId(""))),
)  # fmt: skip


# Faults.


def count_calls(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """The calls of these functions of the system from now on."""
    called: list[str] = []
    for name in names:
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, n=name, call=original: (called.append(n), call(*given))[1])
    return called


def failing(code: int) -> Callable[..., None]:
    """A function of the system that always fails."""

    def call(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return call
