"""How well a family of lengths fits many prompts, and how heavy the tail is.

Kolmogorov-Smirnov row by row and held-out likelihood over all rows (a length is a count: the model's distribution is
rounded to whole tokens as the data are); the empirical survival and Hill's estimate of the tail; and the integrated
likelihood of log-t against log-normal, for a tail that many small samples show when no single one can.

Scoring a fit on samples it has not seen is unfair when the fit has five samples: a scale estimated from so few is
often too small, and the family with the heavier tail suffers less from it even where the truth is log-normal (the best
prediction from five normal samples is itself a t). Here location and scale are integrated out instead, with the
invariant measure d(location) d(scale) / scale:

    m_nu(y) = integral over mu, sigma of prod_i t_nu((y_i - mu) / sigma) / sigma * dmu dsigma / sigma,  y = log length

The ratio of two such m is the exact likelihood ratio of the information about the tail once location and scale are
integrated out, so summed over prompts it favours the true family, whatever the locations and scales of the prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from experiments.length_families.families import FAMILIES
from lengthwise.intervals import draw_counts, interval
from lengthwise.lengths.families import LOGNORMAL, LOGT, Family
from lengthwise.lengths.fit import RowFits, fit_rows

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

LEVEL: Final = 0.05

SLIP: Final = 1e-3
"""Share of a log-uniform distribution mixed into every family before it is scored on samples it has not seen."""
_RESAMPLES: Final = 1000
_RESAMPLES_AT_ONCE: Final = 100  # 100 x 8,000 prompts are 6 MB
_LONGEST: Final = 131_072.0  # tokens up to which that log-uniform reaches
_CONFIDENCE: Final = 1.96
_EVIDENCE_CHUNK: Final = 256
# Nodes, in units of 1/sqrt(samples): log(scale / fitted scale), and asinh((location - fitted location) / scale).
_LOG_SCALES: Final = np.linspace(-9.5, 14.5, 36)
_OFFSETS: Final = np.linspace(-3.6, 3.6, 25)
_PRODUCT: Final = 8  # so many factors are multiplied before a logarithm is taken


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


def ks_passes_plain(statistic: Array, count: NDArray[np.int64]) -> Mask:
    """Whether the p-value exceeds 5 % for samples of a fixed distribution; too often once it was fitted to them."""
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
class ConfidenceInterval:
    """An estimate with its 95 % confidence interval."""

    estimate: float
    low: float
    high: float


def means_by_cluster(
    totals: Array, count: NDArray[np.int64], cluster: NDArray[np.int64], rng: np.random.Generator
) -> list[ConfidenceInterval]:
    """Sum of each column of `totals` (n, m) over the sum of `count`, with intervals by bootstrap over clusters.

    Rows of one prompt (asked of many LLMs) are not independent, so whole prompts are drawn, not rows.
    """
    _, index = np.unique(cluster, return_inverse=True)
    counts = np.bincount(index, weights=count.astype(np.float64))
    sums = np.column_stack([np.bincount(index, weights=column) for column in totals.T])
    means = np.empty((_RESAMPLES, sums.shape[1]))
    for first in range(0, _RESAMPLES, _RESAMPLES_AT_ONCE):
        drawn = draw_counts(len(counts), seed=rng, resamples=_RESAMPLES_AT_ONCE).astype(float)
        means[first : first + len(drawn)] = (drawn @ sums) / (drawn @ counts)[:, None]
    middle = sums.sum(axis=0) / counts.sum()
    return [ConfidenceInterval(float(mean), *interval(drawn)) for mean, drawn in zip(middle, means.T, strict=True)]


def unround(lengths: Array, rng: np.random.Generator) -> Array:
    """Return counts with a uniform fraction of a token added, so that ties by rounding do not act as spikes."""
    return lengths + rng.uniform(-0.5, 0.5, lengths.shape)


def log_evidence(nu: float, x: Array, present: Mask, centre: RowFits) -> Array:
    """log m_nu of each row of lengths `x`; nu = inf is the log-normal, in closed form.

    `centre` is a log-t fit of the same rows and only places the quadrature. Good to 1e-3 for 5 to 256 samples.
    """
    y = np.log(x)
    if np.isinf(nu):
        return _log_evidence_normal(y, present)
    parts = [
        _log_evidence_t(nu, y[rows], present[rows], centre.params[rows])
        for rows in (slice(first, first + _EVIDENCE_CHUNK) for first in range(0, len(y), _EVIDENCE_CHUNK))
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


def _log_evidence_normal(y: Array, present: Mask) -> Array:
    count = present.sum(axis=1)
    mean = np.where(present, y, 0.0).sum(axis=1) / count
    square = (np.where(present, y - mean[:, None], 0.0) ** 2).sum(axis=1)
    half = 0.5 * (count - 1)
    gaussian = -half * np.log(2 * np.pi) - 0.5 * np.log(count)
    return np.asarray(gaussian + special.gammaln(half) - np.log(2.0) - half * np.log(square / 2))


def _log_evidence_t(nu: float, y: Array, present: Mask, params: Array) -> Array:
    """Trapezoids in log scale and in asinh of the location's offset; both integrands fall off at least like powers."""
    count = present.sum(axis=1)
    root = np.sqrt(count)[:, None, None]
    relative = _LOG_SCALES[:, None] / root
    log_scale = np.log(params[:, 1])[:, None, None] + relative
    z0 = (y - params[:, 0:1]) / params[:, 1:2]
    shift = np.sinh(_OFFSETS) / root
    shrink = np.exp(-relative)
    log_product, product = np.zeros(()), np.ones(())
    for i in range(y.shape[1]):
        z = z0[:, i, None, None] * shrink - shift
        product = product * np.where(present[:, i, None, None], 1 + z * z / nu, 1.0)
        if i % _PRODUCT == _PRODUCT - 1 or i == y.shape[1] - 1:
            log_product, product = log_product + np.log(product), np.ones(())
    # d(mu) = scale d(shift): one factor of the scale comes back; d(scale) / scale = d(log scale)
    measure = np.log(np.cosh(_OFFSETS) / root) - (count[:, None, None] - 1) * log_scale
    total = special.logsumexp(measure - 0.5 * (nu + 1) * log_product, axis=(1, 2))
    constant = special.gammaln(0.5 * (nu + 1)) - special.gammaln(0.5 * nu) - 0.5 * np.log(nu * np.pi)
    cell = (_LOG_SCALES[1] - _LOG_SCALES[0]) * (_OFFSETS[1] - _OFFSETS[0]) / np.sqrt(count)
    return np.asarray(total + count * constant + np.log(cell), np.float64)


def survival(values: Array, points: int = 200) -> tuple[Array, Array]:
    """P(value > x) at up to `points` places, spaced evenly over log x and over the log of the survival itself."""
    x = np.sort(values)
    n = len(x)
    above = np.arange(n - 1, -1, -1) / n
    last_of_ties = np.append(x[1:] > x[:-1], True)
    x, above = x[last_of_ties], above[last_of_ties]
    x, above = x[above > 0], above[above > 0]
    if len(x) <= points:
        return x, above
    by_depth = np.searchsorted(-above, -np.geomspace(above[0], above[-1], points // 2))
    by_place = np.searchsorted(x, np.geomspace(max(x[0], 1e-9), x[-1], points // 2))
    kept = np.unique(np.clip(np.concatenate([by_depth, by_place]), 0, len(x) - 1))
    return x[kept], above[kept]


@dataclass(frozen=True, eq=False)
class Hill:
    """Hill's estimate of alpha in P(X > x) ~ x^-alpha, as a function of how many of the largest values are used.

    A flat stretch is what a power tail shows. An estimate that keeps rising as fewer values are used means the tail is
    lighter than any power (log-normal: it rises forever, slowly), one that keeps falling that it is heavier.
    """

    k: NDArray[np.int64]
    alpha: Array
    low: Array
    high: Array

    def at(self, k: int) -> tuple[float, float, float]:
        """Estimate and 95 % band at the nearest k there is."""
        i = int(np.argmin(np.abs(self.k - k)))
        return float(self.alpha[i]), float(self.low[i]), float(self.high[i])


def hill(values: Array) -> Hill:
    """alpha(k) = k / sum over the k largest of log(x / x_(k+1)), band alpha (1 +- 1.96/sqrt(k)), k from 10 to a tenth.

    The band takes the values as independent; samples of one prompt are not quite, so it is a little too narrow.
    """
    logs = np.log(np.sort(values)[::-1])
    most = max(int(len(logs) * 0.1), 11)
    k = np.unique(np.geomspace(10, min(most, len(logs) - 1), 80).astype(np.int64))
    excess = np.cumsum(logs)[k - 1] / k - logs[k]
    alpha = 1 / np.maximum(excess, 1e-12)
    margin = _CONFIDENCE * alpha / np.sqrt(k)
    return Hill(k, alpha, alpha - margin, alpha + margin)


@dataclass(frozen=True)
class Power:
    """The results of every test on prompts of a known family, with `samples` samples each."""

    truth: str
    samples: int
    prompts: int
    passes_plain: Mapping[str, float]
    """Share of prompts that pass KS by the p-value for a fixed distribution, by family."""
    passes_refitted: Mapping[str, float]
    """The same by critical values that allow for the fitting; 95 % for the true family by construction."""
    held_out_gain: Mapping[str, float]
    """Log probability per held-out sample, minus log-normal's."""
    evidence_gain: float
    """Integrated log-likelihood per prompt of log-t (nu = 3.5), minus log-normal's."""
    evidence_error: float
    """Its standard error over these prompts."""


def power(
    location: float,
    scale: float,
    rng: np.random.Generator,
    *,
    samples: Sequence[int] = (10, 20, 256),
    prompts: int = 1000,
    advance: Callable[[], None] | None = None,
) -> list[Power]:
    """Simulate prompts of log-normal and of log-t (nu = 3.5) lengths around `location`, and apply every test to them.

    The log-t gets the scale that gives it the log-normal's interquartile range. `advance` is called after each truth.
    """
    same_quartiles = float(special.ndtri(0.75) / special.stdtrit(LOGT.shape, 0.75))
    found = []
    for count in samples:
        few = prompts if count <= 50 else max(prompts // 5, 50)
        truths = {
            LOGNORMAL: np.tile([location, scale, 1.0], (few, 1)),
            LOGT: np.tile([location, scale * same_quartiles, LOGT.shape], (few, 1)),
        }
        drawn = {truth: np.maximum(np.rint(truth.draw(rng, params, count)), 1.0) for truth, params in truths.items()}
        # One critical value per family, as on real data: from its fits to one of the true families.
        critical = {
            family: ks_critical(family, fit_rows(family, drawn[LOGNORMAL]).params, count, rng, draws=few)
            for family in FAMILIES
        }
        for truth, x in drawn.items():
            found.append(_apply_tests(truth, x, critical, rng))
            if advance is not None:
                advance()
    return found


def _apply_tests(truth: Family, x: Array, critical: Mapping[Family, float], rng: np.random.Generator) -> Power:
    everything = np.ones(x.shape, bool)
    plain, refitted, scores = {}, {}, {}
    for family in FAMILIES:
        fits = fit_rows(family, x)
        count = everything.sum(axis=1)
        passes = ks_passes_plain(ks_statistic(fits, x, everything, width=0.0), count)
        plain[family.name] = float(np.mean(passes))
        refitted[family.name] = float(np.mean(ks_statistic(fits, x, everything) <= critical[family]))
        scores[family.name] = held_out(family, x, everything).total.sum() / x.size
    gains = {name: float(score - scores[LOGNORMAL.name]) for name, score in scores.items()}
    fine = unround(x, rng)
    centre = fit_rows(LOGT, fine)
    evidence = log_evidence(LOGT.shape, fine, everything, centre) - log_evidence(np.inf, fine, everything, centre)
    error = float(evidence.std() / np.sqrt(len(x)))
    return Power(truth.name, x.shape[1], len(x), plain, refitted, gains, float(evidence.mean()), error)
