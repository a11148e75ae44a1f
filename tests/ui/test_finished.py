"""The facts of files that a cluster has left."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from lineage_stash.cli.sources import NotFound
from lineage_stash.on_ray import recovery_file
from lineage_stash.ui.finished import FinishedRun
from lineage_stash.ui.server import NotThere
from tests.cli.test_logs import DRIVER, FRONT, STORE, Disk, add, ran


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """A front that calls a store; both were called by a driver that keeps no log."""
    disk = Disk(tmp_path / "replica-0")
    disk.write(FRONT, *[ran(DRIVER, number, add(number)) for number in range(20)])
    disk.write(STORE, *[ran(FRONT, number, None, ((FRONT, number + 1),)) for number in range(700)])
    for peer in (STORE, "driver-2/Another-1"):
        record = {"round": 1, "peer": peer, "incarnation": 1, "noticed_at": 5.0, "total_ms": 80.0}
        recovery_file.append(tmp_path, json.dumps(record).encode())
    return tmp_path


def test_files_say_who_was_there_who_called_whom_and_what_was_recovered(storage: Path) -> None:
    with closing(FinishedRun([storage])) as run:
        facts = run.facts()
        assert json.loads(json.dumps(facts))["source"]["live"] is False
        peers = {peer["peer"]: peer for peer in facts["peers"]}
        assert {peer: found["class_name"] for peer, found in peers.items()} == {
            DRIVER: "",
            FRONT: "Front",
            STORE: "Store",
        }
        assert (peers[STORE]["upper"], peers[STORE]["state"], peers[DRIVER]["state"]) == (700, "kept", "no log")
        flows = {(flow["caller"], flow["callee"]): flow["calls"] for flow in facts["flows"]}
        assert flows == {(DRIVER, FRONT): 20, (FRONT, STORE): 700}
        assert [recovery["peer"] for recovery in facts["recoveries"]] == [STORE], "others are of another cluster"
        assert run.recovery(facts["recoveries"][0]["id"])["affected"] == [FRONT]
        assert facts["totals"]["entries"] == 720


def test_log_is_told_page_by_page_to_its_beginning(storage: Path) -> None:
    with closing(FinishedRun([storage])) as run:
        newest = run.log(STORE, None)
        assert (newest["entries"][-1]["index"], newest["more"]) == (699, True)
        assert run.log(STORE, newest["entries"][0]["index"])["entries"][-1]["index"] == 639
        assert run.log(STORE, 30)["more"] is False


def test_past_of_a_call_is_nodes_and_edges(storage: Path) -> None:
    with closing(FinishedRun([storage])) as run:
        past = run.past(f"{STORE}:3")
        assert past["root"] == f"{STORE}:3"
        assert {"called", "order"} <= {edge["kind"] for edge in past["edges"]}


def test_what_is_not_there_is_one_line(storage: Path, tmp_path: Path) -> None:
    with closing(FinishedRun([storage])) as run:
        for ask in (lambda: run.log("nobody", None), lambda: run.past("nobody:1"), lambda: run.recovery("9-0000")):
            with pytest.raises(NotThere, match=r"^there is no [^\n]+$"):
                ask()
    with pytest.raises(NotFound, match="there is no store in"):
        FinishedRun([tmp_path / "nothing"])


def test_replica_that_is_damaged_is_left_out_and_said_to_be(storage: Path) -> None:
    Disk(storage / "replica-1").write(STORE, *[ran(FRONT, number) for number in range(3)])
    (segment,) = (storage / "replica-1").glob("*.segment")
    content = bytearray(segment.read_bytes())
    content[10] ^= 0xFF
    segment.write_bytes(bytes(content))
    with closing(FinishedRun([storage])) as run:
        facts = run.facts()
        assert facts["trouble"].startswith("left out: ")
        assert [service["up"] for service in facts["services"]] == [True, False]
        assert len(facts["peers"]) == 3
