"""How good a shadow's beliefs were: tau, error and coverage, beside the LLM's history and its best constant."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from lengthwise.lengths import TIE_NU, student
from lengthwise.predictors.scores import mae, tau_within
from lengthwise.simulator import believe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lengthwise.experiments.shadow.traffic import ShadowTraffic
    from lengthwise.simulator import RequestBeliefs

_LEVELS: Final = (0.5, 0.9)


@dataclass(frozen=True)
class Accuracy:
    """How good beliefs were on answers that ended by themselves or, as their beliefs, at their max_tokens."""

    who: str
    answers: int
    tau: float
    """Kendall's tau-b of medians with true lengths, within one LLM, averaged; NaN for a constant."""
    mae: float
    covered_50: float
    covered_90: float


def score_beliefs(traffic: ShadowTraffic) -> tuple[Accuracy, ...]:
    """The predictor, the history of each LLM and, known afterwards, its best constant, on the same answers."""
    beliefs = traffic.beliefs
    scored = traffic.settled & traffic.predicted
    if not scored.any():
        return ()
    history = believe(traffic.workload, "history")
    return (
        _score(beliefs.predictor, beliefs, scored),
        _score("history of the LLM", history, scored),
        _constant(beliefs, scored),
    )


def _score(who: str, beliefs: RequestBeliefs, rows: NDArray[np.bool_]) -> Accuracy:
    mu, sigma, cap = beliefs.mu[rows], beliefs.sigma[rows], beliefs.cap[rows]
    true = beliefs.truth[rows]
    covered = []
    for level in _LEVELS:
        reach = student.isf((1 - level) / 2, TIE_NU) * sigma
        low, high = (np.minimum(np.exp(mu + side * reach), cap) for side in (-1, 1))
        covered.append(float(((low <= true) & (true <= high)).mean()))
    medians = np.minimum(np.exp(mu), cap)
    tau = tau_within(beliefs.llms[rows], medians, true)
    return Accuracy(who, int(rows.sum()), tau, mae(medians, true), *covered)


def _constant(beliefs: RequestBeliefs, rows: NDArray[np.bool_]) -> Accuracy:
    true, llms = beliefs.truth[rows], beliefs.llms[rows]
    medians, covered = np.empty(len(true)), np.empty((len(_LEVELS), len(true)))
    for llm in set(llms.tolist()):
        mine = llms == llm
        medians[mine] = np.median(true[mine])
        for row, level in enumerate(_LEVELS):
            low, high = np.quantile(true[mine], [(1 - level) / 2, (1 + level) / 2])
            covered[row, mine] = (low <= true[mine]) & (true[mine] <= high)
    shares = (float(each.mean()) for each in covered)
    return Accuracy("constant, known afterwards", len(true), math.nan, mae(medians, true), *shares)
