"""Scores of predictions, as pure functions of arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lengthwise.errors import InputError

Floats = NDArray[np.float64]
Classes = NDArray[np.intp]

MU_SERVE_CUTS: Final = (0.25, 0.5, 0.75, 0.99)
"""Shares at which mu-Serve (ATC'24) cuts lengths into five classes, read in its authors' public code for the predictor
(github.com/James-QiuHaoran/LLM-serving-with-proxy-models, preprocess_dataset.py): percentiles 25, 50, 75 and 99 of the
training answers, 42, 141, 294 and 503 tokens on Vicuna's part of LMSYS-Chat-1M; a length below an edge is in the class
below it."""

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


@dataclass(frozen=True)
class ClassScores:
    """Scores of one division of lengths into classes; precision, recall and F1 are weighted by class frequency."""

    accuracy: float
    precision: float
    recall: float
    f1: float
    mcc: float
    auroc: float
    """One against the rest, weighted by frequency; NaN without probabilities."""


def equal_width(width: float, longest: float) -> Floats:
    """Inner edges of bins [0, width), [width, 2 width), ...; the last one is open and holds `longest`."""
    return np.arange(1, math.floor(longest / width) + 1, dtype=np.float64) * width


def equal_mass(lengths: ArrayLike, bins: int) -> Floats:
    """Inner edges that give each bin the same share of `lengths`; fewer bins where lengths repeat."""
    return _cuts(lengths, [i / bins for i in range(1, bins)])


def mu_serve(lengths: ArrayLike) -> Floats:
    """Inner edges of mu-Serve's five classes for these lengths."""
    return _cuts(lengths, MU_SERVE_CUTS)


def classes(lengths: ArrayLike, inner_edges: ArrayLike) -> Classes:
    """The bin of each length; an edge belongs to the bin above it."""
    return np.searchsorted(np.asarray(inner_edges, np.float64), np.asarray(lengths, np.float64), side="right")


def classification(true: Classes, predicted: Classes, probabilities: Floats | None = None) -> ClassScores:
    """Score predicted classes, and the ranking that `probabilities` (rows, classes) give."""
    n = len(true)
    if not n:
        return ClassScores(*[math.nan] * 6)
    k = int(max(true.max(), predicted.max())) + 1
    support = np.bincount(true, minlength=k).astype(np.float64)
    predicted_counts = np.bincount(predicted, minlength=k).astype(np.float64)
    hit = np.bincount(true[true == predicted], minlength=k).astype(np.float64)
    # A class that is never predicted (or never true) has precision (recall) 0: the usual convention.
    precision = np.divide(hit, predicted_counts, out=np.zeros(k), where=predicted_counts > 0)
    recall = np.divide(hit, support, out=np.zeros(k), where=support > 0)
    f1 = np.divide(2 * hit, predicted_counts + support, out=np.zeros(k), where=predicted_counts + support > 0)
    weight = support / n
    return ClassScores(
        accuracy=float(hit.sum()) / n,
        precision=float(weight @ precision),
        recall=float(weight @ recall),
        f1=float(weight @ f1),
        mcc=_mcc(float(hit.sum()), n, predicted_counts, support),
        auroc=math.nan if probabilities is None else auroc(true, probabilities),
    )


def auroc(true: Classes, probabilities: Floats) -> float:
    """Area under the ROC curve of each class against the rest, weighted by frequency; ties count half."""
    n = len(true)
    support = np.bincount(true, minlength=probabilities.shape[1])
    shown = np.flatnonzero((support > 0) & (support < n))
    if not len(shown):
        return math.nan
    from scipy import stats

    ranks = np.asarray(stats.rankdata(probabilities[:, shown], axis=0))
    member = true[:, None] == shown[None, :]
    positives = support[shown].astype(np.float64)
    wins = np.where(member, ranks, 0.0).sum(axis=0) - positives * (positives + 1) / 2
    areas = wins / (positives * (n - positives))
    return float(areas @ positives / positives.sum())


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


def _cuts(lengths: ArrayLike, shares: Sequence[float]) -> Floats:
    values = np.asarray(lengths, np.float64)
    return np.unique(np.asarray(np.quantile(values[np.isfinite(values)], shares), np.float64))


def _mcc(hits: float, n: int, predicted_counts: Floats, support: Floats) -> float:
    """Matthews' correlation for several classes (Gorodkin 2004); 0 where either side is constant."""
    free = (n * n - float(predicted_counts @ predicted_counts)) * (n * n - float(support @ support))
    return 0.0 if free <= 0.0 else (hits * n - float(predicted_counts @ support)) / math.sqrt(free)
