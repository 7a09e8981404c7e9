"""Calibration: intervals with the nominal coverage, from held-out prompts (split conformal).

On held-out prompts, with d = log(length) - mu of the prediction:

    shift  = median of d
    factor = geometric mean (or, to be cautious, the largest) over the levels of Q(|d - shift| / sigma) / t(level)

where Q is the conformal quantile at a level and t(level) the half-width of the central interval of the log-t. A prompt
is one unit, however many answers it has (Lee, Barber, Willett 2023): its samples share the weight 1/(n + 1), and
1/(n + 1) lies at infinity for the next prompt. With one level, the prediction then covers a new prompt's answer with at
least that probability, except that the shift is taken from the same prompts. The weight of a censored answer moves to
the larger errors (Efron's redistribution to the right, which gives the Kaplan-Meier estimate).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import TIE_NU, log_t
from lengthwise.predictors.contract import LogTPredictions, Predictions, as_logt

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

LEVELS: Final = (0.5, 0.9)
"""Central intervals whose coverage is calibrated."""
MIN_LENGTHS: Final = 20
"""Lengths of an LLM, or of a tenant, below which nothing is fitted to it alone."""
_SHRINK: Final = 20.0  # prompts at which the estimate of an LLM and the pooled one have equal weight


@dataclass(frozen=True, slots=True)
class Adjustment:
    """Medians times exp(shift), spreads times factor; from how many prompts."""

    shift: float = 0.0
    factor: float = 1.0
    prompts: int = 0


def adjusted(predictions: LogTPredictions, adjustments: Sequence[Adjustment]) -> LogTPredictions:
    """Return the predictions with one adjustment each; mean and std of repeated answers move with the median."""
    shift, factor = np.array([(each.shift, each.factor) for each in adjustments]).reshape(-1, 2).T
    return replace(
        predictions,
        mu=predictions.mu + shift,
        sigma=predictions.sigma * factor,
        sample_mean=predictions.sample_mean * np.exp(shift),
        sample_std=predictions.sample_std * np.exp(shift),
    )


@dataclass(frozen=True)
class Calibration:
    """Adjustments by LLM, that of `others` for LLMs not among them, and the nu of all predictions."""

    others: Adjustment = Adjustment()
    by_llm: Mapping[str, Adjustment] = field(default_factory=dict)
    nu: float = TIE_NU

    def columns(self, llms: Sequence[str]) -> tuple[Floats, Floats]:
        """Return shift and factor for each of these LLMs."""
        found = [self.by_llm.get(llm, self.others) for llm in llms]
        return np.array([each.shift for each in found]), np.array([each.factor for each in found])

    def apply(self, predictions: Predictions, llms: Sequence[str]) -> LogTPredictions:
        """Return the calibrated predictions; `llms` names the LLM of each."""
        logt, (shift, factor) = as_logt(predictions), self.columns(llms)
        return replace(logt, mu=logt.mu + shift, sigma=logt.sigma * factor, nu=self.nu)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, for a model file."""
        by_llm = {llm: asdict(each) for llm, each in self.by_llm.items()}
        return {"others": asdict(self.others), "by_llm": by_llm, "nu": self.nu}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Calibration:
        """The inverse of `to_json`."""
        by_llm = {str(llm): Adjustment(**each) for llm, each in state["by_llm"].items()}
        return cls(Adjustment(**state["others"]), by_llm, float(state["nu"]))


def fit_calibration(
    predictions: Predictions,
    llms: Sequence[str],
    lengths: ArrayLike,
    present: ArrayLike | None = None,
    *,
    censored: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    levels: Sequence[float] = LEVELS,
    cautious: bool = False,
) -> Calibration:
    """Calibrate on held-out prompts: row i of `lengths` (n, k) are answers to the prompt of prediction i.

    `present` masks the samples that count, `censored` those that were cut off and are lower bounds. `weights` is the
    weight of each row within its LLM. `cautious` takes the largest factor over the levels instead of the mean:
    traffic is less like the training data than held-out prompts are. An LLM with n prompts has n/(n + 20) of its
    own estimate, none where n is too small for a level (below 9 at 90 %).
    """
    logt = as_logt(predictions)
    rows = _Rows.of(logt, len(llms), lengths, present, censored, weights)
    names = np.array(llms, dtype=object)
    pooled = rows.spread(levels)
    if pooled is None:
        if rows.prompts < (least := rows.least(levels)):
            raise InputError(f"{rows.prompts} prompts are too few to calibrate", hint=f"give at least {least}")
        cut, answers = int((rows.censored & rows.present).sum()), int(rows.present.sum())
        problem = f"{cut} of {answers} answers are cut off, too many to calibrate"
        raise InputError(problem, hint="give lengths with a larger max_tokens")
    own = {llm: rows.take(names == llm).spread(levels) for llm in sorted(set(llms))}
    known = {llm: each for llm, each in own.items() if each is not None}
    nu = logt.nu
    others = pooled.adjustment(nu, cautious)
    by_llm = {llm: _blend(each.adjustment(nu, cautious), others) for llm, each in known.items()}
    return Calibration(others, by_llm, nu)


@dataclass(frozen=True)
class _Spread:
    """The median error, and for each level the half-width around it that holds that share, in sigmas."""

    shift: float
    reach: Mapping[float, float]
    prompts: int

    def adjustment(self, nu: float, cautious: bool) -> Adjustment:
        logs = [math.log(max(q, 1e-6) / log_t.isf((1 - level) / 2, nu)) for level, q in self.reach.items()]
        return Adjustment(self.shift, math.exp(max(logs) if cautious else sum(logs) / len(logs)), self.prompts)


@dataclass(frozen=True, eq=False)
class _Rows:
    errors: Floats
    sigma: Floats
    present: Mask
    censored: Mask
    weight: Floats

    @classmethod
    def of(
        cls,
        logt: LogTPredictions,
        llms: int,
        lengths: ArrayLike,
        present: ArrayLike | None,
        censored: ArrayLike | None,
        weights: ArrayLike | None,
    ) -> _Rows:
        x = np.asarray(lengths, np.float64)
        x = x[:, None] if x.ndim == 1 else x
        if not len(x) == len(logt) == llms:
            raise InputError(
                f"{len(logt)} predictions, {llms} LLMs and {len(x)} rows of lengths", hint="give one of each"
            )
        here = np.ones(x.shape, bool) if present is None else np.asarray(present, bool).reshape(x.shape)
        cut = np.zeros(x.shape, bool) if censored is None else np.asarray(censored, bool).reshape(x.shape)
        weight = np.ones(len(x)) if weights is None else np.asarray(weights, np.float64)
        return cls(np.log(np.maximum(x, 1.0)) - logt.mu[:, None], logt.sigma, here, cut, weight)

    def take(self, rows: Mask) -> _Rows:
        return _Rows(self.errors[rows], self.sigma[rows], self.present[rows], self.censored[rows], self.weight[rows])

    @property
    def prompts(self) -> int:
        """Prompts with an answer."""
        return int(self.present.any(axis=1).sum())

    @staticmethod
    def least(levels: Sequence[float]) -> int:
        """Return the fewest prompts for these levels: n with level * (n + 1) <= n, 9 at 90 %."""
        highest = max(levels)
        return max(1, math.ceil(highest / (1 - highest) - 1e-9))

    def spread(self, levels: Sequence[float]) -> _Spread | None:
        """Return None if there are too few prompts; levels beyond all uncensored answers are left out."""
        counts, prompts = self.present.sum(axis=1), self.prompts
        if prompts < self.least(levels):
            return None
        by_prompt = np.where(counts > 0, self.weight, 0.0)
        by_prompt *= prompts / by_prompt.sum()
        weights = np.broadcast_to((by_prompt / np.maximum(counts, 1))[:, None], self.present.shape)[self.present]
        cut = self.censored[self.present]
        errors = self.errors[self.present]
        shift = _quantile(errors, _to_the_right(errors, weights, cut), prompts / 2)
        if not math.isfinite(shift):
            return None
        scores = ((self.errors - shift) / self.sigma[:, None])[self.present]
        weights = _to_the_right(scores, weights, cut)
        reach = {level: _quantile(np.abs(scores), weights, level * (prompts + 1)) for level in levels}
        held = {level: q for level, q in reach.items() if math.isfinite(q)}
        return _Spread(shift, held, prompts) if held else None


def _to_the_right(values: Floats, weights: Floats, censored: Mask) -> Floats:
    """Return the weights after the weight of each censored value has moved to the larger values."""
    if not censored.any():
        return weights
    order = np.lexsort((censored, values))  # of equal values the censored one is the larger
    ordered, ended = weights[order], ~censored[order]
    at_risk = np.cumsum(ordered[::-1])[::-1]
    falls = np.where(ended, ordered / at_risk, 0.0)
    before = np.concatenate([[1.0], np.cumprod(1.0 - falls)[:-1]])
    out = np.empty(len(values))
    out[order] = weights.sum() * before * falls
    return out


def _quantile(values: Floats, weights: Floats, wanted: float) -> float:
    """The smallest value with at least `wanted` of the weight at or below it; infinity if there is none."""
    order = np.argsort(values, kind="stable")
    place = int(np.searchsorted(np.cumsum(weights[order]), wanted - 1e-9))
    return float(values[order][place]) if place < len(values) else math.inf


def _blend(own: Adjustment, others: Adjustment) -> Adjustment:
    share = own.prompts / (own.prompts + _SHRINK)
    return Adjustment(
        share * own.shift + (1 - share) * others.shift,
        math.exp(share * math.log(own.factor) + (1 - share) * math.log(others.factor)),
        own.prompts,
    )
