"""Length samples of a known distribution, and predictors that return it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lengthwise.lengths.families import LOGT
from lengthwise.predictors import HistogramPredictions, LogTPredictions, PredictionInput, Predictions
from lengthwise.workloads import LengthSamples

SIGMA = 0.2
LLMS = ("owner/a", "owner/b")


def known_rows(prompts: int = 60, *, seed: int = 0, split: str = "test") -> tuple[LengthSamples, dict[str, float]]:
    """Return log-t length samples of two corpora and mu by prompt text."""
    rng = np.random.default_rng(seed)
    corpora = ["short" if i % 2 else "long" for i in range(prompts)]
    mu = np.array([rng.normal(4.0 if corpus == "short" else 6.0, 0.5) for corpus in corpora])
    texts = [f"{split} prompt {i}" for i in range(prompts)]
    rows = np.repeat(np.arange(prompts), len(LLMS))
    params = np.column_stack([mu[rows], np.full(len(rows), SIGMA), np.full(len(rows), 3.5)])
    lengths = np.clip(np.rint(LOGT.draw(rng, params, 10)), 1, 8_000).astype(np.int64)
    samples = LengthSamples.from_table(
        {
            "corpus": [corpora[i] for i in rows],
            "split": [split] * len(rows),
            "prompt_id": [f"{split}{i}" for i in rows],
            "llm": list(LLMS) * prompts,
            "input_tokens": [10] * len(rows),
            "lengths": lengths.tolist(),
            "prompt": [texts[i] for i in rows],
        },
        origin="made up",
    )
    return samples, dict(zip(texts, mu.tolist(), strict=True))


@dataclass(frozen=True)
class Knows:
    """Predicts the distribution that the samples were drawn from, or one with another sigma."""

    mu: Mapping[str, float]
    sigma: float = SIGMA

    def predict(self, inputs: Sequence[PredictionInput]) -> Predictions:
        return LogTPredictions.of(
            [self.mu[each.text] for each in inputs], [self.sigma] * len(inputs), [each.cap for each in inputs]
        )


@dataclass(frozen=True)
class KnowsTheBin:
    """Predicts the bin of 100 tokens that holds the median."""

    mu: Mapping[str, float]

    def predict(self, inputs: Sequence[PredictionInput]) -> Predictions:
        edges = np.arange(0, 8_101, 100)
        rows = np.zeros((len(inputs), 81))
        rows[np.arange(len(inputs)), [int(np.exp(self.mu[each.text]) // 100) for each in inputs]] = 1.0
        return HistogramPredictions.of(edges, rows, 8_100)
