"""Predictions about many rows as arrays: what every figure about a predictor is computed from."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy import special

from lengthwise.errors import InputError
from lengthwise.predictors.baselines import CAP, RowPredictor, column
from lengthwise.predictors.contract import HistogramPredictions, LogTPredictions, PredictionInput
from lengthwise.predictors.scores import CRPS_LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from lengthwise.predictors.contract import LengthPredictor, Predictions
    from lengthwise.workloads import LengthSamples

    Floats = NDArray[np.float64]
    Rows = NDArray[np.intp]

CENTRAL: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Nominal shares of the central intervals a calibration curve shows."""


@dataclass(frozen=True, eq=False)
class Forecast:
    """Predictions as the arrays that figures are computed from, one row each."""

    median: Floats
    point: Floats
    std: Floats
    quantiles: Floats
    low: Floats
    high: Floats
    at_edges: Floats
    """P(length < edge), a column for each edge of any class."""

    @classmethod
    def of(cls, predictions: Predictions, edges: Floats) -> Forecast:
        """Ask the predictions everything at once."""
        levels = [0.5, *CRPS_LEVELS, *((1 - c) / 2 for c in CENTRAL), *((1 + c) / 2 for c in CENTRAL)]
        table = _quantiles(predictions, levels)
        first, low = 1 + len(CRPS_LEVELS), 1 + len(CRPS_LEVELS) + len(CENTRAL)
        told = np.isfinite(predictions.sample_mean)
        return cls(
            median=table[:, 0],
            point=np.where(told, predictions.sample_mean, table[:, 0]),
            std=predictions.sample_std,
            quantiles=table[:, 1:first],
            low=table[:, first:low],
            high=table[:, low:],
            at_edges=_below(predictions, edges),
        )

    @classmethod
    def joined(cls, parts: Sequence[Forecast], order: Rows) -> Forecast:
        """Put batches together, their rows back at `order`'s places."""
        back = np.argsort(order)
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts])[back] for f in fields(cls)))


def forecast(
    predictor: LengthPredictor | RowPredictor,
    samples: LengthSamples,
    *,
    edges: Floats | None = None,
    max_tokens: int = CAP,
    batch: int = 256,
    progress: Callable[[float], None] | None = None,
) -> Forecast:
    """Ask the predictor about every row, in batches of texts of about the same length (less to pad)."""
    edges = np.empty(0) if edges is None else edges
    if isinstance(predictor, RowPredictor):
        return Forecast.of(predictor.predict_rows(samples, max_tokens), edges)
    inputs = prediction_inputs(samples, max_tokens)
    order = np.argsort([len(each.text) for each in inputs], kind="stable")
    parts = []
    for start in range(0, len(order), batch):
        parts.append(Forecast.of(predictor.predict([inputs[i] for i in order[start : start + batch]]), edges))
        if progress is not None:
            progress(min(1.0, (start + batch) / len(order)))
    return Forecast.joined(parts, order)


def prediction_inputs(samples: LengthSamples, max_tokens: int | None = CAP) -> list[PredictionInput]:
    """Each row as what a predictor is asked."""
    texts, llms = column(samples, "prompt"), column(samples, "llm")
    if not len(samples):
        raise InputError("holds no rows to predict", source=samples.origin)
    if any(text is None for text in texts):
        raise InputError(
            "a row has no prompt", source=samples.origin, field="prompt", hint="give texts to predict from"
        )
    tokens = samples.table["input_tokens"].to_pylist()
    return [
        PredictionInput(text, llm, max_tokens, prompt_tokens)
        for text, llm, prompt_tokens in zip(texts, llms, tokens, strict=True)
    ]


def _quantiles(predictions: Predictions, levels: Sequence[float]) -> Floats:
    """(rows, levels). A prediction in bins is built once for all its levels, not once for each."""
    if isinstance(predictions, HistogramPredictions):
        rows = [
            [prediction.quantile(level) for level in levels]
            for prediction in (predictions[i] for i in range(len(predictions)))
        ]
        return np.array(rows, np.float64).reshape(len(predictions), len(levels))
    return np.stack([predictions.quantile(level) for level in levels], axis=1)


def _below(predictions: Predictions, edges: Floats) -> Floats:
    """P(length < edge), (rows, edges); the mass on a cap counts as just below it, which no row ever asks apart."""
    if isinstance(predictions, LogTPredictions):
        columns = predictions.columns
        t = (np.log(np.maximum(edges, 1e-9))[None, :] - columns.mu[:, None]) / columns.sigma[:, None]
        return np.where(edges[None, :] >= columns.cap[:, None], 1.0, special.stdtr(columns.nu, t))
    rows = [
        [1.0 - prediction.survival(edge) for edge in edges]
        for prediction in (predictions[i] for i in range(len(predictions)))
    ]
    return np.array(rows, np.float64).reshape(len(predictions), len(edges))
