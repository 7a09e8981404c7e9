"""Maximum likelihood of a length family on many small data sets at once.

A length is a count of tokens, so a sample n is the event X in (n - 1/2, n + 1/2] and its likelihood is that cell's
probability; a right-censored sample is the event X > n. Densities would not do: ten answers of 57, 57, 57, 57, 58, ...
tokens let a density grow without bound as the scale shrinks onto the tie, and the family with the sharpest spike wins.
A cell's probability never exceeds 1. For the same reason the spread has a floor at that of the rounding itself,
1/sqrt(12) token (only rows with at most two neighbouring lengths ever reach it).

For samples of a continuous quantity give a small `width`: the fit then is the ordinary one, and
`loglik - samples * log(width)` the ordinary log-likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from lengthwise.errors import InputError
from lengthwise.lengths.contract import DEFAULT_CAP
from lengthwise.lengths.distributions import TIE_NU, LogT
from lengthwise.lengths.families import Family, logt_family
from lengthwise.lengths.newton import Cells, eta_of, maximise, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]
    Mask = NDArray[np.bool_]

__all__ = ["RowFits", "fit_logt", "fit_rows", "row_loglik"]

_CHUNK: Final = 4096  # rows per batch: small enough to stay in cache, large enough for NumPy


@dataclass(frozen=True, eq=False)
class RowFits:
    """What was fitted, one entry per row; a degenerate row has parameters (at the floor), but they say nothing."""

    family: Family
    params: Array
    """(n, 3): location, scale, shape."""
    loglik: Array
    """Log probability of the row's samples at `params`."""
    converged: Mask
    degenerate: Mask
    """Fewer than two different uncensored lengths: no family's spread can be told from such a row."""


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
    rounding of a length in tokens. `progress` is told how many rows have just been done.
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
    return RowFits(
        family,
        np.concatenate([part.params for part in parts]),
        np.concatenate([part.loglik for part in parts]),
        np.concatenate([part.converged for part in parts]),
        np.concatenate([part.degenerate for part in parts]),
    )


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


def row_loglik(
    family: Family,
    params: Array,
    lengths: ArrayLike,
    present: ArrayLike | None = None,
    censored: ArrayLike | None = None,
    *,
    width: float = 1.0,
) -> Array:
    """Log probability of each row's samples at the given parameters."""
    x = np.asarray(lengths, np.float64)
    here = np.ones(x.shape, bool) if present is None else np.asarray(present, bool)
    cut = np.zeros(x.shape, bool) if censored is None else np.asarray(censored, bool)
    with np.errstate(divide="ignore"):
        inside = np.log(family.cell_probability(x, params, width))
    terms = np.where(cut, family.logsf(x, params), inside)
    return np.asarray(np.where(here, terms, 0.0).sum(axis=1))


def _packed(x: Array, present: Mask, censored: Mask) -> tuple[Array, Mask, Mask]:
    """Present samples first and empty columns gone: half a row costs half the time."""
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
    """Median of what is present; of everything where nothing is, so that no row is NaN."""
    empty = ~np.any(present, axis=1, keepdims=True)
    return np.asarray(np.nanmedian(np.where(present | empty, y, np.nan), axis=1))


def _start(family: Family, x: Array, present: Mask, censored: Mask, width: float) -> tuple[Array, Cells]:
    """Moments to start from, and the cells and bounds of these rows; a cut-off length counts as it stands."""
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
