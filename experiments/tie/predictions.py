"""The same predictions read otherwise: as log-normals, the rival in TIE's ablation; and for latency per token."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy import special

from lengthwise.lengths import TIE_NU
from lengthwise.simulator.predictions import TAIL, RequestPredictions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["LogNormalPredictions", "mean_and_cvar", "weighted", "weighted_score"]

SPREAD: Final = math.sqrt(TIE_NU / (TIE_NU - 2))
"""Standard deviation of a Student-t: of the logarithms of a log-t, in units of its sigma."""
_QUANTILES: Final = 2000


@dataclass(frozen=True, eq=False)
class LogNormalPredictions(RequestPredictions):
    """Predictions whose mean and tail are those of log-normals; mu and sigma are mean and spread of the logarithms."""

    @classmethod
    def of(cls, predictions: RequestPredictions) -> LogNormalPredictions:
        """The log-normals with the same mean and spread of logarithms: what fitting them to such log-ts would give."""
        columns = {field.name: getattr(predictions, field.name) for field in fields(RequestPredictions)}
        return cls(
            **{**columns, "predictor": f"{predictions.predictor}, log-normal", "sigma": predictions.sigma * SPREAD}
        )

    def expected_and_tail(self) -> tuple[Floats, Floats]:
        """In closed form. Certain predictions have no family."""
        if not (self.sigma > 0).all():
            return super().expected_and_tail()
        return mean_and_cvar(self.mu, self.sigma, self.cap)


def mean_and_cvar(mu: Floats, sigma: Floats, cap: Floats, alpha: float = TAIL) -> tuple[Floats, Floats]:
    """Of min(X, cap), X log-normal."""
    k = (np.log(cap) - mu) / sigma
    z = float(special.ndtri(alpha))
    whole = np.exp(mu + sigma**2 / 2)
    beyond = cap * special.ndtr(-k)
    mean = whole * special.ndtr(k - sigma) + beyond
    worst = whole * (special.ndtr(k - sigma) - special.ndtr(z - sigma)) + beyond
    return mean, np.where(k <= z, cap, worst / (1 - alpha))


def weighted_score(predictions: RequestPredictions) -> Floats:
    """E[X] / E[1/X], X = min(max(length, 1), cap): weighted shortest expected first, where a wait weighs 1 / length.

    Of the orders that know predictions only and preempt nobody it is best for latency per token, where one is served at a
    time. E[1/X] by the midpoint rule over quantiles.
    """
    t = special.stdtrit(TIE_NU, (np.arange(_QUANTILES) + 0.5) / _QUANTILES)
    lengths = np.exp(predictions.mu[:, None] + predictions.sigma[:, None] * t)
    inverse = (1 / np.clip(lengths, 1.0, predictions.cap[:, None])).mean(axis=1)
    return np.asarray(predictions.expected_and_tail()[0] / inverse)


def weighted(predictions: RequestPredictions) -> RequestPredictions:
    """Predictions whose medians are in the order of `weighted_score`, so that `sjf` serves in it."""
    return replace(predictions, mu=np.log(weighted_score(predictions)) / 2)
