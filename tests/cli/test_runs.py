"""Runs: which there are, which are over, and what removing one takes away; replicas are real but for their disks."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lineage_stash.cli.records import read
from lineage_stash.cli.removing import Failed, NotRemoved, Remains, Removed
from lineage_stash.cli.runs import RunState, all_runs, describe, is_over, keys_of, strays, who_is_alive
from lineage_stash.core.ids import Epoch, PeerId
from tests.cli.listeners import Store
from tests.cli.planes import NODES, MemoryPlane, cluster_of

RUN = PeerId("driver-1")
OTHER = PeerId("driver-12")
"""Begins with the id of the other one, and is not of its run."""

ACTOR = f"{RUN}/A-1"
CHILD = f"{ACTOR}/B-1"
SERVICE = f"{OTHER}/Service-1"


@pytest.fixture
def plane() -> MemoryPlane:
    """Two runs: one that is over, with an actor and an actor of that one, and one that goes on."""
    found = MemoryPlane()
    found.add_services(NODES)
    found.begin_run(RUN)
    for actor in (ACTOR, CHILD):
        found.create(actor)
        found.live(actor, 0, pid=5)
        found.facts[f"killed/{actor}"] = b"last words"
        found.retire(actor)
    found.end_run(RUN)
    found.begin_run(OTHER, started_at=1500.0)
    found.create(SERVICE, class_name="Service", detached=True, name="service")
    found.live(SERVICE, 0, pid=6)
    return found


@pytest.fixture
def store(tmp_path: Path, plane: MemoryPlane) -> Iterator[Store]:
    """Three replicas that have something of everybody."""
    found = Store(tmp_path, plane, 3)
    for peer in (ACTOR, CHILD):
        found.write(peer, RUN)
        found.checkpoint(peer, upper=1, final=True)
    found.write(SERVICE, OTHER)
    found.start()
    yield found
    found.stop()


def remains(plane: MemoryPlane) -> Remains:
    return Remains(cluster_of(plane))


def remove(plane: MemoryPlane, run: str = RUN) -> Removed:
    found = remains(plane)
    found.refuse_unless_over(PeerId(run))
    return found.remove(PeerId(run))


# which there are


def test_everyone_whose_id_begins_with_a_drivers_is_of_its_run_and_no_other(plane: MemoryPlane, store: Store) -> None:
    found = remains(plane)
    rows = {run: describe(run, found.records, found.holdings) for run in found.runs}
    assert list(rows) == [RUN, OTHER]
    assert (rows[RUN].state, rows[RUN].actors_alive, rows[RUN].actors_ended) == (RunState.ENDED, 0, 2)
    assert (rows[OTHER].state, rows[OTHER].actors_alive, rows[OTHER].actors_ended) == (RunState.RUNNING, 1, 0)
    assert (rows[RUN].started_at, rows[RUN].ended_at, rows[RUN].entrypoint) == (1000.0, 2000.0, "job.py")
    assert rows[OTHER].entries == 1
    assert store.peers()[0] == [ACTOR, CHILD, SERVICE]


def test_held_is_one_copy_as_the_replica_has_it_that_has_most(plane: MemoryPlane, store: Store) -> None:
    store.write(f"{OTHER}/C-1", OTHER, OTHER, only=(2,))
    found = remains(plane)
    held = describe(OTHER, found.records, found.holdings)
    service, other = (found.holdings.of([PeerId(peer)]) for peer in (SERVICE, f"{OTHER}/C-1"))
    assert (held.entries, held.bytes) == (1 + 2, service.bytes + other.bytes)
    assert other.bytes > service.bytes > 100


def test_store_that_does_not_answer_leaves_the_rest_of_the_row(plane: MemoryPlane) -> None:
    found = remains(plane)
    row = describe(RUN, found.records, found.holdings)
    assert (row.entries, row.bytes, row.state) == (None, None, RunState.ENDED)


def test_driver_that_died_says_so_and_when_is_not_known(plane: MemoryPlane) -> None:
    plane.decide(1, gone=(OTHER,))
    found = remains(plane)
    row = describe(OTHER, found.records, found.holdings)
    assert (row.state, row.ended_at) == (RunState.DIED, None)


def test_script_that_is_away_is_not_over(plane: MemoryPlane) -> None:
    plane.facts[f"members/{OTHER}"] = json.dumps([NODES[0], True, 0]).encode()
    plane.decide(1, (OTHER, 1))
    found = remains(plane)
    assert describe(OTHER, found.records, found.holdings).state is RunState.AWAY
    assert "its driver is away" in who_is_alive(OTHER, found.records)


def test_run_of_an_older_version_is_known_by_its_peers() -> None:
    plane = MemoryPlane()
    plane.add_driver("driver-7")
    plane.create("driver-8/A-1")
    assert all_runs(read(plane)) == ["driver-7", "driver-8"]


# which are over


def test_killed_actor_is_over_when_it_has_written_its_record_or_never_began(plane: MemoryPlane) -> None:
    plane.facts[f"killed/{SERVICE}"] = b"last words"
    assert not is_over(PeerId(SERVICE), read(plane))
    plane.retire(SERVICE)
    assert is_over(PeerId(SERVICE), read(plane))
    unborn = PeerId(f"{RUN}/C-1")
    plane.create(unborn)
    assert not is_over(unborn, read(plane))
    plane.facts[f"killed/{unborn}"] = b"last words"
    assert is_over(unborn, read(plane))


def test_those_who_are_alive_are_named_as_their_users_know_them(plane: MemoryPlane) -> None:
    assert who_is_alive(RUN, read(plane)) == ()
    assert who_is_alive(OTHER, read(plane)) == (
        "its driver is alive",
        f"{SERVICE} (Service, detached, named 'service') is alive",
    )
    plane.facts[f"killed/{SERVICE}"] = b"last words"
    assert who_is_alive(OTHER, read(plane))[1].endswith("is ending")


def test_run_that_is_not_over_is_refused_and_nothing_is_touched(plane: MemoryPlane, store: Store) -> None:
    plane.end_run(OTHER)
    before = dict(plane.facts)
    with pytest.raises(NotRemoved, match=r"it is not over: .*named 'service'.* is alive"):
        remove(plane, OTHER)
    with pytest.raises(NotRemoved, match="no such run in this cluster: see `stash runs`"):
        remove(plane, "driver-2")
    assert plane.facts == before
    assert SERVICE in store.peers()[0]


# removing


def test_removed_run_is_in_no_replica_and_on_no_record(plane: MemoryPlane, store: Store) -> None:
    plane.facts[f"crashes/{ACTOR}/000000000001/00000001"] = b"add"
    plane.facts[f"strayed/{ACTOR}"] = b"1"
    plane.facts["names/default/first"] = json.dumps([ACTOR, "Counter", []]).encode()
    plane.recover(ACTOR, 1, round_=1)
    others = {key for key in plane.facts if OTHER in key}
    removed = remove(plane)
    assert (removed.name, removed.copies) == (RUN, 3)
    assert removed.bytes > 0
    assert removed.freed_bytes == 3 * removed.bytes
    assert store.peers() == [[SERVICE]] * 3
    about = [key for key in plane.facts if RUN in key and OTHER not in key]
    assert about == [f"recoveries/00000001/{ACTOR}"], "what was recovered stays on record"
    assert "names/default/first" not in plane.facts
    assert others <= plane.facts.keys()


def test_nobody_is_ever_on_record_of_whom_it_is_not_known_that_he_has_left(plane: MemoryPlane) -> None:
    keys = keys_of(RUN, read(plane), list(plane.facts))
    for cut in range(len(keys) + 1):
        left = MemoryPlane()
        left.facts = {key: value for key, value in plane.facts.items() if key not in keys[:cut]}
        assert who_is_alive(RUN, read(left)) == () or RUN not in all_runs(read(left))


def test_name_that_another_actor_took_meanwhile_stays(plane: MemoryPlane, store: Store) -> None:
    assert store.replicas
    plane.facts["names/default/first"] = json.dumps([ACTOR, "Counter", []]).encode()
    found = remains(plane)
    plane.facts["names/default/first"] = json.dumps([SERVICE, "Service", []]).encode()
    found.remove(RUN)
    assert json.loads(plane.facts["names/default/first"])[0] == SERVICE


def test_minority_of_replicas_that_answer_is_refused(plane: MemoryPlane, store: Store) -> None:
    store.stop(1, 2)
    before = dict(plane.facts)
    with pytest.raises(Failed, match=r"fewer than a majority.*replica-1: .*see `stash doctor`"):
        remove(plane)
    assert plane.facts == before
    assert ACTOR in store.peers()[0]


def test_majority_of_replicas_is_enough(plane: MemoryPlane, store: Store) -> None:
    store.stop(2)
    assert remove(plane).copies == 2
    assert [ACTOR in peers for peers in store.peers()] == [False, False, True]


def test_replica_set_that_changes_meanwhile_keeps_the_run_on_record(plane: MemoryPlane, store: Store) -> None:
    found = remains(plane)
    for replica in store.replicas[:2]:
        replica.epoch = Epoch(2)
    with pytest.raises(Failed, match=r"too few replicas.*gone on to epoch 2.*do it again"):
        found.remove(RUN)
    assert RUN in all_runs(read(plane))
    plane.begin_epoch(2, (0, 1, 2))
    assert remove(plane).copies == 3


def test_what_a_replica_missed_is_of_no_run_afterwards(plane: MemoryPlane, store: Store) -> None:
    store.stop(2)
    remove(plane)
    found = remains(plane)
    assert strays(found.records, found.holdings) == []
    store.write(ACTOR, RUN, only=(0,))
    again = remains(plane)
    assert strays(again.records, again.holdings) == [ACTOR]


# what others may still ask for


def test_run_is_needed_while_the_log_of_a_living_actor_names_it(plane: MemoryPlane, store: Store) -> None:
    store.write(SERVICE, OTHER, RUN)
    with pytest.raises(NotRemoved, match=f"may still be needed by {SERVICE}.*next checkpoint"):
        remove(plane)
    store.checkpoint(SERVICE, upper=2, finished={RUN: 1})
    remove(plane)
    assert facts_about(plane, "retired/") == [f"retired/{RUN}", f"retired/{ACTOR}", f"retired/{CHILD}"]
    assert all_runs(read(plane)) == [OTHER]


def test_run_is_needed_while_a_living_actor_has_called_it(plane: MemoryPlane, store: Store) -> None:
    store.checkpoint(SERVICE, upper=1, called={ACTOR: 1})
    with pytest.raises(NotRemoved, match="may still be needed by"):
        remove(plane)
    plane.facts[f"killed/{SERVICE}"] = b"last words"
    plane.retire(SERVICE)
    remove(plane)
    assert facts_about(plane, "retired/") == [f"retired/{SERVICE}"]


def test_run_is_needed_while_a_living_actor_has_not_finished_a_call_of_its_record(
    plane: MemoryPlane, store: Store
) -> None:
    store.checkpoint(ACTOR, upper=2, called={SERVICE: 5}, final=True)
    store.checkpoint(SERVICE, upper=1, finished={ACTOR: 4})
    with pytest.raises(NotRemoved, match="may still be needed by"):
        remove(plane)
    store.checkpoint(SERVICE, upper=2, finished={ACTOR: 5})
    remove(plane)


def test_driver_without_actors_leaves_nothing_that_anybody_could_need_but_that_it_left(
    plane: MemoryPlane, store: Store
) -> None:
    plane.begin_run("driver-3")
    plane.end_run("driver-3")
    store.write(SERVICE, OTHER, "driver-3")
    assert remove(plane, "driver-3").bytes == 0
    assert [key for key in plane.facts if "driver-3" in key] == ["retired/driver-3"]


def facts_about(plane: MemoryPlane, prefix: str) -> list[str]:
    return sorted(plane.keys(prefix), key=len)
