"""How well a family of lengths fits many prompts: Kolmogorov-Smirnov row by row, held-out likelihood over all.

Both take a length for what it is, a count: the model's distribution is rounded to whole tokens as the data are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy import stats

from lengthwise.lengths.fit import fit_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from lengthwise.lengths.families import Family
    from lengthwise.lengths.fit import RowFits

    Array = NDArray[np.float64]
    Mask = NDArray[np.bool_]

__all__ = [
    "HeldOut",
    "Interval",
    "held_out",
    "ks_critical",
    "ks_passes_plain",
    "ks_pvalue",
    "ks_statistic",
    "means_by_cluster",
    "split_halves",
]

LEVEL: Final = 0.05

SLIP: Final = 1e-3
"""Share of a log-uniform distribution mixed into every family before it is scored on samples it has not seen."""
_RESAMPLES_AT_ONCE: Final = 100  # 100 x 8,000 prompts are 6 MB
_LONGEST: Final = 131_072.0  # tokens up to which that log-uniform reaches


def ks_statistic(fits: RowFits, lengths: Array, present: Mask, width: float = 1.0) -> Array:
    """Largest distance between each row's empirical distribution and its fitted one, rounded to `width` tokens.

    Both are step functions that jump at whole tokens, so the distance is largest at an edge of a cell that holds a
    sample: after it (x + width/2) or before it (x - width/2). `width=0` treats the counts as a continuous quantity,
    as kstest does, and so charges every family for ties.
    """
    x = np.sort(np.where(present, lengths, np.inf), axis=1)
    count = present.sum(axis=1, keepdims=True)
    rank = np.arange(1, x.shape[1] + 1)
    inside = rank <= count
    x = np.where(inside, x, 1.0)
    after = rank / np.maximum(count, 1) - fits.family.cdf(x + width / 2, fits.params)
    before = fits.family.cdf(x - width / 2, fits.params) - (rank - 1) / np.maximum(count, 1)
    return np.asarray(np.max(np.maximum(after, before), axis=1, where=inside, initial=0.0))


def ks_pvalue(statistic: Array, count: NDArray[np.int64]) -> Array:
    """P(a statistic as large) for samples of a distribution known beforehand: too kind once it was fitted to them."""
    return np.asarray(stats.kstwo.sf(statistic, np.maximum(count, 1)), np.float64)


def ks_passes_plain(statistic: Array, count: NDArray[np.int64]) -> Mask:
    """Whether `ks_pvalue` exceeds 5 %, a thousand times faster: one critical value per number of samples."""
    numbers, which = np.unique(count, return_inverse=True)
    critical = np.array([stats.kstwo.isf(LEVEL, max(int(n), 1)) for n in numbers])
    return np.asarray(statistic < critical[which])


def ks_critical(family: Family, params: Array, count: int, rng: np.random.Generator, *, draws: int = 2000) -> float:
    """The statistic that 5 % of rows exceed when the family is true and is fitted to the same `count` samples.

    Parametric bootstrap with refitting: `draws` prompts with parameters drawn from `params` (what was fitted to the
    data), `count` lengths each, rounded, fitted, compared. For a location-scale family of log X the answer hardly
    depends on the parameters; for the others, and through the rounding, it is an average over those of the data.
    """
    chosen = params[rng.integers(len(params), size=draws)]
    x = np.maximum(np.rint(family.draw(rng, chosen, count)), 1.0)
    everything = np.ones(x.shape, bool)
    fits = fit_rows(family, x)
    statistic = ks_statistic(fits, x, everything)[~fits.degenerate]
    return float(np.quantile(statistic, 1 - LEVEL, method="higher"))


def split_halves(present: Mask) -> tuple[Mask, Mask]:
    """Every other sample of a row, and the rest; samples of a prompt are exchangeable, so no draw is needed."""
    odd = np.cumsum(present, axis=1) % 2 == 1
    return present & odd, present & ~odd


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Log probability of samples by a family fitted to the other half of their row."""

    total: Array
    """Sum over the row's samples, both directions."""
    count: NDArray[np.int64]
    usable: Mask
    """Both halves show a spread (at least two different lengths each)."""


def held_out(family: Family, lengths: Array, present: Mask, progress: Callable[[int], None] | None = None) -> HeldOut:
    """Fit each half of each row, score the other: log((1 - SLIP) P(length) + SLIP * log-uniform(length)).

    P is the probability of the whole-token cell, so it cannot exceed 1 and no spike can win by ties. The slip is the
    same for all families: without it one sample outside a fitted support (GEV) or forty sigmas out (log-normal)
    would cost infinity and decide the mean of thousands of prompts alone.
    """
    total = np.zeros(len(lengths))
    usable = np.ones(len(lengths), bool)
    anywhere = np.log((lengths + 0.5) / np.maximum(lengths - 0.5, 0.5)) / np.log(2 * _LONGEST)
    for known, unseen in (halves := split_halves(present)), halves[::-1]:
        fits = fit_rows(family, lengths, known, progress=progress)
        probability = family.cell_probability(lengths, fits.params)
        score = np.log((1 - SLIP) * probability + SLIP * anywhere)
        total += np.where(unseen, score, 0.0).sum(axis=1)
        usable &= ~fits.degenerate
    return HeldOut(total, present.sum(axis=1), usable)


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % confidence interval."""

    estimate: float
    low: float
    high: float


def means_by_cluster(
    totals: Array,
    count: NDArray[np.int64],
    cluster: NDArray[np.int64],
    rng: np.random.Generator,
    *,
    resamples: int = 1000,
) -> list[Interval]:
    """Sum of each column of `totals` (n, m) over the sum of `count`, with intervals by bootstrap over clusters.

    Rows of one prompt (asked of many LLMs) are not independent, so whole prompts are drawn, not rows.
    """
    _, index = np.unique(cluster, return_inverse=True)
    counts = np.bincount(index, weights=count.astype(np.float64))
    sums = np.column_stack([np.bincount(index, weights=column) for column in totals.T])
    share = np.full(len(counts), 1 / len(counts))
    means = np.empty((resamples, sums.shape[1]))
    for first in range(0, resamples, _RESAMPLES_AT_ONCE):
        drawn = rng.multinomial(len(counts), share, size=min(_RESAMPLES_AT_ONCE, resamples - first)).astype(float)
        means[first : first + len(drawn)] = (drawn @ sums) / (drawn @ counts)[:, None]
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    middle = sums.sum(axis=0) / counts.sum()
    return [Interval(*(float(value) for value in column)) for column in zip(middle, low, high, strict=True)]
