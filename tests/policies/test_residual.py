"""Remaining lengths and Gittins ranks from tables, against exact values and brute force."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import special

from lengthwise.lengths import TIE_NU, Histogram, LogT, Point
from lengthwise.policies import Job, JobColumns
from lengthwise.policies.residual import expected_remaining, gittins_rank

log_ts = st.builds(
    LogT, st.floats(0.5, 9.5), st.floats(-3.5, 0.9).map(lambda x: float(np.exp(x))), st.integers(200, 131_072)
)


def aged(prediction: LogT | Point | Histogram, generated: int) -> Job:
    job = Job("a", 0.0, prediction=prediction)
    job.generated = generated
    return job


@settings(max_examples=100)
@given(log_ts, st.floats(0, 1))
def test_expected_remaining_is_that_of_the_prediction_within_three_percent(prediction: LogT, how_far: float) -> None:
    generated = int(prediction.cap ** (0.98 * how_far))
    exact = prediction.remaining(generated).mean()
    assert expected_remaining(aged(prediction, generated)) == pytest.approx(exact, rel=0.03)


def in_bins(prediction: LogT) -> Histogram:
    """Return the prediction as 200 bins, with its mass beyond the cap in a bin above the cap."""
    edges = np.append(0.0, np.geomspace(1.0, prediction.cap, 200))
    reached = np.array([1.0, *(special.stdtr(TIE_NU, (prediction.mu - np.log(edges[1:])) / prediction.sigma)), 0.0])
    return Histogram(np.append(edges, 2.0 * prediction.cap), -np.diff(reached), prediction.cap)


@given(st.floats(3, 7), st.floats(0.1, 1.0), st.integers(10, 100), st.floats(0, 2))
def test_expected_remaining_of_bins_and_of_certain_lengths_is_that_of_the_prediction(
    mu: float, sigma: float, caps: int, medians: float
) -> None:
    generated = int(medians * np.exp(mu))
    for prediction in (in_bins(LogT(mu, sigma, int(caps * np.exp(mu)))), Point(3 * np.exp(mu), 8192)):
        exact = prediction.remaining(generated).mean()
        assert expected_remaining(aged(prediction, generated)) == pytest.approx(exact, rel=0.05)


def brute_force_rank(prediction: LogT, generated: int) -> float:
    ends = generated + np.geomspace(1e-3, prediction.cap - generated, 6000)
    reached = prediction.survival(generated) if generated else 1.0
    survival = special.stdtr(TIE_NU, -(np.log(ends) - prediction.mu) / prediction.sigma)
    points, heights = np.append(generated, ends), np.append(reached, survival)
    spent = np.cumsum(np.diff(points) * (heights[1:] + heights[:-1]) / 2)
    ended = reached - survival
    ended[-1] = reached  # every answer ends at the cap
    enough = ended >= 0.1 * reached
    return float((spent[enough] / ended[enough]).min())


@settings(max_examples=60)
@given(log_ts, st.one_of(st.just(0.0), st.floats(0, 1)))
def test_gittins_rank_is_the_least_cost_per_chance_to_finish_within_three_percent(
    prediction: LogT, how_far: float
) -> None:
    generated = int(prediction.cap ** (0.95 * how_far)) if how_far else 0
    assume(generated == 0 or prediction.survival(generated) > 1e-6)
    rank = gittins_rank(aged(prediction, generated))
    assert rank == pytest.approx(brute_force_rank(prediction, generated), rel=0.03)


def test_certain_lengths_are_counted_down_exactly() -> None:
    jobs = [aged(Point(100), generated) for generated in (0, 1, 60, 99)]
    assert list(expected_remaining(JobColumns.of(jobs))) == [100, 99, 40, 1]
    assert list(gittins_rank(JobColumns.of(jobs))) == [100, 99, 40, 1]


@pytest.mark.parametrize("prediction", [Point(100), LogT(3.0, 0.02, 8192), Histogram([0, 50], [1.0], 8192)])
def test_the_expected_remaining_length_of_an_outlived_prediction_grows_with_age(
    prediction: Point | LogT | Histogram,
) -> None:
    ages = (2000, 4000)
    remaining = [expected_remaining(aged(prediction, age)) for age in ages]
    exact = [prediction.remaining(age).mean() for age in ages]
    tolerance = (
        0.02 if isinstance(prediction, Point) else 0.5
    )  # the others are approximated by a log-t of two quantiles
    assert remaining == pytest.approx(exact, rel=tolerance)
    assert expected_remaining(aged(prediction, 8192)) == 0.0
    assert gittins_rank(aged(prediction, 9000)) == 0.0


def test_a_histogram_is_approximated_by_the_log_t_of_its_quantiles() -> None:
    whole = LogT(6.0, 0.6, 8192)
    edges = np.append(0.0, [whole.quantile(q) for q in np.linspace(0.02, 0.98, 49)])
    shares = [whole.survival(a) - whole.survival(b) for a, b in pairwise(edges)]
    job = Job("a", 0.0, prediction=Histogram(edges, np.array(shares) / sum(shares), 8192))
    assert job.mu == pytest.approx(6.0, abs=0.05)
    assert job.sigma == pytest.approx(0.6, abs=0.05)


@given(st.lists(st.tuples(log_ts, st.integers(0, 20_000)), min_size=1, max_size=10))
def test_vectorised_results_equal_those_of_single_jobs(pairs: list[tuple[LogT, int]]) -> None:
    jobs = [aged(prediction, generated) for prediction, generated in pairs]
    for function in (expected_remaining, gittins_rank):
        assert list(function(JobColumns.of(jobs))) == pytest.approx([function(job) for job in jobs], rel=1e-12)
        assert all(0.0 <= value < np.inf for value in function(JobColumns.of(jobs)))
