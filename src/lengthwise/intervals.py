"""Confidence intervals: the bootstrap, and paired ratios of one policy over another on the same requests.

Several seeds: the geometric mean of the seeds' ratios, with Student's t interval of their logarithms.
Several pairs: the same mean, with a bootstrap over pairs.
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
from scipy import special

Floats = NDArray[np.float64]

LEVEL: Final = 0.95
_BLOCKS: Final = 50
_BLOCK_RESAMPLES: Final = 400
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


@dataclass(frozen=True, slots=True)
class ShareChange:
    """A share of requests beside the baseline's, and the 95 % interval of the difference (NaN where there is none)."""

    share: float
    base: float
    low: float
    high: float

    @property
    def change(self) -> float:
        """The share minus the baseline's."""
        return self.share - self.base


Seed = int | Sequence[int] | np.random.Generator


def draw_rows(units: int, *, seed: Seed, resamples: int) -> NDArray[np.int64]:
    """Return the units (pairs, blocks, prompts) of each resample, drawn with replacement: one row of indices each.

    Figures that are compared are taken over the same rows, which makes the bootstrap paired.
    """
    return np.random.default_rng(seed).integers(units, size=(resamples, units))


def draw_counts(units: int, *, seed: Seed, resamples: int) -> NDArray[np.int64]:
    """Return how often each unit is drawn in each resample, one row each: for sums, faster than `draw_rows`."""
    return np.random.default_rng(seed).multinomial(units, np.full(units, 1 / units), size=resamples)


def interval(resampled: Sequence[float] | Floats | float, level: float = LEVEL) -> tuple[float, float]:
    """Return the central interval of a figure over its resamples."""
    low, high = np.quantile(resampled, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def _log_ratios(ours: Sequence[float], base: Sequence[float]) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(np.asarray(ours, np.float64)) - np.log(np.asarray(base, np.float64)))


def over_seeds(ours: Sequence[float], base: Sequence[float]) -> Ratio:
    """Geometric mean of the seeds' ratios, with Student's t interval of their logarithms; no interval for one seed."""
    logs = _log_ratios(ours, base)
    if not np.isfinite(logs).all():
        return Ratio.none()
    if len(logs) == 1:
        return Ratio(ours[0] / base[0], math.nan, math.nan)
    middle = float(logs.mean())
    half_width = float(special.stdtrit(len(logs) - 1, (1 + LEVEL) / 2) * logs.std(ddof=1) / math.sqrt(len(logs)))
    return Ratio(math.exp(middle), math.exp(middle - half_width), math.exp(middle + half_width))


def over_pairs(ours: Sequence[float], base: Sequence[float]) -> Ratio:
    """Geometric mean of the ratios within pairs, with a bootstrap interval over pairs; no interval for one pair."""
    logs = _log_ratios(ours, base)
    if not len(logs) or not np.isfinite(logs).all():
        return Ratio.none()
    middle = math.exp(float(logs.mean()))
    if len(logs) == 1:
        return Ratio(middle, math.nan, math.nan)
    low, high = interval(logs[draw_pairs(len(logs))].mean(axis=1))
    return Ratio(middle, math.exp(low), math.exp(high))


def gain_captured(ours: float, base: float, truth: float) -> float:
    """Return (base - ours) / (base - truth); NaN where the truth gains less than 1 % of the baseline's figure."""
    gain = base - truth
    return (base - ours) / gain if gain > _SMALLEST_GAIN * base else math.nan


def draw_pairs(pairs: int) -> NDArray[np.int64]:
    """Return the pairs of each resample, the same for every figure of as many pairs."""
    return draw_rows(pairs, seed=[0, pairs], resamples=_PAIR_RESAMPLES)


def over_requests(ours: Floats, base: Floats, q: float | None, *, seed: int) -> Ratio:
    """Ratio of the means, or of the `q` quantiles, of one run each; values in order of arrival."""
    present = ~(np.isnan(ours) | np.isnan(base))
    if not present.any():
        return Ratio.none()
    here, other = _Figure(ours[present], q), _Figure(base[present], q)
    if other.value <= 0:
        return Ratio.none()
    counts = draw_counts(here.blocks, seed=[seed, len(ours)], resamples=_BLOCK_RESAMPLES)
    ratios = [here.resampled(count) / other.resampled(count) for count in counts]
    return Ratio(here.value / other.value, *interval(ratios))


def share_change(ours: Sequence[NDArray[np.bool_]], base: Sequence[NDArray[np.bool_]], *, seed: int = 0) -> ShareChange:
    """Return the mean share of requests that are true, beside the baseline's on the same requests; one array per seed.

    Several seeds: Student's t interval of the differences; one: a bootstrap of blocks of consecutive requests.
    """
    here, other = ([float(each.mean()) for each in arrays] for arrays in (ours, base))
    if len(ours) > 1:
        return share_change_over_seeds(here, other)
    difference = _Figure(ours[0].astype(np.float64) - base[0], None)
    counts = draw_counts(difference.blocks, seed=[seed, len(ours[0])], resamples=_BLOCK_RESAMPLES)
    return ShareChange(here[0], other[0], *interval([difference.resampled(count) for count in counts]))


def share_change_over_seeds(ours: Sequence[float], base: Sequence[float]) -> ShareChange:
    """Return the mean of the seeds' shares beside the baseline's, with Student's t interval; none for one seed."""
    difference = np.subtract(ours, base)
    share, other, middle = float(np.mean(ours)), float(np.mean(base)), float(np.mean(difference))
    if len(ours) == 1:
        return ShareChange(share, other, math.nan, math.nan)
    scale = special.stdtrit(len(ours) - 1, (1 + LEVEL) / 2) / math.sqrt(len(ours))
    half_width = float(scale * difference.std(ddof=1))
    return ShareChange(share, other, max(-1.0, middle - half_width), min(1.0, middle + half_width))


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

    def resampled(self, count: NDArray[np.int64]) -> float:
        if self._q is None:
            return float(count @ self._sums / (count @ self._sizes))
        requests = np.cumsum(count[self._block])
        return float(self._sorted[np.searchsorted(requests, self._q * requests[-1])])
