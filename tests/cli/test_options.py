"""What commands share, and what is drawn, judged and counted without a cluster."""

import time
import xml.etree.ElementTree as ElementTree
from typing import NamedTuple

import pytest
import typer
import yaml
from packaging.specifiers import SpecifierSet

from lineage_stash.cli import drawing, machine, show
from lineage_stash.cli.causes import CALLED, HEARD, Edge, Node, Past
from lineage_stash.cli.doctor import Verdict
from lineage_stash.cli.options import chosen
from lineage_stash.cli.status import PeerStatus, State
from lineage_stash.cli.top import Look, rates
from lineage_stash.testing.killer import Killer
from lineage_stash.testing.signals import wait_until

GIB = 1 << 30


class Row(NamedTuple):
    name: str
    state: State
    pid: int | None


ROWS = (Row("a", State.ALIVE, 1), Row("b", State.GONE, None))


@pytest.mark.parametrize(
    ("conditions", "names"),
    [
        (None, "ab"),
        (["state=alive"], "a"),
        (["state=ALIVE"], "a"),
        (["state!=alive"], "b"),
        (["pid="], "b"),
        (["pid=1", "name=b"], ""),
    ],
)
def test_rows_are_chosen_by_all_conditions(conditions: list[str] | None, names: str) -> None:
    assert "".join(row.name for row in chosen(ROWS, conditions, Row._fields)) == names


@pytest.mark.parametrize("condition", ["colour=red", "state", "=x"])
def test_condition_that_is_none_is_refused_and_fields_are_named(condition: str) -> None:
    with pytest.raises(typer.BadParameter):
        chosen(ROWS, [condition], Row._fields)


def test_yaml_reads_back_what_was_written() -> None:
    value = {
        "none": None, "yes": True, "word": "no", "text": "a: b # c", "number": 1.5, "empty": [], "nothing": {},
        "list": [1, "on", {"a": [{"b": "→"}], "c": ""}], "deep": {"x": {"y": "driver-1/A-1"}}, "-": "- x", "n": "123",
    }  # fmt: skip
    assert yaml.safe_load(show.as_yaml(value)) == value


def test_picture_of_a_call_that_waits_for_one_that_it_made_comes_to_an_end() -> None:
    nodes = tuple(Node(f"{peer}:{at}", "call", peer, at, "f(<&>)", "", ("x",)) for peer, at in (("a", 1), ("b", 0)))
    past = Past("a:1", "a:1", nodes, (Edge("b:0", "a:1", HEARD), Edge("a:1", "b:0", CALLED)), 0)
    assert set(drawing.levels(past).values()) == {0, 1}
    assert "f(<&>)" in "".join(ElementTree.fromstring(drawing.as_svg(past)).itertext())
    assert '"a:1" -> "b:0"' in drawing.as_dot(past)


def status(calls: int, life: int = 0) -> PeerStatus:
    found = PeerStatus("driver-1/A-1", "actor", "A", "", "", 1, life, 0, State.ALIVE)
    return found._replace(calls=calls, upper=2 * calls, committed=calls)


def test_rates_are_by_the_time_between_and_none_is_told_across_lives() -> None:
    before = Look(10.0, {"driver-1/A-1": status(100)}, 0, 0, None)
    (row,) = rates(before, Look(12.0, {"driver-1/A-1": status(300)}, 0, 0, None))
    assert (row.calls_per_s, row.entries_per_s, row.committed_per_s, row.lag) == (100.0, 200.0, 100.0, 0)
    (row,) = rates(before, Look(12.0, {"driver-1/A-1": status(300, life=1)}, 0, 0, None))
    assert row.calls_per_s == 0.0


def test_machine_is_judged() -> None:
    wanted = SpecifierSet(">=3.5,<3.6")
    assert machine.judge_spark_version("pyspark", None, wanted).verdict is Verdict.WARNING
    assert machine.judge_spark_version("pyspark", "3.6", wanted).verdict is Verdict.PROBLEM
    assert machine.judge_java_flags("", {}).verdict is Verdict.OK
    refused = machine.judge_java_flags("Unrecognized option", {"JAVA_TOOL_OPTIONS": "-Xfoo"})
    assert (refused.verdict, "JAVA_TOOL_OPTIONS=-Xfoo" in refused.found) == (Verdict.WARNING, True)
    assert machine.judge_memory(16 * GIB, 8 * GIB, GIB).verdict is Verdict.OK
    assert machine.judge_memory(16 * GIB, GIB, GIB).verdict is Verdict.WARNING
    assert "shm-size" in machine.judge_memory(16 * GIB, 8 * GIB, 64 << 20).advice
    assert machine.judge_clock(0.01).verdict is Verdict.OK
    assert machine.judge_clock(-5.0).verdict is Verdict.WARNING
    assert machine.judge_ports({"replica-0": ""}).verdict is Verdict.OK
    assert machine.judge_ports({"replica-0": "", "replica-1": "refused"}).verdict is Verdict.PROBLEM


def test_killer_that_finds_nobody_kills_nobody_and_one_that_fails_says_so() -> None:
    with Killer(0, dict, dict) as killer:
        time.sleep(0)
    assert (killer.kills, killer.failure) == (0, None)

    def fail() -> dict[str, int]:
        raise LookupError("the cluster is gone")

    with Killer(0, fail, dict) as killer:
        wait_until(lambda: killer.is_over, "the end of the killer")
    assert isinstance(killer.failure, LookupError)
