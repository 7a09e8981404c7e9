"""Intervals that cover what they say: split conformal calibration, one shift and one factor per LLM.

On held-out prompts, with d = log(length) - mu of the belief:

    shift  = median of d
    factor = Q(|d - shift| / sigma) / t(level)

where Q is the conformal quantile at `level` and t(level) the half-width of the log-t's own central interval. A prompt
is one unit, however many answers it has (Lee, Barber, Willett 2023): its samples share the weight 1/(n + 1), and
1/(n + 1) lies at infinity for the prompt to come. The belief then covers a new prompt's answer with probability
`level` or more, up to the shift being taken from the same prompts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lengthwise.errors import InputError
from lengthwise.lengths import TIE_NU, student
from lengthwise.predictors.contract import LogTBeliefs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from lengthwise.predictors.contract import Beliefs, LengthPredictor, PredictionInput

    Floats = NDArray[np.float64]
    Mask = NDArray[np.bool_]

SHRINK: Final = 20.0
"""Prompts of its own at which an LLM's figures and the pooled ones count the same."""

_LEAST_SIGMA: Final = 0.02


@dataclass(frozen=True, slots=True)
class Adjustment:
    """Medians times exp(shift), spreads times factor; from how many prompts."""

    shift: float = 0.0
    factor: float = 1.0
    prompts: int = 0


@dataclass(frozen=True)
class Calibration:
    """Adjustments by LLM, and the pooled one for LLMs that are not in it."""

    pooled: Adjustment
    by_llm: Mapping[str, Adjustment]

    def apply(self, beliefs: Beliefs, llms: Sequence[str]) -> LogTBeliefs:
        """The calibrated beliefs; `llms` names the LLM of each."""
        found = [self.by_llm.get(llm, self.pooled) for llm in llms]
        return as_logt(beliefs).adjusted([each.shift for each in found], [each.factor for each in found])

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a model file."""
        return {"pooled": _plain(self.pooled), "by_llm": {llm: _plain(each) for llm, each in self.by_llm.items()}}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Calibration:
        """The inverse of `to_json`."""
        return cls(Adjustment(**state["pooled"]), {llm: Adjustment(**each) for llm, each in state["by_llm"].items()})


@dataclass(frozen=True)
class Calibrated:
    """A predictor whose beliefs have been calibrated."""

    predictor: LengthPredictor
    calibration: Calibration

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTBeliefs:
        """Return one belief for each input, in order."""
        return self.calibration.apply(self.predictor.predict(inputs), [each.llm for each in inputs])


def fit_calibration(
    beliefs: Beliefs,
    llms: Sequence[str],
    lengths: ArrayLike,
    present: ArrayLike | None = None,
    *,
    levels: Sequence[float] = (0.9,),
    shrink: float = SHRINK,
) -> Calibration:
    """Calibrate on held-out prompts: row i of `lengths` (n, k) are answers to the prompt of belief i.

    `present` masks the samples that count. A sample cut at the cap counts as it stands: it is inside an interval
    that reaches the cap. One level is met exactly; with several the factor is the geometric mean of theirs. An LLM
    with n prompts has n/(n + shrink) of its own figures, none where n is too few for the level (below 9 at 90 %).
    """
    logt = as_logt(beliefs)
    x, here = _samples(lengths, present, len(logt), len(llms))
    errors = np.log(np.maximum(x, 1.0)) - logt.mu[:, None]
    names = np.array(llms, dtype=object)
    pooled = _fit(errors, logt.sigma, here, logt.columns.nu, levels)
    if pooled is None:
        raise InputError(f"{len(logt)} prompts are too few to calibrate", hint="give at least 9 for 90 % intervals")
    by_llm = {}
    for llm in sorted(set(llms)):
        rows = names == llm
        own = _fit(errors[rows], logt.sigma[rows], here[rows], logt.columns.nu, levels)
        if own is not None:
            by_llm[llm] = _blend(own, pooled, own.prompts / (own.prompts + shrink))
    return Calibration(pooled, by_llm)


def coverage(beliefs: Beliefs, lengths: ArrayLike, level: float = 0.9, present: ArrayLike | None = None) -> float:
    """Share of single samples inside the central interval of their prompt's belief (DESIGN's coverage)."""
    x, here = _samples(lengths, present, len(beliefs), len(beliefs))
    low, high = beliefs.quantile((1 - level) / 2)[:, None], beliefs.quantile((1 + level) / 2)[:, None]
    return float(np.mean(((low <= x) & (x <= high))[here]))


def as_logt(beliefs: Beliefs) -> LogTBeliefs:
    """Log-t beliefs as they are; of any other the log-t with its median and quartiles."""
    if isinstance(beliefs, LogTBeliefs):
        return beliefs
    low, median, high = (np.log(np.maximum(beliefs.quantile(q), 1.0)) for q in (0.25, 0.5, 0.75))
    sigma = np.maximum((high - low) / (2 * student.isf(0.25, TIE_NU)), _LEAST_SIGMA)
    caps = [beliefs[i].cap for i in range(len(beliefs))]
    return LogTBeliefs.of(
        median, sigma, np.array(caps, np.float64), sample_mean=beliefs.sample_mean, sample_std=beliefs.sample_std
    )


def _samples(lengths: ArrayLike, present: ArrayLike | None, beliefs: int, llms: int) -> tuple[Floats, Mask]:
    x = np.asarray(lengths, np.float64)
    x = x[:, None] if x.ndim == 1 else x
    here = np.ones(x.shape, bool) if present is None else np.asarray(present, bool).reshape(x.shape)
    if not len(x) == beliefs == llms:
        raise InputError(f"{beliefs} beliefs, {llms} LLMs and {len(x)} rows of lengths", hint="give one of each")
    return x, here


def _fit(errors: Floats, sigma: Floats, present: Mask, nu: float, levels: Sequence[float]) -> Adjustment | None:
    """None where so few prompts cannot hold the level at all."""
    counts = present.sum(axis=1)
    prompts = int((counts > 0).sum())
    weights = np.where(present, 1.0 / np.maximum(counts, 1)[:, None], 0.0)[present]
    if not prompts:
        return None
    shift = _quantile(errors[present], weights, prompts / 2)
    scores = (np.abs(errors - shift) / sigma[:, None])[present]
    logs = []
    for level in levels:
        wanted = level * (prompts + 1)
        if wanted > prompts:
            return None
        logs.append(math.log(max(_quantile(scores, weights, wanted), 1e-6) / student.isf((1 - level) / 2, nu)))
    return Adjustment(shift, math.exp(sum(logs) / len(logs)), prompts)


def _quantile(values: Floats, weights: Floats, wanted: float) -> float:
    """The smallest value with at least `wanted` of the weight at or below it."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][min(int(np.searchsorted(reached, wanted - 1e-9)), len(values) - 1)])


def _blend(own: Adjustment, pooled: Adjustment, share: float) -> Adjustment:
    return Adjustment(
        share * own.shift + (1 - share) * pooled.shift,
        math.exp(share * math.log(own.factor) + (1 - share) * math.log(pooled.factor)),
        own.prompts,
    )


def _plain(adjustment: Adjustment) -> dict[str, Any]:
    return {"shift": adjustment.shift, "factor": adjustment.factor, "prompts": adjustment.prompts}
