"""The model of large rings: what it extends it has right where it can be simulated, and its errors are what it says."""

import pytest

from lineage_stash.testing.scale import (
    EXTENDED_FROM,
    Constants,
    extended,
    predict_asynchronous,
    predict_synchronous,
    simulate_ring,
)
from lineage_stash.testing.scale_published import DELAYS_MS, PUBLISHED_MS, fit, least_squares

CONSTANTS = Constants(hop_ms=0.1, entry_ms=0.002, store_ms=0.5)


def test_slow_store_costs_an_asynchronous_hop_nothing() -> None:
    quick, slow = (simulate_ring(16, CONSTANTS._replace(store_ms=ms), max_failures=1) for ms in (0.5, 100.0))
    assert slow.hop_ms == pytest.approx(quick.hop_ms, rel=0.05)


def test_slow_store_costs_a_synchronous_hop_its_delay() -> None:
    quick, slow = (predict_synchronous(16, CONSTANTS._replace(store_ms=ms), reads=False) for ms in (0.5, 100.5))
    assert slow.hop_ms - quick.hop_ms == pytest.approx(100.0)


def test_without_a_bound_a_message_carries_what_all_others_did_since() -> None:
    assert simulate_ring(16, CONSTANTS).entries == 15
    assert simulate_ring(16, CONSTANTS, reads=True).entries == 30


def test_hop_is_the_fixed_cost_and_that_of_its_entries() -> None:
    traffic = simulate_ring(16, CONSTANTS)
    assert traffic.hop_ms == pytest.approx(CONSTANTS.hop_ms + traffic.entries * CONSTANTS.entry_ms)


@pytest.mark.parametrize("max_failures", [1, None])
def test_extended_law_is_right_where_it_can_be_simulated(max_failures: int | None) -> None:
    known = [simulate_ring(size, CONSTANTS, max_failures=max_failures) for size in EXTENDED_FROM]
    truth = simulate_ring(112, CONSTANTS, max_failures=max_failures)
    assert extended([each.entries for each in known], 112) == pytest.approx(truth.entries, rel=0.02)
    assert extended([each.forwarded_bytes for each in known], 112) == pytest.approx(truth.forwarded_bytes, rel=0.1)


def test_prediction_says_whether_it_was_simulated() -> None:
    near, far = (predict_asynchronous(nodes, CONSTANTS, max_failures=1, reads=False) for nodes in (10, 10_000))
    assert not near.is_extended
    assert far.is_extended


def test_published_ring_is_met_within_a_fifth_by_three_constants() -> None:
    constants, compared = fit()
    assert len(compared) == len(PUBLISHED_MS) * len(DELAYS_MS)
    assert min(constants[:3]) > 0
    assert max(abs(each.error) for each in compared) < 0.21


def test_least_squares_finds_the_line_through_points_on_it() -> None:
    assert least_squares([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]], [3.0, 5.0, 7.0]) == pytest.approx([3.0, 2.0])
