"""What a probe is told besides the hidden state: how much was said, and what the prompt made one predict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from scipy import special

from lengthwise.lengths import LogT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from lengthwise.lengths import LengthDistribution
    from lengthwise.predictors.probe.bins import Bins

    Floats = NDArray[np.float64]

PROMPT: Final = "prompt"
ENTROPY: Final = "entropy"
_QUARTILES_APART: Final = 1.45
"""Sigmas between the quartiles of a log-t with nu 3.5."""


def features(
    inputs: Sequence[str], generated: ArrayLike, *, mu: ArrayLike, sigma: ArrayLike, left: ArrayLike, entropy: ArrayLike
) -> NDArray[np.float32]:
    """Return the columns that `inputs` name, centred by eye; the tokens generated are always among them.

    `left` is the median of what the prompt's prediction leaves once so much was generated.
    """
    age = np.asarray(generated, np.float64)
    columns = [np.log1p(age) / 3.0 - 1.0, age / 512.0 - 0.5]
    if PROMPT in inputs:
        log_left = np.log(np.maximum(np.asarray(left, np.float64), 1.0))
        columns += [np.asarray(mu, np.float64) - 5.0, np.asarray(sigma, np.float64), log_left - 5.0]
    if ENTROPY in inputs:
        columns.append(np.asarray(entropy, np.float64) - 1.0)
    return np.stack(columns, axis=1).astype(np.float32)


def left_by_age(generated: ArrayLike, mu: Floats, sigma: Floats, nu: float, cap: int, q: float = 0.5) -> Floats:
    """Return quantiles of LogT(mu, sigma, cap, nu).remaining(generated), for many at once."""
    age = np.asarray(generated, np.float64)
    reached = _outlived(age, mu, sigma, nu)
    length = np.exp(np.minimum(mu - sigma * special.stdtrit(nu, (1.0 - q) * reached), 50.0))
    return np.asarray(np.maximum(np.minimum(length, cap) - age, 0.0))


def mass_by_age(bins: Bins, generated: ArrayLike, mu: Floats, sigma: Floats, nu: float) -> Floats:
    """Return what a log-t, given the tokens generated, puts into each bin of what remains, for many at once."""
    reach = np.asarray(generated, np.float64)[:, None] + np.asarray(bins.edges)
    return bins.between(_outlived(reach, mu[:, None], sigma[:, None], nu))


def mass_of(bins: Bins, prediction: LengthDistribution) -> Floats:
    """Return what a prediction about what remains puts into each bin."""
    return np.asarray(bins.between(np.array([[prediction.survival(edge) for edge in bins.edges]]))[0])


def of_prediction(prediction: LengthDistribution) -> tuple[float, float]:
    """Return mu and sigma of a prediction; of one that is no log-t, by its quartiles."""
    if isinstance(prediction, LogT):
        return prediction.mu, prediction.sigma
    low, middle, high = (float(np.log(max(1.0, prediction.quantile(q)))) for q in (0.25, 0.5, 0.75))
    return middle, max(0.01, (high - low) / _QUARTILES_APART)


def _outlived(tokens: Floats, mu: Floats, sigma: Floats, nu: float) -> Floats:
    """P(length > tokens) of log-t's."""
    standard = (np.log(np.maximum(tokens, 1e-9)) - mu) / sigma
    return np.where(tokens > 0.0, special.stdtr(nu, -standard), 1.0)
