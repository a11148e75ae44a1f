"""What the records say of each peer, and what is promised; no cluster, no terminal."""

import json

import pytest
from rich.console import Console

from lineage_stash.cli import show, status
from lineage_stash.cli.records import read
from lineage_stash.cli.status import PeerStatus, State, Status, collect
from lineage_stash.core.ids import PeerId
from tests.cli.planes import NODE, MemoryPlane

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
    assert row == PeerStatus(ACTOR, "actor", "Counter", NODE, "192.0.2.7", 3, 2, 1, State.ALIVE)


def test_services_that_do_not_answer_are_down_and_say_why(plane: MemoryPlane) -> None:
    found = collect(read(plane), "192.0.2.7:6379", NODE)
    assert [(service.name, service.up) for service in found.services] == [("coordinator", False), ("replica-0", False)]
    assert all("no such file" in service.found for service in found.services)
    assert found.spares is None


def test_cluster_that_lost_its_secret_has_no_service_to_speak_to(plane: MemoryPlane) -> None:
    del plane.facts["secret"]
    found = collect(read(plane), "192.0.2.7:6379", NODE)
    assert [service.up for service in found.services] == [False, False]


def test_promise_says_what_is_not_survived() -> None:
    assert "is not recovered" in status.promise_of(0)
    assert "any number of processes" in status.promise_of(1)
    assert "node or its disk is not survived" in status.promise_of(1)
    assert "1 of the replicas" in status.promise_of(3)


def test_those_who_left_can_be_left_out(plane: MemoryPlane) -> None:
    plane.facts[f"retired/{DRIVER}"] = b"1"
    found = collect(read(plane), "192.0.2.7:6379", NODE)
    assert [peer.peer for peer in status.without_those_who_left(found).peers] == [ACTOR]


def printed(found: Status) -> str:
    console = Console(width=show.FILE_WIDTH)
    with console.capture() as capture:
        console.print(show.status_table(found))
    return capture.get()


def test_table_and_json_tell_the_same(plane: MemoryPlane) -> None:
    plane.live(ACTOR, 0, pid=1234)
    found = collect(read(plane), "192.0.2.7:6379", NODE)
    text, value = printed(found), json.loads(show.as_json(show.status_json(found)))
    assert found.promise in text
    assert value["promise"] == found.promise
    assert "spares: unknown" in text
    assert value["spares"] is None
    (row,) = (peer for peer in value["peers"] if peer["peer"] == ACTOR)
    assert (row["state"], row["pid"], row["class_name"]) == ("alive", 1234, "Counter")
    (line,) = (line for line in text.splitlines() if ACTOR in line)
    assert all(word in line for word in ("alive", "1234", "Counter", "01234567 192.0.2.7"))


def test_names_with_brackets_are_printed_as_they_are(plane: MemoryPlane) -> None:
    plane.create("driver-1/[bold]-2", class_name="[red]")
    text = printed(collect(read(plane), "192.0.2.7:6379", NODE))
    assert "driver-1/[bold]-2" in text
    assert "[red]" in text
