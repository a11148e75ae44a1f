"""One replica set follows another, whoever dies on the way: nothing that was confirmed is lost, nothing is doubled."""

from typing import Any

import pytest

from lineage_stash.core.ids import Epoch, Incarnation, Index, PeerId
from lineage_stash.store import contract, replica, succession
from lineage_stash.store.contract import Elsewhere, Fence, Level, PutCheckpoint, Truncate
from lineage_stash.store.replica import FIRST_EPOCH, NO_EPOCH
from lineage_stash.store.succession import Phase
from tests.store.contract_suite import FIRST_LIFE, P, Q, checkpoint, entry, log, two_lives
from tests.store.network import Network, append_of, chunked


def whole_log(upper: int) -> list[Any]:
    return [entry(index) for index in range(upper)]


def of_two_lives(began: int, upper: int) -> list[Any]:
    return [entry(index, int(index >= began)) for index in range(upper)]


@pytest.fixture
def net() -> Network:
    """Three replicas with a log of three entries; a fourth one that has nothing."""
    network = Network(0, 1, 2)
    network.add(3)
    network.ask(network.client(), append_of(log(0, 3)))
    network.carry_all()
    return network


# the way of a change


def test_writes_that_go_on_during_a_change_are_all_in_the_next_set(net: Network) -> None:
    client, made, confirmed = net.client(), net.succession(1, 2, 3), [3]
    refused: list[Any] = []
    while made.phase is not Phase.OVER:
        upper = confirmed[-1]
        done: list[tuple[Any, ...]] = []
        client.request(append_of(log(upper, upper + 1)), done.append)
        net.carry_until(lambda done=done: bool(done), client, made)  # type: ignore[misc]
        refused += [answer for answer in done[0] if answer.refused]
        confirmed.append(upper + 1)
    net.carry_all()
    assert len(confirmed) > 5, "nothing was written meanwhile"
    assert refused == []
    assert net.sets[-1] == contract.ReplicaSet(Epoch(2), (1, 2, 3))
    assert net.logs(P) == dict.fromkeys((1, 2, 3), whole_log(confirmed[-1]))


@pytest.mark.parametrize("successor", [(0, 1, 2), (3, 4, 5), (2,), (3,), (0, 1, 2, 3, 4), (0, 3)])
def test_next_set_may_be_any_set(net: Network, successor: tuple[int, ...]) -> None:
    net.add(4, 5)
    net.finish(net.succession(*successor))
    assert net.sets[-1].replicas == successor
    assert net.logs(P) == dict.fromkeys(successor, whole_log(3))


def test_what_only_a_majority_has_confirmed_is_at_all_of_the_next_set(net: Network) -> None:
    net.give(append_of(log(3, 4)), 0, 1)
    net.give(append_of(log(0, 2, peer=Q)), 1, 2)
    net.finish(net.succession(1, 2, 3))
    assert net.logs(P) == dict.fromkeys((1, 2, 3), whole_log(4))
    assert net.logs(Q) == dict.fromkeys((1, 2, 3), whole_log(2))


def test_fences_checkpoints_and_chunks_arrive(net: Network) -> None:
    put, chunks = chunked(2, b"a state in chunks")
    net.give(Fence(((P, Incarnation(0)),), ()), 0, 1)
    for of in (1, 2):
        net.give(chunks, of)
        net.give(PutCheckpoint(put.checkpoint, copied=True), of)
        net.give(Truncate(P, FIRST_LIFE, Index(2)), of)
    net.finish(net.succession(0, 2, 3))
    for of in (0, 2, 3):
        there = net.replicas[of]
        assert (there.fenced, there.checkpoints) == ({P: 1}, {P: [put.checkpoint]})
        assert there.chunks[P] == {chunk.digest: chunk for chunk in chunks.chunks}
        assert (there.logs[P].base, there.logs[P].upper) == (2, 3)
    refused = net.ask(net.client(), append_of(log(3, 4)))
    assert all(answer.refused == (P,) for answer in refused)


def test_fenced_life_gets_nothing_into_the_next_set(net: Network) -> None:
    zombie = net.client()
    net.give(Fence(((P, Incarnation(0)),), ()), 1, 2)
    net.finish(net.succession(0, 2, 3))
    net.away = {2}
    answers = net.ask(zombie, append_of(log(3, 4)))
    assert any(answer.refused == (P,) for answer in answers)
    stored = net.ask(zombie, PutCheckpoint(checkpoint(3)))
    assert not all(answer.stored for answer in stored)


def test_logs_and_lists_come_in_pages(net: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(3, 9):
        net.give(append_of(log(index, index + 1)), 0, 1, 2)
    for name in "abcde":
        net.give(append_of(log(0, 2, peer=PeerId(name))), 1, 2)
    monkeypatch.setattr(replica, "PAGE_BYTES", 1)
    monkeypatch.setattr(replica, "ITEMS_PER_PAGE", 2)
    net.finish(net.succession(1, 2, 3))
    assert net.logs(P)[3] == whole_log(9)
    assert all(net.logs(PeerId(name))[3] == whole_log(2) for name in "abcde")


def test_list_of_large_checkpoints_is_cut_by_bytes(net: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        net.give(PutCheckpoint(checkpoint(1, state=bytes(60))._replace(peer=PeerId(name))), 0)
    monkeypatch.setattr(replica, "PAGE_BYTES", 100)
    first = net.replicas[0].handle(contract.List(PeerId("")), NO_EPOCH)
    assert ([item.peer for item in first.items], first.more) == (["a", "b"], True)
    second = net.replicas[0].handle(contract.List(PeerId("b")), NO_EPOCH)
    assert ([item.peer for item in second.items], second.more) == (["c", P], False)


def test_store_stays_open_while_a_replica_that_joins_is_still_brought_up(
    net: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    upper = 2 * succession.PATIENCE_TICKS
    for index in range(3, upper):
        net.give(append_of(log(index, index + 1)), 0, 1, 2)
    monkeypatch.setattr(replica, "PAGE_BYTES", 1)
    made = net.succession(1, 2, 3)
    while made.phase is Phase.PREPARING:
        made.on_ticked()
        net.carry()
    assert net.replicas[3].logs[P].upper == upper
    net.finish(made)


def test_request_under_way_is_repeated_only_after_a_while(net: Network) -> None:
    made = net.succession(1, 2, 3)
    asked = len(net.wire)
    for _ in range(succession.ASK_AGAIN_TICKS - 1):
        made.on_ticked()
    assert len(net.wire) == asked
    made.on_ticked()
    assert len(net.wire) == 2 * asked


# who dies


def test_proposer_that_died_after_sealing_is_followed_by_one_that_finishes(net: Network) -> None:
    client = net.client()
    dead = net.succession(1, 2, 3)
    net.carry_until(lambda: dead.phase is Phase.COPYING, dead)
    net.wire.clear()
    done: list[tuple[Any, ...]] = []
    client.request(append_of(log(3, 4)), done.append)
    net.carry_all()
    assert done == []
    net.finish(net.succession(1, 2, 3, attempt=2))
    net.carry_until(lambda: bool(done), client)
    net.carry_all()
    assert len(done) == 1
    assert net.logs(P) == dict.fromkeys((1, 2, 3), whole_log(4))


@pytest.mark.parametrize("steps", range(0, 60, 3))
def test_proposer_may_die_at_any_step(net: Network, steps: int) -> None:
    put, chunks = chunked(2, b"a state in chunks")
    net.give(chunks, 0, 1)
    net.give(put, 0, 1)
    net.succession(1, 2, 3)
    for _ in range(steps):
        if net.wire:
            net.carry()
    net.wire.clear()
    net.add(4)
    if len(net.sets) == 1:
        net.finish(net.succession(0, 1, 4, attempt=2))
    assert net.ask(net.client(), append_of(log(3, 4)))
    net.carry_all()
    whole = [of for of in net.sets[-1].replicas if net.replicas[of].checkpoints.get(P) == [put.checkpoint]]
    assert len(whole) >= 2
    assert all(len(net.replicas[of].chunks[P]) == len(chunks.chunks) for of in whole)
    assert list(net.logs(P).values()).count(whole_log(4)) >= 2


def test_of_two_proposers_that_race_one_stands_and_the_other_copies_in_vain(net: Network) -> None:
    net.add(4)
    one, other = net.succession(1, 2, 3), net.succession(0, 1, 4, attempt=2)
    net.carry_until(lambda: one.phase is other.phase is Phase.OVER, one, other)
    assert len(net.sets) == 2
    assert net.sets[-1].replicas in ((1, 2, 3), (0, 1, 4))
    assert net.logs(P) == dict.fromkeys(net.sets[-1].replicas, whole_log(3))


def test_loser_that_goes_on_copying_does_no_harm_to_the_set_that_stands(net: Network) -> None:
    """Its copies are of the next epoch, and they bypass fences: whatever they bring was true."""
    net.add(4)
    net.give(append_of(log(3, 4)), 0)
    loser = net.succession(1, 2, 3)
    net.carry_until(lambda: loser.phase is Phase.COPYING, loser)
    held, net.wire = net.wire, []
    net.away = {0}
    net.finish(net.succession(1, 2, 4, attempt=2))
    client = net.client()
    net.ask(client, Fence(((P, Incarnation(0)),), ()))
    net.ask(client, append_of(log(3, 5, life=1), two_lives(3)))
    net.carry_all()
    net.wire = held
    net.finish(loser)
    assert net.sets[-1].replicas == (1, 2, 4)
    assert net.logs(P) == dict.fromkeys((1, 2, 4), of_two_lives(3, 5))


def test_replica_that_dies_while_it_is_brought_up_is_in_the_set_and_counts_as_away(net: Network) -> None:
    made = net.succession(1, 2, 3)
    net.away = {3}
    net.finish(made)
    assert net.sets[-1].replicas == (1, 2, 3)
    assert net.ask(net.client(), append_of(log(3, 4)))
    net.add(4)
    net.finish(net.succession(1, 2, 4))
    assert net.logs(P) == dict.fromkeys((1, 2, 4), whole_log(4))


def test_store_is_not_kept_closed_for_a_replica_that_nobody_has_heard_of(net: Network) -> None:
    net.away = {2}
    made = net.succession(1, 2, 3)
    net.carry_until(lambda: made.phase is Phase.SEALING, made)
    net.carry_all()
    assert made.phase is Phase.OVER


def test_source_that_dies_while_it_is_copied_from_is_replaced_by_another_seal(net: Network) -> None:
    net.give(append_of(log(0, 2, peer=Q)), 0, 1)
    net.add(4, 5)
    made = net.succession(3, 4, 5)
    net.carry_until(lambda: made.phase is Phase.COPYING, made)
    net.away = set(made._sources[Q][:1])
    net.finish(made)
    assert net.logs(Q) == dict.fromkeys((3, 4, 5), whole_log(2))
    assert net.logs(P) == dict.fromkeys((3, 4, 5), whole_log(3))


@pytest.mark.parametrize("away", [0, 1, 2, 3])
def test_any_one_may_be_away_all_the_time(net: Network, away: int) -> None:
    net.away = {away}
    net.finish(net.succession(1, 2, 3))
    up = [of for of in (1, 2, 3) if of != away]
    assert {of: net.logs(P)[of] for of in up} == dict.fromkeys(up, whole_log(3))


def test_change_waits_while_a_majority_of_the_old_set_is_away(net: Network) -> None:
    net.away = {0, 1}
    made = net.succession(2, 3)
    for _ in range(3 * succession.PATIENCE_TICKS):
        net.carry_all()
        made.on_ticked()
    assert len(net.sets) == 1
    net.away = {0}
    net.finish(made)
    assert net.logs(P) == dict.fromkeys((2, 3), whole_log(3))


# who has requests under way


def test_client_with_requests_under_way_is_moved_over_and_nothing_is_lost_or_doubled(net: Network) -> None:
    client, done = net.client(), []
    client.request(append_of(log(3, 5)), done.append)
    client.request(PutCheckpoint(checkpoint(3)), done.append)
    net.deliver(net.wire.pop(0))
    on_their_way, net.wire = net.wire, []
    net.finish(net.succession(1, 2, 3))
    net.wire = on_their_way
    net.carry_until(lambda: len(done) == 2, client)
    net.carry_all()
    assert [type(answers[0]) for answers in done] == [contract.Held, contract.Stored]
    assert net.logs(P) == dict.fromkeys((1, 2, 3), whole_log(5))
    assert all(net.replicas[of].checkpoints == {P: [checkpoint(3)]} for of in (1, 2, 3))


def test_answers_of_two_epochs_are_never_counted_together(net: Network) -> None:
    client, done = net.client(), []
    net.away = {1, 2}
    client.request(append_of(log(3, 4)), done.append)
    net.carry_all()
    net.away = {0}
    net.finish(net.succession(1, 2, 3))
    net.away = {1, 2}
    client.on_set(net.sets[-1])
    net.carry_all()
    assert done == [], "replica 0 has it, and 3 has it, and that is no majority of either set"


def test_late_append_of_the_old_epoch_is_refused(net: Network) -> None:
    net.client().request(append_of(log(3, 4)), lambda _: None)
    late, net.wire = net.wire, []
    net.finish(net.succession(1, 2, 3))
    for parcel in late[1:]:
        answer = net.replicas[parcel.replica].handle(parcel.request, parcel.ticket.epoch)
        assert answer == Elsewhere(FIRST_EPOCH, sealed=True)
    net.ask(net.client(), append_of(log(3, 4)))
    for parcel in late[1:]:
        answer = net.replicas[parcel.replica].handle(parcel.request, parcel.ticket.epoch)
        assert answer == Elsewhere(Epoch(2), sealed=False)


def test_replica_that_slept_through_the_seal_confirms_nothing_by_itself(net: Network) -> None:
    asleep, done = net.client(), []
    net.away = {0}
    net.finish(net.succession(1, 2, 3))
    net.away = set()
    asleep.request(append_of(log(3, 4, life=0)), done.append)
    net.take(contract.Append, epoch=Epoch(2))
    for parcel in [of for of in net.wire if of.replica == 0]:
        net.deliver(parcel)
    assert done == []
    assert net.logs(P)[3] == whole_log(3)


@pytest.mark.parametrize(
    "request_", [contract.Seal(FIRST_EPOCH), contract.List(PeerId("")), contract.Read(P, Index(0))]
)
def test_sealed_replica_still_tells_whoever_copies_what_it_has(net: Network, request_: Any) -> None:
    before = net.replicas[0].handle(request_, NO_EPOCH)
    net.replicas[0].handle(contract.Seal(FIRST_EPOCH), NO_EPOCH)
    assert net.replicas[0].handle(request_, NO_EPOCH) == before
    assert net.replicas[0].handle(contract.Read(P, Index(0)), FIRST_EPOCH) == Elsewhere(FIRST_EPOCH, sealed=True)


@pytest.mark.parametrize(
    "request_", [append_of(log(3, 4)), Fence((), ()), PutCheckpoint(checkpoint(1)), contract.Forget((P,))]
)
def test_nothing_is_changed_by_a_request_in_no_epoch(net: Network, request_: Any) -> None:
    before = net.replicas[0].handle(contract.List(PeerId("")), NO_EPOCH)
    assert isinstance(net.replicas[0].handle(request_, NO_EPOCH), Elsewhere)
    assert net.replicas[0].handle(contract.List(PeerId("")), NO_EPOCH) == before


# what replicas have that they should not


def test_replica_that_was_away_and_has_junk_of_a_dead_life_is_brought_right(net: Network) -> None:
    net.give(append_of(log(3, 6)), 0)
    net.away = {0}
    client = net.client()
    net.ask(client, Fence(((P, Incarnation(0)),), ()))
    net.ask(client, append_of(log(3, 5, life=1), two_lives(3)))
    net.finish(net.succession(1, 2, 3))
    net.away = set()
    net.finish(net.succession(0, 1, 2))
    assert net.logs(P) == dict.fromkeys((0, 1, 2), of_two_lives(3, 5))
    assert net.replicas[0].fenced == {P: 1}


def test_replica_that_knows_of_a_later_life_than_the_sealed_is_up_to_date_without_their_junk(net: Network) -> None:
    """The old life's leftovers are at one of the sealed; where the next life began only replica 0 has been told."""
    net.give(append_of(log(3, 5)), 1)
    net.give(contract.Append((), ((P, two_lives(3)),), (), (), False), 0)
    net.away = {0}
    made = net.succession(0, 1, 3)
    net.carry_until(lambda: made.phase is Phase.COPYING, made)
    net.away = set()
    net.finish(made)
    assert net.logs(P)[0] == whole_log(3)
    net.ask(net.client(), append_of(log(3, 4, life=1), two_lives(3)))
    assert net.logs(P) == dict.fromkeys((0, 1, 3), of_two_lives(3, 4))


def test_log_that_is_truncated_while_a_replica_joins_is_copied_from_where_it_begins_now(net: Network) -> None:
    made = net.succession(1, 2, 3)
    net.carry_until(lambda: any(isinstance(of.request, contract.Read) for of in net.wire), made)
    client = net.client()
    held, net.wire = net.wire, []
    net.ask(client, append_of(log(3, 6)))
    net.ask(client, PutCheckpoint(checkpoint(5)))
    client.truncate(Truncate(P, FIRST_LIFE, Index(5)), Level.DISK)
    net.carry_all()
    net.wire, before = held, net.carried
    net.finish(made)
    assert net.carried - before < 100, "what had been truncated was read again and again"
    assert net.logs(P) == dict.fromkeys((1, 2, 3), whole_log(6)[5:])
    assert all(net.replicas[of].checkpoints == {P: [checkpoint(5)]} for of in (1, 2, 3))


def test_replica_that_copying_does_not_help_waits_until_there_is_something_new_to_copy(net: Network) -> None:
    net.give(append_of(log(3, 5)), 0)
    made = net.succession(1, 2, 3)
    net.carry_until(lambda: any(isinstance(of.request, contract.Read) for of in net.wire), made)
    net.give(contract.Append((), ((P, two_lives(3)),), (), (), False), 0)
    net.carry_all()
    assert made.phase is Phase.PREPARING
    net.finish(made)
    assert net.logs(P) == dict.fromkeys((1, 2, 3), whole_log(3))


def test_replica_that_has_newer_checkpoints_than_the_sealed_keeps_them(net: Network) -> None:
    """Of two lives, each of which has got its last checkpoint to replica 0 alone."""
    net.give(PutCheckpoint(checkpoint(1)), 1, 2)
    net.give(PutCheckpoint(checkpoint(2)), 0)
    net.give(PutCheckpoint(checkpoint(3, life=1)), 0)
    net.away = {0}
    made = net.succession(0, 1, 3)
    net.carry_until(lambda: made.phase is Phase.COPYING, made)
    net.away = set()
    net.carry_all()
    assert made.phase is Phase.OVER
    assert net.replicas[0].checkpoints == {P: [checkpoint(2), checkpoint(3, life=1)]}
    assert net.replicas[3].checkpoints == {P: [checkpoint(1)]}


def test_source_that_answers_seals_and_lists_but_no_reads_is_passed_over(net: Network) -> None:
    """As a replica does whose disk is damaged where the body is; it need not be the one that leaves."""
    put, chunks = chunked(2, b"a state in chunks")
    net.give(chunks, 0, 1, 2)
    net.give(put, 0, 1, 2)
    net.add(4, 5)
    net.unanswered = {(0, contract.Read), (0, contract.GetChunks)}
    net.finish(net.succession(3, 4, 5))
    assert net.logs(P) == dict.fromkeys((3, 4, 5), whole_log(3))
    assert all(net.replicas[of].checkpoints == {P: [put.checkpoint]} for of in (3, 4, 5))


def test_chunk_that_is_missing_or_damaged_at_one_source_is_taken_from_another(net: Network) -> None:
    put, chunks = chunked(2, b"a state in chunks")
    net.give(chunks, 0, 1, 2)
    net.give(put, 0, 1, 2)
    first, second = chunks.chunks[:2]
    for of in (0, 1):
        net.replicas[of].chunks[P] = {**net.replicas[of].chunks[P], first.digest: first._replace(body=b"rust")}
        del net.replicas[of].chunks[P][second.digest]
    net.add(4)
    net.finish(net.succession(2, 3, 4))
    assert net.replicas[3].chunks[P] == net.replicas[4].chunks[P] == {chunk.digest: chunk for chunk in chunks.chunks}


def test_change_that_others_have_overtaken_ends(net: Network) -> None:
    net.add(4)
    slow = net.succession(0, 1, 4)
    held, net.wire = net.wire, []
    net.finish(net.succession(1, 2, 3, attempt=2))
    net.ask(net.client(), append_of(log(3, 4)))
    net.finish(net.succession(1, 2, 3, attempt=3))
    net.ask(net.client(), append_of(log(4, 5)))
    net.wire += held
    net.finish(slow)
    assert len(net.sets) == 3
    assert net.logs(P) == dict.fromkeys((1, 2, 3), whole_log(5))
