"""Scores of predictions, as pure functions of arrays."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lengthwise.errors import InputError

Floats = NDArray[np.float64]

CRPS_LEVELS: Final = (np.arange(100) + 0.5) / 100
"""Midpoints of a hundred equal shares: the quantile levels that a CRPS is integrated over."""


def mae(predicted: ArrayLike, true: ArrayLike) -> float:
    """Mean absolute error over the pairs where both are known; NaN where there is none."""
    return mean(np.abs(_error(predicted, true)))


def mse(predicted: ArrayLike, true: ArrayLike) -> float:
    """Mean squared error over the pairs where both are known."""
    return mean(_error(predicted, true) ** 2)


def r2_log(predicted: ArrayLike, true: ArrayLike) -> float:
    """Share of the variance of the log that is explained; below 0: worse than the mean of the truth."""
    p, t = np.asarray(predicted, np.float64), np.asarray(true, np.float64)
    known = (p > 0) & (t > 0)
    log_true = np.log(t[known])
    total = float(((log_true - log_true.mean()) ** 2).sum()) if known.any() else 0.0
    return math.nan if total == 0.0 else 1.0 - float(((np.log(p[known]) - log_true) ** 2).sum()) / total


def kendall_tau(predicted: ArrayLike, true: ArrayLike) -> float:
    """Kendall's tau-b; NaN where either side is constant."""
    p, t = np.asarray(predicted, np.float64), np.asarray(true, np.float64)
    known = np.isfinite(p) & np.isfinite(t)
    if len(np.unique(p[known])) < 2 or len(np.unique(t[known])) < 2:
        return math.nan
    from scipy import stats  # half a second to load, and simulations import this module without scoring anything

    return float(stats.kendalltau(p[known], t[known]).statistic)


def tau_within(groups: NDArray[np.object_], predicted: ArrayLike, true: ArrayLike) -> float:
    """Kendall's tau within each group (one LLM), averaged over the groups where it is defined."""
    p, t = np.asarray(predicted, np.float64), np.asarray(true, np.float64)
    taus = np.array([kendall_tau(p[groups == group], t[groups == group]) for group in sorted(set(groups.tolist()))])
    return mean(taus)


def crps(quantiles: Floats, samples: Floats, present: NDArray[np.bool_]) -> Floats:
    """Continuous ranked probability score of each row's samples, in their unit; smaller is better.

    CRPS(F, y) = E|X - y| - E|X - X'| / 2 = 2 * integral of the quantile loss over all levels. `quantiles`
    (rows, 100) are those at CRPS_LEVELS, `samples` (rows, k) count where `present`; NaN for a row without samples.
    """
    total = np.zeros(len(quantiles))
    for column, level in enumerate(CRPS_LEVELS):
        gap = samples - quantiles[:, column, None]
        loss = np.where(gap >= 0, level * gap, (level - 1.0) * gap)
        total += np.where(present, loss, 0.0).sum(axis=1)
    count = present.sum(axis=1)
    score: Floats = np.full(len(total), np.nan)
    np.divide(2.0 * total / len(CRPS_LEVELS), count, out=score, where=count > 0)
    return score


def coverage(low: Floats, high: Floats, samples: Floats, present: NDArray[np.bool_]) -> float:
    """Share of single present samples inside their row's interval, ends included."""
    inside = (samples >= low[:, None]) & (samples <= high[:, None])
    return mean(inside[present].astype(np.float64))


def sharpness(low: Floats, high: Floats) -> float:
    """Mean width of the intervals on the log scale: log(high / low), so 0.69 is a factor of two."""
    return mean(np.log(np.maximum(high, 1.0)) - np.log(np.maximum(low, 1.0)))


def _error(predicted: ArrayLike, true: ArrayLike) -> Floats:
    p, t = np.asarray(predicted, np.float64), np.asarray(true, np.float64)
    if p.shape != t.shape:
        raise InputError(f"{p.shape} predictions for {t.shape} truths", hint="give one prediction for each truth")
    return p - t


def mean(values: Floats) -> float:
    """Mean of the finite values; NaN where there is none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else math.nan
