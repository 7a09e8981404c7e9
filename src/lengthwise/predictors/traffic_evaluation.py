"""How good predictions were in production: `lengthwise evaluate --from DIR`.

Three predictions of each request are scored on the same rows: the one served (with what was learned until then), the
predictor alone, and the history of the LLM's lengths at its arrival, which needs no predictor. An answer cut by
`max_tokens` has that length; one that its client or an error ended is not scored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.traffic.reader import Floats, LoggedTraffic, Mask, column
from lengthwise.traffic.scores import Forecast, PredictionScores, calibration, score_predictions

SERVED: Final = "as served"
ALONE: Final = "predictor alone"
HISTORY: Final = "history"
GROUPS: Final = ("model", "tenant", "day", "predictor")
MAX_WINDOWS: Final = 20
MIN_WINDOW: Final = 100
"""Answers of a window, at least; tau of fewer says little."""
MAX_GROUPS: Final = 50
"""Groups of a kind that are scored, the largest; of days the last."""


@dataclass(frozen=True, eq=False)
class Window:
    """Answers in a row, in the order in which they ended: how predictions change while a gateway learns."""

    first: int
    """The number of its first answer, from 1 on."""
    last: int
    until: float
    """When its last answer ended, in seconds since 1970."""
    scores: Mapping[str, PredictionScores]
    """By kind of prediction."""


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
    overall: Mapping[str, PredictionScores]
    groups: Mapping[str, Mapping[str, Mapping[str, PredictionScores]]]
    """model, tenant, day or predictor -> its values -> kind of prediction -> scores."""
    windows: tuple[Window, ...]
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
    served = Forecast.of(rows.columns(rows.prediction), crps=False)
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
        windows=_windows(rows, kinds),
        calibration=calibration(served, rows.output_tokens),
        predicted=served.median,
        true=rows.output_tokens,
    )


def _windows(rows: LoggedTraffic, kinds: Mapping[str, Floats]) -> tuple[Window, ...]:
    """Return windows of equally many answers, of 100 or more, at most 20."""
    logged = column(rows.rows, "finished_s")
    ended = np.where(np.isnan(logged), rows.arrival_s, logged)
    order = np.argsort(ended, kind="stable")
    count = max(1, min(MAX_WINDOWS, len(order) // MIN_WINDOW))
    found, last = [], 0
    for part in np.array_split(order, count):
        first, last = last + 1, last + len(part)
        window = rows.take(part)
        scores = {name: score_rows(window, each[part]) for name, each in kinds.items()}
        found.append(Window(first, last, float(ended[part[-1]]), scores))
    return tuple(found)


def score_rows(rows: LoggedTraffic, prediction: Floats) -> PredictionScores:
    """Score predictions (n, 2) of scorable rows; rows without one are left out."""
    has = np.isfinite(prediction[:, 0])
    rows = rows.take(has)
    forecast = Forecast.of(rows.columns(prediction[has]), crps=False)
    return score_predictions(forecast, rows.output_tokens, censored=rows.censored, llms=rows.llm)


def _values(column: NDArray[np.object_], *, by_size: bool) -> list[str]:
    counts = Counter(column.tolist())
    if by_size:
        return [value for value, _ in counts.most_common(MAX_GROUPS)]
    return sorted(counts)[-MAX_GROUPS:]
