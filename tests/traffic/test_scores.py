"""Scores against hand computations and against the laws they obey."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from lengthwise.errors import InputError
from lengthwise.lengths import BaseDistribution, Histogram, LogT, Point
from lengthwise.traffic import scores
from tests.lengths.strategies import predictions


def crps(prediction: BaseDistribution, length: float) -> float:
    """CRPS of one prediction for one length."""
    quantiles = np.array([[prediction.quantile(float(level)) for level in scores.CRPS_LEVELS]])
    return float(scores.crps(quantiles, np.array([[length]]), np.ones((1, 1), bool))[0])


values = st.lists(st.integers(1, 5_000), min_size=3, max_size=40, unique=True)


@given(values)
def test_a_perfect_prediction_scores_perfectly(lengths: list[int]) -> None:
    assert scores.mae(lengths, lengths) == scores.mse(lengths, lengths) == 0.0
    assert scores.r2_log(lengths, lengths) == 1.0
    assert scores.kendall_tau(lengths, lengths) == pytest.approx(1.0)
    edges = scores.equal_mass(lengths, 3)
    true = scores.classes(lengths, edges)
    found = scores.classification(true, true, np.eye(len(edges) + 1)[true])
    assert dataclasses.astuple(found) == pytest.approx([1.0] * 6)


@given(values, st.randoms(use_true_random=False))
def test_tau_is_invariant_under_increasing_maps(lengths: list[int], shuffle: object) -> None:
    other = sorted(lengths, key=lambda _: shuffle.random())  # type: ignore[attr-defined]
    plain = scores.kendall_tau(other, lengths)
    assert scores.kendall_tau(np.log(other), lengths) == pytest.approx(plain)
    assert scores.kendall_tau(other, np.array(lengths) ** 2.0) == pytest.approx(plain)
    assert scores.kendall_tau(-np.array(other), lengths) == pytest.approx(-plain)


def test_tau_of_a_constant_is_unknown_and_left_out_of_the_average() -> None:
    groups = np.array(["a", "a", "b", "b"], object)
    assert math.isnan(scores.kendall_tau([5, 5], [1, 2]))
    assert scores.tau_within(groups, [5, 5, 1, 2], [1, 2, 1, 2]) == pytest.approx(1.0)


def test_tau_is_taken_within_a_group_and_not_across() -> None:
    groups = np.array(["a", "a", "b", "b"], object)
    assert scores.tau_within(groups, [1, 2, 101, 102], [9, 10, 1, 2]) == pytest.approx(1.0)
    assert scores.kendall_tau([1, 2, 101, 102], [9, 10, 1, 2]) < 0


def test_errors_ignore_missing_predictions() -> None:
    assert scores.mae([1.0, math.nan, 3.0], [2.0, 2.0, 6.0]) == 2.0
    assert scores.mse([1.0, math.nan, 3.0], [2.0, 2.0, 6.0]) == 5.0
    assert math.isnan(scores.mae([math.nan], [1.0]))
    with pytest.raises(InputError, match="one prediction for each truth"):
        scores.mae([1.0], [1.0, 2.0])


def test_class_scores_by_hand() -> None:
    true, predicted = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 1, 0])
    found = scores.classification(true, predicted)
    assert (found.accuracy, found.recall) == pytest.approx((4 / 6, 4 / 6))
    assert found.precision == pytest.approx((3 * 2 / 3 + 2 * 2 / 3 + 0) / 6)
    assert found.f1 == pytest.approx((3 * 2 / 3 + 2 * 4 / 5 + 0) / 6)
    # Gorodkin: (c s - sum p t) / sqrt((s^2 - sum p^2)(s^2 - sum t^2)), s 6, c 4, p (3, 3, 0), t (3, 2, 1).
    assert found.mcc == pytest.approx((4 * 6 - 15) / math.sqrt((36 - 18) * (36 - 14)))
    assert math.isnan(found.auroc)


def test_a_constant_class_has_no_correlation() -> None:
    found = scores.classification(np.array([0, 0, 0, 1]), np.zeros(4, np.intp))
    assert found.accuracy == 0.75
    assert found.mcc == 0.0


def test_auroc_by_hand_with_a_tie() -> None:
    # Positives 0.9 and 0.4, negatives 0.4 and 0.1: three of four pairs are ordered and one is tied.
    positive = np.array([0.9, 0.4, 0.4, 0.1])
    both = np.column_stack([1 - positive, positive])
    assert scores.auroc(np.array([1, 1, 0, 0]), both) == pytest.approx(3.5 / 4)


def test_constant_probabilities_have_an_auroc_of_one_half() -> None:
    assert scores.auroc(np.array([0, 1, 2, 1]), np.tile([0.2, 0.5, 0.3], (4, 1))) == pytest.approx(0.5)


def test_a_length_on_an_edge_is_in_the_bin_above() -> None:
    edges = scores.equal_width(50, 220)
    assert edges.tolist() == [50, 100, 150, 200]
    assert scores.classes([1, 49.9, 50, 220, 9_999], edges).tolist() == [0, 0, 1, 4, 4]


def test_equal_mass_bins_hold_equal_shares() -> None:
    lengths = np.random.default_rng(0).lognormal(5, 1, 10_000)
    share = np.bincount(scores.classes(lengths, scores.equal_mass(lengths, 20))) / len(lengths)
    assert len(share) == 20
    assert share == pytest.approx(0.05, abs=0.001)


def test_mu_serves_last_class_is_the_longest_percent() -> None:
    lengths = np.arange(1, 10_001)
    counts = np.bincount(scores.classes(lengths, scores.mu_serve(lengths)))
    assert (counts / len(lengths)).tolist() == pytest.approx([0.25, 0.25, 0.25, 0.24, 0.01], abs=1e-3)


@given(st.floats(1, 5_000), st.floats(1, 5_000))
def test_crps_of_a_point_is_its_absolute_error(predicted: float, true: float) -> None:
    assert crps(Point(predicted), true) == pytest.approx(abs(predicted - true), abs=1e-9)


@pytest.mark.parametrize(
    "prediction", [LogT(5.0, 0.4, 15_000), LogT(6.0, 0.1, 500), Histogram([0, 100, 400], [0.3, 0.7])]
)
@pytest.mark.parametrize("length", [20.0, 150.0, 390.0])
def test_crps_is_the_area_between_the_distribution_and_the_step(prediction: LogT | Histogram, length: float) -> None:
    def below(x: float) -> float:
        return (1.0 - prediction.survival(x)) ** 2

    def above(x: float) -> float:
        return prediction.survival(x) ** 2

    area = integrate.quad(below, 0, length, limit=200)[0] + integrate.quad(above, length, prediction.cap, limit=500)[0]
    assert crps(prediction, length) == pytest.approx(area, rel=0.01)


@given(predictions(), st.floats(1, 5_000))
def test_crps_is_never_negative(prediction: BaseDistribution, length: float) -> None:
    assert crps(prediction, length) >= -1e-9


def test_no_prediction_scores_better_than_the_true_distribution() -> None:
    lengths = np.exp(5 + 0.5 * stats.t(3.5).rvs(4_000, random_state=np.random.default_rng(1)))

    def score(mu: float, sigma: float) -> float:
        prediction = LogT(mu, sigma, 15_000)
        quantiles = np.array([[prediction.quantile(float(level)) for level in scores.CRPS_LEVELS]])
        return float(scores.crps(quantiles, lengths[None, :], np.ones((1, len(lengths)), bool))[0])

    assert score(5.0, 0.5) < min(score(5.3, 0.5), score(4.7, 0.5), score(5.0, 1.0), score(5.0, 0.2))


def test_intervals_of_the_true_distribution_have_nominal_coverage() -> None:
    rng = np.random.default_rng(2)
    mu, sigma = rng.normal(5, 1, 2_000), rng.uniform(0.1, 0.6, 2_000)
    samples = np.exp(mu[:, None] + sigma[:, None] * rng.standard_t(3.5, (2_000, 10)))
    for central in (0.5, 0.9):
        reach = stats.t(3.5).ppf((1 + central) / 2) * sigma
        found = scores.coverage(np.exp(mu - reach), np.exp(mu + reach), samples, np.ones(samples.shape, bool))
        assert found == pytest.approx(central, abs=0.015)
        assert scores.sharpness(np.exp(mu - reach), np.exp(mu + reach)) == pytest.approx(2 * reach.mean(), rel=0.02)


def test_absent_samples_are_ignored() -> None:
    low, high = np.array([10.0]), np.array([20.0])
    samples, present = np.array([[15.0, 99.0]]), np.array([[True, False]])
    assert scores.coverage(low, high, samples, present) == 1.0
    assert scores.crps(np.full((1, 100), 15.0), samples, present)[0] == 0.0
    assert math.isnan(scores.crps(np.full((1, 100), 15.0), samples, ~present & present)[0])
