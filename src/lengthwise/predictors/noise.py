"""Noise of a known size on true lengths: what the `noisy` predictor of a simulation predicts."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import TIE_NU, student
from lengthwise.predictors.resolve import PredictorSpec
from lengthwise.predictors.scores import kendall_tau, tau_within

Floats = NDArray[np.float64]

TAU_WITHIN: Final = 0.01
_LEAST_SIGMA: Final = 0.02
_DRAWS: Final = 8  # seeds tried until the tau of a small workload is reached
_STEPS: Final = 40


def noisy_medians(
    spec: PredictorSpec,
    centre: Floats,
    caps: Floats,
    seed: int,
    *,
    units: NDArray[np.intp] | None = None,
    groups: NDArray[np.object_] | None = None,
) -> Floats:
    """Return the medians of a `noisy` predictor: `centre` with log-normal noise, between 1 token and the cap.

    The spread of the noise is `spec.log_error`, or such that Kendall's tau-b with `centre` is `spec.tau` within 0.01.
    Values of one unit (repeats of a prompt) get the same noise; tau is averaged over the groups (LLMs). Without
    them, every value is its own unit and all are one group.
    """
    units = np.arange(len(centre)) if units is None else units
    if spec.log_error is not None:
        return _disturb(centre, caps, spec.log_error, _normals(len(centre), seed, 0)[units])
    return _disturb_to_tau(centre, caps, 1.0 if spec.tau is None else spec.tau, seed, units, groups)


def own_sigma(true: Floats, medians: Floats) -> float:
    """Return the sigma that matches the actual log errors, sampling included: its quartiles are those of the errors."""
    error = float(np.median(np.abs(np.log(true / medians)))) if len(true) else 0.0
    return max(_LEAST_SIGMA, error / student.isf(0.25, TIE_NU))


def _disturb(centre: Floats, caps: Floats, spread: float, normals: Floats) -> Floats:
    """Return the values with log-normal noise, clipped to between 1 token and the cap."""
    return np.asarray(np.exp(np.clip(np.log(centre) + spread * normals, 0.0, np.log(caps))))


def _disturb_to_tau(
    centre: Floats, caps: Floats, tau: float, seed: int, units: NDArray[np.intp], groups: NDArray[np.object_] | None
) -> Floats:
    """Find the spread by bisection on these values.

    Raises InputError where ties or few requests leave no spread with this tau (lengths that are 1 or 300 have tau 0.71
    as soon as noise breaks the ties).
    """
    if tau == 1.0 or len(centre) < 2:
        return _disturb(centre, caps, 0.0, np.zeros(len(centre)))
    nearest = math.nan
    for draw in range(_DRAWS):
        normals = _normals(len(centre), seed, draw)[units]
        low, high = -7.0, 5.0  # logs of the spread
        for _ in range(_STEPS):
            middle = (low + high) / 2
            values = _disturb(centre, caps, math.exp(middle), normals)
            reached = kendall_tau(values, centre) if groups is None else tau_within(groups, values, centre)
            if abs(reached - tau) <= TAU_WITHIN / 2:
                return values
            if math.isnan(nearest) or abs(reached - tau) < abs(nearest - tau):
                nearest = reached
            low, high = (middle, high) if reached > tau else (low, middle)
    best = "their lengths are all the same" if math.isnan(nearest) else f"the nearest is {nearest:.2f}"
    raise InputError(
        f"no noise gives these {len(centre)} requests a tau of {tau:g}; {best}",
        hint="use another tau, or more requests with more different lengths",
    )


def _normals(n: int, seed: int, draw: int) -> Floats:
    return np.random.default_rng([seed % 2**64, draw, 0x6E6F69]).standard_normal(n)
