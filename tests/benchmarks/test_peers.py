"""The competitors of the suite: the stream is a function of its parameters, and who is installed counts it truly."""

from collections import Counter

import pytest

from benchmarks.suite import peers
from benchmarks.suite.peers.stream import POOL, Stream, words_per_s


def all_messages(stream: Stream) -> list[tuple[int, int, tuple[str, ...]]]:
    """Every message of a stream with an end."""
    return [
        (number, counter, tuple(words))
        for number in range(stream.records or 0)
        for counter, words in stream.messages(number)
    ]


def test_same_seed_gives_the_same_stream() -> None:
    assert all_messages(Stream(seed=7)) == all_messages(Stream(seed=7))
    assert all_messages(Stream(seed=7)) != all_messages(Stream(seed=8))


def test_counters_and_rate_do_not_change_the_words() -> None:
    assert Stream(counters=5).truth(300) == Stream().truth(300) == Stream(rate=0).truth(300)


def test_messages_partition_the_words_of_a_record_by_counter() -> None:
    stream = Stream(counters=3)
    for number, counter, words in all_messages(stream):
        assert {stream.counter_of(word) for word in words} == {counter}
        assert words == tuple(word for word in stream.pool[number] if stream.counter_of(word) == counter)


@pytest.mark.parametrize("records", [0, 17, POOL, 2 * POOL + 17])
def test_truth_counts_what_messages_hold(records: int) -> None:
    stream = Stream(rate=0)
    counts = Counter(word for number in range(records) for _, words in stream.messages(number) for word in words)
    assert stream.truth(records) == counts


def test_records_are_due_at_the_rate_until_the_stream_ends() -> None:
    stream = Stream(rate=50, seconds=2, warm_up_s=1)
    assert stream.records == 150
    assert [stream.due_by(second) for second in (0, 0.019, 0.02, 1, 3, 9)] == [1, 1, 2, 51, 150, 150]


def test_throughput_leaves_out_the_warm_up() -> None:
    stream = Stream(rate=0, seconds=2, warm_up_s=1, counters=1)
    rows = [(number, 0, number / 10) for number in range(40)]
    assert words_per_s(stream, rows) == pytest.approx(100)


@pytest.mark.parametrize("name", [name for name in peers.NAMES if name not in peers.OURS])
def test_absent_competitor_says_how_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path)
    assert not peers.is_there(name)
    with pytest.raises(peers.Absent, match=rf"^{name} .*make peers$"):
        peers.run(name, {"rate": 1, "seconds": 1})


def test_failing_competitor_is_raised_with_its_last_words() -> None:
    with pytest.raises(RuntimeError, match=r"spark ended with 2\n[^$]*unrecognized arguments: --colour=red"):
        peers.run("spark", {"colour": "red"})


def test_competitor_that_takes_too_long_is_ended() -> None:
    with pytest.raises(RuntimeError, match=r"^spark took more than 0.1 s"):
        peers.run("spark", {"rate": 1, "seconds": 60}, timeout_s=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", peers.NAMES)
def test_installed_competitor_counts_truly(name: str) -> None:
    if not peers.is_there(name):
        pytest.skip(f"{name} is not installed: make peers")
    stream = Stream(rate=20, seconds=2)
    measured = peers.run(name, {"rate": 20, "seconds": 2}, timeout_s=100)
    assert measured["counts"] == stream.truth(40)
    assert len(measured["done_s"]) == len(measured["due_s"]) == len(measured["counter"]) == len(all_messages(stream))
    assert all(done >= due for due, done in zip(measured["due_s"], measured["done_s"], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", peers.WITH_EFFECTS)
def test_committed_rows_of_a_competitor_are_all_there(name: str) -> None:
    if not peers.is_there(name):
        pytest.skip(f"{name} is not installed: make peers")
    measured = peers.run(name, {"rate": 20, "seconds": 2}, effects=True, timeout_s=100)
    assert measured["promised"] == "precise"
    assert measured["counts"] == Stream().truth(40)
    assert len(measured["done_s"]) == len(all_messages(Stream(rate=20, seconds=2)))
