"""LLMs whose lengths are known mixtures of other LLMs', and a predictor of the other LLMs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lengthwise.predictors import LogTPredictions, PredictionInput
from lengthwise.predictors.contract import as_inputs
from lengthwise.predictors.mixture import NAMES, Answers

if TYPE_CHECKING:
    Floats = NDArray[np.float64]


KNOWN = ("Qwen/Qwen-7B", "meta-llama/Llama-8B", "google/gemma-4b")
NEW = "meta-llama/Llama-70B"
NU = 3.5
SIGMA = 0.3


def predictions_of(text: str) -> Floats:
    """Return mu of the known LLMs: a text holds one number for each."""
    return np.array([float(word) for word in text.split()])


def texts(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    shared, own = rng.normal(5.5, 0.7, (count, 1)), rng.normal(0.0, 0.4, (count, len(KNOWN)))
    return [" ".join(f"{mu:.4f}" for mu in row) for row in shared + own]


def lengths(prompts: Sequence[str], weights: Sequence[float], shift: float, seed: int = 1) -> Floats:
    """Return one length per prompt of an LLM that is this mixture."""
    rng = np.random.default_rng(seed)
    mu = np.array([predictions_of(text) for text in prompts]) @ np.array(weights) + shift
    drawn: Floats = np.maximum(1, np.rint(np.exp(mu + SIGMA * rng.standard_t(NU, len(mu)))))
    return drawn


def answers(prompts: Sequence[str], drawn: Floats, *, limit: float = np.inf, kinds: Floats | None = None) -> Answers:
    mu = np.array([predictions_of(text) for text in prompts])
    drawn = drawn.reshape(len(mu), -1)
    no_kind = np.zeros((len(mu), len(NAMES)))
    return Answers(
        mu=mu,
        sigma=np.full(mu.shape, SIGMA),
        kinds=no_kind if kinds is None else kinds,
        lengths=np.minimum(drawn, limit),
        present=np.ones(drawn.shape, bool),
        censored=drawn >= limit,
        nu=NU,
    )


@dataclass
class Base:
    """A predictor that reads mu of three LLMs from the text and uses their mean for any other LLM."""

    llms: tuple[str, ...] = KNOWN
    asked: int = 0
    card: Mapping[str, Any] = field(default_factory=dict)

    def predict(
        self, inputs: Sequence[PredictionInput] | Sequence[str], llms: Sequence[str] | None = None
    ) -> LogTPredictions:
        asked = as_inputs(inputs, llms)
        self.asked += len(asked)
        mu = [
            predictions_of(each.text)[self.llms.index(each.llm)]
            if each.llm in self.llms
            else predictions_of(each.text).mean()
            for each in asked
        ]
        means = np.exp(np.array(mu)) * 1.1
        caps = [each.cap for each in asked]
        return LogTPredictions.of(mu, [SIGMA] * len(mu), caps, sample_mean=means, sample_std=means / 4)
