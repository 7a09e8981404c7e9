"""The network in NumPy: a hidden state and a few features in, logits of the bins out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from lengthwise.predictors.weights import Weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

CLIP: Final = 4.0
"""Standardised states are cut here: some of their numbers are far out for single tokens."""


@dataclass(frozen=True, eq=False)
class Network(Weights):
    """x = clip((state - centre) / spread); h = relu([x, f] A + a); logits = h B + f S + b."""

    centre: Floats
    spread: Floats
    a: Floats
    a_bias: Floats
    b: Floats
    b_bias: Floats
    skip: Floats

    @classmethod
    def mean(cls, networks: Sequence[Self]) -> Self:
        """Return one network whose logits are the mean of several's; they must standardise alike."""
        share = np.float32(1.0 / len(networks))
        found = {name: np.concatenate([getattr(one, name) for one in networks], axis=-1) for name in ("a", "a_bias")}
        found["b"] = np.concatenate([one.b for one in networks]) * share
        found |= {name: np.mean([getattr(one, name) for one in networks], axis=0) for name in ("b_bias", "skip")}
        return cls.of({"centre": networks[0].centre, "spread": networks[0].spread, **found})

    @property
    def width(self) -> int:
        """Numbers in a hidden state."""
        return len(self.centre)

    def standardise(self, states: NDArray[Any]) -> Floats:
        """Return states in spreads from the centre, cut."""
        return np.clip((np.asarray(states, np.float32) - self.centre) / self.spread, -CLIP, CLIP)

    def probabilities(self, states: NDArray[Any], features: Floats) -> NDArray[np.float64]:
        """Return (n, bins) that sum to 1."""
        hidden = np.concatenate([self.standardise(states), features], axis=1) @ self.a + self.a_bias
        logits = (np.maximum(hidden, 0.0) @ self.b + features @ self.skip + self.b_bias).astype(np.float64)
        mass = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(mass / mass.sum(axis=1, keepdims=True))
