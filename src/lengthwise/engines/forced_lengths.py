"""For measurement only: an engine that plays another LLM's answers.

A measurement may force every answer's length (`ignore_eos`, and `max_tokens` at the length), taken from an LLM that
this machine could not serve, scaled to fit it. The predictor is then asked about that LLM, and what it predicts is
scaled too: mu + log(scale), the same sigma. The forced limit must not reach a prediction, which would be censored at the
truth; so a request declares its client's own limit as `cap` in `vllm_xargs`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from lengthwise.errors import InputError
from lengthwise.predictors.calibration import as_logt
from lengthwise.predictors.contract import LengthPredictor, LogTPredictions, PredictionInput
from lengthwise.predictors.service import PredictionService, prediction_service


@dataclass(frozen=True, slots=True)
class Plays:
    """Whose answers are played, and by what their lengths were multiplied."""

    llm: str
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.llm or not 0 < self.scale < math.inf:
            raise InputError(
                f"plays '{self.llm}' at a scale of {self.scale:g}",
                source="additional_config",
                hint='give {"llm": a name, "scale": a number above 0}',
            )

    @classmethod
    def of(cls, said: Any) -> Self | None:  # noqa: ANN401  (whatever the engine's configuration holds)
        """What the option `plays` says; None where it is not given."""
        if said is None:
            return None
        try:
            return cls(str(said["llm"]), float(said.get("scale", 1.0)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"cannot read plays {said!r}",
                source="additional_config",
                hint='give {"llm": a name, "scale": a number}',
            ) from error

    def service(self, predictor: str) -> PredictionService:
        """Predictions about the played lengths; what is learned online is about them too."""
        return prediction_service(predictor, lambda asked: Played(asked, self))


@dataclass(frozen=True)
class Played:
    """A predictor asked about the played LLM, whose lengths are scaled."""

    predictor: LengthPredictor
    plays: Plays

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        """Return one prediction about the played length for each input, censored at the input's own cap."""
        scale = self.plays.scale
        asked = [replace(each, llm=self.plays.llm, max_tokens=math.ceil(each.cap / scale)) for each in inputs]
        own = as_logt(self.predictor.predict(asked))
        return LogTPredictions.of(
            own.mu + math.log(scale),
            own.sigma,
            [float(each.cap) for each in inputs],
            nu=own.columns.nu,
            sample_mean=own.sample_mean * scale,
            sample_std=own.sample_std * scale,
        )
