"""Predictions about another LLM's answers, scaled."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.engines.forced_lengths import ForcedLengthPredictor, ForcedLengths
from lengthwise.errors import InputError
from lengthwise.predictors import PredictionInput
from lengthwise.predictors.contract import LogTPredictions


class Noting:
    """Believes 400 tokens, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[PredictionInput] = []

    def predict(self, inputs: list[PredictionInput]) -> LogTPredictions:
        self.asked += inputs
        return LogTPredictions.of([math.log(400)] * len(inputs), 0.5, [each.cap for each in inputs])


@given(scale=st.floats(0.01, 10), cap=st.integers(1, 10_000))
def test_the_predictor_is_asked_about_the_forced_llm_and_its_median_is_scaled(scale: float, cap: int) -> None:
    base = Noting()
    played = ForcedLengthPredictor(base, ForcedLengths("grown", scale))  # type: ignore[arg-type]
    predictions = played.predict([PredictionInput("why?", "small", cap)])
    (asked,) = base.asked
    assert asked.llm == "grown"
    assert asked.cap >= cap / scale, "the limit means more of the other LLM's tokens"
    assert predictions.mu[0] == pytest.approx(math.log(400 * scale))
    assert predictions.sigma[0] == 0.5
    assert predictions[0].cap == cap


@pytest.mark.parametrize("option", [{}, {"llm": ""}, {"llm": "x", "scale": 0}, {"llm": "x", "scale": "much"}, "x", 5])
def test_what_cannot_be_forced_is_refused(option: object) -> None:
    with pytest.raises(InputError):
        ForcedLengths.of(option)


def test_nothing_is_forced_unless_it_is_asked_for() -> None:
    assert ForcedLengths.of(None) is None
    assert ForcedLengths.of({"llm": "x"}) == ForcedLengths("x", 1.0)


def test_where_the_predictor_cannot_keep_up_the_quick_one_is_asked_about_the_other_llm_too() -> None:
    service = ForcedLengths("grown", 0.5).service("default")
    assert service._worker is not None
    assert service._worker._quick is not None
    assert isinstance(service._worker._quick.predictor, ForcedLengthPredictor)
    service.close()
