"""How good predictions were in production: `lengthwise evaluate --from DIR`.

Three predictions of each request are scored on the same rows: the one served (the predictor with online calibration and
prefix memory), the predictor alone, and the history of the LLM's lengths at its arrival, which needs no predictor. An
answer cut by `max_tokens` has that length; one that its client or an error ended is not scored.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lengthwise.errors import InputError
from lengthwise.lengths import TIE_NU, log_t
from lengthwise.predictors.evaluation import CENTRAL
from lengthwise.traffic import scores
from lengthwise.traffic.reader import Floats, LoggedTraffic, Mask

SERVED: Final = "as served"
ALONE: Final = "predictor alone"
HISTORY: Final = "history"
GROUPS: Final = ("model", "tenant", "day", "predictor")
MAX_GROUPS: Final = 50
"""Groups of a kind that are scored, the largest; of days the last."""


@dataclass(frozen=True)
class TrafficScores:
    """Scores of one kind of prediction; NaN where a score is not defined."""

    requests: int
    tau: float
    """Kendall's tau-b of predicted median and length, within a model, averaged over models."""
    log_error: float
    """Median of |log(length / predicted median)|."""
    coverage_50: float
    coverage_90: float
    log_score: float
    """Mean log density (nats) of the log length; larger is better."""


@dataclass(frozen=True, eq=False)
class TrafficEvaluation:
    """The result; `predicted` and `true` are the points of the plot."""

    origin: str
    requests: int
    """Rows of the log."""
    scored: int
    first: float
    last: float
    """Times of the first and the last arrival, in seconds since 1970."""
    finish_reasons: Mapping[str, int]
    sources: Mapping[str, int]
    """Requests by the source of the prediction that ordered them."""
    overall: Mapping[str, TrafficScores]
    groups: Mapping[str, Mapping[str, Mapping[str, TrafficScores]]]
    """model, tenant, day or predictor -> its values -> kind of prediction -> scores."""
    calibration: Mapping[float, float]
    """Nominal share of a central interval -> share of lengths inside."""
    predicted: Floats
    true: Floats
    predictor: str = SERVED

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the points of the plot."""
        drawn = ("predicted", "true", "predictor")
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in drawn}


def scorable(traffic: LoggedTraffic) -> Mask:
    """Return which rows have a whole answer, or one cut by its limit."""
    broken_off = np.array([row.finish_reason is None for row in traffic.rows], bool)
    return np.asarray(traffic.known & ~(traffic.censored & broken_off), bool)


def evaluate_traffic(traffic: LoggedTraffic) -> TrafficEvaluation:
    """Score what was predicted for the requests of a log."""
    with_prediction = scorable(traffic) & np.isfinite(traffic.prediction[:, 0])
    rows = traffic.take(with_prediction)
    if not len(rows):
        raise InputError(
            f"none of {len(traffic):,} requests has a prediction and a length",
            source=traffic.origin,
            hint="serve with a predictor, and a policy that uses it",
        )
    kinds = {SERVED: rows.prediction, ALONE: rows.predicted, HISTORY: rows.history}
    by = {
        "model": rows.llm,
        "tenant": rows.tenant,
        "day": rows.days,
        "predictor": np.array([row.predictor for row in rows.rows], object),
    }
    served = rows.columns(rows.prediction)
    return TrafficEvaluation(
        origin=traffic.origin,
        requests=len(traffic),
        scored=len(rows),
        first=float(traffic.arrival_s[0]),
        last=float(traffic.arrival_s[-1]),
        finish_reasons=dict(Counter(row.finish_reason or row.outcome for row in traffic.rows).most_common()),
        sources=dict(Counter(str(row.source) for row in traffic.rows).most_common()),
        overall={name: score_rows(rows, each) for name, each in kinds.items()},
        groups={
            kind: {
                value: {
                    name: score_rows(rows.take(column == value), each[column == value]) for name, each in kinds.items()
                }
                for value in _values(column, by_size=kind != "day")
            }
            for kind, column in by.items()
        },
        calibration={
            share: scores.coverage(
                served.quantile((1 - share) / 2),
                served.quantile((1 + share) / 2),
                rows.output_tokens[:, None],
                np.ones((len(rows), 1), bool),
            )
            for share in CENTRAL
        },
        predicted=served.quantile(0.5),
        true=rows.output_tokens,
    )


def score_rows(rows: LoggedTraffic, prediction: Floats) -> TrafficScores:
    """Score predictions (n, 2) of scorable rows; rows without one are left out."""
    has = np.isfinite(prediction[:, 0])
    rows, prediction = rows.take(has), prediction[has]
    if not len(rows):
        return TrafficScores(0, *[math.nan] * 5)
    columns = rows.columns(prediction)
    median, all_present = columns.quantile(0.5), np.ones((len(rows), 1), bool)
    inside = [
        scores.coverage(columns.quantile(low), columns.quantile(1 - low), rows.output_tokens[:, None], all_present)
        for low in (0.25, 0.05)
    ]
    error = np.abs(np.log(rows.output_tokens / np.maximum(median, 1.0)))
    return TrafficScores(
        requests=len(rows),
        tau=scores.tau_within(rows.llm, median, rows.output_tokens),
        log_error=float(np.median(error)),
        coverage_50=inside[0],
        coverage_90=inside[1],
        log_score=float(log_scores(rows, prediction).mean()),
    )


def log_scores(rows: LoggedTraffic, prediction: Floats) -> Floats:
    """Return the log density of each log length, or the log survival where the answer was cut."""
    mu, sigma = prediction.T
    z = (np.log(rows.output_tokens) - mu) / sigma
    density = log_t.log_density(z, TIE_NU) - np.log(sigma)
    return np.where(rows.censored, np.log(special.stdtr(TIE_NU, -z)), density)


def _values(column: NDArray[np.object_], *, by_size: bool) -> list[str]:
    counts = Counter(column.tolist())
    if by_size:
        return [value for value, _ in counts.most_common(MAX_GROUPS)]
    return sorted(counts)[-MAX_GROUPS:]
