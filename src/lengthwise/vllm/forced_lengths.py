"""Measurement only: an engine that reproduces another LLM's answer lengths.

A measurement may force the length of every answer (`ignore_eos`, and `max_tokens` at the length), taken from an LLM
that this machine cannot serve and scaled to fit. The predictor is then asked about that LLM, and its predictions are
scaled too: mu + log(scale), the same sigma. The forced limit must not reach a prediction, which would be censored at
the truth; so a request declares its client's limit as `cap` in `vllm_xargs`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from lengthwise.errors import InputError
from lengthwise.predictors.contract import LengthPredictor, LogTPredictions, PredictionInput, as_logt
from lengthwise.predictors.service import PredictionService, prediction_service


@dataclass(frozen=True, slots=True)
class ForcedLengths:
    """The LLM whose lengths are forced, and the factor they are multiplied by."""

    llm: str
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.llm or not 0 < self.scale < math.inf:
            raise InputError(
                f"forced_lengths of '{self.llm}' at a scale of {self.scale:g}",
                source="additional_config",
                hint='give {"llm": a name, "scale": a number above 0}',
            )

    @classmethod
    def of(cls, option: Any) -> Self | None:  # whatever the engine's configuration holds
        """Return the option `forced_lengths` as a value; None where it is not given."""
        if option is None:
            return None
        try:
            return cls(str(option["llm"]), float(option.get("scale", 1.0)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"cannot read forced_lengths {option!r}",
                source="additional_config",
                hint='give {"llm": a name, "scale": a number}',
            ) from error

    def service(self, predictor: str) -> PredictionService:
        """Return the prediction service of the forced lengths; its online calibration learns from them too."""
        return prediction_service(predictor, lambda asked: ForcedLengthPredictor(asked, self))


@dataclass(frozen=True)
class ForcedLengthPredictor:
    """A predictor asked about the other LLM, its predictions scaled."""

    predictor: LengthPredictor
    forced_lengths: ForcedLengths

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        """Return one prediction of the forced length for each input, censored at the cap of the input."""
        scale = self.forced_lengths.scale
        asked = [replace(each, llm=self.forced_lengths.llm, max_tokens=math.ceil(each.cap / scale)) for each in inputs]
        predictions = as_logt(self.predictor.predict(asked))
        return LogTPredictions.of(
            predictions.mu + math.log(scale),
            predictions.sigma,
            [float(each.cap) for each in inputs],
            nu=predictions.nu,
            sample_mean=predictions.sample_mean * scale,
            sample_std=predictions.sample_std * scale,
        )
