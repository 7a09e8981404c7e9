"""Which tail do many small samples show, when no single one can? The integrated likelihood of log-t against log-normal.

Scoring a fit on samples it has not seen is unfair when the fit has five samples: a scale estimated from so few is
often too small, and the family with the heavier tail forgives that even where the truth is log-normal (the best
prediction from five normal samples is itself a t). Here location and scale are integrated out instead, with the
invariant measure d(location) d(scale) / scale:

    m_nu(y) = integral over mu, sigma of prod_i t_nu((y_i - mu) / sigma) / sigma * dmu dsigma / sigma,  y = log length

The ratio of two such m is the exact likelihood ratio of what a sample says about the tail once location and scale are
forgotten, so summed over prompts it favours the true family, whatever the prompts' own locations and scales.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lengthwise.lengths.fit import RowFits

    Array = NDArray[np.float64]
    Mask = NDArray[np.bool_]

__all__ = ["log_evidence", "unround"]

_CHUNK: Final = 256
# Nodes, in units of 1/sqrt(samples): log(scale / fitted scale), and asinh((location - fitted location) / scale).
_LOG_SCALES: Final = np.linspace(-9.5, 14.5, 36)
_OFFSETS: Final = np.linspace(-3.6, 3.6, 25)
_PRODUCT: Final = 8  # so many factors are multiplied before a logarithm is taken


def unround(lengths: Array, rng: np.random.Generator) -> Array:
    """Counts with a uniform fraction of a token put back, so that ties in the rounding do not pose as spikes."""
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
        for rows in (slice(first, first + _CHUNK) for first in range(0, len(y), _CHUNK))
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
