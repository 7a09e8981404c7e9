"""From a prompt and an LLM's name to a belief about the answer's length."""

from lengthwise.predictors.contract import Beliefs, BinBeliefs, LengthPredictor, LogTBeliefs, PredictionInput
from lengthwise.predictors.load import load_predictor
from lengthwise.predictors.paper_call import predict_response_length

__all__ = [
    "Beliefs",
    "BinBeliefs",
    "LengthPredictor",
    "LogTBeliefs",
    "PredictionInput",
    "load_predictor",
    "predict_response_length",
]
