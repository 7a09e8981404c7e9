"""Brings what the prompts made one predict to the way in which the LLM answered, before a probe is told of it.

A predictor that knows the LLM under another way of sampling (no penalty, say) is off by a factor. While serving, online
calibration sees to that; here three numbers learned from the training answers do, so that a probe is trained on such
predictions as it will meet, and compared with a prompt-only prediction that is as good as it can be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy.optimize import minimize
from scipy.special import gammaln, stdtr

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lengthwise.training.probe.states import States

    Floats = NDArray[np.float64]

_LEAST: Final = 1e-300


@dataclass(frozen=True)
class Correction:
    """`mu <- shift + slope * mu`, `sigma <- factor * sigma`."""

    shift: float = 0.0
    slope: float = 1.0
    factor: float = 1.0

    def of(self, states: States) -> States:
        """Return the states with what their prompts made one predict, corrected."""
        return replace(states, mu=self.shift + self.slope * states.mu, sigma=self.factor * states.sigma)


def learn_correction(states: States) -> Correction:
    """The likeliest for the training answers; of one that was cut off it is known that it is at least so long."""
    some = states.where(states.trained)
    first = np.unique(some.answer, return_index=True)[1]
    length, cut = np.log((some.generated + some.remaining)[first]), some.capped[first]
    mu, sigma = some.mu[first], some.sigma[first]

    def unlikely(numbers: Any) -> float:  # noqa: ANN401  (what scipy passes)
        shift, slope, spread = numbers
        scale = np.exp(spread) * sigma
        z = (length - shift - slope * mu) / scale
        ended = _log_density(z, some.nu) - np.log(scale)
        longer = np.log(np.maximum(stdtr(some.nu, -z), _LEAST))
        return -float(np.where(cut, longer, ended).mean())

    found = minimize(unlikely, np.array([0.0, 1.0, 0.0]), method="L-BFGS-B")
    shift, slope, spread = (float(number) for number in found.x)
    return Correction(shift, slope, float(np.exp(spread)))


def _log_density(z: Floats, nu: float) -> Floats:
    constant = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * np.log(nu * np.pi)
    return np.asarray(constant - (nu + 1) / 2 * np.log1p(z * z / nu))
