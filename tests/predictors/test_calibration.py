"""Calibrated intervals have their nominal coverage."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.predictors import LogTPredictions
from lengthwise.predictors.calibration import Calibration, fit_calibration
from lengthwise.traffic.scores import coverage as inside

NU = 3.5


def world(
    seed: int, prompts: int, samples: int = 5, shift: float = 0.5, factor: float = 1.6
) -> tuple[LogTPredictions, np.ndarray]:
    """Predictions that are `shift` too low and `factor` too sharp; a prompt's samples share most of their error."""
    rng = np.random.default_rng(seed)
    mu, sigma = rng.normal(5.5, 0.8, prompts), 0.4 * np.exp(rng.normal(0, 0.2, prompts))
    shared, own = rng.standard_normal((prompts, 1)), rng.standard_normal((prompts, samples))
    chi = rng.chisquare(NU, (prompts, 1))
    t = (0.9 * shared + math.sqrt(1 - 0.81) * own) / np.sqrt(chi / NU)
    return LogTPredictions.of(mu, sigma, 10**9), np.exp(mu[:, None] + shift + factor * sigma[:, None] * t)


def coverage(predictions: LogTPredictions, lengths: np.ndarray, level: float = 0.9) -> float:
    low, high = predictions.quantile((1 - level) / 2), predictions.quantile((1 + level) / 2)
    return inside(low, high, lengths, np.ones(lengths.shape, bool))


def test_shift_and_factor_are_recovered() -> None:
    predictions, lengths = world(0, 4000)
    calibration = fit_calibration(predictions, ["m"] * 4000, lengths)
    assert calibration.by_llm["m"].shift == pytest.approx(0.5, abs=0.05)
    assert calibration.by_llm["m"].factor == pytest.approx(1.6, rel=0.06)


@pytest.mark.parametrize(("prompts", "level"), [(15, 0.9), (40, 0.9), (40, 0.5), (200, 0.8)])
def test_intervals_of_new_prompts_have_their_nominal_coverage(prompts: int, level: float) -> None:
    covered = []
    for seed in range(400):
        predictions, lengths = world(seed, prompts + 50)
        train = LogTPredictions.of(predictions.mu[:prompts], predictions.sigma[:prompts], 10**9)
        test = LogTPredictions.of(predictions.mu[prompts:], predictions.sigma[prompts:], 10**9)
        calibration = fit_calibration(train, ["m"] * prompts, lengths[:prompts], levels=[level])
        covered.append(coverage(calibration.apply(test, ["m"] * 50), lengths[prompts:], level))
    # Not below the level, and above it by at most 1.5 prompts, up to the noise of the simulation.
    assert level - 0.015 <= np.mean(covered) <= level + 1.5 / prompts + 0.015


def test_each_llm_has_its_own_calibration_and_coverage() -> None:
    right, right_lengths = world(1, 800, shift=0.0, factor=1.0)
    wrong, wrong_lengths = world(2, 800, shift=-0.7, factor=2.0)
    predictions = LogTPredictions.of(np.r_[right.mu, wrong.mu], np.r_[right.sigma, wrong.sigma], 10**9)
    llms = ["right"] * 800 + ["wrong"] * 800
    calibration = fit_calibration(predictions, llms, np.r_[right_lengths, wrong_lengths])
    for llm, shift, factor in (("right", 0.0, 1.0), ("wrong", -0.7, 2.0)):
        fresh, lengths = world(3, 2000, shift=shift, factor=factor)
        assert coverage(calibration.apply(fresh, [llm] * 2000), lengths) == pytest.approx(0.9, abs=0.025)


def test_an_llm_with_few_prompts_is_shrunk_to_the_pooled_calibration_and_an_unknown_one_has_it() -> None:
    many, many_lengths = world(4, 1000, shift=0.5)
    few, few_lengths = world(5, 12, shift=-0.5)
    predictions = LogTPredictions.of(np.r_[many.mu, few.mu], np.r_[many.sigma, few.sigma], 10**9)
    llms = ["many"] * 1000 + ["few"] * 10 + ["two"] * 2
    calibration = fit_calibration(predictions, llms, np.r_[many_lengths, few_lengths])
    assert -0.5 < calibration.by_llm["few"].shift < calibration.by_llm["many"].shift
    assert "two" not in calibration.by_llm
    adjusted = calibration.apply(LogTPredictions.of([5.0, 5.0], [0.5, 0.5], 100), ["two", "never seen"])
    assert adjusted.mu == pytest.approx([5.0 + calibration.others.shift] * 2)


def test_absent_samples_are_ignored() -> None:
    predictions, lengths = world(6, 200)
    present = np.ones(lengths.shape, bool)
    present[:, 3:] = False
    spoiled = np.where(present, lengths, 1e8)
    calibration = fit_calibration(predictions, ["m"] * 200, spoiled, present)
    assert calibration == fit_calibration(predictions, ["m"] * 200, lengths[:, :3])


def test_answers_at_the_cap_are_inside_an_interval_that_reaches_it() -> None:
    predictions = LogTPredictions.of([5.0] * 100, [0.5] * 100, 150)
    lengths = np.minimum(np.exp(5.0 + 0.5 * np.random.default_rng(0).standard_t(NU, (100, 4))), 150)
    calibration = fit_calibration(predictions, ["m"] * 100, lengths, levels=[0.9])
    assert coverage(calibration.apply(predictions, ["m"] * 100), lengths) >= 0.9


def test_censored_answers_do_not_bias_shift_and_factor() -> None:
    predictions, lengths = world(10, 3000)
    limits = np.exp(predictions.mu + np.random.default_rng(10).normal(1.0, 0.8, 3000))[:, None]
    cut = lengths > limits
    seen = np.minimum(lengths, limits)
    assert 0.3 < cut.mean() < 0.5
    calibration = fit_calibration(predictions, ["m"] * 3000, seen, censored=cut)
    assert calibration.by_llm["m"].shift == pytest.approx(0.5, abs=0.06)
    assert calibration.by_llm["m"].factor == pytest.approx(1.6, rel=0.1)
    taken_as_complete = fit_calibration(predictions, ["m"] * 3000, seen)
    assert taken_as_complete.by_llm["m"].shift < 0.4


def test_an_llm_whose_answers_are_almost_all_censored_has_no_calibration() -> None:
    predictions, lengths = world(11, 100)
    both = LogTPredictions.of(np.r_[predictions.mu, predictions.mu], np.r_[predictions.sigma, predictions.sigma], 10**9)
    cut = np.r_[np.zeros(lengths.shape, bool), np.ones(lengths.shape, bool)]
    calibration = fit_calibration(both, ["whole"] * 100 + ["cut"] * 100, np.r_[lengths, lengths / 9], censored=cut)
    assert set(calibration.by_llm) == {"whole"}


def test_rows_count_by_their_weights() -> None:
    short, short_lengths = world(12, 900, shift=-0.5)
    long, long_lengths = world(13, 100, shift=0.5)
    predictions = LogTPredictions.of(np.r_[short.mu, long.mu], np.r_[short.sigma, long.sigma], 10**9)
    lengths, weights = np.r_[short_lengths, long_lengths], np.r_[np.full(900, 1 / 900), np.full(100, 1 / 100)]
    balanced = fit_calibration(predictions, ["m"] * 1000, lengths, weights=weights)
    assert balanced.by_llm["m"].shift == pytest.approx(0.0, abs=0.15)
    assert fit_calibration(predictions, ["m"] * 1000, lengths).by_llm["m"].shift < -0.3


@pytest.mark.parametrize("nu", [2.5, 8.0])
def test_a_cautious_calibration_undercovers_at_no_level(nu: float) -> None:
    t = np.random.default_rng(14).standard_t(nu, 20_000)
    predictions = LogTPredictions.of(np.zeros(20_000) + 6, np.full(20_000, 0.5), 10**9)
    lengths = np.exp(6 + 0.5 * t)[:, None]
    careful = fit_calibration(predictions, ["m"] * 20_000, lengths, cautious=True).apply(predictions, ["m"] * 20_000)
    plain = fit_calibration(predictions, ["m"] * 20_000, lengths).apply(predictions, ["m"] * 20_000)
    excess = [coverage(careful, lengths, level) - level for level in (0.5, 0.9)]
    assert min(excess) == pytest.approx(0.0, abs=0.005)
    assert max(excess) > 0.005
    assert min(coverage(plain, lengths, level) - level for level in (0.5, 0.9)) < -0.005


@settings(max_examples=50)
@given(st.floats(-2, 2), st.floats(0.2, 5), st.integers(10, 60))
def test_calibration_undoes_a_shift_and_a_factor(shift: float, factor: float, prompts: int) -> None:
    predictions, lengths = world(7, prompts)
    other = replace(predictions, mu=predictions.mu + shift, sigma=predictions.sigma * factor)
    moved = fit_calibration(other, ["m"] * prompts, lengths)
    unmoved = fit_calibration(predictions, ["m"] * prompts, lengths)
    again = moved.apply(other, ["m"] * prompts)
    assert again.mu == pytest.approx(unmoved.apply(predictions, ["m"] * prompts).mu)
    assert again.sigma == pytest.approx(unmoved.apply(predictions, ["m"] * prompts).sigma)


def test_a_calibration_is_stored_as_json_and_read_back() -> None:
    predictions, lengths = world(8, 50)
    calibration = fit_calibration(predictions, ["a"] * 25 + ["b"] * 25, lengths, levels=(0.5, 0.9))
    assert Calibration.from_json(json.loads(json.dumps(calibration.to_json()))) == calibration


def test_too_few_prompts_or_columns_of_different_lengths_are_refused() -> None:
    predictions, lengths = world(9, 5)
    with pytest.raises(InputError, match="5 prompts are too few"):
        fit_calibration(predictions, ["m"] * 5, lengths)
    with pytest.raises(InputError, match="5 predictions, 4 LLMs and 5 rows"):
        fit_calibration(predictions, ["m"] * 4, lengths)


def test_an_error_names_answers_that_are_cut_off_where_there_are_enough_prompts() -> None:
    predictions, lengths = world(9, 50, samples=1)
    cut = np.arange(50)[:, None] < 45
    with pytest.raises(InputError, match="45 of 50 answers are cut off, too many to calibrate"):
        fit_calibration(predictions, ["m"] * 50, np.where(cut, 1e9, lengths), censored=cut)
