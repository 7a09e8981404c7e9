"""Damped Newton on the likelihood of many rows at once, for `lengthwise.lengths.fit`.

The optimiser moves theta = (location, log scale, eta), eta the shape or its logarithm, inside bounds. Derivatives in
location and scale are analytic (with the location counted in scales, which makes every step dimensionless), those in
eta are central differences of them. Rows that have converged leave the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lengthwise.lengths.families import Family

    Array = NDArray[np.float64]
    Mask = NDArray[np.bool_]
    Rows = NDArray[np.intp]

__all__ = ["Cells", "eta_of", "maximise", "shape_of"]

_ITERATIONS: Final = 100
_TOLERANCE: Final = 1e-8  # log-likelihood still to be gained, by the Newton decrement
_LONGEST_STEP: Final = 1.5  # in scales, and in e-folds of scale and shape
_ETA_STEP: Final = 1e-3
_FLAT: Final = 1e-6  # keeps a direction without curvature from an endless step
_LEAST_DAMPING, _MOST_DAMPING = 1e-9, 1e6  # per sample


@dataclass(frozen=True, eq=False)
class Cells:
    """Samples as intervals (low, high] of g(X), (low, inf) where censored; and the bounds of theta, row by row."""

    low: Array
    high: Array
    present: Mask
    censored: Mask
    lower: Array
    upper: Array

    def __getitem__(self, rows: Rows | Mask) -> Cells:
        return Cells(
            low=self.low[rows],
            high=self.high[rows],
            present=self.present[rows],
            censored=self.censored[rows],
            lower=self.lower[rows],
            upper=self.upper[rows],
        )


def shape_of(family: Family, eta: Array) -> Array:
    """The kernel's shape from the optimiser's third parameter."""
    return np.exp(eta) if family.shape_on_log else eta


def eta_of(family: Family, shape: Array) -> Array:
    """The inverse of `shape_of`."""
    with np.errstate(divide="ignore"):
        return np.log(shape) if family.shape_on_log else shape


def loglik(family: Family, cells: Cells, theta: Array) -> Array:
    """Log-likelihood of each row; -inf where a sample is impossible."""
    logp = _log_probabilities(family, cells, theta)[0]
    return np.asarray(logp.sum(axis=1))


def _log_probabilities(family: Family, cells: Cells, theta: Array) -> tuple[Array, Array, Array, Array]:
    location, scale = theta[:, 0:1], np.exp(theta[:, 1:2])
    shape = shape_of(family, theta[:, 2:3])
    a, b = (cells.low - location) / scale, (cells.high - location) / scale
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        logp = np.log(np.maximum(family.kernel.interval(a, b, shape), 0.0))
        if cells.censored.any():
            logp = np.where(cells.censored, family.kernel.logsf(a, shape), logp)
    return np.where(cells.present, logp, 0.0), a, b, shape


def _location_scale_derivatives(family: Family, cells: Cells, theta: Array) -> tuple[Array, Array, Array]:
    """Log-likelihood (n,), gradient (n, 2) and Hessian entries (n, 3: dd, ds, ss) in d = location/scale, s = log scale.

    With z = (z0 - d) exp(-s) the edges move by dz/dd = -1, dz/ds = -z, so every derivative of a cell's probability is
    a difference of terms in f and f' at its two edges. Both are divided by the probability before they are subtracted.
    """
    logp, a, b, shape = _log_probabilities(family, cells, theta)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        f_a = np.exp(family.kernel.logpdf(a, shape) - logp)
        f_b = np.where(cells.censored, 0.0, np.exp(family.kernel.logpdf(b, shape) - logp))
        df_a, df_b = f_a * family.kernel.score(a, shape), f_b * family.kernel.score(b, shape)
        g_d, g_s = f_a - f_b, a * f_a - b * f_b
        h_dd = df_b - df_a - g_d * g_d
        h_ds = (b * df_b + f_b) - (a * df_a + f_a) - g_d * g_s
        h_ss = b * (b * df_b + f_b) - a * (a * df_a + f_a) - g_s * g_s
        columns = [np.where(cells.present, term, 0.0).sum(axis=1) for term in (g_d, g_s, h_dd, h_ds, h_ss)]
    derivatives = np.nan_to_num(np.column_stack(columns), posinf=0.0, neginf=0.0)
    return logp.sum(axis=1), derivatives[:, :2], derivatives[:, 2:]


def _derivatives(family: Family, cells: Cells, theta: Array) -> tuple[Array, Array]:
    """Gradient (n, 3) and Hessian (n, 3, 3) of the rows' log-likelihood in (location/scale, log scale, eta)."""
    value, gradient2, entries = _location_scale_derivatives(family, cells, theta)
    gradient, hessian = np.zeros((len(theta), 3)), np.zeros((len(theta), 3, 3))
    gradient[:, :2] = gradient2
    hessian[:, 0, 0], hessian[:, 0, 1], hessian[:, 1, 1] = entries.T
    hessian[:, 1, 0] = hessian[:, 0, 1]
    if family.shape_is_free:
        step = np.array([0.0, 0.0, _ETA_STEP])
        more, gradient_more, _ = _location_scale_derivatives(family, cells, theta + step)
        less, gradient_less, _ = _location_scale_derivatives(family, cells, theta - step)
        with np.errstate(invalid="ignore"):
            gradient[:, 2] = np.nan_to_num((more - less) / (2 * _ETA_STEP), posinf=0.0, neginf=0.0)
            hessian[:, 2, 2] = np.nan_to_num((more - 2 * value + less) / _ETA_STEP**2, posinf=0.0, neginf=0.0)
        hessian[:, :2, 2] = (gradient_more - gradient_less) / (2 * _ETA_STEP)
        hessian[:, 2, :2] = hessian[:, :2, 2]
    return gradient, hessian


def _newton_step(gradient: Array, hessian: Array, movable: Mask, damping: Array) -> tuple[Array, Array]:
    """The damped step, and the gain an undamped one would promise. Uphill in every direction, saddles included."""
    gradient = np.where(movable, gradient, 0.0)
    both = movable[:, :, None] & movable[:, None, :]
    curvature = np.where(both, -hessian, 0.0) + np.eye(3) * ~movable[:, :, None]
    values, vectors = np.linalg.eigh(curvature)
    along = np.einsum("nij,ni->nj", vectors, gradient)
    steepness = np.abs(values) + _FLAT
    gain = 0.5 * (along**2 / steepness).sum(axis=1)
    step = np.einsum("nij,nj->ni", vectors, along / (steepness + damping[:, None]))
    longest = np.abs(step).max(axis=1, keepdims=True)
    return step * np.minimum(1.0, _LONGEST_STEP / np.maximum(longest, 1e-300)), gain


def _feasible_start(family: Family, cells: Cells, theta: Array) -> tuple[Array, Array]:
    """Widen the scale of rows whose start makes some sample impossible (an outlier far outside a light tail)."""
    value = loglik(family, cells, theta)
    for _ in range(20):
        bad = np.flatnonzero(~np.isfinite(value))
        if bad.size == 0:
            break
        if family.scale_is_free:
            theta[bad, 1] += np.log(2.0)
        else:
            theta[bad, 2] = np.maximum(theta[bad, 2] - np.log(2.0), cells.lower[bad, 2])
        value[bad] = loglik(family, cells[bad], theta[bad])
    return theta, value


def maximise(family: Family, cells: Cells, theta: Array) -> tuple[Array, Array, Mask]:
    """Climb from `theta`; returns where each row ended, its log-likelihood, and whether it converged."""
    theta, value = _feasible_start(family, cells, np.clip(theta, cells.lower, cells.upper))
    converged = np.zeros(len(theta), bool)
    samples = np.maximum(cells.present.sum(axis=1), 1).astype(float)
    damping = 1e-3 * samples
    active = np.flatnonzero(np.isfinite(value) & cells.present.any(axis=1))
    stale = np.ones(len(theta), bool)
    gradient, hessian = np.zeros((len(theta), 3)), np.zeros((len(theta), 3, 3))
    for _ in range(_ITERATIONS):
        if active.size == 0:
            break
        moved = active[stale[active]]
        gradient[moved], hessian[moved] = _derivatives(family, cells[moved], theta[moved])
        here, low, high = theta[active], cells.lower[active], cells.upper[active]
        pinned = ((here <= low) & (gradient[active] < 0)) | ((here >= high) & (gradient[active] > 0))
        movable = np.array(family.free) & ~pinned
        step, gain = _newton_step(gradient[active], hessian[active], movable, damping[active])
        step[:, 0] *= np.exp(here[:, 1])  # back from scales to the location's own unit
        there = np.clip(here + step, low, high)
        reached = loglik(family, cells[active], there)
        better = reached >= value[active]
        theta[active[better]], value[active[better]] = there[better], reached[better]
        stale[active] = better
        damping[active] = np.where(better, damping[active] / 10, damping[active] * 10)
        damping[active] = np.maximum(damping[active], _LEAST_DAMPING * samples[active])
        done = gain < _TOLERANCE
        converged[active[done]] = True
        active = active[~done & (damping[active] < _MOST_DAMPING * samples[active])]
    return theta, value, converged
