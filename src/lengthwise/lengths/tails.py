"""Heavy tails looked at: empirical survival, the Hill estimate, and what few samples per prompt can and cannot show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy import special

from lengthwise.lengths.families import FAMILIES, LOGNORMAL, LOGT
from lengthwise.lengths.fit import fit_rows
from lengthwise.lengths.goodness import held_out, ks_critical, ks_passes_plain, ks_statistic
from lengthwise.lengths.likelihood_ratio import log_evidence, unround

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from lengthwise.lengths.families import Family

    Array = NDArray[np.float64]

__all__ = ["Hill", "Power", "hill", "power", "survival"]

_CONFIDENCE: Final = 1.96


def survival(values: Array, points: int = 200) -> tuple[Array, Array]:
    """P(value > x) at up to `points` places spread evenly over log x and over the log of the survival itself."""
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

    A flat stretch is what a power tail shows. An estimate that keeps rising as fewer values are used says the tail is
    lighter than any power (log-normal: it rises for ever, slowly), one that keeps falling that it is heavier.
    """

    k: NDArray[np.int64]
    alpha: Array
    low: Array
    high: Array

    def at(self, k: int) -> tuple[float, float, float]:
        """Estimate and 95 % band at the nearest k there is."""
        i = int(np.argmin(np.abs(self.k - k)))
        return float(self.alpha[i]), float(self.low[i]), float(self.high[i])


def hill(values: Array, *, largest_share: float = 0.1, points: int = 80) -> Hill:
    """alpha(k) = k / sum over the k largest of log(x / x_(k+1)), band alpha (1 +- 1.96/sqrt(k)), k >= 10.

    The band takes the values as independent; samples of one prompt are not quite, so it is a little too narrow.
    """
    logs = np.log(np.sort(values)[::-1])
    most = max(int(len(logs) * largest_share), 11)
    k = np.unique(np.geomspace(10, min(most, len(logs) - 1), points).astype(np.int64))
    excess = np.cumsum(logs)[k - 1] / k - logs[k]
    alpha = 1 / np.maximum(excess, 1e-12)
    margin = _CONFIDENCE * alpha / np.sqrt(k)
    return Hill(k, alpha, alpha - margin, alpha + margin)


@dataclass(frozen=True)
class Power:
    """What prompts of a known truth look like to every test, with so many samples each."""

    truth: str
    samples: int
    prompts: int
    passes_plain: Mapping[str, float]
    """Share of prompts that pass KS by the p-value for a distribution known beforehand, by family."""
    passes_refitted: Mapping[str, float]
    """The same by critical values that know of the fitting; 95 % for the true family by construction."""
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
    """Simulate prompts of log-normal and of log-t (nu = 3.5) lengths around `location`, and put every test to them.

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
        # One critical value per family, as on real data: from the family's own fits to one of the truths.
        critical = {
            family: ks_critical(family, fit_rows(family, drawn[LOGNORMAL]).params, count, rng, draws=few)
            for family in FAMILIES
        }
        for truth, x in drawn.items():
            found.append(_look(truth, x, critical, rng))
            if advance is not None:
                advance()
    return found


def _look(truth: Family, x: Array, critical: Mapping[Family, float], rng: np.random.Generator) -> Power:
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
