"""The language of failures, line by line: what each means, and what is said of a line that means nothing."""

import json
import re

import pytest

from lineage_stash.testing.failure_scripts import (
    FORMS,
    RPC_METHODS,
    RPC_VARIABLE,
    Moment,
    ScriptError,
    Who,
    environment,
    parse,
)
from lineage_stash.testing.failures import CAUSES


@pytest.mark.parametrize(
    ("script", "verb", "kind", "who", "at", "for_s", "delay_ms"),
    [
        ("kill:actor:counter-3@50%", "kill", "actor", Who(("counter-3",)), Moment(0.5, True), None, 0),
        ("kill:actor:a+b@10s", "kill", "actor", Who(("a", "b")), Moment(10, False), None, 0),
        ("kill:actor@10%", "kill", "actor", Who(drawn=1), Moment(0.1, True), None, 0),
        ("kill:actor:any*2@10%", "kill", "actor", Who(drawn=2), Moment(0.1, True), None, 0),
        ("kill:actor:all@10%", "kill", "actor", Who(), Moment(0.1, True), None, 0),
        ("kill:actor:'any'@0%", "kill", "actor", Who(("any",)), Moment(0, True), None, 0),
        ("kill:actor:'a:b@c,+'@0%", "kill", "actor", Who(("a:b@c,+",)), Moment(0, True), None, 0),
        ("kill:actor:3s@0%", "kill", "actor", Who(("3s",)), Moment(0, True), None, 0),
        ("kill:node:random@30%", "kill", "node", Who(drawn=1), Moment(0.3, True), None, 0),
        ("pause:replica:any@20%for3s", "pause", "replica", Who(drawn=1), Moment(0.2, True), 3, 0),
        ("pause:replica:1@20%", "pause", "replica", Who(("1",)), Moment(0.2, True), None, 0),
        ("slow:replica:all:100ms@20%for5s", "slow", "replica", Who(), Moment(0.2, True), 5, 100),
        ("slow:replica:2s@20%", "slow", "replica", Who(drawn=1), Moment(0.2, True), None, 2000),
        ("stop:actor:x@40%for500ms", "stop", "actor", Who(("x",)), Moment(0.4, True), 0.5, 0),
        ("kill:coordinator@1.5s", "kill", "coordinator", Who(drawn=1), Moment(1.5, False), None, 0),
        ("kill:gcs@250ms", "kill", "gcs", Who(drawn=1), Moment(0.25, False), 1, 0),
        ("kill:driver@50%for3s", "kill", "driver", Who(drawn=1), Moment(0.5, True), 3, 0),
        ("kill:spark-executor@5s", "kill", "spark-executor", Who(drawn=1), Moment(5, False), None, 0),
        ("kill:spark-master@5s", "kill", "spark-master", Who(drawn=1), Moment(5, False), None, 0),
        ("kill:spark-application@5s", "kill", "spark-application", Who(drawn=1), Moment(5, False), None, 0),
        ("fill:disk@50%for1s", "fill", "disk", Who(), Moment(0.5, True), 1, 0),
        (" kill : actor : a + b @ 50% ", "kill", "actor", Who(("a", "b")), Moment(0.5, True), None, 0),
    ],
)  # fmt: skip
def test_script_means(script: str, verb: str, kind: str, who: Who, at: Moment, for_s: float | None,
                      delay_ms: float) -> None:  # fmt: skip
    (planned,) = parse(script)
    assert (planned.verb, planned.kind, planned.who, planned.at) == (verb, kind, who, at)
    assert (planned.for_s, planned.delay_ms) == (for_s, delay_ms)
    assert parse(str(planned)) == parse(script), "a plan is printed as a script that means the same"


def test_list_is_in_its_order_and_an_empty_script_plans_nothing() -> None:
    assert [str(planned) for planned in parse("kill:actor:a@50%, stop:actor:b@1sfor2s")] == [
        "kill:actor:a@50%", "stop:actor:b@1sfor2s",
    ]  # fmt: skip
    assert parse("") == []


def test_everything_that_can_be_said_can_be_caused_and_ends_if_it_lasts() -> None:
    assert FORMS.keys() == CAUSES.keys()
    assert {form for form, cause in CAUSES.items() if cause.end} == {form for form, said in FORMS.items() if said.lasts}


@pytest.mark.parametrize(
    ("script", "place", "says"),
    [
        ("kil:actor:a@50%", "kil", "kill, stop, pause, slow, fill, random, rpc"),
        ("kill:actr:a@50%", "actr", "actor, replica, coordinator, node, gcs, driver, spark-executor"),
        ("pause:actor:a@50%", "actor", "nothing to pause: replica"),
        ("kill@50%", "@", "what to kill: actor"),
        ("kill:actor:a", "", "when: as 50%, 10s"),
        ("kill:actor:a@", "", "a moment, as 50% or 10s"),
        ("kill:actor:a@50", "5", "a moment, as 50% or 10s"),
        ("kill:actor:a@150%", "150%", "more than 100%"),
        ("kill:actor:a@50%-10%", "10%", "ends after it began"),
        ("kill:actor:a@5s-10%", "10%", "same unit"),
        ("kill:actor:a@50%for2s", "for2s", "not over after a time"),
        ("kill:actor:a+a@50%", "a+a", "named twice"),
        ("kill:actor:@50%", "@", "a name"),
        ("kill:actor:'a@50%", "'a@50%", "never closed"),
        ("stop:actor:a@50%for", "", "how long"),
        ("slow:replica:1@50%", "@", "how slow, as in 100ms"),
        ("slow:replica:1:fast@50%", "f", "a delay"),
        ("kill:actor:a@50% kill:actor:b@50%", "k", "the next failure"),
        ("kill:actor:a@50%,", "", "another failure"),
        ("random@10%-90%", "@", "how many"),
        ("random:0@10%-90%", "0", "1 or more"),
        ("random:2:disk@10%-90%", "disk", "nothing to kill"),
        ("rpc:everything", "everything", "control-plane, actors, workers, all"),
    ],
)
def test_bad_script_is_shown_its_place_and_what_is_possible(script: str, place: str, says: str) -> None:
    with pytest.raises(ScriptError, match=re.escape(says)) as raised:
        parse(script)
    _, shown, marks = str(raised.value).splitlines()
    assert shown[4:] == script
    lower, upper = marks.index("^"), marks.rindex("^") + 1
    assert shown[lower:upper] == place


def test_random_failures_are_the_seeds_within_their_window() -> None:
    drawn = parse("random:20:actor+replica@10%-90%", seed=7)
    assert drawn == parse("random:20:actor+replica@10%-90%", seed=7) != parse("random:20:actor+replica@10%-90%", seed=8)
    assert len(drawn) == 20
    assert {planned.kind for planned in drawn} == {"actor", "replica"}
    moments = [planned.at.amount for planned in drawn if planned.at]
    assert moments == sorted(moments)
    assert 0.1 <= moments[0] < moments[-1] <= 0.9


def test_window_of_one_failure_is_drawn_too() -> None:
    moments = {parse("kill:actor:a@2s-5s", seed)[0].at for seed in range(20)}
    assert len(moments) == 20
    assert all(at and not at.is_fraction and 2 <= at.amount <= 5 for at in moments)


def test_who_is_drawn_from_those_who_are_there() -> None:
    there = ["c", "a", "b"]
    assert Who().choose(there, 0) == ["a", "b", "c"]
    assert Who(("x",)).choose(there, 0) == ["x"]
    assert {Who(drawn=1).choose(there, draw)[0] for draw in range(50)} == set(there)
    assert Who(drawn=2).choose(there, 3) == Who(drawn=2).choose(there[::-1], 3)
    with pytest.raises(LookupError, match="4 were to be drawn, and there are 3"):
        Who(drawn=4).choose(there, 0)


def test_rpc_failures_are_an_environment_for_ray() -> None:
    assert environment(parse("kill:actor:a@50%")) == {}
    failing = json.loads(environment(parse("rpc:control-plane+workers:2"))[RPC_VARIABLE])
    assert set(failing) == {*RPC_METHODS["control-plane"], *RPC_METHODS["workers"]}
    assert {each["num_failures"] for each in failing.values()} == {2}
    assert set(json.loads(environment(parse("rpc:all"))[RPC_VARIABLE])) == {
        method for methods in RPC_METHODS.values() for method in methods
    }
