"""Paired ratios with confidence intervals: one policy over another on the same requests.

Several seeds: the geometric mean of the seeds' ratios, with Student's t interval of their logarithms.
One seed: the ratio itself, with a bootstrap of blocks of consecutive requests, the same blocks for both policies.
Neighbours in a queue wait together, so resampling single requests would give intervals that are too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]

LEVEL: Final = 0.95
_BLOCKS: Final = 50
_RESAMPLES: Final = 400
_PAIR_RESAMPLES: Final = 10_000
_SMALLEST_GAIN: Final = 0.01


@dataclass(frozen=True, slots=True)
class Ratio:
    """A policy's figure over the baseline's, below 1 is better, and its 95 % interval (NaN where there is none)."""

    ratio: float
    low: float
    high: float

    @classmethod
    def none(cls) -> Ratio:
        """Return the ratio where nothing can be compared."""
        return cls(math.nan, math.nan, math.nan)


def _log_ratios(ours: Sequence[float], base: Sequence[float]) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(np.asarray(ours, np.float64)) - np.log(np.asarray(base, np.float64)))


def over_seeds(ours: Sequence[float], base: Sequence[float]) -> Ratio:
    """Ratio of one figure per seed, at least two."""
    logs = _log_ratios(ours, base)
    if not np.isfinite(logs).all():
        return Ratio.none()
    middle = float(logs.mean())
    half_width = float(stats.t.ppf((1 + LEVEL) / 2, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
    return Ratio(math.exp(middle), math.exp(middle - half_width), math.exp(middle + half_width))


def over_pairs(ours: Sequence[float], base: Sequence[float]) -> Ratio:
    """Geometric mean of the ratios within pairs, with a bootstrap interval over pairs; no interval for one pair."""
    logs = _log_ratios(ours, base)
    if not len(logs) or not np.isfinite(logs).all():
        return Ratio.none()
    middle = math.exp(float(logs.mean()))
    if len(logs) == 1:
        return Ratio(middle, math.nan, math.nan)
    low, high = interval_over_pairs(logs[pair_draws(len(logs))].mean(axis=1))
    return Ratio(middle, math.exp(low), math.exp(high))


def gain_captured(ours: float, base: float, truth: float) -> float:
    """Return (base - ours) / (base - truth); NaN where the truth gains less than 1 % of the baseline's figure."""
    gain = base - truth
    return (base - ours) / gain if gain > _SMALLEST_GAIN * base else math.nan


def pair_draws(pairs: int) -> NDArray[np.int64]:
    """Return the indices of resampled pairs, one row per resample."""
    return np.random.default_rng([0, pairs]).integers(pairs, size=(_PAIR_RESAMPLES, pairs))


def interval_over_pairs(resampled: Floats) -> tuple[float, float]:
    """Return the 95 % interval of a figure over resamples."""
    low, high = np.quantile(resampled, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)


def over_requests(ours: Floats, base: Floats, q: float | None, *, seed: int) -> Ratio:
    """Ratio of the means, or of the `q` quantiles, of one run each; values in order of arrival."""
    present = ~(np.isnan(ours) | np.isnan(base))
    if not present.any():
        return Ratio.none()
    here, other = _Figure(ours[present], q), _Figure(base[present], q)
    if other.value <= 0:
        return Ratio.none()
    rng = np.random.default_rng([seed, len(ours)])
    blocks = here.blocks
    weights = rng.multinomial(blocks, np.full(blocks, 1 / blocks), size=_RESAMPLES)
    ratios = [here.resampled(weight) / other.resampled(weight) for weight in weights]
    return Ratio(here.value / other.value, *interval_over_pairs(np.array(ratios)))


class _Figure:
    """A mean or a quantile, and the same with requests weighted by how often their block is drawn."""

    def __init__(self, values: Floats, q: float | None) -> None:
        n = len(values)
        self.blocks = min(n, _BLOCKS)
        self.value = float(values.mean() if q is None else np.quantile(values, q))
        self._q = q
        block = np.arange(n) * self.blocks // n
        self._sums = np.bincount(block, values)
        self._sizes = np.bincount(block)
        order = np.argsort(values, kind="stable")
        self._sorted, self._block = values[order], block[order]

    def resampled(self, weight: NDArray[np.int64]) -> float:
        if self._q is None:
            return float(weight @ self._sums / (weight @ self._sizes))
        counts = np.cumsum(weight[self._block])
        return float(self._sorted[np.searchsorted(counts, self._q * counts[-1])])
