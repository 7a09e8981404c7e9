"""One prediction for people: median, interval, mean and P99 of the same distribution, in tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from lengthwise.errors import InputError, require_kind
from lengthwise.lengths import LengthDistribution, LogT
from lengthwise.llm_names import UNKNOWN
from lengthwise.predictors.contract import LengthPredictor, LogTPredictions, PredictionInput
from lengthwise.predictors.resolve import best_packaged, resolve_predictor
from lengthwise.predictors.thinking import LEVELS, Thinking

P99: Final = 0.99
"""P99 is this quantile of the prediction for one answer, in the whole package."""
QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95)
NOVEL: Final = 0.5
"""Novelty from which a prompt counts as unlike those that the predictor was trained on."""
WIDE_SIGMA: Final = 1.0
"""Sigma from which a prediction says little: about that of all lengths of an LLM."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a predictor says about one answer. All numbers are tokens of one answer, and at least 1."""

    distribution: LengthDistribution
    llm: str
    predictor: str
    novelty: float = math.nan
    """How unlike the training data the prompt is, from 0 to 1; NaN where the predictor does not say."""
    sample_mean: float | None = None
    """Mean of repeated answers to the prompt, without the predictor's uncertainty; None where it does not say."""
    sample_std: float | None = None

    def quantile(self, q: float) -> float:
        """Return the tokens that the answer stays within with probability q."""
        return max(1.0, self.distribution.quantile(q))

    @property
    def median(self) -> float:
        """Half of the answers are longer."""
        return self.quantile(0.5)

    @property
    def interval(self) -> tuple[float, float]:
        """Nine of ten answers lie inside; one of twenty is shorter, one of twenty longer."""
        return self.quantile(0.05), self.quantile(0.95)

    @property
    def mean(self) -> float:
        """The expected length: above the median, since long answers are rare and very long."""
        return max(1.0, self.distribution.mean())

    @property
    def p99(self) -> float:
        """One answer in a hundred is longer."""
        return self.quantile(P99)

    @property
    def novel(self) -> bool:
        """Whether the prompt is unlike those that the predictor was trained on."""
        return self.novelty >= NOVEL

    @property
    def note(self) -> str | None:
        """Why the interval is wide, if it is."""
        if self.novel:
            return "unlike the prompts it was trained on: wide"
        if isinstance(self.distribution, LogT) and self.distribution.sigma >= WIDE_SIGMA:
            return "little is known about answers to this prompt: wide"
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as a JSON tree."""
        low, high = self.interval
        return {
            "llm": None if self.llm == UNKNOWN else self.llm,
            "predictor": self.predictor,
            "median": self.median,
            "interval_90": [low, high],
            "mean": self.mean,
            "p99": self.p99,
            "quantiles": {f"{q:g}": self.quantile(q) for q in QUANTILES},
            "novel": self.novel,
            "note": self.note,
        }

    def __str__(self) -> str:
        low, high = self.interval
        text = f"median {self.median:,.0f} tokens, 90 % {low:,.0f} to {high:,.0f}, mean {self.mean:,.0f}"
        return text if self.note is None else f"{text} ({self.note})"


def predict(
    text: str,
    llm: str | None = None,
    *,
    predictor: str | Path | LengthPredictor | None = None,
    max_tokens: int | None = None,
    thinking: Thinking | None = None,
) -> Prediction:
    """Predict the length of an LLM's answer to a prompt.

    `llm` may be a short name such as llama-3.1-8b; without one the prediction is for an unknown LLM. `predictor` is a
    name, a model file or a predictor object; the default is the best packaged one, loaded once per process. `thinking`
    is the switch of a reasoning LLM (off, on, low, medium or high), which a predictor that learns tells apart.
    """
    require_kind(text, (str,), "text", "a prompt, such as predict('Why is the sky blue?')")
    require_kind(llm, (str, type(None)), "llm", "the name of an LLM, such as llama-3.1-8b")
    if max_tokens is not None and max_tokens < 1:
        raise InputError(f"{max_tokens} tokens", field="max_tokens", hint="give at least 1")
    if thinking not in (None, *LEVELS):
        raise InputError(f"'{thinking}' is no switch", field="thinking", hint=f"one of: {', '.join(LEVELS)}")
    chosen = best_packaged() if predictor is None else predictor
    model = loaded_once(str(chosen)) if isinstance(chosen, str | Path) else resolve_predictor(chosen)
    asked = PredictionInput(text, llm or UNKNOWN, max_tokens=max_tokens, thinking=thinking)
    found = model.predict([asked])
    found = found.marginal() if isinstance(found, LogTPredictions) else found
    novelty = found.novelty if isinstance(found, LogTPredictions) else None
    repeated = [min(float(column[0]), asked.cap) for column in (found.sample_mean, found.sample_std)]
    mean, std = (value if math.isfinite(value) else None for value in repeated)
    return Prediction(
        found[0],
        asked.llm,
        str(chosen) if isinstance(chosen, str | Path) else type(model).__name__,
        math.nan if novelty is None else float(novelty[0]),
        mean,
        std,
    )


@cache
def loaded_once(name: str) -> LengthPredictor:
    """Return the predictor of this name, the same object at every call."""
    return resolve_predictor(name)
