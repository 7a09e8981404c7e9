"""The oracle knows, the noisy oracle errs by exactly as much as it is told to."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lengthwise.errors import InputError
from lengthwise.lengths import LogT, Point
from lengthwise.predictors import LengthPredictor, PredictionInput
from lengthwise.predictors.experimental import Hint, PredictorSpec, parse_predictor_spec
from lengthwise.predictors.history import History


def workload(n: int = 2000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """True lengths, and the means of the prompts' clean samples."""
    rng = np.random.default_rng(seed)
    means = np.exp(rng.normal(5.5, 0.9, n))
    return np.maximum(1, np.round(means * np.exp(0.2 * rng.standard_normal(n)))), means


def test_specs_are_read() -> None:
    assert parse_predictor_spec("oracle") == PredictorSpec("oracle")
    assert parse_predictor_spec(" None ") == PredictorSpec("none")
    assert parse_predictor_spec("noisy:0.6") == parse_predictor_spec("noisy:tau=0.6") == PredictorSpec("noisy", tau=0.6)
    assert parse_predictor_spec("noisy:log=0.5") == PredictorSpec("noisy", log_error=0.5)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("oracl", "did you mean oracle"),
        ("", "there is no predictor ''"),
        ("noisy", "how noisy"),
        ("noisy:", "how noisy"),
        ("noisy:1.2", "how noisy"),
        ("noisy:-0.1", "how noisy"),
        ("noisy:nan", "how noisy"),
        ("noisy:much", "how noisy"),
        ("noisy:log=-1", "how noisy"),
        ("oracle:0.5", "there is no predictor"),
    ],
)
def test_a_spec_that_cannot_be_is_one_line(spec: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        parse_predictor_spec(spec)


def test_the_oracle_knows_and_none_knows_nothing() -> None:
    told = parse_predictor_spec("oracle").beliefs([5, 20_000], max_tokens=[100, None])
    assert told == [Point(5, 100), Point(20_000, 20_000)]
    assert parse_predictor_spec("none").beliefs([5, 7]) == [None, None]


@pytest.mark.parametrize("tau", [0.15, 0.37, 0.6, 0.8, 0.95, 1.0])
def test_noisy_beliefs_have_the_tau_they_are_asked_for(tau: float) -> None:
    true, means = workload()
    beliefs = parse_predictor_spec(f"noisy:{tau}").beliefs(true, clean_means=means)
    medians = [belief.quantile(0.5) for belief in beliefs if belief is not None]
    assert stats.kendalltau(medians, means).statistic == pytest.approx(tau, abs=0.01)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.3, 0.9), st.integers(60, 400))
def test_any_seed_and_size_gives_that_tau(seed: int, tau: float, n: int) -> None:
    true, _ = workload(n, seed)
    spec = PredictorSpec("noisy", tau=tau)
    medians = spec.medians(true + np.linspace(0, 0.5, n), np.full(n, 1e9), seed)
    assert stats.kendalltau(medians, true + np.linspace(0, 0.5, n)).statistic == pytest.approx(tau, abs=0.01)


def test_where_no_mean_is_known_the_true_length_is_disturbed() -> None:
    true, means = workload()
    means[1000:] = math.nan
    beliefs = PredictorSpec("noisy", log_error=0.0).beliefs(true, clean_means=means)
    medians = [belief.quantile(0.5) for belief in beliefs if belief is not None]
    assert medians == pytest.approx(np.r_[means[:1000], true[1000:]])


def test_log_error_is_the_spread_of_the_log_error() -> None:
    true, means = workload()
    told = PredictorSpec("noisy", log_error=0.5).beliefs(true, clean_means=means)
    logs = np.log([belief.quantile(0.5) for belief in told if belief is not None]) - np.log(means)
    assert logs.std() == pytest.approx(0.5, rel=0.1)


def test_the_same_seed_is_the_same_noise_and_another_is_not() -> None:
    true, _ = workload(300)
    spec = parse_predictor_spec("noisy:0.6")
    assert spec.beliefs(true, seed=1) == spec.beliefs(true, seed=1) != spec.beliefs(true, seed=2)


def test_a_noisy_belief_knows_how_wrong_it_is() -> None:
    true, means = workload()
    beliefs = parse_predictor_spec("noisy:log=0.5").beliefs(true, clean_means=means)
    pairs = [(belief, length) for belief, length in zip(beliefs, true, strict=True) if isinstance(belief, LogT)]
    inside = [belief.quantile(0.25) <= length <= belief.quantile(0.75) for belief, length in pairs]
    assert np.mean(inside) == pytest.approx(0.5, abs=0.03)


def test_lengths_so_tied_that_no_noise_has_that_tau_are_refused() -> None:
    true = np.tile([1.0, 300.0], 500)
    with pytest.raises(InputError, match=r"tau of 0.9; the nearest is 0\.7"):
        parse_predictor_spec("noisy:0.9").beliefs(true)
    assert len(parse_predictor_spec("noisy:0.5").beliefs(true)) == 1000
    assert parse_predictor_spec("noisy:0.5").beliefs([]) == []


def test_a_hint_is_believed_where_there_is_one() -> None:
    hint = Hint(History())
    assert isinstance(hint, LengthPredictor)
    told = hint.predict(
        [PredictionInput("x", "m", hint=100), PredictionInput("x", "m"), PredictionInput("x", "m", hint=0)]
    )
    assert told.quantile(0.5) == pytest.approx([100, 350, 1])
    assert told.sigma.tolist() == [0.25, 1.0, 0.25]
