from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.intervals import (
    draw_counts,
    draw_rows,
    interval,
    over_pairs,
    over_requests,
    over_seeds,
    share_change_over_seeds,
)

positive = st.floats(0.01, 1e4)


@given(st.lists(st.tuples(positive, positive), min_size=2, max_size=20))
def test_the_interval_over_seeds_contains_the_ratio_and_inverts_with_it(pairs: list[tuple[float, float]]) -> None:
    ours, base = zip(*pairs, strict=True)
    ratio, inverse = over_seeds(ours, base), over_seeds(base, ours)
    assert ratio.low <= ratio.ratio <= ratio.high
    assert inverse.ratio == pytest.approx(1 / ratio.ratio)
    assert inverse.low == pytest.approx(1 / ratio.high)


def test_the_interval_over_seeds_is_students() -> None:
    found = over_seeds([math.exp(0.1), math.exp(0.3)], [1.0, 1.0])
    reach = 12.7062 * 0.1  # t of one degree of freedom, times sd / sqrt(2)
    assert math.log(found.ratio) == pytest.approx(0.2)
    assert math.log(found.high) == pytest.approx(0.2 + reach, rel=1e-4)


def test_a_missing_value_of_one_seed_makes_the_ratio_nan() -> None:
    assert math.isnan(over_seeds([1.0, math.nan], [1.0, 1.0]).ratio)


@given(st.lists(positive, min_size=1, max_size=80), st.floats(0.1, 10), st.sampled_from([None, 0.5, 0.99]))
def test_a_constant_ratio_has_an_interval_of_zero_width(base: list[float], times: float, q: float | None) -> None:
    values = np.array(base)
    found = over_requests(values * times, values, q, seed=0)
    assert [found.ratio, found.low, found.high] == pytest.approx([times] * 3)


def test_pairing_makes_the_interval_narrower() -> None:
    rng = np.random.default_rng(0)
    base = rng.lognormal(0, 1.5, 1000)
    ours = base * rng.lognormal(-0.2, 0.1, 1000)
    paired = over_requests(ours, base, None, seed=1)
    unpaired = over_requests(rng.permutation(ours), base, None, seed=1)
    assert paired.high < 1
    assert paired.high - paired.low < 0.5 * (unpaired.high - unpaired.low)


def test_the_bootstrap_interval_has_the_width_of_theory_for_independent_requests() -> None:
    rng = np.random.default_rng(2)
    ours, base = rng.normal(10, 2, 5000), np.full(5000, 10.0)
    found = over_requests(ours, base, None, seed=3)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * 0.2 / math.sqrt(5000), rel=0.3)


def test_requests_refused_in_one_run_are_left_out_of_both() -> None:
    ours, base = np.array([2.0, math.nan, 2.0]), np.array([1.0, 100.0, 1.0])
    assert over_requests(ours, base, None, seed=0).ratio == 2.0
    assert math.isnan(over_requests(np.full(2, math.nan), np.ones(2), None, seed=0).ratio)


def test_the_interval_covers_the_ratio_of_noisy_pairs_and_one_pair_has_none() -> None:
    rng = np.random.default_rng(1)
    base = rng.uniform(1, 2, 40)
    ours = 0.9 * base * np.exp(rng.normal(0, 0.05, 40))
    found = over_pairs(ours.tolist(), base.tolist())
    assert found.low < 0.9 < found.high
    assert found.high - found.low < 0.05
    assert math.isnan(over_pairs([1.0], [2.0]).low)
    assert math.isnan(over_pairs([], []).ratio)


def test_resamples_are_the_same_for_the_same_seed_and_draw_each_unit_equally_often() -> None:
    rows, counts = (draw(20, seed=4, resamples=2000) for draw in (draw_rows, draw_counts))
    np.testing.assert_array_equal(rows, draw_rows(20, seed=4, resamples=2000))
    assert (counts.sum(axis=1) == 20).all()
    drawn = np.bincount(rows.ravel()), counts.sum(axis=0)
    np.testing.assert_allclose(drawn, 2000, rtol=0.1)


def test_rows_and_counts_give_the_interval_of_the_same_mean() -> None:
    values = np.random.default_rng(5).exponential(size=200)
    by_rows = interval(values[draw_rows(200, seed=1, resamples=4000)].mean(axis=1))
    by_counts = interval(draw_counts(200, seed=2, resamples=4000) @ values / 200)
    assert by_rows == pytest.approx(by_counts, rel=0.03)


def test_an_interval_of_90_percent_leaves_a_twentieth_at_each_end() -> None:
    assert interval(np.linspace(0, 1, 101), 0.9) == pytest.approx((0.05, 0.95))


def test_a_change_of_a_share_is_at_most_everything() -> None:
    change = share_change_over_seeds([0.9, 0.2], [0.1, 0.3])
    assert (change.low, change.high) == (-1.0, 1.0)
    assert change.change == pytest.approx(0.35)
