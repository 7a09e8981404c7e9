"""Student's t in PyTorch: density and survival of T, differentiable, for a fixed nu.

PyTorch has no incomplete beta function. With t = sqrt(nu) sinh(w) the tails of log survival are straight lines in w: a
table over w, linearly interpolated, is good to 1e-6 and its slope is the true one.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from scipy import stats

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
    w = np.linspace(-_REACH, _REACH, _CELLS + 1)
    return torch.as_tensor(stats.t.logsf(math.sqrt(nu) * np.sinh(w), nu), dtype=dtype, device=device)
