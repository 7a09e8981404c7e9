"""The rivals of log-t and log-normal as families of an answer's length.

As in `lengthwise.lengths.families`, g(X) = location + scale * Z:

| family  | g        | Z                         | location, scale, shape    |
|---------|----------|---------------------------|---------------------------|
| Weibull | log      | log of an exponential     | log lambda, 1/k, none     |
| gamma   | log      | log of a mean-one gamma   | log mean, 1 (constant), k |
| GEV     | identity | generalized extreme value | mu, sigma, xi in -0.5..2  |

The bounds on xi are part of the family: the likelihood of the GEV is unbounded for xi < -1 (and not regular below
-0.5).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy import special

from lengthwise.lengths.families import LOGNORMAL, LOGT, NARROW, Array, Family, Kernel, logt_family, narrow_interval


def _exp(z: Array) -> Array:
    """Return e^z without overflow."""
    return np.asarray(np.exp(np.minimum(z, 700.0)))


class _LogExponential(Kernel):
    """Z = log E with E ~ Exp(1), so that exp(location + scale Z) is Weibull; the shape is ignored."""

    median = -0.37
    std = 1.28

    def logpdf(self, z: Array, shape: Array) -> Array:
        return z - _exp(z)

    def score(self, z: Array, shape: Array) -> Array:
        return 1 - _exp(z)

    def logsf(self, z: Array, shape: Array) -> Array:
        return -_exp(z)

    def interval(self, low: Array, high: Array, shape: Array) -> Array:
        hazard_low, hazard_high = _exp(low), _exp(high)
        return np.asarray(-np.exp(-hazard_low) * np.expm1(hazard_low - hazard_high))

    def draw(self, rng: np.random.Generator, shape: Array, size: tuple[int, int]) -> Array:
        return np.log(rng.standard_exponential(size))


class _LogGamma(Kernel):
    """Z = log(G / k) with G ~ Gamma(k), shape = k: mean-one gamma, so that location and shape are orthogonal."""

    median = 0.0
    std = 1.0

    def logpdf(self, z: Array, shape: Array) -> Array:
        constant = shape * np.log(shape) - special.gammaln(shape)
        return np.asarray(constant + shape * (z - _exp(z)))

    def score(self, z: Array, shape: Array) -> Array:
        return shape * (1 - _exp(z))

    def logsf(self, z: Array, shape: Array) -> Array:
        # Past underflow by Laplace's method: density over the fall of its logarithm.
        survival = special.gammaincc(shape, shape * _exp(z))
        far = self.logpdf(z, shape) - np.log(np.maximum(-self.score(z, shape), 1e-300))
        return np.where(survival > 1e-290, np.log(np.maximum(survival, 1e-290)), far)

    def interval(self, low: Array, high: Array, shape: Array) -> Array:
        probability = narrow_interval(self, low, high, shape)
        wide = (high - low) * np.sqrt(shape) >= NARROW
        if wide.any():
            k = np.broadcast_to(shape, low.shape)[wide]
            a, b = k * _exp(low[wide]), k * _exp(high[wide])
            probability[wide] = np.where(
                a > k,
                special.gammaincc(k, a) - special.gammaincc(k, b),
                special.gammainc(k, b) - special.gammainc(k, a),
            )
        return probability

    def draw(self, rng: np.random.Generator, shape: Array, size: tuple[int, int]) -> Array:
        k = np.broadcast_to(shape, size)
        return np.asarray(np.log(rng.standard_gamma(k)) - np.log(k))


class _ExtremeValue(Kernel):
    """Z of the generalized extreme value family, shape = xi in the sign of Coles: t = (1 + xi z)^(-1/xi), cdf e^-t.

    xi = 0 is Gumbel, xi > 0 has a power tail (alpha = 1/xi) and a lower end, xi < 0 an upper end.
    """

    median = 0.37
    std = 1.28

    def _log_t(self, z: Array, shape: Array) -> Array:
        base = np.maximum(shape * z, -1.0)
        # Below the lower end t is infinite, above the upper end 0: log1p(-1) = -inf has the right sign by -1/xi.
        gumbel = np.abs(shape) < 1e-8
        with np.errstate(divide="ignore"):
            curved = -np.log1p(base) / np.where(gumbel, 1.0, shape)
        return np.where(gumbel, -z, curved)

    def logpdf(self, z: Array, shape: Array) -> Array:
        # -inf outside the support
        log_t = self._log_t(z, shape)
        inside = np.isfinite(log_t)
        log_t = np.where(inside, log_t, 0.0)
        return np.where(inside, (1 + shape) * log_t - _exp(log_t), -np.inf)

    def score(self, z: Array, shape: Array) -> Array:
        # 0 outside the support, where the density is 0 as well
        inside = 1 + shape * z
        t = _exp(self._log_t(z, shape))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(inside > 0, (t - 1 - shape) / np.where(inside > 0, inside, 1.0), 0.0)

    def logsf(self, z: Array, shape: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(-np.expm1(-_exp(self._log_t(z, shape)))))

    def interval(self, low: Array, high: Array, shape: Array) -> Array:
        t_low = _exp(self._log_t(low, shape))
        t_high = _exp(self._log_t(high, shape))
        return np.asarray(-np.exp(-t_high) * np.expm1(t_high - t_low))

    def draw(self, rng: np.random.Generator, shape: Array, size: tuple[int, int]) -> Array:
        log_t = np.log(rng.standard_exponential(size))
        gumbel = np.abs(shape) < 1e-8
        return np.where(gumbel, -log_t, np.expm1(-shape * log_t) / np.where(gumbel, 1.0, shape))


LOGT_FREE: Final = logt_family(None)
WEIBULL: Final = Family("Weibull", _LogExponential(), True, True, False, 1.0)
GAMMA: Final = Family("gamma", _LogGamma(), True, False, True, 10.0, (0.01, 1e9))
GEV: Final = Family("GEV", _ExtremeValue(), False, True, True, 0.05, (-0.5, 2.0), shape_on_log=False)

FAMILIES: Final = (LOGT_FREE, LOGT, LOGNORMAL, WEIBULL, GAMMA, GEV)
