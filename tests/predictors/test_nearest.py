"""Similar past prompts tell the length; without any, the history does."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lengthwise.lengths import fit_logt, wide_prior
from lengthwise.predictors import LengthPredictor, PredictionInput
from lengthwise.predictors.nearest import Nearest, hashed_words, weighted_logt


def ask(text: str, llm: str = "m") -> PredictionInput:
    return PredictionInput(text, llm)


def taught(cut: int = 10**9) -> Nearest:
    rng, nearest = np.random.default_rng(0), Nearest()
    for n in range(300):
        topic = ("write a long essay about the history of", 900) if n % 2 else ("answer yes or no whether", 20)
        length = max(1, round(topic[1] * math.exp(0.1 * rng.standard_normal())))
        nearest.observe(ask(f"{topic[0]} thing {n}"), min(length, cut), censored=length > cut)
    return nearest


def test_a_prompt_like_past_ones_is_predicted_to_be_as_long() -> None:
    nearest = taught()
    assert isinstance(nearest, LengthPredictor)
    long, short = nearest.predict([ask("write a long essay about the history of tea"), ask("answer yes or no whether")])
    assert long.quantile(0.5) == pytest.approx(900, rel=0.15)
    assert short.quantile(0.5) == pytest.approx(20, rel=0.3)
    assert long.quantile(0.95) < 2000


def test_a_prompt_like_none_before_has_the_llms_history() -> None:
    nearest = taught()
    strange = nearest.predict([ask("ζήτημα")])
    assert strange.mu == pytest.approx(nearest.history.predict([ask("x")]).mu, abs=0.3)


def test_another_llms_prompts_say_nothing_about_this_one() -> None:
    nearest = taught()
    assert nearest.predict([ask("answer yes or no whether", "other")])[0].quantile(0.5) > 50
    assert Nearest().predict([ask("x")])[0] == wide_prior()


def test_answers_that_were_cut_count_as_longer_than_that() -> None:
    told = taught(cut=850).predict([ask("write a long essay about the history of tea")])[0]
    assert told.quantile(0.5) > 840


def test_the_past_is_a_ring_of_bounded_size() -> None:
    nearest = Nearest(capacity=10, most_llms=2)
    for n in range(25):
        nearest.observe(ask("same words", f"llm {n % 3}"), 1000 if n >= 12 else 10)
    assert len(nearest._past) == 2
    assert all(len(past.logs) == 10 for past in nearest._past.values())


def test_the_weighted_fit_agrees_with_maximum_likelihood_where_the_start_says_little() -> None:
    rng = np.random.default_rng(1)
    lengths = np.round(np.exp(5 + 0.4 * rng.standard_t(3.5, 400)))
    cut = np.minimum(lengths, 220.0)
    mu, sigma = weighted_logt(np.log(cut), lengths > 220, np.ones(400), 5.5, 1.0)
    fitted = fit_logt(cut, censored=lengths > 220)
    assert mu == pytest.approx(fitted.mu, abs=0.05)
    assert sigma == pytest.approx(fitted.sigma, rel=0.1)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text())
def test_any_text_has_features_of_length_one_or_none_at_all(text: str) -> None:
    vector = hashed_words(text)
    assert np.linalg.norm(vector) == pytest.approx(1.0) or not vector.any()


def test_features_do_not_depend_on_case_and_a_prompt_of_megabytes_is_read_in_part() -> None:
    assert hashed_words("Hello World") == pytest.approx(hashed_words("hello world"))
    assert hashed_words("\ud800 x").any()
    assert np.linalg.norm(hashed_words("word " * 1_000_000)) == pytest.approx(1.0)
