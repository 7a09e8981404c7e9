"""What a predicted length is worth: the true lengths of finished jobs, by their predicted length.

    work = median * r(bin), at most the cap                                          (tokens)
    r(bin)  = (n * true / predicted + 16 * line(bin)) / (n + 16)     of the n recent finished jobs in the bin
    line(k) = (n * true / predicted + 16) / (n + 16) * 2 ** ((slope - 1) * (k - mean bin) / 4)
              of all n jobs, their predictions changed by the power of two
    slope   = of the logarithm of true lengths over that of predicted ones; 16 jobs of slope 1 are added

A bin is a quarter of a doubling. The sum of true tokens over that of predicted ones is 1 where predictions are exact.
The line says how much of the spread of predictions is found again in true lengths: its slope is near 1 where they are
good, 0 where they say nothing, so that the work of all is the mean, and negative where they are inverted. It needs few
finished jobs; a bin departs from it as far as its own jobs show. Jobs without a prediction have a bin of their own.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.lengths import wide_prior
from lengthwise.policies.job import JobColumns

PRIOR_JOBS: Final = 16.0
"""Finished jobs that the ratio of the wider range counts as: exact predictions, then the line."""
WINDOW_JOBS: Final = 4096  # finished jobs fade over so many
MAX_UNIT: Final = 1e12  # beyond, all totals are divided by the unit
BINS_PER_DOUBLING: Final = 4
BINS: Final = 16 * BINS_PER_DOUBLING
UNPREDICTED: Final = BINS
"""The bin of jobs without a prediction."""
EDGES: Final = 2.0 ** (np.arange(1, BINS) / BINS_PER_DOUBLING)
"""The least predicted length, in tokens, of each bin but the first."""
_EDGES: Final = EDGES.tolist()
LOG_BIN: Final = math.log(2.0) / BINS_PER_DOUBLING
PRIOR_SQUARES: Final = PRIOR_JOBS / LOG_BIN**2  # squared bins: 16 jobs, each a factor of e from the mean
_PRIOR: Final = wide_prior()


@dataclass(slots=True)
class LengthCalibration:
    """Weighted totals of the finished jobs of one LLM by bin, and moments of predicted and true bins."""

    unit: float = 1.0
    """The weight of the last finished job: it grows, so that earlier jobs fade without being updated."""
    jobs: list[float] = field(default_factory=lambda: [0.0] * (BINS + 1))
    predicted: list[float] = field(default_factory=lambda: [0.0] * (BINS + 1))
    true: list[float] = field(default_factory=lambda: [0.0] * (BINS + 1))
    """Numbers of jobs, and their predicted and true tokens."""
    count: float = 0.0
    """Jobs with a prediction. Of them, sums of x and y, the bins of predicted and true length, of x * x and x * y."""
    sum_x: float = 0.0
    sum_y: float = 0.0
    sum_xx: float = 0.0
    sum_xy: float = 0.0
    line: float = 1.0
    """line(0), as of the last finished job with a prediction."""
    log_step: float = 0.0
    """ln line(k + 1) - ln line(k)."""


def length_bin(mu: float, sigma: float, median: float) -> int:
    """Return the bin of a prediction."""
    return UNPREDICTED if (mu, sigma) == (_PRIOR.mu, _PRIOR.sigma) else bin_of(median)


def length_bins(mu: NDArray[np.float64], sigma: NDArray[np.float64], medians: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the bins of many predictions."""
    unpredicted = (mu == _PRIOR.mu) & (sigma == _PRIOR.sigma)
    return np.where(unpredicted, UNPREDICTED, np.searchsorted(EDGES, medians, "right"))


def calibrated_works(calibration: LengthCalibration, jobs: JobColumns) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return the work of many jobs, and their bins."""
    medians = np.minimum(np.exp(jobs.mu), jobs.cap)
    bins = length_bins(jobs.mu, jobs.sigma, medians)
    places, place_of = np.unique(bins, return_inverse=True)
    ratios = np.array([ratio(calibration, place) for place in places.tolist()])
    return np.minimum(np.maximum(medians, 1.0) * ratios[place_of], jobs.cap), bins


# The rules, on numbers: policies call them, and the simulator's kernel compiles them for its own records with the same
# fields. `place` is the bin of a prediction.


def pooled_ratio(jobs: float, predicted: float, true: float, unit: float, wider: float) -> float:
    """Return the ratio of true and predicted tokens of some jobs, drawn to that of a wider range."""
    if jobs <= 0.0:
        return wider
    prior = PRIOR_JOBS * unit
    return (jobs * (true / predicted) + prior * wider) / (jobs + prior)


def ratio(calibration: Any, place: int) -> float:
    """Return r of a bin."""
    wider = 1.0 if place == UNPREDICTED else calibration.line * math.exp(calibration.log_step * place)
    return pooled_ratio(
        calibration.jobs[place], calibration.predicted[place], calibration.true[place], calibration.unit, wider
    )


def calibrated_work(calibration: Any, median: float, place: int, cap: float) -> float:
    """Return the work of a job: what finished jobs of its predicted length took."""
    return float(min(max(median, 1.0) * ratio(calibration, place), cap))


def bin_of(tokens: float) -> int:
    """Return the bin of a length."""
    return bisect_right(_EDGES, tokens)


def count_length(calibration: Any, place: int, median: float, tokens: int) -> None:
    """Add a finished job to the totals."""
    calibration.unit *= 1.0 + 1.0 / WINDOW_JOBS
    if calibration.unit > MAX_UNIT:
        for number in range(BINS + 1):
            calibration.jobs[number] /= calibration.unit
            calibration.predicted[number] /= calibration.unit
            calibration.true[number] /= calibration.unit
        calibration.count /= calibration.unit
        calibration.sum_x /= calibration.unit
        calibration.sum_y /= calibration.unit
        calibration.sum_xx /= calibration.unit
        calibration.sum_xy /= calibration.unit
        calibration.unit = 1.0
    unit = calibration.unit
    calibration.jobs[place] += unit
    calibration.predicted[place] += unit * max(median, 1.0)
    calibration.true[place] += unit * tokens
    if place != UNPREDICTED:
        true_place = bin_of(tokens)
        calibration.count += unit
        calibration.sum_x += unit * place
        calibration.sum_y += unit * true_place
        calibration.sum_xx += unit * place * place
        calibration.sum_xy += unit * place * true_place


def fit_line(calibration: Any) -> None:
    """Fit the line to all jobs with a prediction."""
    prior, mean = PRIOR_SQUARES * calibration.unit, calibration.sum_x / calibration.count
    slope = (calibration.sum_xy - mean * calibration.sum_y + prior) / (
        calibration.sum_xx - mean * calibration.sum_x + prior
    )
    log_step = (slope - 1.0) * LOG_BIN
    step, first = math.exp(log_step), math.exp(-log_step * mean)
    true, predicted, line = 0.0, 0.0, first
    for bin_true, bin_predicted in zip(calibration.true[:BINS], calibration.predicted[:BINS]):  # noqa: B905  (compiled)
        if bin_predicted > 0.0:
            true += bin_true
            predicted += bin_predicted * line
        line *= step
    calibration.line = first * pooled_ratio(calibration.count, predicted, true, calibration.unit, 1.0)
    calibration.log_step = log_step


def record_length(calibration: Any, median: float, place: int, tokens: int) -> None:
    """Record the true length of a finished job."""
    count_length(calibration, place, median, tokens)
    if place != UNPREDICTED:
        fit_line(calibration)
