"""One prediction for people: all numbers are of one distribution, from Python in one line."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lengthwise
from lengthwise.errors import InputError
from lengthwise.lengths import LogT, Point
from lengthwise.predictors import Prediction, load_predictor, predict
from lengthwise.predictors.adapt import unknown_llms_unlogged
from lengthwise.predictors.contract import LoadedPredictor
from lengthwise.predictors.history import History
from lengthwise.predictors.learner import LearnedPredictor, Learner
from lengthwise.predictors.mixture import AdaptedPredictor
from lengthwise.predictors.prefix_memory import MemoryPredictor


def test_one_line_of_python_predicts() -> None:
    found = lengthwise.predict("Why is the sky blue?", llm="llama-3.1-8b")
    assert (found.predictor, found.llm) == ("default", "llama-3.1-8b")
    low, high = found.interval
    assert low < found.median < found.mean < high
    assert str(found) == f"median {found.median:,.0f} tokens, 90 % {low:,.0f} to {high:,.0f}, mean {found.mean:,.0f}"


def test_without_an_llm_it_predicts_for_an_unknown_one() -> None:
    assert predict("Why is the sky blue?", predictor="fast").to_json()["llm"] is None


def test_a_predictor_object_and_a_cap_are_taken() -> None:
    found = predict("hi", "llama", predictor=History(), max_tokens=7)
    assert found.predictor == "History"
    assert found.p99 == 7.0
    assert found.sample_mean is None


def test_a_prompt_that_is_no_text_is_refused() -> None:
    with pytest.raises(InputError, match="text"):
        predict(["hi"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"llm": 5}, "llm"),
        ({"max_tokens": 0}, "at least 1"),
        ({"thinking": "maybe"}, "one of: off, on, low, medium, high"),
    ],
)
def test_an_argument_that_means_nothing_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        predict("hi", predictor=History(), **given)


@given(st.floats(-3.0, 9.0), st.floats(0.02, 3.0), st.integers(1, 100_000))
def test_no_number_is_below_one_token_or_above_the_cap(mu: float, sigma: float, cap: int) -> None:
    found = Prediction(LogT(mu, sigma, cap), "", "any")
    low, high = found.interval
    assert 1.0 <= low <= found.median <= high <= found.p99 <= cap
    assert 1.0 <= found.mean <= cap


@pytest.mark.parametrize(
    ("prediction", "note"),
    [
        (Prediction(LogT(5.0, 0.5, 100), "", "any"), None),
        (Prediction(Point(5.0), "", "any"), None),
        (Prediction(LogT(5.0, 0.5, 100), "", "any", novelty=0.9), "unlike the prompts it was trained on: wide"),
        (Prediction(LogT(5.0, 1.2, 100), "", "any"), "little is known about answers to this prompt: wide"),
    ],
)
def test_a_note_says_why_an_interval_is_wide(prediction: Prediction, note: str | None) -> None:
    assert prediction.note == note
    assert prediction.to_json()["note"] == note
    assert (note is None) or note in str(prediction)


@unknown_llms_unlogged()
def test_plain_strings_are_one_prompt_and_one_llm_for_every_predictor() -> None:
    fast = load_predictor("fast")
    loaded: list[LoadedPredictor] = [load_predictor(name) for name in ("fast", "default", "fast+learn")]
    loaded += [AdaptedPredictor(fast, {}), LearnedPredictor(fast, Learner(fast).state())]
    learned = [History().predict("hi", "llama"), MemoryPredictor().predict("hi", "llama")]
    for found in [*(predictor.predict("hi", "llama") for predictor in loaded), *learned]:
        assert len(found) == 1
        assert math.isfinite(found[0].mean())
    assert len(fast.predict(["hi", "there"], "llama")) == 2
