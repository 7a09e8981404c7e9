"""From a head's raw outputs to location and spread of the log length. NumPy only, the same in training and serving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

LEAST_LOG_SIGMA = -3.2
"""The smallest log sigma, about 4 %: ten samples per prompt support no narrower prediction."""


def log_sigma(raw: Array) -> Array:
    """Bound the spread from below, smoothly, as the loss does."""
    with np.errstate(invalid="ignore"):  # NaN stays NaN
        return np.asarray(LEAST_LOG_SIGMA + np.logaddexp(0.0, raw - LEAST_LOG_SIGMA))


def places_and_spreads(outputs: Array, kind: str, edges: Array | None = None) -> tuple[Array, Array | None]:
    """Return the ranking value (a log length, or a score) and, for a log-t head, sigma."""
    values = outputs.astype(np.float64)
    if kind == "logt":
        return values[..., 0], np.exp(log_sigma(values[..., 1]))
    if kind == "bins" and edges is not None:
        return np.log(np.maximum(probabilities(values) @ middles(edges), 1.0)), None
    return values[..., 0], None


def mu_and_sigma(outputs: Array, kind: str, knots: Array | None = None) -> tuple[Array, Array]:
    """Return mu and sigma; `knots` map a rank head's scores to log lengths.

    A head without a spread has sigma 1, which calibration then corrects.
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
    """Return the middle of each bin."""
    return np.asarray((edges[:-1] + edges[1:]) / 2)


def log_size(tokens: Array) -> Array:
    """Return the prompt size as the network's input."""
    return np.asarray(np.log1p(tokens.astype(np.float32)) - np.float32(5.0))
