"""Bayesian smoothing: what was read before is carried along and weighed against what is read now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lengthwise.predictors.probe.bins import Bins

    Floats = NDArray[np.float64]

_LEAST: Final = 1e-9  # no bin is ever ruled out for good


@dataclass(frozen=True)
class Smoothing:
    """q_t ~ (q_s T^(t-s))^carry * p_t^trust; the first one q_0 ~ b^start * p_0^(1 - start), b the prompt's prediction.

    carry = trust = 1, start = 0 is TRAIL's (arXiv 2410.01035), which takes readings for independent. Those of one
    answer are not: below 1 the old fades and the new is not counted twice. carry = 0, trust = 1 is no smoothing.
    """

    carry: float = 1.0
    trust: float = 1.0
    start: float = 0.0

    def first(self, prior: Floats, reading: Floats) -> Floats:
        """Return the prediction after the first reading; `prior` is what the prompt's prediction puts into each bin."""
        mass = np.maximum(prior, _LEAST) ** self.start * np.maximum(reading, _LEAST) ** (1.0 - self.start)
        return np.asarray(mass / mass.sum())

    def step(self, bins: Bins, before: Floats, tokens: int, reading: Floats) -> Floats:
        """Return the prediction after a reading, `tokens` after the one before."""
        prior = np.maximum(before @ bins.after(tokens), _LEAST)
        mass = prior**self.carry * np.maximum(reading, _LEAST) ** self.trust
        return np.asarray(mass / mass.sum())

    def rows(
        self, bins: Bins, readings: Floats, prior: Floats, answer: NDArray[np.int64], generated: NDArray[np.int64]
    ) -> Floats:
        """Smooth the readings of many answers, each in order of its tokens; `prior` as of `first`, for each row."""
        smooth = np.empty_like(readings)
        order = np.lexsort((generated, answer))
        last = -1
        for row in order.tolist():
            if last < 0 or answer[last] != answer[row]:
                smooth[row] = self.first(prior[row], readings[row])
            else:
                tokens = int(generated[row] - generated[last])
                smooth[row] = self.step(bins, smooth[last], tokens, readings[row])
            last = row
        return smooth


NONE: Final = Smoothing(carry=0.0, trust=1.0)
PAPER: Final = Smoothing()
