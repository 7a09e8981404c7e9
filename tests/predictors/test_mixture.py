"""A mixture describes a new LLM from few of its lengths, with nominal coverage."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from lengthwise.errors import InputError
from lengthwise.predictors import LogTPredictions, PredictionInput
from lengthwise.predictors.mixture import (
    NAMES,
    AdaptedPredictor,
    Answers,
    Mixture,
    Tilt,
    fit_mixture,
    from_part,
    kinds,
    likeness,
    to_part,
)
from tests.predictors import worlds

LIKE = likeness(worlds.NEW, worlds.KNOWN)


def fit(answers: Answers) -> Mixture:
    """Fit with fewer folds than the default, for speed."""
    return fit_mixture(answers, LIKE, folds=3)


def error(weights: tuple[float, ...], count: int, seed: int = 0, limit: float = np.inf) -> tuple[float, float]:
    """RMS error of mu on new prompts, after and before learning from `count` lengths."""
    learned_from, fresh = worlds.texts(count, seed), worlds.texts(400, 99)
    lengths = worlds.lengths(learned_from, weights, 0.7, seed + 1)
    found = fit(worlds.answers(learned_from, lengths, limit=limit))
    known = worlds.answers(fresh, np.ones(400))
    true = known.mu @ np.array(weights) + 0.7
    mu, _ = found.apply(known.mu, known.sigma, known.kinds)
    return float(np.sqrt(np.mean((mu - true) ** 2))), float(np.sqrt(np.mean((known.mu @ LIKE - true) ** 2)))


def test_likeness_follows_the_family_and_is_uniform_without_one() -> None:
    assert LIKE.argmax() == 1
    assert LIKE.sum() == pytest.approx(1.0)
    assert likeness("unknown/Mystery", worlds.KNOWN).tolist() == pytest.approx([1 / 3] * 3)
    assert likeness(worlds.KNOWN[2], worlds.KNOWN).tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("weights", [(0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.5, -0.2, 0.9)])
def test_a_hundred_lengths_recover_the_mixture_whatever_the_name(weights: tuple[float, ...]) -> None:
    after, before = np.mean([error(weights, 100, seed) for seed in range(4)], axis=0)
    assert after < 0.11
    assert after < before / 4


def test_more_lengths_lower_the_error() -> None:
    weights = (0.6, -0.2, 0.9)
    errors = [np.mean([error(weights, count, seed)[0] for seed in range(3)]) for count in (25, 100, 300)]
    assert errors[0] > errors[1] > errors[2]


def test_censored_answers_count_as_lower_bounds() -> None:
    weights, limit = (0.0, 1.0, 0.0), 700.0
    learned_from = worlds.texts(200)
    lengths = worlds.lengths(learned_from, weights, 0.7)
    assert 0.2 < np.mean(lengths >= limit) < 0.5
    censored, _ = error(weights, 200, limit=limit)
    whole = worlds.answers(learned_from, np.minimum(lengths, limit))
    fresh = worlds.answers(worlds.texts(400, 99), np.ones(400))
    naive, _ = fit(whole).apply(fresh.mu, fresh.sigma, fresh.kinds)
    assert censored < 0.15
    assert censored < np.sqrt(np.mean((naive - fresh.mu @ np.array(weights) - 0.7) ** 2)) / 1.5


def test_a_kind_of_prompt_with_longer_answers_is_learned() -> None:
    prompts, fresh = worlds.texts(150), worlds.texts(400, 99)
    odd, odd_fresh = (np.arange(n) % 3 == 0 for n in (150, 400))
    lengths = worlds.lengths(prompts, (0.0, 1.0, 0.0), 0.0) * np.where(odd, 4.0, 1.0)
    kinds, kinds_fresh = (np.zeros((len(flags), len(NAMES))) + flags[:, None] for flags in (odd, odd_fresh))
    found = fit(worlds.answers(prompts, lengths, kinds=kinds))
    known = worlds.answers(fresh, np.ones(400), kinds=kinds_fresh)
    mu, _ = found.apply(known.mu, known.sigma, known.kinds)
    difference = (mu - known.mu[:, 1])[odd_fresh].mean() - (mu - known.mu[:, 1])[~odd_fresh].mean()
    assert difference == pytest.approx(np.log(4.0), abs=0.3)


def test_extreme_features_are_clipped() -> None:
    rng = np.random.default_rng(5)
    prompts = worlds.texts(100)
    found = fit(
        worlds.answers(prompts, worlds.lengths(prompts, (0, 1, 0), 0.0), kinds=rng.normal(0, 1, (100, len(NAMES))))
    )
    known = worlds.answers(prompts[:1], np.ones(1), kinds=np.full((1, len(NAMES)), 1e9))
    assert np.isfinite(found.apply(known.mu, known.sigma, known.kinds)[0]).all()
    assert found.tilt.units(known.kinds).max() <= 3.0


def test_a_prompt_unlike_those_learned_from_is_predicted_widely_and_within_their_lengths() -> None:
    rng = np.random.default_rng(0)
    forms = ("In one word: {}", "Write a long essay about {}")
    asked = [forms[i % 2].format(" ".join(rng.choice(["cats", "queues", "rain", "coffee"], 4))) for i in range(100)]
    lengths = np.where(np.arange(100) % 2, 700, 6) * np.exp(0.2 * rng.standard_normal(100))
    prompts = worlds.texts(100)
    found = fit(worlds.answers(prompts, lengths, kinds=kinds(asked)))
    other = ["", "Why is the sky blue?", "x" * 1_000_000, "def f(x):\n    return x\n" * 50, "Write " * 40]
    known = worlds.answers(prompts[: len(other)], np.ones(len(other)))
    _, narrow = found.apply(known.mu, known.sigma, kinds(asked[: len(other)]))
    mu, wide = found.apply(known.mu, known.sigma, kinds(other))
    assert wide.min() > 2 * narrow.max()
    assert wide.max() <= 1.5
    assert np.log(2) < mu.min() <= mu.max() < np.log(2100)


@pytest.mark.parametrize("count", [30, 100])
def test_intervals_have_their_nominal_coverage_after_few_lengths(count: int) -> None:
    covered = []
    for seed in range(6):
        prompts, fresh = worlds.texts(count, seed), worlds.texts(400, 1000 + seed)
        weights = (0.5, -0.2, 0.9)
        found = fit(worlds.answers(prompts, worlds.lengths(prompts, weights, 0.3, seed + 50)))
        truth = np.log(worlds.lengths(fresh, weights, 0.3, seed + 70))
        known = worlds.answers(fresh, np.ones(400))
        mu, sigma = found.apply(known.mu, known.sigma, known.kinds)
        covered.append(np.mean(np.abs(truth - mu) <= sigma * special.stdtrit(worlds.NU, 0.95)))
    assert 0.86 <= np.mean(covered) <= 0.95


def test_ten_equal_answers_to_a_prompt_count_as_one() -> None:
    prompts = worlds.texts(60)
    one = worlds.lengths(prompts, (0.0, 0.0, 1.0), 0.2)
    again = np.repeat(one[:, None], 10, axis=1)
    once, often = (fit(worlds.answers(prompts, lengths)) for lengths in (one, again))
    np.testing.assert_allclose(often.weights, once.weights, atol=1e-3)
    assert often.factor == pytest.approx(once.factor, rel=1e-3)


@settings(max_examples=3)
@given(st.floats(-2.0, 2.0), st.integers(0, 5))
def test_scaled_lengths_change_only_the_shift(shift: float, seed: int) -> None:
    prompts = worlds.texts(40, seed)
    lengths = np.exp(np.array([worlds.predictions_of(text)[1] for text in prompts])) * 50
    plain, longer = (fit(worlds.answers(prompts, x)) for x in (lengths, lengths * np.exp(shift)))
    assert longer.shift - plain.shift == pytest.approx(shift, abs=0.02)
    np.testing.assert_allclose(longer.weights, plain.weights, atol=0.02)


def test_rows_may_have_different_numbers_of_answers() -> None:
    prompts = worlds.texts(40)
    lengths = np.stack([worlds.lengths(prompts, (0, 1, 0), 0.0, seed) for seed in (1, 2)], axis=1)
    whole = worlds.answers(prompts, lengths)
    present = np.ones(lengths.shape, bool)
    present[::2, 1] = False
    spoiled = Answers(
        whole.mu, whole.sigma, whole.kinds, np.where(present, lengths, 1e8), present, whole.censored, worlds.NU
    )
    clean = Answers(
        whole.mu, whole.sigma, whole.kinds, np.where(present, lengths, 1.0), present, whole.censored, worlds.NU
    )
    assert fit(spoiled).weights.tolist() == fit(clean).weights.tolist()


@settings(max_examples=30)
@given(st.lists(st.text(), max_size=5))
def test_any_text_has_finite_features(texts: list[str]) -> None:
    found = kinds(texts)
    assert found.shape == (len(texts), len(NAMES))
    assert np.isfinite(found).all()


def test_code_and_questions_have_different_features() -> None:
    code, question = kinds(["import os\ndef f(x):\n    return [x]\n", "Why is the sky blue?"])
    of = dict(zip(NAMES, zip(code, question, strict=True), strict=True))
    for name in ("words of code", "signs of code", "lines"):
        assert of[name][0] > of[name][1]
    assert of["ends asking"] == (0.0, 1.0)


def test_a_lone_surrogate_and_a_megabyte_are_valid_texts() -> None:
    assert np.isfinite(kinds(["\udcff", "x" * 1_000_000, ""])).all()


NO_TILT = Tilt(np.zeros(len(NAMES)), np.zeros(len(NAMES)), np.ones(len(NAMES)))
HALF = Mixture(np.array([0.5, 0.5, 0.0]), np.array([0.5, 0.5, 0.0]), 1.0, 2.0, NO_TILT)
TEXT = "5.0 6.0 7.0"


def predictor(**adapted: Mixture) -> AdaptedPredictor:
    return AdaptedPredictor(worlds.Base(), adapted or {"me/Mine-Instruct": HALF})


def test_a_new_llm_is_predicted_by_its_mixture_and_known_ones_are_unchanged() -> None:
    asked = [PredictionInput(TEXT, llm, 4000) for llm in ("me/Mine-Instruct", worlds.KNOWN[2])]
    found = predictor().predict(asked)
    assert isinstance(found, LogTPredictions)
    assert found.mu.tolist() == pytest.approx([6.5, 7.0])
    assert found.sigma.tolist() == pytest.approx([2 * worlds.SIGMA, worlds.SIGMA])
    assert [found[i].cap for i in range(2)] == [4000, 4000]
    before = worlds.Base().predict(asked[1:])
    assert found.sample_mean[1] == before.sample_mean[0]


def test_sampling_mean_and_std_keep_their_ratio_to_the_median() -> None:
    found = predictor().predict([TEXT], ["me/Mine-Instruct"])
    assert found.sample_mean[0] / np.exp(6.5) == pytest.approx(1.1)
    assert found.sample_std[0] / found.sample_mean[0] == pytest.approx(0.25)


def test_a_short_name_resolves_to_the_adapted_llm_and_a_known_llm_can_be_replaced() -> None:
    assert predictor().predict([TEXT], ["mine"])[0].quantile(0.5) == pytest.approx(np.exp(6.5))
    found = AdaptedPredictor(worlds.Base(), {worlds.KNOWN[2]: HALF})
    assert found.predict([TEXT], [worlds.KNOWN[2]])[0].quantile(0.5) == pytest.approx(np.exp(6.5))
    assert found.llms == worlds.KNOWN


def test_the_base_predicts_each_known_llm_once() -> None:
    found = predictor()
    found.predict([TEXT] * 3, list(worlds.KNOWN))
    assert isinstance(found.base, worlds.Base)
    assert found.base.asked == 3
    assert len(found.predict([], [])) == 0


def test_mixtures_are_stored_and_read_back_and_a_broken_part_is_named() -> None:
    tilt = Tilt(*(np.arange(12, dtype=np.float64) + n for n in range(5)))
    data = to_part({"m": Mixture(HALF.weights, HALF.likeness, 0.3, 1.2, tilt)}, worlds.KNOWN)
    again = from_part(data, worlds.KNOWN, "here")["m"]
    assert again.weights.tolist() == HALF.weights.tolist()
    assert (again.shift, again.factor) == (0.3, 1.2)
    assert again.tilt.spread.tolist() == tilt.spread.tolist()
    assert np.array_equal(again.tilt.low, tilt.low)
    assert np.array_equal(again.tilt.high, tilt.high)
    tree = json.loads(data)
    tree["m"]["tilt"] = {kind: numbers[:3] for kind, numbers in tree["m"]["tilt"].items()}
    earlier = from_part(json.dumps(tree).encode(), worlds.KNOWN, "here")["m"].tilt  # of an earlier version
    assert (earlier.spread.tolist(), earlier.low, earlier.high) == (tilt.spread.tolist(), -3.0, 3.0)
    for broken, llms in ((b"{", worlds.KNOWN), (b'{"m": {}}', worlds.KNOWN), (data, (*worlds.KNOWN, "another"))):
        with pytest.raises(InputError, match=r"adapted\.json.*adapt it again"):
            from_part(broken, llms, "here")
