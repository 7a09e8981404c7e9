"""Many log-t predictions as columns: mean, CVaR and quantiles of thousands of requests at once.

Mean and CVaR are read from one table per (nu, alpha) by cubic splines. Both, divided by the cap, depend on two numbers
only: sigma and k = (ln cap - mu)/sigma. In v = asinh(k) + sigma*k and ln sigma their logarithms are smooth at every
scale, the bend around the median (width 1 in k) and the one where the tail takes over (width 1 in sigma*k) alike, so a
cubic spline on a grid of steps 0.1 is good to 1e-4 for nu from 1 to 100, and to 1e-5 at 3.5. For the CVaR k counts from
the alpha-quantile, where it bends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import ndimage, special

from lengthwise.errors import InputError
from lengthwise.lengths import student
from lengthwise.lengths.distributions import TIE_NU, LogT, check_probability

_STEP: Final = 0.1
_MARGIN: Final = 12  # grid steps beyond the range, so that the spline's ends do not show
_LOG_SIGMA: Final = (math.log(0.005), math.log(4.0))
_V: Final = (-23.0, 25.0)
_NODES: Final = 64


@dataclass(frozen=True, eq=False)
class LogTColumns:
    """Predictions X_i = min(exp(mu_i + sigma_i * T), cap_i) with one nu; [i] is a LogT.

    Mean and CVaR come from a spline table good to 1e-4 (a single LogT is exact to 1e-10), except outside
    sigma 0.005 to 4 and caps e^20 from the median, where each prediction is integrated separately.
    """

    mu: NDArray[np.float64]
    sigma: NDArray[np.float64]
    cap: NDArray[np.float64]
    nu: float = TIE_NU

    @classmethod
    def of(cls, mu: ArrayLike, sigma: ArrayLike, cap: ArrayLike, nu: float = TIE_NU) -> LogTColumns:
        """Check and broadcast three columns (a single cap serves all)."""
        mu_, sigma_, cap_ = np.broadcast_arrays(
            np.asarray(mu, np.float64), np.asarray(sigma, np.float64), np.asarray(cap, np.float64)
        )
        bad = ~(np.isfinite(mu_) & np.isfinite(sigma_) & (sigma_ > 0) & (cap_ >= 1))
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise InputError(
                f"mu {mu_.flat[row]}, sigma {sigma_.flat[row]}, cap {cap_.flat[row]}",
                row=row + 1,
                hint="give a finite mu, a sigma above 0 and a cap of at least 1",
            )
        return cls(mu_.ravel(), sigma_.ravel(), cap_.ravel(), nu)

    def __len__(self) -> int:
        return len(self.mu)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} predictions)"

    def __getitem__(self, index: int) -> LogT:
        return LogT(float(self.mu[index]), float(self.sigma[index]), int(self.cap[index]), self.nu)

    def mean(self) -> NDArray[np.float64]:
        """Return each prediction's expected length."""
        return self.mean_and_cvar()[0]

    def survival(self, tokens: ArrayLike) -> NDArray[np.float64]:
        """Return P(length > tokens) as (n, k); `tokens` are (k,), the same for all predictions, or (n, k)."""
        length = np.asarray(tokens, np.float64)
        standard = (np.log(np.maximum(length, 1e-9)) - self.mu[:, None]) / self.sigma[:, None]
        above = np.where(length > 0.0, special.stdtr(self.nu, -standard), 1.0)
        return np.where(length < self.cap[:, None], above, 0.0)

    def quantile(self, q: float) -> NDArray[np.float64]:
        """Return the length that each answer does not exceed with probability q."""
        check_probability(q, "the quantile's level")
        return np.asarray(np.minimum(np.exp(self.mu + self.sigma * student.isf(1.0 - q, self.nu)), self.cap))

    def mean_and_cvar(self, alpha: float = 0.9) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and CVaR in one pass over the table."""
        check_probability(alpha, "the CVaR's level")
        if not 0.0 < alpha < 1.0:
            return self._one_by_one(np.arange(len(self)), alpha)
        table = tail_table(self.nu, alpha)
        k = (np.log(self.cap) - self.mu) / self.sigma
        covered = table.covers(self.sigma, k)
        if covered.all():
            mean, cvar = table.over_cap(self.sigma, k)
            return mean * self.cap, cvar * self.cap
        mean, cvar = np.empty(len(self)), np.empty(len(self))
        inside = table.over_cap(self.sigma[covered], k[covered])
        mean[covered], cvar[covered] = inside[0] * self.cap[covered], inside[1] * self.cap[covered]
        mean[~covered], cvar[~covered] = self._one_by_one(np.flatnonzero(~covered), alpha)
        return mean, cvar

    def _one_by_one(self, rows: NDArray[np.intp], alpha: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        both = np.array([self[int(row)].mean_and_cvar(alpha) for row in rows]).reshape(-1, 2)
        return both[:, 0], both[:, 1]


@dataclass(frozen=True)
class TailTable:
    """Spline coefficients of ln(mean/cap) and ln(CVaR/cap) over (v, ln sigma)."""

    nu: float
    quantile: float  # of T at alpha
    log_mean: NDArray[np.float64]
    log_cvar: NDArray[np.float64]

    def covers(self, sigma: NDArray[np.float64], k: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which rows the table covers."""
        low, high = (math.exp(end) for end in _LOG_SIGMA)
        lowest, highest = min(0.0, self.quantile), max(0.0, self.quantile)
        above = _v(sigma, k - highest) > _V[0]
        return (sigma > low) & (sigma < high) & above & (_v(sigma, k - lowest) < _V[1])

    def over_cap(
        self, sigma: NDArray[np.float64], k: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean/cap and CVaR/cap."""
        at_sigma = (np.log(sigma) - _LOG_SIGMA[0]) / _STEP + _MARGIN
        at_mean = (_v(sigma, k) - _V[0]) / _STEP + _MARGIN
        at_cvar = np.maximum(_v(sigma, k - self.quantile) / _STEP, 0.0)
        return _read(self.log_mean, at_mean, at_sigma), _read(self.log_cvar, at_cvar, at_sigma)


def _v(sigma: NDArray[np.float64], k: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.arcsinh(k) + sigma * k


def _read(
    coefficients: NDArray[np.float64], at_v: NDArray[np.float64], at_sigma: NDArray[np.float64]
) -> NDArray[np.float64]:
    where = np.stack((at_v, at_sigma))
    logs = ndimage.map_coordinates(coefficients, where, order=3, mode="mirror", prefilter=False)
    return np.exp(logs, out=logs)


@lru_cache(maxsize=16)
def tail_table(nu: float, alpha: float) -> TailTable:
    """Build the table for one nu and one level, once."""
    quantile = student.isf(1.0 - alpha, nu)
    steps = round((_LOG_SIGMA[1] - _LOG_SIGMA[0]) / _STEP) + 2 * _MARGIN
    sigma = np.exp(_LOG_SIGMA[0] + _STEP * (np.arange(steps + 1) - _MARGIN))
    v_mean = np.arange(_V[0] - _STEP * _MARGIN, _V[1] + _STEP * _MARGIN, _STEP, dtype=np.float64)
    v_cvar = np.arange(0.0, _V[1] + _STEP * _MARGIN, _STEP, dtype=np.float64)
    log_mean = np.log(_mean_over_cap(*_grid(v_mean, sigma), nu))
    above, sigmas = _grid(v_cvar, sigma)
    log_cvar = np.log(_cvar_over_cap(quantile + above, sigmas, nu, alpha, quantile))
    filtered = [ndimage.spline_filter(a, order=3, mode="mirror") for a in (log_mean, log_cvar)]
    return TailTable(nu, quantile, *filtered)


def _grid(v: NDArray[np.float64], sigma: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return k and sigma on the grid; v is inverted by Newton's method, which its slope makes safe."""
    target = np.repeat(v[:, None], len(sigma), axis=1)
    sigmas = np.broadcast_to(sigma, target.shape)
    # Both terms grow with k, so |k| is at most what either alone would need.
    k = np.copysign(np.minimum(np.sinh(np.abs(target)), np.abs(target) / sigmas), target)
    for _ in range(50):
        k -= (_v(sigmas, k) - target) / (1.0 / np.sqrt(1.0 + k * k) + sigmas)
    return k, sigmas


def _growth_integral(
    low: NDArray[np.float64], k: NDArray[np.float64], sigma: NDArray[np.float64], nu: float
) -> NDArray[np.float64]:
    """Integral of exp(sigma (t - k)) over the density of T from `low` to k, element by element."""
    x, weights = np.polynomial.legendre.leggauss(_NODES)
    root = math.sqrt(nu)
    start = np.arcsinh(low / root)
    stop = np.minimum(np.arcsinh(k / root), student.reach_above(nu))
    half = np.maximum(stop - start, 0.0) / 2.0
    total = np.zeros_like(k)
    for node, weight in zip(x, weights, strict=True):
        w = (start + stop) / 2.0 + half * node
        total += weight * np.exp(sigma * (root * np.sinh(w) - k)) * np.cosh(w) ** -nu
    return np.asarray(total * half * student.density_constant(nu))


def _mean_over_cap(k: NDArray[np.float64], sigma: NDArray[np.float64], nu: float) -> NDArray[np.float64]:
    low = np.minimum(k, 0.0) - 45.0 / sigma
    low = np.maximum(low, -math.sqrt(nu) * math.sinh(student.reach_below(nu)))
    return _growth_integral(np.minimum(low, k), k, sigma, nu) + special.stdtr(nu, -k)


def _cvar_over_cap(
    k: NDArray[np.float64], sigma: NDArray[np.float64], nu: float, alpha: float, quantile: float
) -> NDArray[np.float64]:
    tail = _growth_integral(np.full_like(k, quantile), k, sigma, nu) + special.stdtr(nu, -k)
    return tail / (1.0 - alpha)
