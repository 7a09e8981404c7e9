"""Fits `Novelty`: centres of the training prompts, and how much wider predictions must be far from them.

Models that were trained without some kinds predict those; their errors there, and their errors on held-out prompts of
kinds that they were trained on, decide low, high and spread by the likelihood of the lengths. The kinds left out have
equal weights and together that of the held-out prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from lengthwise.lengths import TIE_NU, log_t
from lengthwise.predictors.fast import MAX_SIGMA, FastPredictor
from lengthwise.predictors.novelty import Novelty
from lengthwise.training.fast.train import predicted
from lengthwise.training.pairs import PairTable

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

CENTRES: Final = 256
PAIRS: Final = 500
"""Pairs of a table that count, drawn at random."""
_ROUNDS: Final = 15
_START: Final = (0.8, 0.3, np.log(0.2))
_TRIALS: Final = 120
_REACH: Final = log_t.isf(0.05, TIE_NU)


def topics_of(predictor: FastPredictor, texts: Sequence[str]) -> Floats:
    """Return the topics of each text as unit vectors; 0 where it has none."""
    pages = (predictor.reader.read(text) for text in texts)
    found = np.array([predictor.topics(predictor.network.standardise(predictor.tables.describe(p))) for p in pages])
    return _units(found)


def fit_centres(vectors: Floats, kind: NDArray[np.intp], number: int = CENTRES, seed: int = 0) -> Floats:
    """Cluster unit vectors by cosine; a kind begins with centres as the square root of its number of vectors."""
    chance = 1.0 / np.sqrt(np.bincount(kind)[kind])
    drawn = np.random.default_rng(seed).choice(
        len(vectors), min(number, len(vectors)), replace=False, p=chance / chance.sum()
    )
    centres = vectors[drawn]
    for _ in range(_ROUNDS):
        sums = np.zeros_like(centres)
        np.add.at(sums, (vectors @ centres.T).argmax(axis=1), vectors)
        centres = np.where(np.any(sums != 0.0, axis=1, keepdims=True), _units(sums), centres)
    return centres


def _units(vectors: Floats) -> Floats:
    norm = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(np.divide(vectors, norm, out=np.zeros_like(vectors), where=norm > 0.0), np.float32)


@dataclass(frozen=True, eq=False)
class Errors:
    """Errors of log medians (N, K) and sigmas of pairs without novelty, and the distances of their prompts."""

    error: Doubles
    counts: NDArray[np.bool_]
    """Answers that count: those that were not cut off."""
    sigma: Doubles
    distance: Doubles

    @classmethod
    def of(cls, predictor: FastPredictor, centres: Floats, table: PairTable, seed: int = 0) -> Self:
        """Predict PAIRS pairs of a table."""
        mu, sigma, _ = predicted(replace(predictor, novelty=None), table)
        far = 1.0 - (topics_of(predictor, table.texts) @ centres.T).max(axis=1)
        counts = (table.lengths > 0) & ~table.censored
        usable = np.flatnonzero(counts.any(axis=1))
        rows = np.random.default_rng(seed).permutation(usable)[:PAIRS]
        error = np.log(np.maximum(table.lengths[rows], 1)) - mu[rows, None]
        return cls(error, counts[rows], sigma[rows], far[table.prompt[rows]].astype(np.float64))

    def spread(self, novelty: Novelty) -> Doubles:
        """Return sigma with this novelty."""
        share = np.clip((self.distance - novelty.low) / (novelty.high - novelty.low), 0.0, 1.0)
        wide = np.sqrt(self.sigma**2 + share * novelty.spread**2)
        return np.asarray(np.minimum(wide, np.maximum(self.sigma, MAX_SIGMA)))

    def loss(self, sigma: Doubles) -> float:
        """Return the mean negative log likelihood of the answers, up to a constant."""
        cost = np.log(sigma)[:, None] - log_t.log_density(self.error / sigma[:, None], TIE_NU)
        return float(cost[self.counts].mean())

    def covered(self, sigma: Doubles) -> float:
        """Return the share of answers in the 90 % intervals."""
        return float((np.abs(self.error) <= _REACH * sigma[:, None])[self.counts].mean())


def fit_novelty(centres: Floats, left_out: Sequence[Errors], trained: Sequence[Errors]) -> Novelty:
    """Fit low, high and spread by maximum likelihood."""

    def novelty(x: Doubles) -> Novelty:
        return Novelty(centres, float(x[1]), float(x[1] + np.exp(x[2])), abs(float(x[0])))

    def loss(x: Doubles) -> float:
        made = novelty(x)
        means = [np.mean([each.loss(each.spread(made)) for each in part]) for part in (left_out, trained)]
        return float(np.mean(means))

    found = optimize.minimize(loss, np.array(_START), method="Nelder-Mead", options={"maxiter": _TRIALS})
    return novelty(found.x)


def fit_factor(left_out: Sequence[Errors], trained: Sequence[Errors]) -> float:
    """Fit one factor on every sigma in the same way: what novelty must be better than."""

    def loss(x: float) -> float:
        means = [np.mean([each.loss(each.sigma * np.exp(x)) for each in part]) for part in (left_out, trained)]
        return float(np.mean(means))

    return float(np.exp(optimize.minimize_scalar(loss, bounds=(-1.0, 2.0), method="bounded").x))
