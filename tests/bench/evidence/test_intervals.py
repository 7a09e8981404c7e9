"""The bootstrap against what is known of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.bench.evidence.intervals import captured, ratio


def draws(seed: int, n: int = 400, repeats: int = 3) -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    rng = np.random.default_rng(seed)
    return [rng.exponential(10.0, n) for _ in range(repeats)]


@pytest.mark.parametrize("q", [None, 0.5, 0.99])
def test_a_policy_that_takes_a_fixed_share_is_known_exactly_because_it_is_paired(q: float | None) -> None:
    base = draws(0)
    found = ratio([0.8 * each for each in base], base, q)
    assert (found.ratio, found.low, found.high) == pytest.approx((0.8, 0.8, 0.8))


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    inside = 0
    for seed in range(60):
        base, ours = draws(seed, 200, 1), [0.9 * each for each in draws(1000 + seed, 200, 1)]
        found = ratio(ours, base, seed=seed)
        inside += found.low <= 0.9 <= found.high
    assert 51 <= inside <= 60


def test_repeats_that_differ_widen_the_interval_unless_only_requests_are_drawn() -> None:
    base = [np.full(100, 10.0)] * 3
    ours = [np.full(100, value) for value in (8.0, 9.0, 10.0)]
    over_both, over_requests = ratio(ours, base), ratio(ours, base, repeats=False)
    assert over_both.low == pytest.approx(0.8)
    assert over_both.high == pytest.approx(1.0)
    assert (over_requests.low, over_requests.high) == pytest.approx((0.9, 0.9))


@settings(max_examples=20)
@given(st.floats(0.0, 1.0))
def test_the_share_of_the_gain_is_where_ours_lies_between_the_two(part: float) -> None:
    base = draws(3, 60, 2)
    best = [0.5 * each for each in base]
    ours = [(1 - part) * b + part * o for b, o in zip(base, best, strict=True)]
    found = captured(base, ours, best)
    assert (found.ratio, found.low, found.high) == pytest.approx((part, part, part), abs=1e-9)


def test_no_share_of_a_gain_that_is_not_sure() -> None:
    base = draws(3, 60, 2)
    best = [each[::-1] for each in base]
    assert np.isnan(captured(base, [0.9 * each for each in base], best).ratio)


def test_nothing_to_compare_is_not_a_number_and_unpaired_runs_are_a_mistake() -> None:
    assert np.isnan(ratio([], []).ratio)
    assert np.isnan(ratio(draws(0), draws(0)[:2]).ratio)
    with pytest.raises(ValueError, match="same requests"):
        ratio([np.ones(10)], [np.ones(11)])
