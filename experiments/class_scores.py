"""Scores of predictions as classes of length: bins of equal width or mass, accuracy, F1, MCC and AUROC.

Needs NumPy and SciPy only, so that it also runs on a bare GPU machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Floats = NDArray[np.float64]
Classes = NDArray[np.intp]

MU_SERVE_CUTS: Final = (0.25, 0.5, 0.75, 0.99)
"""Shares at which mu-Serve (ATC'24) cuts lengths into five classes, read in its authors' public code for the predictor
(github.com/James-QiuHaoran/LLM-serving-with-proxy-models, preprocess_dataset.py): percentiles 25, 50, 75 and 99 of the
training answers, 42, 141, 294 and 503 tokens on Vicuna's part of LMSYS-Chat-1M; a length below an edge is in the class
below it."""


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
    ranks = np.asarray(stats.rankdata(probabilities[:, shown], axis=0))
    member = true[:, None] == shown[None, :]
    positives = support[shown].astype(np.float64)
    wins = np.where(member, ranks, 0.0).sum(axis=0) - positives * (positives + 1) / 2
    areas = wins / (positives * (n - positives))
    return float(areas @ positives / positives.sum())


def _cuts(lengths: ArrayLike, shares: Sequence[float]) -> Floats:
    values = np.asarray(lengths, np.float64)
    return np.unique(np.asarray(np.quantile(values[np.isfinite(values)], shares), np.float64))


def _mcc(hits: float, n: int, predicted_counts: Floats, support: Floats) -> float:
    """Matthews' correlation for several classes (Gorodkin 2004); 0 where either side is constant."""
    free = (n * n - float(predicted_counts @ predicted_counts)) * (n * n - float(support @ support))
    return 0.0 if free <= 0.0 else (hits * n - float(predicted_counts @ support)) / math.sqrt(free)
