"""`predict_response_length`: the interface of the paper that predicts CASTILLO's lengths, with the same keys."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Final

from lengthwise.errors import InputError
from lengthwise.predictors.contract import LengthPredictor, PredictionInput
from lengthwise.predictors.resolve import best_packaged, resolve_predictor

BIN_WIDTH: Final = 200
"""Default width of a class in tokens: the middle of the paper's five."""

_P99: Final = 2.3263478740408408  # of a normal distribution


def predict_response_length(
    prompt: str,
    model: str,
    task: str = "regression",
    bin_width: int = BIN_WIDTH,
    predictor: str | LengthPredictor | None = None,
) -> dict[str, Any]:
    """Predict the length of the answer of the LLM `model` to a prompt; short names such as llama-3.2-3B resolve.

    `regression` returns `predicted_mean` and `predicted_std`, in tokens, of repeated answers to the prompt;
    `classification` what `p99_class` returns.
    `predictor` is a predictor object, a name or a model file; the default is the best packaged one.
    """
    if bin_width < 1:
        raise InputError(f"is {bin_width}", field="bin_width", hint="give at least 1 token")
    if isinstance(predictor, str) or predictor is None:
        predictor = _loaded(predictor or best_packaged())
    predictions = predictor.predict([PredictionInput(prompt, model)])
    mean, std = float(predictions.sample_mean[0]), float(predictions.sample_std[0])
    if not math.isfinite(mean + std):  # the predictor does not separate sampling from its uncertainty
        mean, std = predictions[0].mean(), predictions[0].std()
    if task == "regression":
        return {"predicted_mean": mean, "predicted_std": std}
    if task == "classification":
        return p99_class(mean, std, bin_width)
    raise InputError(f"'{task}' is no task", field="task", hint="regression or classification")


def p99_class(mean: float, std: float, bin_width: int = BIN_WIDTH) -> dict[str, Any]:
    """Return the class, from 0, of the P99 of a log-normal with this mean and std, and its range [first, end)."""
    spread = math.sqrt(math.log1p((std / mean) ** 2))
    p99 = math.exp(math.log(mean) - spread**2 / 2.0 + _P99 * spread)
    number = int(p99 // bin_width)
    return {"predicted_p99_class": number, "predicted_p99_range": (number * bin_width, (number + 1) * bin_width)}


@cache
def _loaded(name: str) -> LengthPredictor:
    return resolve_predictor(name)
