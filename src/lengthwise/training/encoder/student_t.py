"""Student's t in PyTorch: density and survival of T, differentiable, for a fixed nu.

PyTorch has no incomplete beta function. With t = sqrt(nu) sinh(w) the density in w is c cosh(w)^-nu, whose tails are
straight lines in the log: a table of log survival over w, linearly interpolated, is good to 1e-6 and its slope is
the true one.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch

NU: Final = 3.5  # TIE's
_REACH: Final = 12.0  # beyond, straight lines
_CELLS: Final = 1 << 14


def logpdf(t: Any, nu: float = NU) -> Any:  # noqa: ANN401  (tensors are Any without torch's types)
    """Log density of T at t."""
    constant = math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) - 0.5 * math.log(nu * math.pi)
    return constant - (nu + 1) / 2 * torch.log1p(t * t / nu)


def logsf(t: Any, nu: float = NU) -> Any:  # noqa: ANN401
    """Log P(T > t)."""
    table = _table(nu, t.dtype, t.device)
    w = torch.asinh(t / math.sqrt(nu))
    place = (w.clamp(-_REACH, _REACH) + _REACH) * (_CELLS / (2 * _REACH))
    low = place.detach().floor().clamp(0, _CELLS - 1)
    index = low.long()
    return torch.lerp(table[index], table[index + 1], place - low) - nu * torch.relu(w - _REACH)


@lru_cache(maxsize=8)
def _table(nu: float, dtype: Any, device: Any) -> Any:  # noqa: ANN401
    """The table on the device, cached: a copy on each call would stall a GPU."""
    return torch.as_tensor(_log_survival(nu), dtype=dtype, device=device)


@lru_cache(maxsize=8)
def quantile(q: float, nu: float = NU) -> float:
    """Return the t that T stays within with probability q."""
    w = np.linspace(-_REACH, _REACH, _CELLS + 1)
    at = np.interp(math.log1p(-q), _log_survival(nu)[::-1], w[::-1])
    return math.sqrt(nu) * math.sinh(float(at))


@lru_cache(maxsize=8)
def _log_survival(nu: float) -> Any:  # noqa: ANN401
    """Log P(T > t) on the grid of w: Simpson's rule in each cell, summed from the right."""
    w = np.linspace(-_REACH, _REACH, 2 * _CELLS + 1)
    constant = math.exp(math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2)) / math.sqrt(math.pi)
    density = constant * np.cosh(w) ** -nu
    step = w[1] - w[0]
    cell = step / 3 * (density[:-2:2] + 4 * density[1:-1:2] + density[2::2])
    beyond = constant * 2**nu / nu * math.exp(-nu * _REACH)
    return np.log(beyond + np.concatenate([np.cumsum(cell[::-1])[::-1], [0.0]]))
