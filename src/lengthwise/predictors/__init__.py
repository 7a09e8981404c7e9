"""Predictors: a prompt and an LLM's name in, a distribution of the answer's length out. Serving only, no torch.

What needs ONNX Runtime, tokenizers or pyarrow is imported when it is used; training is in `lengthwise.training`.
"""

from lengthwise.predictors.contract import (
    HistogramPredictions,
    LengthPredictor,
    LogTPredictions,
    PredictionInput,
    Predictions,
)
from lengthwise.predictors.prediction import Prediction, predict
from lengthwise.predictors.resolve import load_predictor

__all__ = [
    "HistogramPredictions",
    "LengthPredictor",
    "LogTPredictions",
    "Prediction",
    "PredictionInput",
    "Predictions",
    "load_predictor",
    "predict",
]
