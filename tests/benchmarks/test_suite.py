"""The suite itself: its clock, its oracle, its cells, and that a failure in a record has really happened."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.suite import cells, command, measuring, oracle
from benchmarks.suite.driving import Pacer, Reply
from benchmarks.suite.records import Cell, Record, name_of, read
from benchmarks.suite.running import fill, parameters_of
from benchmarks.suite.systems import CLASSES, make_system
from benchmarks.suite.systems.base import options_of
from benchmarks.suite.workloads.base import Measured
from benchmarks.suite.workloads.wordcount import expected_of, lane_of, stream_of
from lineage_stash.testing.failures import parse
from tests.benchmarks.made_up import environment


class SlowSystem:
    """Answers at once, but takes calls slowly: whoever sends is held up, as by back-pressure."""

    def __init__(self, *, held_up_s: float) -> None:
        self.now = 100.0
        self._held_up_s = held_up_s

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-6)

    def send(self, number: int) -> list[tuple[str, Any]]:
        self.now += self._held_up_s
        return [("lane", number)]

    def wait(self, refs: Sequence[Any], timeout_s: float) -> Sequence[Any]:
        del timeout_s
        return refs

    def get(self, refs: Sequence[Any], timeout_s: float) -> list[Any]:
        del timeout_s
        return list(refs)


def paced(held_up_s: float, *, rate: float, count: int) -> list[Reply]:
    system = SlowSystem(held_up_s=held_up_s)
    return Pacer(system, rate, count, clock=system.clock, sleep=system.sleep).run(system.send)  # type: ignore[arg-type]


def test_record_that_is_sent_late_counts_from_when_it_was_due() -> None:
    replies = sorted(paced(0.02, rate=100, count=100))  # takes twice the time that there is
    assert [reply.due_s for reply in replies] == [number / 100 for number in range(100)]
    late_ms = [reply.latency_ms for reply in replies]
    assert late_ms[-1] == pytest.approx(1e3 * (100 * 0.02 - 0.99), rel=0.1)
    assert late_ms[50] > late_ms[0] + 400


def test_record_that_is_sent_in_time_has_no_latency_of_ours() -> None:
    assert max(reply.latency_ms for reply in paced(0.0, rate=100, count=100)) < 1.0


# the oracle


STREAM = stream_of({"rate": 10, "seconds": 2.0, "warm_up_s": 0.0, "words": 10, "vocabulary": 50, "counters": 2}, seed=3)
EXPECTED, TRUTH = expected_of(STREAM, 20), STREAM.truth(20)


def right() -> list[Reply]:
    return [Reply(number, lane, 0.0, 0.1, value) for (number, lane), value in EXPECTED.items()]


def test_right_replies_and_a_right_state_are_precise() -> None:
    assert oracle.judge(right(), EXPECTED, TRUTH, TRUTH).delivered == "precise"


def test_wrong_reply_before_a_right_state_is_convergent() -> None:
    replies = right()
    replies[5] = replies[5]._replace(value=-1)
    judged = oracle.judge(replies, EXPECTED, TRUTH, TRUTH)
    assert judged == ("convergent", "1 replies differ from the truth, the last state does not")


def test_reply_that_came_again_is_repeating() -> None:
    assert oracle.judge([*right(), right()[0]], EXPECTED, TRUTH, TRUTH).delivered == "repeating"


def test_word_that_was_counted_twice_is_divergent() -> None:
    word = next(iter(TRUTH))
    judged = oracle.judge(right(), EXPECTED, {**TRUTH, word: TRUTH[word] + 1}, TRUTH)
    assert judged == ("divergent", "1 counted more often than once")


def test_word_that_was_not_counted_is_a_gap() -> None:
    word = next(iter(TRUTH))
    assert oracle.judge(right(), EXPECTED, {**TRUTH, word: TRUTH[word] - 1}, TRUTH).delivered == "gap"


def test_call_without_an_answer_is_a_gap() -> None:
    assert oracle.judge(right()[1:], EXPECTED, TRUTH, TRUTH).delivered == "gap"
    failed = [right()[0]._replace(error=ValueError()), *right()[1:]]
    judged = oracle.judge(failed, EXPECTED, TRUTH, TRUTH)
    assert judged == ("gap", f"1 of {len(EXPECTED)} calls have no answer: ValueError")


def test_loss_that_a_system_tells_of_is_detected() -> None:
    failed = [right()[0]._replace(error=LookupError()), *right()[1:]]
    assert oracle.judge(failed, EXPECTED, {}, TRUTH, (LookupError,)).delivered == "detected"


@pytest.mark.parametrize(("promised", "delivered", "kept"), [
    ("precise", "precise", True), ("precise", "repeating", False), ("repeating", "precise", True),
    ("precise", "gap", False), ("gap", "divergent", True), ("detected", "detected", True),
    ("detected", "divergent", False), ("precise", "detected", False), ("precise", "unknown", False),
])  # fmt: skip
def test_promise_is_kept_by_what_is_as_good_or_better(promised: Any, delivered: Any, kept: bool) -> None:
    assert oracle.keeps(promised, delivered) is kept


def judged_record(delivered: Any, **changes: Any) -> Record:
    record = Record(cell=cells.cell("wordcount", "stash", **changes), environment=environment(), promised="precise")
    fill(record, Measured(oracle.Judged(delivered, "because")), {})
    return record


def test_wrong_output_of_a_system_that_promised_a_right_one_fails_its_run() -> None:
    assert judged_record("divergent").status == "wrong"
    assert judged_record("divergent").why == "because"
    assert judged_record("precise").status == "ok"


def test_run_in_which_no_failure_has_happened_is_no_run_with_a_failure() -> None:
    record = judged_record("precise", failure=cells.KILL)
    assert (record.status, record.why) == ("failed", "no failure has happened")


# pauses


def test_pause_is_the_longest_time_without_a_reply_less_that_of_before() -> None:
    done = [0.0, 0.1, 0.2, 0.3, 1.3, 1.4]
    replies = [Reply(number, "hit", at, at) for number, at in enumerate(done)]
    replies += [Reply(number, "other", at / 10, at / 10) for number, at in enumerate(range(15))]
    pauses = measuring.pauses_ms(measuring.grouped(replies, ["hit"]), 0.35)
    assert pauses["affected"] == pytest.approx(900.0)
    assert pauses["others"] == pytest.approx(0.0, abs=1e-6)


# cells


@pytest.mark.parametrize("cell", cells.full(), ids=name_of)
def test_cell_of_the_full_profile_can_be_run(cell: Cell) -> None:
    assert parameters_of(cell)
    assert parse(cell.failure, cell.seed) if cell.failure else True
    if cell.system in CLASSES:
        assert make_system(cell.system, cell.variant).guarantee.words
    else:
        assert cell.system in cells.RIVALS


def test_quick_profile_has_some_forty_cells_which_are_in_the_full_one_by_name() -> None:
    quick, full = ({name_of(cell) for cell in profile} for profile in (cells.quick(), cells.full()))
    assert 35 <= len(quick) <= 65
    assert quick <= full


def test_two_deaths_at_once_are_measured_of_both_that_survive_them() -> None:
    killed = {cell.system for cell in cells.quick() if cell.failure == cells.KILL_BOTH}
    assert killed == {"stash", "global-checkpoint"}


def test_unknown_option_of_a_system_is_refused() -> None:
    with pytest.raises(ValueError, match="stash has no option levle; it has max_failures, level"):
        make_system("stash", "levle=disk")
    assert options_of("a=1,b=2", "x", ("a", "b")) == {"a": "1", "b": "2"}


# a real run


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize(("system", "status", "delivered"), [("stash", "ok", "precise"), ("plain", "ok", "gap")])
def test_killed_actor_is_in_the_record_and_was_really_killed(
    system: str, status: str, delivered: str, tmp_path: Path
) -> None:
    options = ["--set", "rate=50", "seconds=4", "warm_up_s=1", "--inject", cells.KILL, "--records", str(tmp_path)]
    assert command.main(["--workload", "wordcount", "--system", system, *options]) == 0
    record = read(next(tmp_path.glob("*.json")))
    assert (record.status, record.delivered) == (status, delivered)
    (injected,) = record.injected
    assert (injected.what, injected.target) == ("kill:actor", lane_of(1))
    assert not Path(f"/proc/{injected.pids[0]}").exists()
    assert {"all", "affected", "others"} <= set(record.pause_ms)
    if system == "stash":
        assert [recovery.peer for recovery in record.recoveries] == [lane_of(1)]
