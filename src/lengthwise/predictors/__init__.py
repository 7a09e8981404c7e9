"""From a prompt and an LLM's name to a prediction about the answer's length."""

from lengthwise.predictors.castillo_api import predict_response_length
from lengthwise.predictors.contract import (
    HistogramPredictions,
    LengthPredictor,
    LogTPredictions,
    PredictionInput,
    Predictions,
)
from lengthwise.predictors.resolve import load_predictor

__all__ = [
    "HistogramPredictions",
    "LengthPredictor",
    "LogTPredictions",
    "PredictionInput",
    "Predictions",
    "load_predictor",
    "predict_response_length",
]
