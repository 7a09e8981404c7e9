"""Predictions about another LLM's answers, scaled."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.predictors import PredictionInput
from lengthwise.predictors.contract import LogTPredictions
from lengthwise.vllm.forced_lengths import ForcedLengthPredictor, ForcedLengths


class RecordingPredictor:
    """Predicts 400 tokens, and records its inputs."""

    def __init__(self) -> None:
        self.inputs: list[PredictionInput] = []

    def predict(self, inputs: list[PredictionInput]) -> LogTPredictions:
        self.inputs += inputs
        return LogTPredictions.of([math.log(400)] * len(inputs), 0.5, [each.cap for each in inputs])


@given(scale=st.floats(0.01, 10), cap=st.integers(1, 10_000))
def test_the_predictor_is_given_the_forced_llm_and_its_median_is_scaled(scale: float, cap: int) -> None:
    base = RecordingPredictor()
    predictor = ForcedLengthPredictor(base, ForcedLengths("grown", scale))  # type: ignore[arg-type]
    predictions = predictor.predict([PredictionInput("why?", "small", cap)])
    (forwarded,) = base.inputs
    assert forwarded.llm == "grown"
    assert forwarded.cap >= cap / scale, "the limit in tokens of the other LLM"
    assert predictions.mu[0] == pytest.approx(math.log(400 * scale))
    assert predictions.sigma[0] == 0.5
    assert predictions[0].cap == cap


@pytest.mark.parametrize("option", [{}, {"llm": ""}, {"llm": "x", "scale": 0}, {"llm": "x", "scale": "much"}, "x", 5])
def test_an_invalid_option_is_refused(option: object) -> None:
    with pytest.raises(InputError):
        ForcedLengths.of(option)


def test_no_length_is_forced_by_default() -> None:
    assert ForcedLengths.of(None) is None
    assert ForcedLengths.of({"llm": "x"}) == ForcedLengths("x", 1.0)


def test_the_quick_predictor_also_predicts_the_forced_llm() -> None:
    service = ForcedLengths("grown", 0.5).service("default")
    assert service._worker is not None
    assert service._worker._quick is not None
    assert isinstance(service._worker._quick.predictor, ForcedLengthPredictor)
    service.close()
