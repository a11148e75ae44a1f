"""What the records say of each peer and of the store, and what is promised; no cluster, no terminal."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from lineage_stash.cli import show, status
from lineage_stash.cli.records import read
from lineage_stash.cli.status import PeerStatus, State, Status, collect
from lineage_stash.core.checkpoint import CallsFrom, CallsTo, Checkpoint
from lineage_stash.core.ids import FIRST_INCARNATION, Index, PeerId, Seqno
from lineage_stash.on_ray.replica_sets import ANYWHERE
from lineage_stash.store.contract import Item
from tests.cli.listeners import Store
from tests.cli.planes import ALIVE, NODE, NODES, OTHER_NODES, MemoryPlane

DRIVER = "driver-1"
ACTOR = "driver-1/Counter-1"


@pytest.fixture
def plane() -> MemoryPlane:
    found = MemoryPlane()
    found.add_services()
    found.add_driver(DRIVER)
    found.create(ACTOR)
    return found


def state(plane: MemoryPlane, peer: str, *links: str, coordinator_answers: bool = True) -> State:
    return status.state_of(PeerId(peer), read(plane), frozenset(links) if coordinator_answers else None)


def test_actor_that_nobody_has_taken_up_is_starting(plane: MemoryPlane) -> None:
    assert state(plane, ACTOR) is State.STARTING


def test_peer_with_a_link_to_the_coordinator_is_alive(plane: MemoryPlane) -> None:
    plane.live(ACTOR, 0, pid=1)
    assert state(plane, ACTOR, f"{ACTOR}@0") is State.ALIVE
    assert state(plane, DRIVER, f"{DRIVER}@0") is State.ALIVE


def test_peer_that_came_up_is_alive_where_the_coordinator_does_not_answer(plane: MemoryPlane) -> None:
    plane.live(ACTOR, 0, pid=1)
    assert state(plane, ACTOR, coordinator_answers=False) is State.ALIVE


def test_peer_that_an_open_round_takes_for_dead_is_recovering(plane: MemoryPlane) -> None:
    plane.live(ACTOR, 0, pid=1)
    plane.open_round(1, (ACTOR, 0))
    assert state(plane, ACTOR, f"{ACTOR}@0") is State.RECOVERING


def test_note_of_a_decided_round_accuses_nobody(plane: MemoryPlane) -> None:
    plane.open_round(1, (ACTOR, 1))
    plane.decide(1, (ACTOR, 1))
    assert state(plane, ACTOR, f"{ACTOR}@1") is State.ALIVE


def test_new_life_without_a_process_is_recovering(plane: MemoryPlane) -> None:
    plane.live(ACTOR, 0, pid=1)
    plane.decide(1, (ACTOR, 1))
    assert state(plane, ACTOR, f"{ACTOR}@0") is State.RECOVERING
    assert state(plane, ACTOR, coordinator_answers=False) is State.RECOVERING


def test_script_that_can_be_resumed_is_away_until_it_has_begun_the_life_that_was_decided(plane: MemoryPlane) -> None:
    plane.facts[f"members/{DRIVER}"] = json.dumps([NODE, True, 0]).encode()
    plane.decide(1, (DRIVER, 1))
    assert state(plane, DRIVER) is State.AWAY
    plane.facts[f"members/{DRIVER}"] = json.dumps([NODE, True, 1]).encode()
    assert state(plane, DRIVER, f"{DRIVER}@1") is State.ALIVE


def test_peers_that_left_say_how(plane: MemoryPlane) -> None:
    plane.facts[f"killed/{ACTOR}"] = plane.facts[f"retired/{ACTOR}"] = b"1"
    plane.facts[f"retired/{DRIVER}"] = b"1"
    assert state(plane, ACTOR) is State.KILLED
    assert state(plane, DRIVER) is State.RETIRED
    plane.decide(1, gone=(DRIVER,))
    assert state(plane, DRIVER) is State.GONE


def test_row_tells_where_the_present_life_is_and_how_often_it_was_recovered(plane: MemoryPlane) -> None:
    plane.live(ACTOR, 0, pid=1)
    plane.live(ACTOR, 2, pid=3)
    plane.decide(1, (ACTOR, 1))
    plane.decide(2, (ACTOR, 2))
    plane.recover(ACTOR, 2, round_=2)
    row = status.peer_status(PeerId(ACTOR), read(plane), frozenset((f"{ACTOR}@2",)))
    assert row == PeerStatus(ACTOR, "actor", "Counter", NODE, "192.0.2.7", 3, 2, 1, State.ALIVE, run=DRIVER)


def test_services_that_do_not_answer_are_down_and_say_why(plane: MemoryPlane) -> None:
    found = collect(read(plane), "192.0.2.7:6379", NODE, ALIVE)
    assert [(service.name, service.up) for service in found.services] == [("coordinator", False), ("replica-0", False)]
    assert all("no such file" in service.found for service in found.services)
    assert found.spares is None


def test_cluster_that_lost_its_secret_has_no_service_to_speak_to(plane: MemoryPlane) -> None:
    del plane.facts["secret"]
    found = collect(read(plane), "192.0.2.7:6379", NODE, ALIVE)
    assert [service.up for service in found.services] == [False, False]


def test_each_replica_of_the_newest_set_is_asked_what_it_holds(tmp_path: Path, plane: MemoryPlane) -> None:
    plane.add_services(NODES)
    store = Store(tmp_path, plane, 3)
    store.write(ACTOR, DRIVER, only=(0, 1))
    store.start()
    try:
        found = collect(read(plane), "192.0.2.7:6379", NODE, ALIVE)
    finally:
        store.stop()
    replicas = found.services[1:]
    assert [(one.name, one.up, one.node) for one in replicas] == [
        (f"replica-{number}", True, node) for number, node in enumerate(NODES)
    ]
    assert [bool(one.held_bytes) for one in replicas] == [True, True, False]
    assert all(one.took_ms is not None and one.took_ms > 0 for one in replicas)
    assert (found.epoch, found.durability, found.lost) == (1, "disk", {})


def test_replicas_that_are_lost_or_on_a_dead_node_say_so_without_being_asked(plane: MemoryPlane) -> None:
    plane.add_services(NODES)
    plane.facts["lost/1"] = b"its folder was emptied"
    found = collect(read(plane), "192.0.2.7:6379", NODE, frozenset((NODE, OTHER_NODES[0])))
    said = {service.name: service.found for service in found.services}
    assert said["replica-1"] == "lost: its folder was emptied"
    assert said["replica-2"] == "its node is dead"
    assert found.promise.startswith("none now: replica-1, replica-2 of 3 replicas are out")


def test_archive_is_bound_to_no_node_and_counts_for_no_promise(tmp_path: Path, plane: MemoryPlane) -> None:
    store = Store(tmp_path, plane, 2)
    plane.facts["replicas/1"] = json.dumps([ANYWHERE, "s3://bucket/folder"]).encode()
    plane.begin_epoch(1, (0,), archive=1)
    store.start()
    try:
        found = collect(read(plane), "192.0.2.7:6379", NODE, ALIVE)
    finally:
        store.stop()
    assert [(service.name, service.up) for service in found.services[1:]] == [("replica-0", True), ("replica-1", True)]
    assert found.services[2].found.endswith("the archive in s3://bucket/folder")
    assert found.promise.startswith("one replica")


def test_replica_that_was_replaced_is_told_beside_the_newest_set(plane: MemoryPlane) -> None:
    plane.add_services(NODES)
    plane.facts["lost/0"] = b"its folder was emptied. Put its files back."
    plane.add_replica(3, NODE)
    plane.begin_epoch(2, (1, 2, 3))
    found = collect(read(plane), "192.0.2.7:6379", NODE, ALIVE)
    assert [service.name for service in found.services] == ["coordinator", "replica-1", "replica-2", "replica-3"]
    assert found.lost == {"replica-0": "its folder was emptied. Put its files back."}
    text = printed(found)
    assert "store: epoch 2, durability disk" in text
    assert "store: replica-0 was lost, and is replaced: its folder was emptied\n" in text.replace(" \n", "\n")


def test_promise_is_that_of_the_replicas_nodes_and_less_while_one_is_out(plane: MemoryPlane) -> None:
    assert "no node be lost" not in status.promise_of(read(plane), ALIVE)
    plane.add_services(NODES)
    in_full = "3 replicas on 3 nodes: any number of processes may die, and 1 of these nodes be lost at once"
    assert status.promise_of(read(plane), ALIVE) == in_full
    less = status.promise_of(read(plane), ALIVE - {OTHER_NODES[0]})
    assert less == f"less now: replica-1 of 3 replicas is out. In full: {in_full}"
    plane.add_services((NODE, NODE, NODE))
    assert "no node be lost" in status.promise_of(read(plane), ALIVE)


def test_cluster_without_a_store_promises_nothing() -> None:
    assert "is not recovered" in status.promise_of(read(MemoryPlane()), ALIVE)


def test_bytes_of_a_peer_are_its_log_and_what_its_checkpoints_hold() -> None:
    calls_to = ((PeerId("b"), CallsTo(Seqno(0), Seqno(1), (b"12",), Seqno(0), ((Seqno(0), b"345"),), ())),)
    calls_from = ((PeerId("c"), CallsFrom(Seqno(1), Seqno(0), (b"6789",), ())),)
    kept = Checkpoint(PeerId("a"), FIRST_INCARNATION, Index(1), b"state", 0, calls_to, calls_from, (), 0, False)
    item = Item(PeerId("a"), Index(1), Index(2), FIRST_INCARNATION, (), FIRST_INCARNATION, (kept,), 1000)
    assert status.bytes_of(item) == 1000 + 5 + 2 + 3 + 4


def test_those_who_left_can_be_left_out(plane: MemoryPlane) -> None:
    plane.facts[f"retired/{DRIVER}"] = b"1"
    found = collect(read(plane), "192.0.2.7:6379", NODE, ALIVE)
    assert [peer.peer for peer in status.without_those_who_left(found).peers] == [ACTOR]


def printed(found: Status) -> str:
    console = Console(width=show.FILE_WIDTH)
    with console.capture() as capture:
        console.print(show.status_table(found))
    return capture.get()


def test_table_and_json_tell_the_same(plane: MemoryPlane) -> None:
    plane.live(ACTOR, 0, pid=1234)
    found = collect(read(plane), "192.0.2.7:6379", NODE, ALIVE)
    text, value = printed(found), json.loads(show.as_json(show.status_json(found)))
    assert found.promise in text
    assert value["promise"] == found.promise
    assert "spares: unknown" in text
    assert value["spares"] is None
    (row,) = (peer for peer in value["peers"] if peer["peer"] == ACTOR)
    assert (row["state"], row["pid"], row["class_name"]) == ("alive", 1234, "Counter")
    assert (value["epoch"], value["durability"], value["services"][1]["name"]) == (1, "disk", "replica-0")
    (line,) = (line for line in text.splitlines() if ACTOR in line)
    assert all(word in line for word in ("alive", "1234", "Counter", "01234567 192.0.2.7"))


def test_names_with_brackets_are_printed_as_they_are(plane: MemoryPlane) -> None:
    plane.create("driver-1/[bold]-2", class_name="[red]")
    text = printed(collect(read(plane), "192.0.2.7:6379", NODE, ALIVE))
    assert "driver-1/[bold]-2" in text
    assert "[red]" in text
