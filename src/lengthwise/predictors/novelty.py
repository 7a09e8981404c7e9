"""How unlike the training data a prompt is, and how much wider the interval of its answer is for that.

With v a vector of the prompt and c the centres of the training prompts' vectors:

    distance = 1 - largest cosine of v and a c
    novelty  = (distance - low) / (high - low), from 0 to 1
    sigma'^2 = sigma^2 + novelty * spread^2          (`LogTPredictions.marginal`)

Answers to a kind of prompts that training has not seen are shorter or longer as a whole. spread^2 is the variance of
this level between kinds, a random effect; `training/fast/novelty.py` fits it to kinds left out of training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Novelty:
    """Centres of the training prompts' vectors (unit vectors, one a row), and the level's spread between kinds."""

    centres: Floats
    low: float
    high: float
    spread: float

    def distance(self, vector: Floats) -> float:
        """Return 1 - the largest cosine with a centre; 1 for a vector without a direction."""
        norm = sqrt(float(vector @ vector))
        return 1.0 - float((self.centres @ vector).max()) / norm if norm > 0.0 else 1.0

    def of(self, vector: Floats) -> float:
        """Return the novelty of a prompt, from 0 to 1."""
        return min(max((self.distance(vector) - self.low) / (self.high - self.low), 0.0), 1.0)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return arrays for a model file."""
        ramp = np.array([self.low, self.high, self.spread])
        return {"centres": self.centres.astype(np.float16), "ramp": ramp}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The inverse of `arrays`; ValueError or KeyError where it is damaged."""
        centres, (low, high, spread) = np.asarray(arrays["centres"], np.float32), map(float, arrays["ramp"])
        if centres.ndim != 2 or not (low < high and spread >= 0.0):
            raise ValueError("not a novelty")
        return cls(centres, low, high, spread)
