"""Measurement only: an engine that reproduces another LLM's answer lengths.

A measurement may force the length of every answer (`ignore_eos`, and `max_tokens` at the length), taken from an LLM
that this machine cannot serve and scaled to fit. The predictor is then asked about that LLM, and its predictions are
scaled too: mu + log(scale), the same sigma. The forced limit must not reach a prediction, which would be censored at
the truth; so a request declares its client's limit as `cap` in `vllm_xargs`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

from lengthwise.errors import InputError
from lengthwise.lengths import LogT
from lengthwise.predictors.contract import PredictionInput
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

    def asked(self, request: PredictionInput) -> PredictionInput:
        """Return the request as one to the other LLM, with its cap in that LLM's tokens."""
        return replace(request, llm=self.llm, max_tokens=math.ceil(request.cap / self.scale))

    def predicted(self, prediction: LogT, cap: int) -> LogT:
        """Return a prediction of the forced length, censored at the cap of the request."""
        return LogT(prediction.mu + math.log(self.scale), prediction.sigma, cap, prediction.nu)

    def observed(self, tokens: int) -> int:
        """Return a forced length in the other LLM's tokens, from which the predictor learns."""
        return max(1, round(tokens / self.scale))

    def service(self, predictor: str) -> PredictionService:
        """Return the prediction service of the forced lengths, which learns from them too."""
        return prediction_service(predictor, frame=self)
