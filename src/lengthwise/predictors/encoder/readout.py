"""What a head's raw outputs say: place and spread of the log length. NumPy only, the same in training and serving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

LEAST_LOG_SIGMA = -3.2
"""A prediction narrower than 4 % says more than ten samples can."""


def log_sigma(raw: Array) -> Array:
    """Bound the spread from below, smoothly, as the loss does."""
    with np.errstate(invalid="ignore"):  # NaN, a prompt not asked for, stays NaN
        return np.asarray(LEAST_LOG_SIGMA + np.logaddexp(0.0, raw - LEAST_LOG_SIGMA))


def places_and_spreads(outputs: Array, kind: str, edges: Array | None = None) -> tuple[Array, Array | None]:
    """Return what prompts are ranked by (a log length, or a score) and, from a log-t head, sigma."""
    said = outputs.astype(np.float64)
    if kind == "logt":
        return said[..., 0], np.exp(log_sigma(said[..., 1]))
    if kind == "bins" and edges is not None:
        return np.log(np.maximum(probabilities(said) @ middles(edges), 1.0)), None
    return said[..., 0], None


def mu_and_sigma(outputs: Array, kind: str, knots: Array | None = None) -> tuple[Array, Array]:
    """Return mu and sigma as a head says them; `knots` turn a rank head's scores into log lengths.

    A head that tells no spread has sigma 1: calibration makes it what it must be.
    """
    place, spread = places_and_spreads(outputs, kind)
    if knots is not None:
        place = np.interp(place, knots[0], knots[1])
    return place, np.ones(place.shape) if spread is None else spread


def probabilities(logits: Array) -> Array:
    """Softmax over the last axis."""
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def middles(edges: Array) -> Array:
    """Middle of each bin."""
    return np.asarray((edges[:-1] + edges[1:]) / 2)


def log_size(tokens: Array) -> Array:
    """The size of a prompt as the network is told it."""
    return np.asarray(np.log1p(tokens.astype(np.float32)) - np.float32(5.0))
