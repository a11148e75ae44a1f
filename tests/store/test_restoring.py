"""A life begins with all that survived, in pages and from whoever has it, whatever is missing or damaged elsewhere."""

from typing import Any

import pytest

from lineage_stash.core.history import Beginning, Decision, History
from lineage_stash.core.ids import Incarnation, Index, Member, NodeId, Round
from lineage_stash.core.peer import Peer
from lineage_stash.core.policy import Policy
from lineage_stash.restoring import MOST_FRUITLESS, LineageLost, NoLife, restore
from lineage_stash.store import replica, supply
from lineage_stash.store.contract import Append, Fence, GetChunks, PutCheckpoint, Truncate
from lineage_stash.store.quorum import SILENT_TICKS, Quorum
from lineage_stash.store.states import unpack_state
from tests.store.contract_suite import FIRST_LIFE, P, checkpoint, entry, log, two_lives
from tests.store.network import Network, append_of, chunked

CONTENT = b"a state that takes several chunks"


class Restored:
    """A second life of P that began at `began`, on its way from the store."""

    def __init__(self, net: Network, began: int, store: Quorum | None = None) -> None:
        decision = Decision(Round(1), (Beginning(P, Incarnation(1), Index(began)),), (), "test")
        history = History((decision,))
        self.net = net
        self.store = store or net.client(history)
        self.found: list[Peer | NoLife] = []
        member = Member(P, NodeId("n"), True)
        restore(member, Incarnation(1), history, Policy(), self.store, (), self.found.append)

    @property
    def outcome(self) -> Peer | NoLife:
        """What came of it."""
        self.net.carry_until(lambda: bool(self.found), self.store)
        (found,) = self.found
        return found

    @property
    def script(self) -> list[Any]:
        """What it has to replay."""
        assert isinstance(self.outcome, Peer)
        return list(self.outcome.program.script)

    @property
    def state(self) -> bytes:
        """What it begins with."""
        assert isinstance(self.outcome, Peer)
        under_way = self.outcome.durability.checkpoint_under_way
        assert under_way is not None
        return unpack_state(under_way.state, self.store.chunks)


@pytest.fixture
def net() -> Network:
    """Three replicas with a log of six entries in one span each, and a checkpoint in chunks at the second one."""
    network = Network(0, 1, 2)
    put, chunks = chunked(2, CONTENT)
    for of in (0, 1, 2):
        for index in range(6):
            network.give(append_of(log(index, index + 1)), of)
        network.give(chunks, of)
        network.give(put, of)
    return network


def whole_log(lower: int, upper: int) -> list[Any]:
    return [entry(index) for index in range(lower, upper)]


def without_chunks(net: Network, *replicas: int) -> None:
    for of in replicas:
        net.replicas[of].chunks[P] = {}


def damage_chunks(net: Network, *replicas: int) -> None:
    for of in replicas:
        chunks = net.replicas[of].chunks[P]
        net.replicas[of].chunks[P] = {digest: chunk._replace(body=b"rust") for digest, chunk in chunks.items()}


# logs


def test_log_from_the_checkpoint_to_the_beginning_is_replayed(net: Network) -> None:
    restored = Restored(net, began=5)
    assert restored.script == whole_log(2, 5)
    assert restored.state == CONTENT


@pytest.mark.parametrize("page_entries", [1, 2, 3])
def test_log_comes_in_pages_however_small(net: Network, monkeypatch: pytest.MonkeyPatch, page_entries: int) -> None:
    page_bytes = page_entries * append_of(log(0, 1)).spans[0].body_bytes
    monkeypatch.setattr(replica, "PAGE_BYTES", page_bytes)
    restored = Restored(net, began=6)
    assert restored.script == whole_log(2, 6)


def test_pages_of_replicas_that_hold_different_parts_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "PAGE_BYTES", 1)
    net = Network(0, 1, 2)
    net.give(append_of(log(0, 6)), 0)
    for index in range(4):
        net.give(append_of(log(index, index + 1)), 1)
    net.away = {2}
    assert Restored(net, began=6).script == whole_log(0, 6)


def test_leftovers_of_the_former_life_are_not_replayed(net: Network) -> None:
    net.give(append_of(log(6, 9)), 1)
    assert Restored(net, began=6).script == whole_log(2, 6)


def test_log_that_is_shorter_than_what_was_decided_is_reported(net: Network) -> None:
    with pytest.raises(LineageLost, match="must be replayed to 7, but the store has it to 6"):
        assert Restored(net, began=7).outcome


def test_log_truncated_above_the_checkpoint_shows_that_a_later_life_goes_on(net: Network) -> None:
    net.give(Truncate(P, FIRST_LIFE, Index(4)), 1)
    assert Restored(net, began=6).outcome is NoLife.SUPERSEDED


# chunks


@pytest.mark.parametrize("spoil", [without_chunks, damage_chunks], ids=["missing", "damaged"])
@pytest.mark.parametrize("good", [0, 1, 2])
def test_chunks_are_taken_from_the_one_replica_that_has_them_right(net: Network, spoil: Any, good: int) -> None:
    spoil(net, *[of for of in (0, 1, 2) if of != good])
    assert Restored(net, began=5).state == CONTENT


def test_chunks_are_put_together_from_replicas_of_which_none_has_all(net: Network) -> None:
    for of in (0, 1, 2):
        chunks = net.replicas[of].chunks[P]
        net.replicas[of].chunks[P] = {digest: chunks[digest] for at, digest in enumerate(chunks) if at % 3 == of}
    assert Restored(net, began=5).state == CONTENT


def test_chunks_come_in_pages(net: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "PAGE_BYTES", 1)
    restored = Restored(net, began=5)
    assert restored.state == CONTENT
    assert restored.script == whole_log(2, 5)


@pytest.mark.parametrize("spoil", [without_chunks, damage_chunks], ids=["missing", "damaged"])
def test_chunks_that_nobody_has_right_are_reported_and_not_guessed(net: Network, spoil: Any) -> None:
    spoil(net, 0, 1, 2)
    with pytest.raises(LineageLost, match="of the checkpoint of p is at no replica that answers"):
        assert Restored(net, began=5).outcome
    assert net.carried > 2 * MOST_FRUITLESS


def test_replica_that_is_away_for_a_while_is_waited_for(net: Network) -> None:
    without_chunks(net, 1)
    restored = Restored(net, began=5)
    net.carry_until(lambda: any(isinstance(of.request, GetChunks) for of in net.wire))
    net.away = {0, 2}
    for _ in range(2 * SILENT_TICKS):
        net.carry_all()
        restored.store.on_ticked()
    assert restored.found == []
    net.away = {0}
    assert restored.state == CONTENT


def test_checkpoint_that_went_with_the_only_replica_that_had_it_leaves_the_one_before(net: Network) -> None:
    """It never was at a majority, so nothing was deleted on its strength."""
    newer, chunks = chunked(4, b"a newer state in some chunks")
    net.give(chunks, 0)
    net.give(newer, 0)
    net.away = {1}
    restored = Restored(net, began=6)
    net.carry_until(lambda: any(isinstance(of.request, GetChunks) for of in net.wire))
    net.away = {0}
    assert restored.state == CONTENT
    assert restored.script == whole_log(2, 6)


def test_life_whose_checkpoint_was_deleted_because_a_later_one_goes_on_is_over(net: Network) -> None:
    restored = Restored(net, began=6)
    net.carry_until(lambda: any(isinstance(of.request, GetChunks) for of in net.wire))
    for upper in (6, 7):
        newer, chunks = chunked(upper, b"what life %d has come to" % upper, life=2)
        net.give(chunks, 0, 1, 2)
        net.give(newer, 0, 1, 2)
    assert restored.outcome is NoLife.SUPERSEDED


# storing again what was restored


def stored_again(restored: Restored) -> list[Any]:
    assert isinstance(restored.outcome, Peer)
    under_way = restored.outcome.durability.checkpoint_under_way
    assert under_way is not None
    return list(restored.net.ask(restored.store, PutCheckpoint(under_way)))


def test_restored_chunks_are_brought_to_replicas_that_lack_them(net: Network) -> None:
    for of in (0, 1):
        net.replicas[of].chunks.clear()
        net.replicas[of].checkpoints.clear()
    net.away = {1}
    restored = Restored(net, began=5)
    assert restored.state == CONTENT
    net.away = {2}
    assert all(answer.stored for answer in stored_again(restored))
    net.away = set()
    without_chunks(net, 2)
    assert Restored(net, began=5).state == CONTENT


def test_chunks_that_are_not_at_hand_come_from_the_others_but_never_damaged(
    net: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supply, "PAGE_BYTES", 1)
    good = dict(net.replicas[2].chunks[P])
    net.replicas[0].chunks.clear()
    net.replicas[0].checkpoints.clear()
    damage_chunks(net, 1)
    client = net.client()
    client.request(chunked(2, CONTENT)[0], lambda _: None)
    net.wire = [parcel for parcel in net.wire if parcel.replica == 0]
    net.carry_all()
    assert net.replicas[0].checkpoints == net.replicas[2].checkpoints
    assert net.replicas[0].chunks[P] == good


# the set changes meanwhile


@pytest.mark.parametrize("steps", range(0, 40, 2))
def test_set_may_change_at_any_moment_of_a_restoration(
    net: Network, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(replica, "PAGE_BYTES", 1)
    net.add(3)
    restored = Restored(net, began=6)
    for _ in range(steps):
        if net.wire:
            net.carry()
    on_their_way, net.wire = net.wire, []
    net.finish(net.succession(1, 2, 3))
    net.wire = on_their_way
    net.away = {0}
    assert restored.state == CONTENT
    assert restored.script == whole_log(2, 6)


def test_chunks_are_found_in_a_new_set_although_nobody_of_the_old_one_is_left_to_say_so(net: Network) -> None:
    restored = Restored(net, began=5)
    net.carry_until(lambda: any(isinstance(of.request, GetChunks) for of in net.wire))
    net.take(GetChunks)
    net.add(3, 4, 5)
    net.finish(net.succession(3, 4, 5))
    net.away = {0, 1, 2}
    assert restored.state == CONTENT


def test_fenced_life_that_was_moved_over_is_not_resurrected(net: Network) -> None:
    client = net.client()
    net.ask(client, Fence(((P, Incarnation(0)),), ()))
    net.ask(client, Append((), ((P, two_lives(6)),), (), (), False))
    net.add(3)
    net.finish(net.succession(1, 2, 3))
    assert Restored(net, began=6).script == whole_log(2, 6)
    stored = net.ask(client, PutCheckpoint(checkpoint(6)))
    assert not all(answer.stored for answer in stored)
