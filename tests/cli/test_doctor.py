"""The doctor's judgements, and the measurements that need no cluster."""

import os
import resource
import sys
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from rich.console import Console

from lineage_stash.cli import doctor, examine, show
from lineage_stash.cli.doctor import Check, Folder, Verdict
from lineage_stash.cli.records import Recovery, read, unclaimed
from tests.cli.listeners import Store
from tests.cli.planes import ALIVE, NODE, NODES, MemoryPlane

WANTED = SpecifierSet(">=2.60,<2.61")
NOW_S = 10_000.0
FOLDER = Folder("/tmp/somewhere", True, 0o40700, 5)


def recoveries(peer: str, *times: float) -> tuple[Recovery, ...]:
    return tuple(Recovery(number, peer, number, noticed_at=at) for number, at in enumerate(times, 1))


OK = [
    doctor.judge_version("ray", "2.60.3", WANTED),
    doctor.judge_java(17, "/java"),
    doctor.judge_open_files(65536, "process 1"),
    doctor.judge_open_files(resource.RLIM_INFINITY, "process 1"),
    doctor.judge_secret(True),
    doctor.judge_coordinator("coordinator-1", 0.3, ""),
    doctor.judge_replica("replica-0", 0.3, "", has_majority=True),
    doctor.judge_placement(1, ("a", "b", "c"), "a promise", is_whole=True),
    doctor.judge_placement(1, ("a",), "a promise", is_whole=True),
    doctor.judge_fact_storage("redis"),
    doctor.judge_space("/store", 1 << 40),
    doctor.judge_sync(1.5, ""),
    doctor.judge_folder(FOLDER, 5),
    doctor.judge_loops(recoveries("a", 9_990.0, 9_995.0), NOW_S),
    doctor.judge_loops(recoveries("a", 1.0, 2.0, 3.0), NOW_S),
    doctor.judge_unclaimed((), 0.0),
]
WARNINGS = [
    doctor.judge_java(None, "JAVA_HOME"),
    doctor.judge_java(8, "/java"),
    doctor.judge_open_files(1024, "process 1"),
    doctor.judge_coordinator("coordinator-1", 400.0, ""),
    doctor.judge_replica("replica-0", 400.0, "", has_majority=True),
    doctor.judge_replica("replica-0", None, "connection refused", has_majority=True),
    doctor.judge_placement(1, ("a", "a", "b"), "a promise", is_whole=True),
    doctor.judge_placement(1, ("a", "b", "c"), "less than promised", is_whole=False),
    doctor.judge_fact_storage("memory"),
    doctor.judge_fact_storage(""),
    doctor.judge_space("/store", 500 << 20),
    doctor.judge_sync(80.0, ""),
    doctor.judge_loops(recoveries("driver-1/A-1", 9_980.0, 9_990.0, 9_995.0), NOW_S),
    doctor.judge_unclaimed(("driver-1/A-1",), 0.0),
]
PROBLEMS = [
    doctor.judge_version("ray", "2.59.0", WANTED),
    doctor.judge_version("ray", None, WANTED),
    doctor.judge_secret(False),
    doctor.judge_coordinator(None, None, ""),
    doctor.judge_coordinator("coordinator-1", None, "connection refused"),
    doctor.judge_replica("replica-0", None, "connection refused", has_majority=False),
    doctor.judge_space("/store", 1000),
    doctor.judge_sync(None, "/store: permission denied"),
    doctor.judge_folder(FOLDER, 6),
    doctor.judge_folder(FOLDER._replace(mode=0o40755), 5),
    doctor.judge_folder(FOLDER._replace(is_folder=False), 5),
]


def title(check: Check) -> str:
    return f"{check.name}: {check.found}"


@pytest.mark.parametrize("check", OK, ids=title)
def test_what_is_well_needs_no_advice(check: Check) -> None:
    assert (check.verdict, check.advice) == (Verdict.OK, "")


@pytest.mark.parametrize("check", WARNINGS, ids=title)
def test_warning_says_what_to_do(check: Check) -> None:
    assert check.verdict is Verdict.WARNING
    assert check.advice


@pytest.mark.parametrize("check", PROBLEMS, ids=title)
def test_problem_says_what_to_do(check: Check) -> None:
    assert check.verdict is Verdict.PROBLEM
    assert check.advice


def test_only_a_problem_fails_the_doctor() -> None:
    assert not doctor.has_problem((*OK, *WARNINGS))
    assert doctor.has_problem((*OK, PROBLEMS[0]))


def test_actor_without_a_process_is_found_and_one_that_left_is_not() -> None:
    plane = MemoryPlane()
    for number in range(4):
        plane.create(f"driver-1/A-{number}")
    plane.live("driver-1/A-0", 0, pid=1)
    plane.facts["killed/driver-1/A-1"] = b"last words"
    plane.live("driver-1/A-2", 0, pid=2)
    plane.decide(1, ("driver-1/A-2", 1))
    assert unclaimed(read(plane)) == ("driver-1/A-2", "driver-1/A-3")


def test_this_environment_has_the_versions_that_the_project_declares() -> None:
    checks = examine.examine_machine()
    assert [check.name for check in checks[:4]] == [f"version of {one}" for one in ("Python", *examine.VERSIONED)]
    assert not doctor.has_problem(checks)
    assert checks[0].found.startswith(".".join(map(str, sys.version_info[:2])))


def test_sync_is_measured_in_the_folder_and_leaves_nothing_behind(tmp_path: Path) -> None:
    assert examine.measure_sync_ms(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []


def test_store_in_a_folder_that_is_gone_is_a_problem(tmp_path: Path) -> None:
    plane = MemoryPlane()
    plane.add_services(folder=str(tmp_path / "gone"))
    assert [check.verdict for check in examine.check_storage(read(plane), NODE)] == [Verdict.PROBLEM]


def test_only_the_disks_of_replicas_on_this_node_are_measured(tmp_path: Path) -> None:
    plane = MemoryPlane()
    plane.add_services(NODES, folder=str(tmp_path))
    (tmp_path / "replica-0").mkdir()
    space, sync = examine.check_storage(read(plane), NODE)
    assert str(tmp_path / "replica-0") in space.found
    assert sync.name == "sync of the store"
    (check,) = examine.check_storage(read(plane), "another node")
    assert check.verdict is Verdict.OK
    assert all(node in check.found for node in NODES)


def test_replicas_that_a_majority_makes_up_for_are_warnings(tmp_path: Path) -> None:
    plane = MemoryPlane()
    plane.add_services(NODES)
    store = Store(tmp_path, plane, 3)
    store.start()
    try:
        assert verdicts(plane) == ["ok", "ok", "ok", "ok"]
        store.stop(1)
        assert verdicts(plane) == ["ok", "ok", "warning", "ok"]
        store.stop(2)
        assert verdicts(plane) == ["ok", "ok", "problem", "problem"]
    finally:
        store.stop()


def verdicts(plane: MemoryPlane) -> list[str]:
    """Of the placement, and of each replica."""
    return [check.verdict.value for check in examine.check_replicas(read(plane), NODE, ALIVE)]


def test_replica_that_is_lost_or_whose_node_is_dead_is_told_with_the_reason() -> None:
    plane = MemoryPlane()
    plane.add_services(NODES)
    plane.facts["lost/1"] = b"its folder was emptied"
    found = {check.name: check.found for check in examine.check_replicas(read(plane), NODE, ALIVE - {NODES[2]})}
    assert found["replica-1"] == "lost: its folder was emptied"
    assert found["replica-2"] == "its node is dead"


def test_socket_folder_that_others_may_enter_and_a_link_to_one_are_problems(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert doctor.judge_folder(examine.look_at(folder), os.getuid()).verdict is Verdict.OK
    assert doctor.judge_folder(examine.look_at(link), os.getuid()).verdict is Verdict.PROBLEM
    folder.chmod(0o755)
    assert doctor.judge_folder(examine.look_at(folder), os.getuid()).verdict is Verdict.PROBLEM
    assert doctor.judge_folder(examine.look_at(tmp_path / "none"), os.getuid()).verdict is Verdict.PROBLEM


def test_table_puts_advice_under_what_was_found_and_counts_what_is_to_be_repaired() -> None:
    console = Console(width=show.FILE_WIDTH)
    with console.capture() as capture:
        console.print(show.checks_table((OK[0], WARNINGS[0], PROBLEMS[0])))
    text = capture.get()
    assert f"→ {PROBLEMS[0].advice}" in text
    assert "1 to repair" in text
    assert show.checks_json((OK[0], PROBLEMS[0]))["problem"] is True
