"""Maximum likelihood of a length family on many small data sets at once.

A length is a count of tokens, so a sample n is the event X in (n - 1/2, n + 1/2] and its likelihood is that cell's
probability; a right-censored sample is the event X > n. Densities would not do: ten answers of 57, 57, 57, 57, 58, ...
tokens let a density grow without bound as the scale shrinks onto the tie, and the family with the sharpest spike wins.
A cell's probability never exceeds 1. For the same reason the spread has a floor at that of the rounding itself,
1/sqrt(12) token (only rows with at most two neighbouring lengths ever reach it).

For samples of a continuous quantity give a small `width`: the fit then is the ordinary one, and
`loglik - samples * log(width)` the ordinary log-likelihood.

The optimiser is a damped Newton method on many rows at once. It moves theta = (location, log scale, eta), eta the shape
or its logarithm, inside bounds. Derivatives in location and scale are analytic (with the location counted in scales,
which makes every step dimensionless), those in eta are central differences of them. Rows that have converged leave the
batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lengthwise.errors import InputError
from lengthwise.lengths.distributions import DEFAULT_CAP, LogT
from lengthwise.lengths.families import Family, logt_family
from lengthwise.lengths.log_t import TIE_NU

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]

_CHUNK: Final = 4096  # rows per batch: small enough to stay in cache, large enough for NumPy
_ITERATIONS: Final = 100
_TOLERANCE: Final = 1e-8  # gain in log-likelihood left, by the Newton decrement
_LONGEST_STEP: Final = 1.5  # in scales, and in e-folds of scale and shape
_ETA_STEP: Final = 1e-3
_FLAT: Final = 1e-6  # bounds the step in a direction without curvature
_MIN_DAMPING, _MAX_DAMPING = 1e-9, 1e6  # per sample


@dataclass(frozen=True, eq=False)
class RowFits:
    """Fitted parameters, one entry per row; those of a degenerate row (at the floor) carry no information."""

    family: Family
    params: Array
    """(n, 3): location, scale, shape."""
    loglik: Array
    """Log probability of the row's samples at `params`."""
    converged: Mask
    degenerate: Mask
    """Fewer than two different uncensored lengths: such a row does not determine the spread of any family."""

    def __getitem__(self, rows: Rows) -> RowFits:
        return RowFits(self.family, self.params[rows], self.loglik[rows], self.converged[rows], self.degenerate[rows])


def fit_rows(
    family: Family,
    lengths: ArrayLike,
    present: ArrayLike | None = None,
    censored: ArrayLike | None = None,
    *,
    width: float = 1.0,
    progress: Callable[[int], None] | None = None,
) -> RowFits:
    """Fit `family` to each row of `lengths` (n, k) by maximum likelihood.

    `present` masks the samples that count, `censored` those of which only X > length is known. `width` is the
    rounding of a length in tokens. `progress` is called with the number of rows that are done since its last call.
    """
    x = np.asarray(lengths, np.float64)
    here = np.ones(x.shape, bool) if present is None else np.asarray(present, bool)
    cut = np.zeros(x.shape, bool) if censored is None else np.asarray(censored, bool)
    if x.ndim != 2 or here.shape != x.shape or cut.shape != x.shape:
        raise InputError("lengths, present and censored must be tables of the same shape (rows, samples)")
    x, here, cut = _packed(x, here, cut)
    parts = []
    for first in range(0, len(x), _CHUNK):
        rows = slice(first, first + _CHUNK)
        parts.append(_fit_chunk(family, x[rows], here[rows], cut[rows], width))
        if progress is not None:
            progress(len(parts[-1].loglik))
    if not parts:
        none = np.zeros(0)
        return RowFits(family, np.zeros((0, 3)), none, none.astype(bool), none.astype(bool))
    columns = ("params", "loglik", "converged", "degenerate")
    return RowFits(family, *(np.concatenate([getattr(part, name) for part in parts]) for name in columns))


def fit_logt(
    samples: ArrayLike, *, nu: float | None = TIE_NU, censored: ArrayLike | None = None, cap: int = DEFAULT_CAP
) -> LogT:
    """The log-t prediction that makes these lengths of one prompt most likely; `nu=None` estimates nu as well.

    The prediction is censored at `cap`, the longest answer allowed; `censored` marks samples that were cut off.
    """
    x = np.atleast_1d(np.asarray(samples, np.float64))
    if x.ndim != 1 or x.size == 0 or not np.all(np.isfinite(x)) or np.any(x <= 0):
        raise InputError("lengths to fit must be a list of positive numbers, at least one", field="samples")
    cut = None if censored is None else np.asarray(censored, bool)[None, :]
    fits = fit_rows(logt_family(nu), x[None, :], censored=cut)
    mu, sigma, shape = (float(value) for value in fits.params[0])
    return LogT(mu=mu, sigma=sigma, cap=cap, nu=shape)


def _packed(x: Array, present: Mask, censored: Mask) -> tuple[Array, Mask, Mask]:
    """Move present samples to the front and drop empty columns, so that half a row costs half the time."""
    if not x.size or present.all():
        return x, present, censored
    order = np.argsort(~present, axis=1, kind="stable")[:, : max(int(present.sum(axis=1).max()), 1)]
    return (
        np.take_along_axis(x, order, axis=1),
        np.take_along_axis(present, order, axis=1),
        np.take_along_axis(censored, order, axis=1),
    )


def _fit_chunk(family: Family, x: Array, present: Mask, censored: Mask, width: float) -> RowFits:
    exact = present & ~censored
    longest = np.max(x, axis=1, where=exact, initial=-np.inf)
    shortest = np.min(x, axis=1, where=exact, initial=np.inf)
    degenerate = ~(longest > shortest)
    theta, cells = _start(family, x, present, censored, width)
    theta, loglik, converged = maximise(family, cells, theta)
    params = np.column_stack([theta[:, 0], np.exp(theta[:, 1]), shape_of(family, theta[:, 2])])
    return RowFits(family, params, loglik, converged, degenerate)


def _row_median(y: Array, present: Mask) -> Array:
    """Return the median of the present samples, or of all samples of a row without any, so that no row is NaN."""
    empty = ~np.any(present, axis=1, keepdims=True)
    return np.asarray(np.nanmedian(np.where(present | empty, y, np.nan), axis=1))


def _start(family: Family, x: Array, present: Mask, censored: Mask, width: float) -> tuple[Array, Cells]:
    """Return the start by moments, and the cells and bounds of these rows; a censored length counts as its value."""
    x = np.where(present, x, 1.0)
    y = family.transform(x)
    count = np.maximum(present.sum(axis=1), 1)
    mean = np.where(present, y, 0.0).sum(axis=1) / count
    spread = np.sqrt((np.where(present, y - mean[:, None], 0.0) ** 2).sum(axis=1) / count)
    middle = _row_median(y, present)
    rounding = width / np.sqrt(12.0)
    floor = rounding / np.maximum(np.exp(middle), 1.0) if family.on_log else np.full(len(x), rounding)

    scale = np.maximum(spread / family.kernel.std, 2 * floor)
    shape = np.full(len(x), family.shape)
    least, most = (np.full(len(x), bound) for bound in family.shape_bounds)
    if not family.scale_is_free:  # the spread is in the shape: a mean-one gamma has variance 1/k
        most = np.minimum(most, floor**-2.0)
        shape = np.clip(np.maximum(spread, 2 * floor) ** -2.0, least, most)
        scale = np.ones(len(x))
    location = middle - scale * family.kernel.median

    no_bound = np.full(len(x), np.inf)
    bounds_of_scale = (np.log(floor), no_bound) if family.scale_is_free else (np.zeros(len(x)),) * 2
    lower = np.column_stack([-no_bound, bounds_of_scale[0], eta_of(family, least)])
    upper = np.column_stack([no_bound, bounds_of_scale[1], eta_of(family, most)])
    theta = np.column_stack([location, np.log(scale), eta_of(family, shape)])
    low = np.where(censored, y, family.transform(x - width / 2))
    high = np.where(censored, y + 1.0, family.transform(x + width / 2))
    return theta, Cells(low, high, present, censored, lower, upper)


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
        return Cells(*(getattr(self, column.name)[rows] for column in fields(self)))


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
        step[:, 0] *= np.exp(here[:, 1])  # from scales to the unit of the location
        there = np.clip(here + step, low, high)
        reached = loglik(family, cells[active], there)
        better = reached >= value[active]
        theta[active[better]], value[active[better]] = there[better], reached[better]
        stale[active] = better
        damping[active] = np.where(better, damping[active] / 10, damping[active] * 10)
        damping[active] = np.maximum(damping[active], _MIN_DAMPING * samples[active])
        done = gain < _TOLERANCE
        converged[active[done]] = True
        active = active[~done & (damping[active] < _MAX_DAMPING * samples[active])]
    return theta, value, converged
