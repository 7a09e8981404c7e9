"""Where the bins of a classifier begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.training.encoder.pack import TRAIN, Pack

if TYPE_CHECKING:
    from lengthwise.training.encoder.config import HeadConfig

# Percentiles between mu-Serve's five classes, as in scores.MU_SERVE_CUTS, which says where they were read. Not
# imported: this module also runs where there is nothing but torch and NumPy.
_MU_SERVE: Final = (0.25, 0.5, 0.75, 0.99)
_LONGEST: Final = 15_000.0  # CASTILLO's limit


def bin_edges(config: HeadConfig, pack: Pack) -> NDArray[Any] | None:
    """Return one edge more than bins; None for a head without. Quantiles are of the training prompts' lengths."""
    if config.kind != "bins":
        return None
    if config.bins == "width":
        inner = np.arange(config.bin_width, config.bin_cap + 1, config.bin_width, dtype=np.float64)
        return np.array([0.0, *inner, max(_LONGEST, inner[-1] + 1.0)])
    lengths = pack.lengths[pack.part == TRAIN].astype(np.float64)
    rows = lengths[(lengths > 0).any(-1)]
    target = rows.max(-1) if config.bin_target == "p99" else rows.sum(-1) / (rows > 0).sum(-1)
    shares = _MU_SERVE if config.bins == "mu_serve" else np.linspace(0, 1, config.bin_count + 1)[1:-1]
    # A length belongs to the bin it closes: bins are (low, high] (mu-Serve's are [low, high), with edges of each LLM
    # by itself where it trains on several), and short data may make two edges one.
    inner = np.unique(np.quantile(target, shares))
    return np.array([0.0, *inner, max(_LONGEST, inner[-1] + 1.0)])
