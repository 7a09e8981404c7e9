"""Scores of predictions: `score_predictions` compares columns of predictions with the lengths that came true.

Everything here is a pure function of arrays. A row is a request or a prompt; a prompt may have several lengths.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from lengthwise.errors import InputError
from lengthwise.lengths import LengthDistribution, LogTColumns, log_t

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

CRPS_LEVELS: Final = (np.arange(100) + 0.5) / 100
"""Midpoints of a hundred equal shares: the quantile levels that a CRPS is integrated over."""

CENTRAL: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Nominal shares of the central intervals of a calibration curve."""


@dataclass(frozen=True, kw_only=True)
class PredictionScores:
    """Scores of predictions over some rows; NaN where a score is not defined (the tau of a constant)."""

    rows: int = 0
    """Rows with a length."""
    samples: int = 0
    """Lengths."""
    llms: int = 0
    """LLMs that tau is averaged over."""
    tau: float = math.nan
    """Kendall's tau-b of the median and the row's mean length, within one LLM, averaged over LLMs."""
    mae: float = math.nan
    """Mean absolute error (tokens) of the median against each single length."""
    mae_median: float = math.nan
    """Of the median against the row's mean length."""
    mae_mean: float = math.nan
    """Of the predicted mean, else of the median, against the row's mean length."""
    mse_mean: float = math.nan
    r2_log: float = math.nan
    """Share of the variance of the log mean length that the logs of these predictions explain."""
    mae_std: float = math.nan
    """Of the predicted standard deviation of a prompt's answers."""
    mse_std: float = math.nan
    raw_mae_mean: float = math.nan
    """`mae_mean` against the mean of all samples, degenerate ones included: they dominate it."""
    log_error: float = math.nan
    """Median of |log(row's mean length / predicted median)|."""
    log_score: float = math.nan
    """Mean log density (nats) of the log length, of a censored one the log survival; larger is better."""
    crps: float = math.nan
    coverage_50: float = math.nan
    """Share of single lengths inside the central 50 % interval."""
    coverage_90: float = math.nan
    width_50: float = math.nan
    """Mean of log(high / low) of the central 50 % interval."""
    width_90: float = math.nan

    def defined(self) -> dict[str, float]:
        """Return the scores that are defined, by name."""
        return {name: value for name, value in asdict(self).items() if not math.isnan(value)}


class PredictionColumns(Protocol):
    """Predictions of many rows; [i] is a length distribution."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> LengthDistribution: ...


@dataclass(frozen=True, eq=False)
class Forecast:
    """Predictions as the arrays that scores are computed from, one row each; NaN where a prediction has no such value.

    low and high (rows, CENTRAL) are the ends of the central intervals, quantiles (rows, 100) those at CRPS_LEVELS.
    """

    median: Floats
    low: Floats
    high: Floats
    quantiles: Floats
    """No columns where the CRPS is not wanted."""
    cap: Floats
    mu: Floats
    """Of a log-t; likewise sigma and nu."""
    sigma: Floats
    nu: Floats
    mean: Floats
    """Predicted mean of a prompt's answers."""
    std: Floats

    @classmethod
    def of(
        cls, predictions: PredictionColumns, *, mean: Floats | None = None, std: Floats | None = None, crps: bool = True
    ) -> Self:
        """Compute all quantiles that the scores need, with `crps` those of the CRPS too."""
        levels = [0.5, *((1 - c) / 2 for c in CENTRAL), *((1 + c) / 2 for c in CENTRAL), *(CRPS_LEVELS if crps else ())]
        absent = np.full(len(predictions), np.nan)
        if isinstance(predictions, LogTColumns):
            table = np.stack([predictions.quantile(level) for level in levels], axis=1)
            cap, mu, sigma = predictions.cap, predictions.mu, predictions.sigma
            nu = np.full(len(predictions), predictions.nu)
        else:
            each = [predictions[row] for row in range(len(predictions))]
            table = np.array([[one.quantile(level) for level in levels] for one in each]).reshape(-1, len(levels))
            cap = np.array([float(one.cap) for one in each])
            mu = sigma = nu = absent
        central = 1 + len(CENTRAL)
        return cls(
            median=table[:, 0],
            low=table[:, 1:central],
            high=table[:, central : central + len(CENTRAL)],
            quantiles=table[:, central + len(CENTRAL) :],
            cap=cap,
            mu=mu,
            sigma=sigma,
            nu=nu,
            mean=absent if mean is None else mean,
            std=absent if std is None else std,
        )

    @classmethod
    def of_intervals(cls, median: Floats, intervals: Mapping[float, tuple[Floats, Floats]]) -> Self:
        """Return medians with some of the central intervals, by nominal share."""
        absent = np.full(len(median), np.nan)
        low, high = (
            np.stack([intervals[share][side] if share in intervals else absent for share in CENTRAL], axis=1)
            for side in (0, 1)
        )
        uncapped = np.full(len(median), np.inf)
        return cls(median, low, high, np.empty((len(median), 0)), uncapped, *[absent] * 5)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Concatenate parts."""
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))

    def take(self, rows: Mask | NDArray[np.intp]) -> Self:
        """Return the predictions of some rows."""
        return type(self)(*(getattr(self, f.name)[rows] for f in fields(self)))

    def interval(self, share: float) -> tuple[Floats, Floats]:
        """Return the ends of the central interval of one of the CENTRAL shares."""
        place = CENTRAL.index(share)
        return self.low[:, place], self.high[:, place]

    @property
    def point(self) -> Floats:
        """The predicted mean, or else the median."""
        return np.where(np.isfinite(self.mean), self.mean, self.median)


def score_predictions(
    forecast: Forecast,
    lengths: ArrayLike,
    *,
    present: Mask | None = None,
    censored: Mask | None = None,
    llms: NDArray[np.object_] | None = None,
    weights: Floats | None = None,
) -> PredictionScores:
    """Score predictions against their lengths, (rows,) or (rows, k) of which those `present` count.

    A censored length is a lower bound. Coverage counts it where it reaches the cap of its prediction, which ends the
    interval too, and leaves it out otherwise. Without `llms` all rows are of one. Weighted are errors and coverage.
    """
    known = _matrix(lengths)
    present = np.ones(known.shape, bool) if present is None else present
    censored = np.zeros(known.shape, bool) if censored is None else censored.reshape(known.shape)
    mean_length, std = moments(known, present)
    median, point = forecast.median, forecast.point
    single = np.where(present, np.abs(known - median[:, None]), np.nan)
    covered = present & (~censored | (known >= forecast.cap[:, None]))
    groups = np.full(len(median), "", object) if llms is None else llms
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.abs(np.log(mean_length / np.maximum(median, 1.0)))
    return PredictionScores(
        rows=int(present.any(axis=1).sum()),
        samples=int(present.sum()),
        llms=len(set(groups.tolist())),
        tau=tau_within(groups, median, mean_length),
        mae=mean(single, weights),
        mae_median=mae(median, mean_length),
        mae_mean=mae(point, mean_length),
        mse_mean=mse(point, mean_length),
        r2_log=r2_log(point, mean_length),
        mae_std=mae(forecast.std, std),
        mse_std=mse(forecast.std, std),
        log_error=float(np.median(off[np.isfinite(off)])) if np.isfinite(off).any() else math.nan,
        log_score=mean(np.where(present, log_scores(forecast, known, censored), np.nan), weights),
        crps=mean(crps(forecast.quantiles, known, present)) if forecast.quantiles.size else math.nan,
        coverage_50=coverage(*forecast.interval(0.5), known, covered, weights),
        coverage_90=coverage(*forecast.interval(0.9), known, covered, weights),
        width_50=sharpness(*forecast.interval(0.5)),
        width_90=sharpness(*forecast.interval(0.9)),
    )


def average(parts: Sequence[PredictionScores]) -> PredictionScores:
    """Return the mean of each score over the parts where it is defined, and the sum of each count."""
    columns = {f.name: np.array([getattr(part, f.name) for part in parts]) for f in fields(PredictionScores)}
    rows, samples, llms = (int(columns.pop(name).sum()) for name in ("rows", "samples", "llms"))
    scored: Any = {name: mean(column) for name, column in columns.items()}
    return PredictionScores(rows=rows, samples=samples, llms=llms, **scored)


def calibration(forecast: Forecast, lengths: ArrayLike, present: Mask | None = None) -> dict[float, float]:
    """Return the share of lengths inside each of the CENTRAL intervals, by its nominal share."""
    known = _matrix(lengths)
    present = np.ones(known.shape, bool) if present is None else present
    return {share: coverage(*forecast.interval(share), known, present) for share in CENTRAL}


def log_scores(forecast: Forecast, lengths: Floats, censored: Mask) -> Floats:
    """Return the log density of each log length (rows, k), or the log survival where it is censored."""
    mu, sigma, nu = (column[:, None] for column in (forecast.mu, forecast.sigma, forecast.nu))
    z = (np.log(np.maximum(lengths, 1.0)) - mu) / sigma
    return np.where(censored, np.log(special.stdtr(nu, -z)), log_t.log_density(z, nu) - np.log(sigma))


def moments(lengths: NDArray[np.floating] | NDArray[np.integer], present: Mask) -> tuple[Floats, Floats]:
    """Mean and (population) std of each row's present lengths; NaN where none is, and the std of a single one."""
    count = present.sum(axis=1)
    average_: Floats = np.full(len(lengths), np.nan)
    np.divide(np.where(present, lengths, 0).sum(axis=1), count, out=average_, where=count > 0)
    deviation = np.where(present, lengths - np.where(count > 0, average_, 0.0)[:, None], 0.0)
    variance: Floats = np.full(len(lengths), np.nan)
    np.divide((deviation**2).sum(axis=1), count, out=variance, where=count > 1)
    return average_, np.sqrt(variance)


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
    if not known.any():
        return math.nan
    x, y = (np.unique(values[known], return_inverse=True)[1] for values in (p, t))
    pairs = len(x) * (len(x) - 1) // 2
    tied_x, tied_y = _tied(x), _tied(y)
    if tied_x == pairs or tied_y == pairs:
        return math.nan
    both = x * (int(y.max()) + 1) + y
    # Sorted by x, and by y where x is equal: a pair with the larger y first is discordant.
    discordant = _inversions(y[np.argsort(both, kind="stable")])
    score = pairs - tied_x - tied_y + _tied(both) - 2 * discordant
    tau = score / math.sqrt(pairs - tied_x) / math.sqrt(pairs - tied_y)
    return max(-1.0, min(1.0, tau))


def _tied(values: NDArray[np.intp]) -> int:
    """Return the number of pairs of equal values."""
    counts = np.unique(values, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def _inversions(values: NDArray[np.intp]) -> int:
    """Return the number of pairs of which the larger comes first; values are 0 and above.

    From the highest bit down: of two values that agree in the higher bits, the larger has this bit. SciPy's Kendall's
    tau counts the same, and takes half a second and 40 MB to load, which a gateway that shows it should not spend.
    """
    count = 0
    for bit in range(int(values.max()).bit_length() - 1, -1, -1):
        higher, ones = values >> (bit + 1), (values >> bit) & 1
        before = np.cumsum(ones) - ones  # ones before each value, of all groups
        starts = np.searchsorted(higher, higher)  # sorted, since the last round
        count += int((before - before[starts])[ones == 0].sum())
        values = values[np.argsort(values >> bit, kind="stable")]
    return count


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


def coverage(low: Floats, high: Floats, samples: Floats, present: Mask, weights: Floats | None = None) -> float:
    """Share of single present samples inside their row's interval, ends included; rows without one are left out."""
    inside = np.asarray((samples >= low[:, None]) & (samples <= high[:, None]), np.float64)
    return mean(np.where(present & np.isfinite(low)[:, None], inside, np.nan), weights)


def sharpness(low: Floats, high: Floats) -> float:
    """Mean width of the intervals on the log scale: log(high / low), so 0.69 is a factor of two."""
    return mean(np.log(np.maximum(high, 1.0)) - np.log(np.maximum(low, 1.0)))


def _matrix(lengths: ArrayLike) -> Floats:
    known = np.asarray(lengths, np.float64)
    return known[:, None] if known.ndim == 1 else known


def _error(predicted: ArrayLike, true: ArrayLike) -> Floats:
    p, t = np.asarray(predicted, np.float64), np.asarray(true, np.float64)
    if p.shape != t.shape:
        raise InputError(f"{p.shape} predictions for {t.shape} truths", hint="give one prediction for each truth")
    return p - t


def mean(values: Floats, weights: Floats | None = None) -> float:
    """Mean of the finite values, (rows,) or (rows, k), with weights of the rows; NaN where there is none."""
    known = np.isfinite(values)
    if not known.any():
        return math.nan
    if weights is None:
        return float(values[known].mean())
    each = np.broadcast_to(weights.reshape(-1, *[1] * (values.ndim - 1)), values.shape)
    return float(np.average(values[known], weights=each[known]))
