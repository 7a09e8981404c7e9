"""Predictors for experiments: the truth, the truth disturbed by a known amount, and what a client says.

A request's true length is no part of a PredictionInput, so oracle and noisy work on a workload's columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy import stats

from lengthwise.errors import InputError
from lengthwise.lengths import DEFAULT_CAP, TIE_NU, LengthDistribution, LogT, Point, student
from lengthwise.predictors.calibration import as_logt
from lengthwise.predictors.contract import LogTBeliefs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from lengthwise.predictors.contract import LengthPredictor, PredictionInput

    Floats = NDArray[np.float64]

KINDS: Final = ("oracle", "none", "noisy:TAU", "noisy:log=SPREAD")
TAU_WITHIN: Final = 0.01
HINT_SIGMA: Final = 0.25
"""Spread of the log length around a client's hint: half of the answers within 20 %."""

_LEAST_SIGMA: Final = 0.02
_DRAWS: Final = 8  # seeds tried until a small workload's tau falls where it should
_STEPS: Final = 40


@dataclass(frozen=True, slots=True)
class PredictorSpec:
    """An experimental predictor by name; a noisy one by Kendall's tau or by the spread of its log error."""

    kind: str
    tau: float | None = None
    log_error: float | None = None

    def beliefs(
        self,
        true_lengths: ArrayLike,
        *,
        clean_means: ArrayLike | None = None,
        max_tokens: Sequence[int | None] | None = None,
        seed: int = 0,
    ) -> list[LengthDistribution | None]:
        """One belief per request of a workload; `clean_means` may be NaN where unknown."""
        true = np.asarray(true_lengths, np.float64)
        limits = [None] * len(true) if max_tokens is None else list(max_tokens)
        if self.kind == "none":
            return [None] * len(true)
        # An answer may be longer than the default cap, and then it is not cut there.
        caps = [max(int(x), DEFAULT_CAP if cap is None else cap) for x, cap in zip(true, limits, strict=True)]
        if self.kind == "oracle":
            return [Point(int(x), cap) for x, cap in zip(true, caps, strict=True)]
        means = np.full(len(true), math.nan) if clean_means is None else np.asarray(clean_means, np.float64)
        centre = np.where(np.isfinite(means), means, true)
        medians = self.medians(centre, np.array(caps, np.float64), seed)
        # It knows how wrong it is: the quartiles of its own log error, sampling included.
        error = np.median(np.abs(np.log(true / medians))) if len(true) else 0.0
        sigma = max(_LEAST_SIGMA, float(error) / student.isf(0.25, TIE_NU))
        return [LogT(math.log(m), sigma, cap) for m, cap in zip(medians.tolist(), caps, strict=True)]

    def medians(self, centre: Floats, caps: Floats, seed: int) -> Floats:
        """The disturbed values of a noisy predictor, between 1 token and the cap."""
        if self.log_error is not None:
            return disturb(centre, caps, self.log_error, _normals(len(centre), seed, 0))
        return disturb_to_tau(centre, caps, 1.0 if self.tau is None else self.tau, seed)


def parse_predictor_spec(text: str) -> PredictorSpec:
    """Read oracle, none, noisy:0.6 (Kendall's tau) or noisy:log=0.5 (spread of the log error)."""
    kind, _, value = text.strip().lower().partition(":")
    if kind in ("oracle", "none") and not value:
        return PredictorSpec(kind)
    if kind != "noisy":
        near = get_close_matches(kind, ("oracle", "none", "noisy"), n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"there is no predictor '{text}'", hint=f"{meant}known are {', '.join(KINDS)}")
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


def disturb(centre: Floats, caps: Floats, spread: float, normals: Floats) -> Floats:
    """Log-normal noise on the values, kept between 1 token and the cap."""
    return np.asarray(np.exp(np.clip(np.log(centre) + spread * normals, 0.0, np.log(caps))))


def disturb_to_tau(centre: Floats, caps: Floats, tau: float, seed: int) -> Floats:
    """Log-normal noise of such a spread that Kendall's tau-b with the undisturbed values is `tau`, within 0.01.

    The spread is found by bisection on these very values. Where ties or few requests leave no such spread (lengths
    that are 1 or 300 have tau 0.71 as soon as anything breaks the ties), an InputError says so.
    """
    if tau == 1.0 or len(centre) < 2:
        return disturb(centre, caps, 0.0, np.zeros(len(centre)))
    nearest = math.nan
    for draw in range(_DRAWS):
        normals = _normals(len(centre), seed, draw)
        low, high = -7.0, 5.0  # logs of the spread
        for _ in range(_STEPS):
            middle = (low + high) / 2
            values = disturb(centre, caps, math.exp(middle), normals)
            reached = float(stats.kendalltau(centre, values).statistic)
            if abs(reached - tau) <= TAU_WITHIN / 2:
                return values
            if math.isnan(nearest) or abs(reached - tau) < abs(nearest - tau):
                nearest = reached
            low, high = (middle, high) if reached > tau else (low, middle)
    raise InputError(
        f"no noise gives these {len(centre)} requests a tau of {tau:g}; the nearest is {nearest:.2f}",
        hint="take another tau, or more requests with more different lengths",
    )


def _normals(n: int, seed: int, draw: int) -> Floats:
    return np.random.default_rng([seed, draw, 0x6E6F69]).standard_normal(n)


@dataclass(frozen=True)
class Hint:
    """What the client says (`nvext.agent_hints.osl`), where it says anything; else another predictor's belief.

    belief = LogT(log(hint), 0.25, cap): right to about 20 %, and heavy-tailed, since clients err grossly at times.
    """

    otherwise: LengthPredictor
    sigma: float = HINT_SIGMA

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTBeliefs:
        """Return one belief for each input, in order."""
        beliefs = as_logt(self.otherwise.predict(inputs))
        told = np.array([math.nan if each.hint is None else max(1, each.hint) for each in inputs])
        known = np.isfinite(told)
        return LogTBeliefs.of(
            np.where(known, np.log(np.where(known, told, 1.0)), beliefs.mu),
            np.where(known, self.sigma, beliefs.sigma),
            beliefs.columns.cap,
            nu=beliefs.columns.nu,
            sample_mean=beliefs.sample_mean,
            sample_std=beliefs.sample_std,
        )
