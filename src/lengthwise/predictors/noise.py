"""Predictors for experiments: the truth, the truth disturbed by a known amount, and what a client says.

A request's true length is no part of a PredictionInput, so oracle and noisy work on a workload's columns (see
`simulator.predictions`); here is what they are called, and the noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import TIE_NU, student
from lengthwise.predictors.calibration import as_logt
from lengthwise.predictors.contract import LengthPredictor, LogTPredictions, PredictionInput
from lengthwise.predictors.model_file import SUFFIX
from lengthwise.predictors.resolve import packaged_predictors
from lengthwise.predictors.scores import kendall_tau, tau_within

Floats = NDArray[np.float64]

Kind = Literal["oracle", "none", "noisy", "history", "model"]

TAU_WITHIN: Final = 0.01
HINT_SIGMA: Final = 0.25
"""Spread of the log length around a client's hint: half of the answers within 20 %."""

_PLAIN: Final[tuple[Literal["oracle", "none", "history"], ...]] = ("oracle", "none", "history")
_LEAST_SIGMA: Final = 0.02
_DRAWS: Final = 8  # seeds tried until a small workload's tau falls where it should
_STEPS: Final = 40


@dataclass(frozen=True, slots=True)
class PredictorSpec:
    """A predictor by name: the truth, nothing, the truth with noise, the LLM's past answers, or a trained model.

    Noise is told by Kendall's tau or by the spread of the log error; a model by its packaged name or its file.
    """

    kind: Kind
    tau: float | None = None
    log_error: float | None = None
    model: str | None = None

    def medians(
        self,
        centre: Floats,
        caps: Floats,
        seed: int,
        *,
        units: NDArray[np.intp] | None = None,
        groups: NDArray[np.object_] | None = None,
    ) -> Floats:
        """The disturbed values of a noisy predictor, between 1 token and the cap.

        Values of one unit (a prompt that comes again) have the same noise; tau is that within each group (an LLM),
        averaged. Without them, every value is a unit and all are one group.
        """
        units = np.arange(len(centre)) if units is None else units
        if self.log_error is not None:
            return disturb(centre, caps, self.log_error, _normals(len(centre), seed, 0)[units])
        return disturb_to_tau(centre, caps, 1.0 if self.tau is None else self.tau, seed, units=units, groups=groups)


def parse_predictor_spec(text: str) -> PredictorSpec:
    """Read oracle, none, history, noisy:0.6 (Kendall's tau), noisy:log=0.5, a packaged name or a model file."""
    name = text.strip()
    kind, _, value = name.lower().partition(":")
    for plain in _PLAIN:
        if kind == plain and not value:
            return PredictorSpec(plain)
    if kind == "noisy":
        return _noisy(text, value)
    if name.endswith(SUFFIX) or len(Path(name).parts) > 1:
        return PredictorSpec("model", model=name)
    packaged = tuple(packaged_predictors())
    if kind in packaged and not value:
        return PredictorSpec("model", model=kind)
    known = ("oracle", "none", "history", "noisy", *packaged)
    near = get_close_matches(kind, known, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    kinds = ", ".join(["oracle", "none", "history", "noisy:TAU", "noisy:log=SPREAD", *packaged])
    raise InputError(f"there is no predictor '{text}'", hint=f"{meant}known are {kinds} and model files ({SUFFIX})")


def _noisy(text: str, value: str) -> PredictorSpec:
    name, _, number = value.rpartition("=")
    try:
        amount = float(number)
    except ValueError:
        amount = math.nan
    if name in ("", "tau") and 0.0 < amount <= 1.0:
        return PredictorSpec("noisy", tau=amount)
    if name == "log" and 0.0 <= amount <= 10.0:
        return PredictorSpec("noisy", log_error=amount)
    raise InputError(
        f"'{text}' does not say how noisy", hint="give noisy:0.6 for a Kendall's tau above 0, or noisy:log=0.5"
    )


def own_sigma(true: Floats, medians: Floats) -> float:
    """The spread of a prediction that knows how wrong it is: by the quartiles of its own log error, sampling included."""
    error = float(np.median(np.abs(np.log(true / medians)))) if len(true) else 0.0
    return max(_LEAST_SIGMA, error / student.isf(0.25, TIE_NU))


def disturb(centre: Floats, caps: Floats, spread: float, normals: Floats) -> Floats:
    """Log-normal noise on the values, kept between 1 token and the cap."""
    return np.asarray(np.exp(np.clip(np.log(centre) + spread * normals, 0.0, np.log(caps))))


def disturb_to_tau(
    centre: Floats,
    caps: Floats,
    tau: float,
    seed: int,
    *,
    units: NDArray[np.intp] | None = None,
    groups: NDArray[np.object_] | None = None,
) -> Floats:
    """Log-normal noise of such a spread that Kendall's tau-b with the undisturbed values is `tau`, within 0.01.

    The spread is found by bisection on these very values. Where ties or few requests leave no such spread (lengths
    that are 1 or 300 have tau 0.71 as soon as anything breaks the ties), an InputError says so.
    """
    if tau == 1.0 or len(centre) < 2:
        return disturb(centre, caps, 0.0, np.zeros(len(centre)))
    units = np.arange(len(centre)) if units is None else units
    nearest = math.nan
    for draw in range(_DRAWS):
        normals = _normals(len(centre), seed, draw)[units]
        low, high = -7.0, 5.0  # logs of the spread
        for _ in range(_STEPS):
            middle = (low + high) / 2
            values = disturb(centre, caps, math.exp(middle), normals)
            reached = kendall_tau(values, centre) if groups is None else tau_within(groups, values, centre)
            if abs(reached - tau) <= TAU_WITHIN / 2:
                return values
            if math.isnan(nearest) or abs(reached - tau) < abs(nearest - tau):
                nearest = reached
            low, high = (middle, high) if reached > tau else (low, middle)
    best = "there is none, their lengths being all the same" if math.isnan(nearest) else f"the nearest is {nearest:.2f}"
    raise InputError(
        f"no noise gives these {len(centre)} requests a tau of {tau:g}; {best}",
        hint="take another tau, or more requests with more different lengths",
    )


def _normals(n: int, seed: int, draw: int) -> Floats:
    return np.random.default_rng([seed % 2**64, draw, 0x6E6F69]).standard_normal(n)


@dataclass(frozen=True)
class Hint:
    """What the client says (`nvext.agent_hints.osl`), where it says anything; else another predictor's prediction.

    prediction = LogT(log(hint), 0.25, cap): right to about 20 %, and heavy-tailed, since clients err grossly at times.
    """

    otherwise: LengthPredictor
    sigma: float = HINT_SIGMA

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        """Return one prediction for each input, in order."""
        predictions = as_logt(self.otherwise.predict(inputs))
        told = np.array([math.nan if each.hint is None else max(1, each.hint) for each in inputs])
        known = np.isfinite(told)
        return LogTPredictions.of(
            np.where(known, np.log(np.where(known, told, 1.0)), predictions.mu),
            np.where(known, self.sigma, predictions.sigma),
            predictions.columns.cap,
            nu=predictions.columns.nu,
            sample_mean=predictions.sample_mean,
            sample_std=predictions.sample_std,
        )
