"""How good a shadow's predictions were: tau, error and coverage, beside the LLM's history and its best constant."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.lengths import TIE_NU, student
from lengthwise.predictors.scores import mae, tau_within
from lengthwise.simulator import RequestPredictions, predict_workload

if TYPE_CHECKING:
    from lengthwise.bench.shadow.traffic import ShadowTraffic

_LEVELS: Final = (0.5, 0.9)


@dataclass(frozen=True)
class Accuracy:
    """How good predictions were on answers that ended by themselves or, as their predictions, at their max_tokens."""

    who: str
    answers: int
    tau: float
    """Kendall's tau-b of medians with true lengths, within one LLM, averaged; NaN for a constant."""
    mae: float
    covered_50: float
    covered_90: float


def score_predictions(traffic: ShadowTraffic) -> tuple[Accuracy, ...]:
    """The predictor, the history of each LLM and, known afterwards, its best constant, on the same answers."""
    predictions = traffic.predictions
    scored = traffic.settled & traffic.predicted
    if not scored.any():
        return ()
    history = predict_workload(traffic.workload, "history")
    return (
        _score(predictions.predictor, predictions, scored),
        _score("history of the LLM", history, scored),
        _constant(predictions, scored),
    )


def _score(who: str, predictions: RequestPredictions, rows: NDArray[np.bool_]) -> Accuracy:
    mu, sigma, cap = predictions.mu[rows], predictions.sigma[rows], predictions.cap[rows]
    true = predictions.truth[rows]
    covered = []
    for level in _LEVELS:
        reach = student.isf((1 - level) / 2, TIE_NU) * sigma
        low, high = (np.minimum(np.exp(mu + side * reach), cap) for side in (-1, 1))
        covered.append(float(((low <= true) & (true <= high)).mean()))
    medians = np.minimum(np.exp(mu), cap)
    tau = tau_within(predictions.llms[rows], medians, true)
    return Accuracy(who, int(rows.sum()), tau, mae(medians, true), *covered)


def _constant(predictions: RequestPredictions, rows: NDArray[np.bool_]) -> Accuracy:
    true, llms = predictions.truth[rows], predictions.llms[rows]
    medians, covered = np.empty(len(true)), np.empty((len(_LEVELS), len(true)))
    for llm in set(llms.tolist()):
        mine = llms == llm
        medians[mine] = np.median(true[mine])
        for row, level in enumerate(_LEVELS):
            low, high = np.quantile(true[mine], [(1 - level) / 2, (1 + level) / 2])
            covered[row, mine] = (low <= true[mine]) & (true[mine] <= high)
    shares = (float(each.mean()) for each in covered)
    return Accuracy("constant, known afterwards", len(true), math.nan, mae(medians, true), *shares)
