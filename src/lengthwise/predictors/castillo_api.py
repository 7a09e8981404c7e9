"""`predict_response_length`: the interface of the paper that predicts CASTILLO's lengths, with the same keys."""

from __future__ import annotations

import math
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.predictors.contract import LengthPredictor, PredictionInput, Predictions
from lengthwise.predictors.prediction import P99, loaded_once
from lengthwise.predictors.resolve import best_packaged

BIN_WIDTH: Final = 200
"""Default width of a class in tokens: the middle of the paper's five."""

STDS_TO_P99: Final = 1.6
"""The 0.99 quantile of ten normal lengths is on average this many of their standard deviations above their mean."""
FloatOrArray = TypeVar("FloatOrArray", float, NDArray[np.float64])


def predict_response_length(
    prompt: str,
    model: str,
    task: str = "regression",
    bin_width: int = BIN_WIDTH,
    predictor: str | LengthPredictor | None = None,
) -> dict[str, Any]:
    """Predict the length of the answer of the LLM `model` to a prompt; short names such as llama-3.2-3B resolve.

    `regression` returns `predicted_mean` and `predicted_std`, in tokens, of repeated answers to the prompt;
    `classification` `predicted_p99_class`, the class of the P99 of ten answers to it, and `predicted_p99_range`.
    `predictor` is a predictor object, a name or a model file; the default is the best packaged one.
    """
    if bin_width < 1:
        raise InputError(f"is {bin_width}", field="bin_width", hint="give at least 1 token")
    if isinstance(predictor, str) or predictor is None:
        predictor = loaded_once(predictor or best_packaged())
    predictions = predictor.predict([PredictionInput(prompt, model)])
    if task == "regression":
        mean, std = repeated_answers(predictions)
        return {"predicted_mean": mean, "predicted_std": std}
    if task == "classification":
        return p99_class(float(repeated_p99(predictions)[0]), bin_width)
    raise InputError(f"'{task}' is no task", field="task", hint="regression or classification")


def repeated_answers(predictions: Predictions) -> tuple[float, float]:
    """Return mean and std of repeated answers to the first prompt; those of the prediction where they are unknown."""
    mean, std = float(predictions.sample_mean[0]), float(predictions.sample_std[0])
    return (mean, std) if math.isfinite(mean + std) else (predictions[0].mean(), predictions[0].std())


def repeated_p99(predictions: Predictions) -> NDArray[np.float64]:
    """Return the P99 of ten answers to each prompt; that of the prediction for one answer where they are unknown."""
    known = np.isfinite(predictions.sample_mean + predictions.sample_std)
    return np.where(known, p99_of_ten(predictions.sample_mean, predictions.sample_std), predictions.quantile(P99))


def p99_of_ten(mean: FloatOrArray, std: FloatOrArray) -> FloatOrArray:
    """Return the P99 of ten answers with this mean and std, as CASTILLO has it: nearly the longest of them."""
    return mean + STDS_TO_P99 * std


def p99_class(p99: float, bin_width: int = BIN_WIDTH) -> dict[str, Any]:
    """Return the class, from 0, of a P99 in tokens, and the range of the class [first, end)."""
    number = int(p99 // bin_width)
    return {"predicted_p99_class": number, "predicted_p99_range": (number * bin_width, (number + 1) * bin_width)}
