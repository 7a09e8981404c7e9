"""Scores against hand computations and against the laws they obey."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from lengthwise.errors import InputError
from lengthwise.lengths import BaseDistribution, Histogram, LogT, LogTColumns, Point
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


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(-4, 4)), min_size=2, max_size=200), st.integers(0, 3))
def test_tau_is_that_of_scipy_with_any_ties(pairs: list[tuple[int, float]], digits: int) -> None:
    x, y = [pair[0] for pair in pairs], [round(pair[1], digits) for pair in pairs]
    expected = float(stats.kendalltau(x, y).statistic)
    assert scores.kendall_tau(x, y) == pytest.approx(expected, abs=1e-12, nan_ok=True)


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


def test_a_censored_length_counts_in_the_coverage_where_it_reaches_the_cap() -> None:
    lengths, censored = np.array([90.0, 90.0]), np.array([True, True])
    capped, uncapped = (scores.Forecast.of(LogTColumns.of([5.0, 5.0], 0.5, cap), crps=False) for cap in (90.0, np.inf))
    assert scores.score_predictions(capped, lengths, censored=censored).coverage_50 == 1.0, "its median is at the cap"
    assert math.isnan(scores.score_predictions(uncapped, lengths, censored=censored).coverage_50)
    assert scores.score_predictions(uncapped, lengths).coverage_90 == 1.0


def test_weights_count_a_row_as_so_many() -> None:
    forecast = scores.Forecast.of_intervals(
        np.array([10.0, 20.0]), {0.9: (np.array([5.0, 5.0]), np.array([15.0, 15.0]))}
    )
    found = scores.score_predictions(forecast, [12.0, 16.0], weights=np.array([3.0, 1.0]))
    assert (found.mae, found.coverage_90) == ((3 * 2 + 4) / 4, 0.75)
    assert math.isnan(found.coverage_50), "there is no such interval"
    assert found.mae_mean == 3.0, "without a predicted mean the median stands in"


def test_several_lengths_of_a_row_are_scored_one_by_one_and_by_their_mean() -> None:
    forecast = scores.Forecast.of(LogTColumns.of(np.log([10.0, 20.0]), 0.1, 1000.0))
    lengths, present = np.array([[8.0, 12.0], [30.0, 99.0]]), np.array([[True, True], [True, False]])
    found = scores.score_predictions(forecast, lengths, present=present)
    assert (found.rows, found.samples, found.llms) == (2, 3, 1)
    assert found.mae == pytest.approx((2 + 2 + 10) / 3)
    assert found.mae_median == pytest.approx(5.0)
    assert found.tau == pytest.approx(1.0)
    assert found.log_error == pytest.approx(math.log(1.5) / 2)


def test_histograms_are_scored_like_log_t_predictions_and_have_no_log_score() -> None:
    bins = [Histogram([0, 100, 400], [0.3, 0.7]), Histogram([0, 100, 400], [0.9, 0.1])]
    found = scores.score_predictions(scores.Forecast.of(bins), [250.0, 50.0])
    assert (found.coverage_50, found.tau) == (1.0, 1.0)
    assert found.crps > 0
    assert math.isnan(found.log_score)
    assert "log_score" not in found.defined()


def test_scores_of_several_parts_are_averaged_where_they_are_defined() -> None:
    one, other = (scores.PredictionScores(rows=2, tau=tau, mae=mae) for tau, mae in ((0.5, 1.0), (math.nan, 3.0)))
    assert scores.average([one, other]).defined() == {"rows": 4, "samples": 0, "llms": 0, "tau": 0.5, "mae": 2.0}


def test_no_rows_have_no_scores() -> None:
    found = scores.score_predictions(scores.Forecast.of([]), [])
    assert found.defined() == {"rows": 0, "samples": 0, "llms": 0}
