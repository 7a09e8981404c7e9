"""Predictions from the most similar past prompts of the same LLM, by the words they share.

Words are hashed, so there is no vocabulary to train or ship, and any string has features.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import xxhash

from lengthwise.lengths import TIE_NU
from lengthwise.predictors.contract import LogTPredictions
from lengthwise.predictors.history import History, beyond

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lengthwise.predictors.contract import PredictionInput

    Floats = NDArray[np.float64]

DIMENSIONS: Final = 256
_WORD: Final = re.compile(r"\w+|[^\w\s]")
_READ: Final = 20_000  # characters of a prompt that are looked at: half from its beginning, half from its end

_ITERATIONS: Final = 8  # of the weighted fit; it moves by less than 1 % after five
_PRIOR_WEIGHT: Final = 2.0  # neighbours' worth of the LLM's own history in every prediction
_LEAST_SIGMA: Final = 0.05


def hashed_words(text: str, dimensions: int = DIMENSIONS) -> Floats:
    """Words and pairs of words hashed with a sign into a vector of length 1 (Weinberger et al. 2009); 0 without any.

    A word counts as 1 + log(occurrences), so that one repeated a thousand times does not drown the others.
    """
    if len(text) > _READ:
        text = text[: _READ // 2] + text[-_READ // 2 :]
    words = _WORD.findall(text.lower())
    counts: dict[str, int] = {}
    for word in (*words, *map(" ".join, pairwise(words))):
        counts[word] = counts.get(word, 0) + 1
    vector = np.zeros(dimensions)
    for word, count in counts.items():
        # Bytes, since a prompt may hold half a surrogate pair, which has no UTF-8.
        place = xxhash.xxh3_64_intdigest(word.encode("utf-8", "surrogatepass"))
        vector[(place >> 1) % dimensions] += (1.0 + math.log(count)) * (1.0 if place & 1 else -1.0)
    norm = float(np.sqrt(vector @ vector))
    return vector / norm if norm else vector


@dataclass
class _Past:
    """A ring of the last prompts of one LLM."""

    features: NDArray[np.float32]
    logs: Floats
    censored: NDArray[np.bool_]
    count: int = 0

    @classmethod
    def of(cls, capacity: int) -> _Past:
        features = np.zeros((capacity, DIMENSIONS), np.float32)
        return cls(features, np.zeros(capacity), np.zeros(capacity, bool))

    @property
    def filled(self) -> int:
        return min(self.count, len(self.logs))

    def add(self, vector: Floats, log_length: float, censored: bool) -> None:
        place = self.count % len(self.logs)
        self.features[place], self.logs[place], self.censored[place] = vector, log_length, censored
        self.count += 1


@dataclass
class Nearest:
    """The k most similar past prompts of the same LLM, their lengths weighted by similarity.

    weight_j = max(0, cosine_j)^2; prediction = weighted log-t fit of the neighbours' lengths and of the LLM's history (two
    neighbours' worth). Without a similar prompt the prediction is the history's. A cut-off length counts as a bound.
    """

    k: int = 20
    capacity: int = 4096
    """Prompts kept of each LLM, 1 kB each."""
    most_llms: int = 64
    history: History = field(default_factory=History)
    _past: dict[str, _Past] = field(default_factory=dict)

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        """Return one prediction for each input, in order."""
        start = self.history.predict(inputs)
        mu, sigma = start.mu.copy(), start.sigma.copy()
        for llm in {each.llm for each in inputs} & self._past.keys():
            past = self._past[llm]
            rows = [row for row, each in enumerate(inputs) if each.llm == llm]
            asked = np.array([hashed_words(inputs[row].text) for row in rows], np.float32)
            for row, similar in zip(rows, asked @ past.features[: past.filled].T, strict=True):
                mu[row], sigma[row] = self._fit(past, similar, mu[row], sigma[row])
        return LogTPredictions.of(mu, sigma, start.columns.cap)

    def observe(self, request: PredictionInput, length: int, *, censored: bool = False) -> None:
        """Take in one answer: its length, or, cut or still running, the tokens so far."""
        self.history.observe(request.llm, length, censored=censored)
        past = self._past.pop(request.llm, None) or _Past.of(self.capacity)
        self._past[request.llm] = past
        past.add(hashed_words(request.text), math.log(max(1, length)), censored)
        if len(self._past) > self.most_llms:
            del self._past[next(iter(self._past))]

    def _fit(self, past: _Past, similar: NDArray[np.float32], mu: float, sigma: float) -> tuple[float, float]:
        near = np.argpartition(-similar, self.k - 1)[: self.k] if len(similar) > self.k else np.arange(len(similar))
        weights = np.maximum(similar[near].astype(np.float64), 0.0) ** 2
        return weighted_logt(past.logs[near], past.censored[near], weights, mu, sigma)


def weighted_logt(
    logs: Floats, censored: NDArray[np.bool_], weights: Floats, mu: float, sigma: float
) -> tuple[float, float]:
    """Location and scale of weighted log lengths, and of a start that counts as two of them, by EM for nu 3.5."""
    start, spread = mu, sigma
    for _ in range(_ITERATIONS):
        z = (logs - mu) / sigma
        robust, centre, rest = (TIE_NU + 1) / (TIE_NU + z * z), logs, np.zeros(len(logs))
        if censored.any():
            weight, mean_z, within = beyond(z)
            robust = np.where(censored, weight, robust)
            centre = np.where(censored, mu + sigma * mean_z, logs)
            rest = np.where(censored, sigma**2 * within, 0.0)
        away = ((start - mu) ** 2 + spread**2) / sigma**2
        prior = _PRIOR_WEIGHT * (TIE_NU + 1) / (TIE_NU + away)
        counted = weights * robust
        mu = float((counted @ centre + prior * start) / (counted.sum() + prior))
        squares = counted @ (centre - mu) ** 2 + weights @ rest + prior * ((start - mu) ** 2 + spread**2)
        sigma = max(_LEAST_SIGMA, math.sqrt(squares / (weights.sum() + _PRIOR_WEIGHT)))
    return mu, sigma
