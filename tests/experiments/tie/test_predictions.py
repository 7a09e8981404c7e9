from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit
from scipy.stats import norm

from experiments.tie import paper
from experiments.tie.predictions import LogNormalPredictions, mean_and_cvar, weighted, weighted_score
from experiments.tie.said import orders
from experiments.tie.traffic import LOG_SIGMA, MU, made_up
from lengthwise.simulator.predictions import RequestPredictions

NORMAL = norm.ppf((np.arange(200_000) + 0.5) / 200_000)


def predictions(mu: list[float], sigma: list[float], cap: float = 2048.0) -> RequestPredictions:
    n = len(mu)
    return RequestPredictions(
        "x", np.array(mu), np.array(sigma), np.full(n, cap), np.full(n, "", dtype=object), np.exp(np.array(mu))
    )


@settings(deadline=None)
@given(st.floats(0, 9), st.floats(0.02, 2.5), st.integers(2, 20_000))
def test_mean_and_tail_of_a_log_normal_agree_with_quadrature(mu: float, sigma: float, cap: int) -> None:
    x = np.minimum(np.exp(mu + sigma * NORMAL), cap)
    mean, cvar = mean_and_cvar(np.array([mu]), np.array([sigma]), np.array([float(cap)]))
    assert mean[0] == pytest.approx(x.mean(), rel=2e-3)
    assert cvar[0] == pytest.approx(x[180_000:].mean(), rel=4e-3)
    assert mean[0] <= cvar[0] * (1 + 1e-9)
    assert cvar[0] <= cap * (1 + 1e-9)


def test_a_log_normal_keeps_the_spread_of_logarithms_and_has_the_lighter_far_tail() -> None:
    logt = predictions([5.0], [0.5], cap=1e7)
    lognormal = LogNormalPredictions.of(logt)
    draws = 5.0 + 0.5 * np.random.default_rng(0).standard_t(3.5, 2_000_000)
    assert lognormal.sigma[0] == pytest.approx(draws.std(), rel=0.05)
    assert lognormal.mu[0] == logt.mu[0]
    assert lognormal.expected_and_tail()[1][0] < logt.expected_and_tail()[1][0]


def test_certain_predictions_have_no_family() -> None:
    certain = predictions([5.0, 3.0], [0.0, 0.0])
    told, same = LogNormalPredictions.of(certain).expected_and_tail(), certain.expected_and_tail()
    np.testing.assert_array_equal(told, same)


def test_the_score_for_latency_per_token_is_mean_over_mean_inverse() -> None:
    predicted = predictions([4.0, 6.0], [0.3, 0.8])
    u = (np.arange(300_000) + 0.5) / 300_000
    lengths = np.clip(np.exp(predicted.mu + predicted.sigma * stdtrit(3.5, u)[:, None]), 1, 2048)
    assert weighted_score(predicted) == pytest.approx(lengths.mean(axis=0) / (1 / lengths).mean(axis=0), rel=5e-3)
    np.testing.assert_array_equal(np.argsort(weighted(predicted).mu), np.argsort(weighted_score(predicted)))


def test_a_certain_length_scores_its_square() -> None:
    assert weighted_score(predictions([np.log(20.0)], [0.0])) == pytest.approx([400.0])


def test_predictions_of_one_spread_are_ordered_alike_by_every_score() -> None:
    alike = orders(predictions(np.linspace(2, 6, 40).tolist(), [0.4] * 40))
    assert vars(alike) == pytest.approx(dict.fromkeys(vars(alike), 1.0))


def test_spread_parts_the_scores_and_the_median_stays_nearest_to_the_best_order_for_latency_per_token() -> None:
    alike = orders(made_up(400, seed=1).logt)
    assert alike.tie_and_median < 0.8
    assert alike.tie_and_best < alike.mean_and_best < alike.median_and_best


def test_made_up_traffic_is_as_spread_as_the_papers_and_predicted_as_well() -> None:
    made = made_up(8000, seed=3)
    assert made.prompt_cv == pytest.approx(paper.WITHIN_PROMPT_CV, abs=0.05)
    lengths = made.workload.output_tokens
    assert (lengths.min(), lengths.max()) == (1, paper.MAX_TOKENS)
    # A prediction that is unbiased given itself explains as much variance as it has.
    assert made.logt.mu.var() / MU[1] ** 2 == pytest.approx(paper.R_SQUARED[0], abs=0.03)
    spread = np.log1p(np.exp(np.random.default_rng(0).normal(*LOG_SIGMA, 100_000))).var()
    assert np.log1p(made.logt.sigma).var() / spread == pytest.approx(paper.R_SQUARED[1], abs=0.05)
    slope = np.polyfit(made.logt.mu, np.log(lengths), 1)[0]
    assert slope == pytest.approx(1.0, abs=0.05)
    assert made.logt.tau > 0.55


def test_made_up_traffic_is_the_same_twice_and_differs_by_seed() -> None:
    one, again, other = made_up(50, 1), made_up(50, 1), made_up(50, 2)
    assert one.workload.content_hash == again.workload.content_hash != other.workload.content_hash
    np.testing.assert_array_equal(one.logt.mu, again.logt.mu)


def test_the_papers_figures_give_the_factors_of_its_abstract() -> None:
    main = paper.ONLINE[paper.MAIN]
    assert main["ltr"] / main["tie"] == pytest.approx(2.31, abs=0.01)
    assert paper.OFFLINE["ltr"][0] / paper.OFFLINE["tie"][0] == pytest.approx(1.42, abs=0.01)
    assert paper.ABLATION["full"].time_to_3000 == pytest.approx(paper.OFFLINE["tie"][0], abs=0.05)


def test_the_implied_capacity_gives_the_growth_back() -> None:
    low, high = paper.RATES
    capacity = paper.implied_capacity()
    assert (1 / capacity - 1 / high) / (1 / capacity - 1 / low) == pytest.approx(paper.GROWTH["fcfs"])
    assert low > capacity  # above it already at the lowest rate, as the formula assumes
