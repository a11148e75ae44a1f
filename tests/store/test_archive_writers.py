"""Several processes may have an archive open; only the last one to open it commits, and nothing confirmed is lost.

Besides scenarios, writers take turns at every request to the place, in orders that seeds decide; and each rule that
keeps them apart is broken, to see that some seed notices.
"""

import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lineage_stash.codec import encode
from lineage_stash.core.ids import Index, PeerId
from lineage_stash.store import archive_chain, contract
from lineage_stash.store.archive import ArchiveTakenOver
from lineage_stash.store.archive_bodies import Stored
from lineage_stash.store.archive_chain import Chain
from lineage_stash.store.archive_compaction import StateWriting
from lineage_stash.store.archive_names import Claim, Listing, list_archive
from lineage_stash.store.faults import StoreError, StoreFailed
from lineage_stash.store.objects import Objects
from lineage_stash.store.sealed import Record
from tests.store.archive_kit import (
    MemoryObjects,
    Turns,
    files_in,
    forget_what_is_at_hand,
    kept_in,
    kill,
    opened,
    state_of,
    state_on_reopening,
)
from tests.store.contract_suite import FIRST_LIFE, P, checkpoint
from tests.store.disk_kit import Eager, Stepper, append, chunk, entries_of, in_chunks, use

commit, write_state = Chain.commit, StateWriting.steps


@pytest.fixture(autouse=True)
def _nothing_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def url(folder: Path) -> str:
    return f"file://{folder}"


# Scenarios.


def test_former_owner_commits_nothing_once_another_has_opened(url: str) -> None:
    former = opened(url)
    former.handle(append(0, 3))
    successor = opened(url)
    assert entries_of(successor.replica) == 3, "what was confirmed is known to the successor"
    with pytest.raises(ArchiveTakenOver, match=r"opened by another process \(owners/00000002-.*must stop"):
        former.handle(append(3, 5))
    with pytest.raises(StoreFailed):
        former.handle(append(3, 5))
    former.close()
    successor.handle(append(3, 4))
    expected = state_of(successor.replica)
    successor.close()
    assert state_on_reopening(url) == expected, "what came too late is not in the way"


def test_late_group_counts_unless_the_successor_has_written_in_its_place(url: str, folder: Path) -> None:
    former, successor = opened(url), opened(url)
    with pytest.raises(ArchiveTakenOver):
        former.handle(append(0, 3))
    kill(successor)
    assert len(files_in(folder, "groups")) == 1
    third = opened(url)
    assert entries_of(third.replica) == 3, "it may have happened, and nothing speaks against it"
    fourth = opened(url)
    with pytest.raises(ArchiveTakenOver):
        third.handle(append(3, 4))
    fourth.handle(append(3, 9))
    kill(fourth)
    fifth = opened(url)
    assert entries_of(fifth.replica) == 9
    fifth.close()


def test_group_beside_others_is_found_by_the_one_that_follows(url: str, folder: Path) -> None:
    """Three owners wrote a second group; the next one had seen only the first of these."""
    first, second = opened(url), None
    first.handle(append(0, 1))
    second = opened(url)
    with pytest.raises(ArchiveTakenOver):
        first.handle(append(1, 2))
    third = opened(url)
    with pytest.raises(ArchiveTakenOver):
        second.handle(append(1, 5))
    third.handle(append(2, 3))
    numbers = [path.name[:17] for path in files_in(folder, "groups")]
    assert numbers == ["00000001-00000001", "00000002-00000001", "00000002-00000002", "00000003-00000003"]
    expected = state_of(third.replica)
    third.close()
    assert state_on_reopening(url) == expected


def test_former_owner_that_misses_a_swept_object_is_not_damaged_but_taken_over(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(Eager, monkeypatch)
    former = opened(url)
    former.handle_all([append(0, 9)])
    successor = opened(url, segment_bytes=1)
    successor.handle(append(9, 10))
    for _ in range(3):
        successor.apply([])
    forget_what_is_at_hand(former)
    with pytest.raises(ArchiveTakenOver):
        former.handle(encode(contract.Read(P, Index(0))))
    assert former.damaged == []
    assert successor._chain.base > 0
    successor.close()


# Seeds.


def confirm_appends(writer: PeerId, confirmed: dict[PeerId, int], segment_bytes: int) -> None:
    """Open an archive and append to a log of one's own, with checkpoints and compactions, until another takes over."""
    with suppress(ArchiveTakenOver):
        replica = opened("", segment_bytes=segment_bytes)
        for index in range(4):
            content = b"content %d" % index * 9
            stored = checkpoint(index + 1, state=in_chunks(content))._replace(peer=writer)
            replica.handle_all([
                append(index, index + 1, peer=writer),
                encode(contract.PutChunks(writer, (chunk(content), chunk(b"for later %d" % index)))),
                encode(contract.PutCheckpoint(stored)),
                encode(contract.Truncate(writer, FIRST_LIFE, Index(index))),
            ])  # fmt: skip
            confirmed[writer] = index + 1
            for _ in range(15):
                forget_what_is_at_hand(replica)
                replica.handle(encode(contract.Read(writer, Index(0))))


def run_writers(seed: int) -> None:
    """Two or three writers take turns at every request to the place; then the archive has all that was confirmed."""
    objects, confirmed, draws = MemoryObjects({}), dict[PeerId, int](), Random(seed)
    segment_bytes = (1, 1 << 30)[seed % 3 // 2]
    writers = [PeerId(f"writer {number}") for number in range(2 + seed % 2)]
    with kept_in(objects), pytest.MonkeyPatch.context() as patches:
        patches.setattr(secrets, "token_hex", lambda length: draws.randbytes(length).hex())
        turns = Turns(seed, *[partial(confirm_appends, writer, confirmed, segment_bytes) for writer in writers])
        objects.before = lambda _: turns.take()
        turns.run()
        objects.before = lambda _: None
        replica = opened("").replica
    for writer, upper in confirmed.items():
        assert writer in replica.logs
        assert replica.logs[writer].upper >= upper
        assert replica.checkpoints[writer][-1].upper == replica.logs[writer].upper
    assert state_of(replica), "every body can be read"


@pytest.mark.parametrize("first_seed", range(0, 300, 50))
def test_whatever_turns_several_writers_take_nothing_confirmed_is_lost(
    monkeypatch: pytest.MonkeyPatch, first_seed: int
) -> None:
    use(Stepper, monkeypatch)
    for seed in range(first_seed, first_seed + 50):
        run_writers(seed)


def commit_after_looking(chain: Chain, records: Sequence[Record]) -> tuple[Stored, list[int]]:
    chain.check_owner()
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(chain, "check_owner", lambda: None)
        return commit(chain, records)


class LookedBefore:
    """A chain that says of its successor what was true before a state was written."""

    def __init__(self, chain: Chain) -> None:
        self._chain, self._successor = chain, chain.successor()

    def successor(self) -> Claim | None:
        return self._successor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chain, name)


def write_state_after_looking(writing: Any) -> Iterator[None]:
    writing._chain = LookedBefore(writing._chain)
    yield from write_state(writing)


def list_as_it_was(objects: Objects, seen: dict[int, Listing]) -> Listing:
    """What each writer saw first, whatever came since."""
    return seen.setdefault(threading.get_ident(), list_archive(objects))


def break_rule(rule: str, patches: pytest.MonkeyPatch) -> None:
    match rule:
        case "look at the claims after a commit":
            patches.setattr(Chain, "check_owner", lambda _: None)
        case "write, and then look":
            patches.setattr(Chain, "commit", commit_after_looking)
        case "look at the claims before removing":
            patches.setattr(Chain, "successor", lambda _: None)
        case "write a state, and then look":
            patches.setattr(StateWriting, "steps", write_state_after_looking)
        case "claim, and then list":
            patches.setattr(archive_chain, "list_archive", lambda objects, seen={}: list_as_it_was(objects, seen))
        case _:
            raise AssertionError(rule)


@pytest.mark.parametrize(
    "rule",
    [
        "look at the claims after a commit",
        "write, and then look",
        "look at the claims before removing",
        "write a state, and then look",
        "claim, and then list",
    ],
)
def test_some_turns_show_what_each_rule_is_for(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    use(Stepper, monkeypatch)
    break_rule(rule, monkeypatch)
    assert any(loses(seed) for seed in range(300))


def loses(seed: int) -> bool:
    try:
        run_writers(seed)
    except (AssertionError, StoreError):
        return True
    return False
