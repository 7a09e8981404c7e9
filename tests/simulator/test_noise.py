"""Noise on true lengths has the requested size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lengthwise.errors import InputError
from lengthwise.lengths import LogTColumns
from lengthwise.predictors.resolve import PredictorSpec, parse_predictor_spec
from lengthwise.simulator.predictions import noisy_medians, own_sigma, probed_medians


def workload(n: int = 2000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return true lengths and the mean length of each prompt's samples."""
    rng = np.random.default_rng(seed)
    means = np.exp(rng.normal(5.5, 0.9, n))
    return np.maximum(1, np.round(means * np.exp(0.2 * rng.standard_normal(n)))), means


CAPS = 1e9


@pytest.mark.parametrize("tau", [0.15, 0.37, 0.6, 0.8, 0.95, 1.0])
def test_noisy_medians_have_the_requested_tau(tau: float) -> None:
    _, means = workload()
    medians = noisy_medians(parse_predictor_spec(f"noisy:{tau}"), means, np.full(len(means), CAPS), 0)
    assert stats.kendalltau(medians, means).statistic == pytest.approx(tau, abs=0.01)


@settings(max_examples=15)
@given(st.integers(-5, 2**31), st.floats(0.3, 0.9), st.integers(60, 400))
def test_any_seed_and_size_gives_the_requested_tau(seed: int, tau: float, n: int) -> None:
    true, _ = workload(n, abs(seed))
    spec = PredictorSpec("noisy", tau=tau)
    medians = noisy_medians(spec, true + np.linspace(0, 0.5, n), np.full(n, CAPS), seed)
    assert stats.kendalltau(medians, true + np.linspace(0, 0.5, n)).statistic == pytest.approx(tau, abs=0.01)


def test_the_tau_of_several_llms_is_the_mean_of_the_tau_within_each() -> None:
    _, means = workload()
    groups = np.array(["short", "long"] * 1000, dtype=object)
    means = np.where(groups == "long", 50 * means, means)  # over both LLMs, the LLM alone orders most pairs
    medians = noisy_medians(PredictorSpec("noisy", tau=0.5), means, np.full(2000, CAPS), 3, groups=groups)
    within = [stats.kendalltau(medians[groups == llm], means[groups == llm]).statistic for llm in ("short", "long")]
    assert np.mean(within) == pytest.approx(0.5, abs=0.01)
    assert stats.kendalltau(medians, means).statistic > 0.6


def test_a_repeated_prompt_gets_the_same_noise() -> None:
    _, means = workload(200)
    units = np.tile(np.arange(200), 3)
    for spec in ("noisy:0.6", "noisy:log=0.5"):
        medians = noisy_medians(parse_predictor_spec(spec), means[units], np.full(600, CAPS), 0, units=units)
        assert medians[:200].tolist() == medians[200:400].tolist() == medians[400:].tolist()
        assert medians[:200].tolist() != means.tolist()


def test_log_error_is_the_spread_of_the_log_error() -> None:
    _, means = workload()
    medians = noisy_medians(PredictorSpec("noisy", log_error=0.5), means, np.full(2000, CAPS), 0)
    assert (np.log(medians) - np.log(means)).std() == pytest.approx(0.5, rel=0.1)


def test_medians_stay_between_one_token_and_the_cap() -> None:
    _, means = workload()
    medians = noisy_medians(PredictorSpec("noisy", log_error=5.0), means, np.full(2000, 300.0), 0)
    assert (medians.min(), medians.max()) == (1.0, pytest.approx(300.0))


def test_noise_is_the_same_for_the_same_seed_only() -> None:
    true, _ = workload(300)
    spec = parse_predictor_spec("noisy:0.6")
    a, b, c = (noisy_medians(spec, true, np.full(300, CAPS), seed).tolist() for seed in (1, 1, 2))
    assert a == b != c


def test_the_spread_of_a_noisy_prediction_is_calibrated() -> None:
    true, means = workload()
    medians = noisy_medians(parse_predictor_spec("noisy:log=0.5"), means, np.full(2000, CAPS), 0)
    predictions = LogTColumns.of(np.log(medians), own_sigma(true, medians), CAPS)
    inside = (predictions.quantile(0.25) <= true) & (true <= predictions.quantile(0.75))
    assert np.mean(inside) == pytest.approx(0.5, abs=0.03)


def test_an_unreachable_tau_is_refused_with_the_nearest_one() -> None:
    true, caps = np.tile([1.0, 300.0], 500), np.full(1000, CAPS)
    with pytest.raises(InputError, match=r"tau of 0.9; the nearest is 0\.7"):
        noisy_medians(parse_predictor_spec("noisy:0.9"), true, caps, 0)
    with pytest.raises(InputError, match="their lengths are all the same"):
        noisy_medians(parse_predictor_spec("noisy:0.5"), np.full(1000, 7.0), caps, 0)
    assert len(noisy_medians(parse_predictor_spec("noisy:0.5"), true, caps, 0)) == 1000
    assert len(noisy_medians(parse_predictor_spec("noisy:0.5"), np.empty(0), np.empty(0), 0)) == 0


@pytest.mark.parametrize("error", [0.0, 0.3, 0.8])
def test_a_probed_prediction_has_the_stated_share_of_a_constants_error(error: float) -> None:
    true, _ = workload()
    groups = np.array(["one", "other"] * 1000, dtype=object)
    true = np.where(groups == "one", 30 * true, true)
    found, again, other = (probed_medians(true, np.full(2000, CAPS), error, s, groups=groups) for s in (3, 3, 4))
    constant = sum(np.abs(true[groups == g] - np.median(true[groups == g])).sum() for g in ("one", "other"))
    assert np.abs(found - true).sum() / constant == pytest.approx(error, abs=0.005)
    assert found.tolist() == again.tolist()
    assert error == 0.0 or found.tolist() != other.tolist()


def test_a_probed_prediction_regresses_to_the_mean() -> None:
    true, _ = workload()
    found = np.log(probed_medians(true, np.full(2000, CAPS), 0.8, 0, groups=np.full(2000, "", dtype=object)))
    slope = np.polyfit(found, np.log(true), 1)[0]
    assert slope == pytest.approx(1.0, abs=0.1), "calibrated: a predicted length is the centre of the true ones"
    assert found.std() < 0.8 * np.log(true).std()


def test_equal_lengths_are_probed_without_error() -> None:
    equal = np.full(20, 7.0)
    np.testing.assert_allclose(probed_medians(equal, equal, 0.8, 0, groups=np.full(20, "", dtype=object)), equal)
