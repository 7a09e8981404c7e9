"""Predictions about another LLM's answers, scaled."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.lengths import LengthDistribution, LogT
from lengthwise.predictors import PredictionInput
from lengthwise.predictors.contract import LogTPredictions
from lengthwise.predictors.service import PredictionService
from lengthwise.vllm.forced_lengths import ForcedLengths


@given(scale=st.floats(0.01, 10), cap=st.integers(1, 10_000), tokens=st.integers(1, 10_000))
def test_the_predictor_is_given_the_forced_llm_and_its_median_is_scaled(scale: float, cap: int, tokens: int) -> None:
    forced = ForcedLengths("grown", scale)
    asked = forced.asked(PredictionInput("why?", "small", cap))
    assert (asked.text, asked.llm) == ("why?", "grown")
    assert asked.cap >= cap / scale, "the limit in tokens of the other LLM"
    prediction = forced.predicted(LogT(math.log(400), 0.5, asked.cap), cap)
    assert prediction.mu == pytest.approx(math.log(400 * scale))
    assert (prediction.sigma, prediction.cap) == (0.5, cap)
    assert abs(forced.observed(tokens) - tokens / scale) <= 1, "and learns in that LLM's tokens"


@pytest.mark.parametrize("option", [{}, {"llm": ""}, {"llm": "x", "scale": 0}, {"llm": "x", "scale": "much"}, "x", 5])
def test_an_invalid_option_is_refused(option: object) -> None:
    with pytest.raises(InputError):
        ForcedLengths.of(option)


def test_no_length_is_forced_by_default() -> None:
    assert ForcedLengths.of(None) is None
    assert ForcedLengths.of({"llm": "x"}) == ForcedLengths("x", 1.0)


def test_both_predictors_predict_the_forced_llm_and_learn_its_lengths() -> None:
    predicted: list[PredictionInput] = []
    observed: list[float] = []

    class Recording:
        def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
            predicted.extend(inputs)
            return LogTPredictions.of([math.log(400)] * len(inputs), 0.5, [each.cap for each in inputs])

        def observe(self, request: PredictionInput, tokens: int, *, censored: bool = False) -> None:
            observed.append(tokens)

        def state(self) -> bytes:
            return b""

        def restore(self, state: bytes) -> None: ...

    service = PredictionService(Recording, quick=Recording(), frame=ForcedLengths("grown", 0.5))
    taken: dict[str, LengthDistribution] = {}
    for key, quick in (("a", False), ("b", True)):
        service.admit(key, "small", 1000)
        service.ask(key, lambda: PredictionInput("why?", "small", 1000), quick=quick)
    end = time.monotonic() + 60
    while len(taken) < 2:
        service.deliver(lambda key, each: bool(taken.setdefault(key, each)))
        assert time.monotonic() < end
    service.ended("a", 300)
    service.close()
    assert {each.llm for each in predicted} == {"grown"}
    assert [each.quantile(0.5) for each in taken.values()] == pytest.approx([200, 200])
    assert observed == [600]
